"""A study's results on file: which rows count, which leave, and what is said of the others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import MissingRuns
from harness.results import rows
from harness.results.columns import row
from harness.results.store import Results
from harness.schemes import all_schemes
from harness.sweep.plan import Plan
from harness.sweep.study import load
from harness.training.config import PROTOCOL
from harness.training.curves import Curves

STUDY = '''"""Is half enough?"""
from harness.schemes import Place, Wiring, on, scheme
from harness.sweep import Study

@scheme("mine")
def halved(at: Place) -> Wiring:
    """LN(x + F(x) / 2)"""
    return Wiring(norms=on("sum"), branch={branch})

STUDY = Study(
    base="smoke.toml",
    axes={{"scheme": ["halved", "post_norm"], "model.depth": {depths}, "seed": [0]}},
    tune={tune},
)
'''
RECORD = {"outcome": "trained", "final_loss": 2.0, "data_sha": "a" * 12}
Write = Callable[..., Plan]


@pytest.fixture
def plan(tmp_path: Path) -> Write:
    """The study's plan as its file is written now."""

    def write(
        branch: float = 0.5, depths: str = "[1, 2]", tune: str = "None", **words: Any
    ) -> Plan:
        all_schemes().pop("halved", None)
        text = STUDY.format(branch=branch, depths=depths, tune=tune)
        (tmp_path / "mine.py").write_text(text)
        return load(str(tmp_path / "mine.py"), **words)

    return write


def measured(plan: Plan, **changes: Any) -> dict[str, dict[str, str]]:
    return {cell.key: row(plan, cell, {**RECORD, **changes}) for cell in plan.cells}


def test_a_row_of_another_definition_does_not_count_until_it_is_restored(
    plan: Write, tmp_path: Path
) -> None:
    first = plan(0.5)
    Results(tmp_path, first).write(measured(first))
    before = (tmp_path / "mine/runs.csv").read_bytes()

    edited = Results(tmp_path, plan(5.0))
    assert {r["scheme"] for r in edited.rows().values()} == {"post_norm"}
    (said,) = edited.outdated()
    assert said == (
        f"{tmp_path}/mine/runs.csv: 2 runs were made with another definition of scheme 'halved' "
        f"and do not count; measure them anew with 'harness run {tmp_path}/mine.py', or restore "
        "the definition"
    )
    assert edited.write({}) == 0
    assert (tmp_path / "mine/runs.csv").read_bytes() == before  # not replaced yet, so not gone

    again = plan(5.0)
    edited.write(
        {k: r for k, r in measured(again, final_loss=3.0).items() if r["scheme"] == "halved"}
    )
    found = Results(tmp_path, again)
    losses = {r["scheme"]: r["final_loss"] for r in found.rows().values()}
    assert losses == {"halved": "3", "post_norm": "2"} and found.outdated() == []

    restored = Results(tmp_path, plan(0.5))
    restored.write(restored.rows())
    assert {r["final_loss"] for r in restored.rows().values()} == {"2"}
    assert (tmp_path / "mine/runs.csv").read_bytes() == before


def test_a_table_has_no_curves_of_another_definition(plan: Write, tmp_path: Path) -> None:
    for branch, loss in ((0.5, 2.0), (5.0, 3.0)):
        results = Results(tmp_path, plan(branch))
        results.write(measured(results.plan, final_loss=loss))
        curves = Curves()
        curves.add("loss/valid", 3, loss)
        results.write_curves(dict.fromkeys(results.rows(), curves))
        assert set(results.table().curves["value"]) == {loss}
    restored = Results(tmp_path, plan(0.5)).table()
    losses = restored.runs.set_index("run_id")["final_loss"]
    assert sorted(losses) == [2.0, 2.0, 3.0, 3.0]  # post_norm's are newer
    assert set(restored.curves["run_id"]) == set(losses[losses == 3.0].index)


