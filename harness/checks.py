"""Differences between ledger, tracker and results of a study."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.merging import disagreeing
from harness.results.columns import differences
from harness.results.translations import translated
from harness.session import Session
from harness.sweep.lease import dead, overdue

if TYPE_CHECKING:
    from harness.sweep.ledger import Standing


def verify(session: Session) -> list[str]:
    """What ledger, tracker and results do not agree on, a line each."""
    if not session.has_ledger:
        return []
    standing = session.ledger.standing()
    return [*_rows_against_ledger(session, standing), *_tracker_against_ledger(session)]


def _rows_against_ledger(session: Session, standing: "Standing") -> Iterator[str]:
    curves, mend = session.results.curves.runs(), session.plan.invocation.command("collect")
    for results, rows in session.parts:
        plan = results.plan
        for key in plan.by_key:
            if key in standing.accepted and key in rows and rows[key]["outcome"] != "crashed":
                if key not in curves and results is session.results:
                    kept = session.tracker.curves(standing.accepted[key]["run"])
                    how = f"mend it with '{mend}'" if kept else "the tracker has lost them"
                    yield f"{key}: no curves; {how}"
            elif key in standing.accepted or key in standing.crashed.keys() - rows.keys():
                yield f"{key}: ended in the ledger, no such row; mend it with '{mend}'"
        if results is session.results:
            lacking = translated(plan, rows).keys() & standing.accepted.keys()
            for key in sorted(lacking - results.translations.rows().keys()):
                if session.tracker.translations(standing.accepted[key]["run"]):
                    yield f"{key}: no translations; mend it with '{mend}'"
        for key, mine in disagreeing(plan, rows, standing).items():
            for name, (there, here) in differences(rows[key], mine).items():
                yield f"{key}: {name} is {there} in {plan.file}, {here} in the ledger"


def _tracker_against_ledger(session: Session) -> Iterator[str]:
    from harness.sweep.worker import endings

    mend = session.plan.invocation.command("recover")
    ended = endings(session.ledger)
    tracked = {run.data.tags.get("token"): run for run in session.tracker.runs()}
    for trial in session.ledger.attempts():
        token, name = trial.user_attrs["claim"]["token"], f"attempt {trial.number}"
        run = tracked.get(token)
        if token not in ended:
            lease = trial.user_attrs["lease"]
            if dead(lease):
                yield f"{name}: left open; mend it with '{mend}'"
            elif (hours := overdue(lease) / 3600) > 1:
                where = f"open on {lease['host']}, and not renewed for {hours:.0f} hours"
                yield f"{name}: {where}; if no worker is there, close it with '{mend}'"
        elif run is None:
            if ended[token][0] == "FINISHED":  # others may have ended before they were tracked
                yield f"{name}: done, and unknown to the tracker"
        else:
            status, record = ended[token]
            expected = [status, record.get("outcome"), record.get("reason")]
            found = [run.info.status, *(run.data.tags.get(n) for n in ("outcome", "reason"))]
            if expected != found:
                yield f"{name}: {expected} in the ledger, {found} in the tracker"
