"""How rows of results and ledger become one table, and where the two disagree."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.errors import Disagreement
from harness.results.columns import Row, differences, row
from harness.sweep.plan import Plan

if TYPE_CHECKING:
    from harness.sweep.ledger import Standing


def merged(
    plan: Plan, on_file: Mapping[str, Row], standing: "Standing", prefer: str | None
) -> dict[str, Row]:
    """Rows of results and ledger together; a crash never replaces a result."""
    rows = {key: r for key, r in on_file.items() if r["outcome"] != "crashed"}
    found = disagreeing(plan, rows, standing)
    if found and not prefer:
        key, mine = next(iter(found.items()))
        name, (there, here) = next(iter(differences(rows[key], mine).items()))
        raise Disagreement(
            f"{plan.name}: run {key}: {name} is {there} in {plan.file} and {here} in the ledger; "
            "say --prefer results or --prefer ledger"
        )
    if prefer == "ledger":
        rows |= found
    records = {key: attempt["record"] for key, attempt in standing.accepted.items()}
    for key, record in {**standing.crashed, **records}.items():
        if key in plan.by_key and key not in rows:
            rows[key] = row(plan, plan.by_key[key], record)
    return rows


def disagreeing(plan: Plan, on_file: Mapping[str, Row], standing: "Standing") -> dict[str, Row]:
    """The ledger's rows of cells that results and ledger both have, and that differ, unsettled."""
    both = (standing.accepted.keys() & on_file.keys() & plan.by_key.keys()) - standing.settled
    ours = {key: row(plan, plan.by_key[key], standing.accepted[key]["record"]) for key in both}
    return {key: mine for key, mine in ours.items() if differences(on_file[key], mine)}