@pytest.mark.parametrize("outcome", ["trained", "diverged"])
def test_a_column_that_rows_no_longer_have_is_ignored_and_goes(
    outcome: str, plan: Write, tmp_path: Path
) -> None:
    tuned = Results(tmp_path, plan(tune='{"optim.lr": [1e-3], "seeds": [8]}')).tuning
    assert tuned
    loss = {"final_loss": None if outcome == "diverged" else 2.0, "baseline_loss": 3.0}
    tuned.write(measured(tuned.plan, outcome=outcome, last_loss=2.5, **loss))  # an old ledger's
    path = tmp_path / "mine/tuning.csv"
    plain = path.read_text()
    assert "last_loss" not in plain
    old = [f"{line},{'last_loss' if i == 0 else 2.5}" for i, line in enumerate(plain.splitlines())]
    path.write_text("\n".join([*old, ""]))
    again = Results(tmp_path, plan(tune='{"optim.lr": [1e-3], "seeds": [8]}'))
    assert again.tuning and len(again.tuning.rows()) == 4 and not again.plan.waiting
    again.tuning.write(again.tuning.rows())
    assert path.read_text() == plain


def test_nothing_but_rows_of_another_definition_is_no_table(plan: Write, tmp_path: Path) -> None:
    first = plan(0.5)
    only = replace(first, cells=tuple(c for c in first.cells if c.config.scheme == "halved"))
    Results(tmp_path, only).write(measured(only))
    with pytest.raises(MissingRuns, match="another definition of scheme 'halved'"):
        Results(tmp_path, plan(5.0)).table()


def test_a_tuning_of_another_definition_chooses_nothing(plan: Write, tmp_path: Path) -> None:
    tune = '{"optim.lr": [1e-3, 3e-3], "seeds": [8]}'
    first = plan(0.5, tune=tune)
    assert first.tuning
    Results(tmp_path, first).tuning.write(measured(first.tuning))  # type: ignore[union-attr]
    assert len(Results(tmp_path, first).plan.cells) == 4
    found = Results(tmp_path, plan(5.0, tune=tune))
    assert {c.config.scheme for c in found.plan.waiting} == {"halved"}
    assert [line.split(": ")[0] for line in found.outdated()] == [f"{tmp_path}/mine/tuning.csv"]


def test_a_row_from_before_there_were_digests_counts_and_gets_todays(
    plan: Write, tmp_path: Path
) -> None:
    first = plan()
    results = Results(tmp_path, first)
    results.write(measured(first))
    path = tmp_path / "mine/runs.csv"
    whole = path.read_text()
    digests = {cell.config.wiring_sha for cell in first.cells}
    old = whole.replace("wiring_sha,", "")
    for digest in digests:
        old = old.replace(f",{digest}", "")
    path.write_text(old)
    assert Results(tmp_path, first).rows() == results.rows()
    assert Results(tmp_path, first).write({}) == 0
    assert path.read_text() == whole
    assert not (tmp_path / "mine/retired.csv").exists()


def test_a_row_of_another_corpus_is_named_with_both_hashes(plan: Write, tmp_path: Path) -> None:
    first = plan()
    results = Results(tmp_path, first)
    results.write(measured(first))
    at_hand = {cell.key: {"data_sha": "b" * 12} for cell in first.cells}
    assert results.rows(at_hand) == {}
    (said,) = results.outdated(at_hand)
    assert (
        "4 runs were made on another corpus (data_sha aaaaaaaaaaaa, at hand bbbbbbbbbbbb)" in said
    )
    assert said.endswith("or name the folder of the corpus with --data")


def test_rows_leave_only_when_the_file_no_longer_has_their_values(
    plan: Write, tmp_path: Path
) -> None:
    whole = plan()
    Results(tmp_path, whole).write(measured(whole))
    before = (tmp_path / "mine/runs.csv").read_bytes()
    for words in ({"sets": ["model.depth=1"]}, {"only": ["model.depth=1"]}):
        selected = Results(tmp_path, plan(**words))
        assert selected.write(selected.rows()) == 0
        assert (tmp_path / "mine/runs.csv").read_bytes() == before
        assert len(selected.table().runs) == 2 and len(selected.table().missing) == 0
    shrunk = Results(tmp_path, plan(depths="[1]"))
    assert shrunk.write({}) == 2
    assert shrunk.write({}) == 0
    assert (len(shrunk.rows()), shrunk.retired()) == (2, 2)
    grown = Results(tmp_path, plan())
    grown.write(grown.rows())
    assert (tmp_path / "mine/runs.csv").read_bytes() == before


def test_rows_of_points_that_are_tuned_anew_stay(plan: Write, tmp_path: Path) -> None:
    two, three = ('{"optim.lr": [1e-3, 3e-3%s], "seeds": [8]}' % more for more in ("", ", 1e-2"))
    first = Results(tmp_path, plan(tune=two))
    assert first.tuning
    first.tuning.write(measured(first.tuning.plan))
    first = Results(tmp_path, plan(tune=two))
    first.write(measured(first.plan))
    before = (tmp_path / "mine/runs.csv").read_text()
    waiting = Results(tmp_path, plan(tune=three))
    assert (waiting.plan.cells, len(waiting.plan.waiting)) == ((), 4)
    assert waiting.write({}) == 0
    assert sorted((tmp_path / "mine/runs.csv").read_text().splitlines()) == sorted(
        before.splitlines()
    )
    assert waiting.retired() == 0


def test_a_selection_is_a_table_of_its_own(plan: Write, tmp_path: Path) -> None:
    whole = plan()
    Results(tmp_path, whole).write(measured(whole))
    table = Results(tmp_path, plan(sets=["scheme=halved"])).table()
    assert (table.study, table.selection) == ("mine", "+scheme=halved")
    assert set(table.runs["scheme"]) == {"halved"}
    assert table.command == f"harness run {tmp_path}/mine.py --set scheme=halved"


def test_rows_of_an_earlier_protocol_are_shown_until_the_study_is_measured_anew(
    plan: Write, tmp_path: Path
) -> None:
    tune = '{"optim.lr": [1e-3, 1e-2], "seeds": [8]}'
    declared = plan(tune=tune)
    earlier = Results(tmp_path, declared.of(PROTOCOL - 1))
    assert earlier.tuning
    said = {"protocol": PROTOCOL - 1, "baseline_loss": 3.0}
    earlier.tuning.write(measured(earlier.tuning.plan, **said))
    earlier = Results(tmp_path, declared.of(PROTOCOL - 1))
    earlier.write(measured(earlier.plan, **said))

    old = Curves()
    old.add("loss/train", 0, 5.0)
    earlier.write_curves(dict.fromkeys(earlier.rows(), old))
    results = Results(tmp_path, declared)
    assert results.rows() == {} and results.plan.waiting  # they count as missing
    assert len(results.table().curves) == 4
    table = results.table()
    assert list(table.runs["run_id"]) == [cell.key for cell in earlier.plan.cells]
    assert len(table.missing) == 0 and table.tuning is not None
    file = tmp_path / "mine" / "runs.csv"
    assert results.outdated()[-1] == (
        f"{file}: 4 runs are of protocol {PROTOCOL - 1}, this version measures by protocol "
        f"{PROTOCOL}; measure them anew with '{declared.command}'"
    )

    again = measured(results.tuning.plan, protocol=PROTOCOL)  # type: ignore[union-attr]
    results.tuning.write(again)  # type: ignore[union-attr]
    results = Results(tmp_path, declared)
    assert len(Results(tmp_path, declared).table().runs) == 4  # of the earlier protocol
    new = measured(results.plan, protocol=PROTOCOL)
    for count, key in enumerate(new, start=1):
        assert results.write({key: new[key]}) == 0
        results = Results(tmp_path, declared)
        on_file = [r["protocol"] for r in rows.read(file)]
        assert on_file == [str(PROTOCOL)] * count + [str(PROTOCOL - 1)] * (4 - count)
        table = results.table()
        assert (len(table.runs), len(table.missing)) == (count, 4 - count)
        assert len(results.outdated()) == (count < 4)
        assert results.curves.runs() == set()  # old ones would have new ones thinned
    retired = rows.read(file.with_name("retired.csv"))
    assert [r["protocol"] for r in retired] == [str(PROTOCOL - 1)] * 12  # those of the tuning, too
