"""Artifacts of runs: what the results and the commands take from the tracker."""

from harness.data.translation.translations import Translated
from harness.errors import MissingRuns
from harness.results import translations
from harness.results.columns import DIGESTS, REUSED, Row
from harness.session import Places, Session
from harness.sweep.plan import Plan


def write_curves(session: Session) -> list[str]:
    """Adds the curves that the results lack. Returns the runs whose curves cannot be read."""
    results = session.results
    with results.lock():
        present = results.curves.runs()
        lacking = {key: r for key, r in session.rows.items() if key not in present}
        results.take_curves(lacking, session.related)
        absent = {
            key: attempt["run"]
            for key, attempt in session.ledger.standing().accepted.items()
            if key in session.rows and key not in present
        }
        tracked = {key: session.tracker.curves(run) for key, run in absent.items()}
        if found := {key: curves for key, curves in tracked.items() if curves}:
            results.write_curves(found)
        return [key for key in tracked if key not in found]


def write_translations(session: Session) -> list[str]:
    """Adds the translations that the results lack of the first run of each point. Returns the runs
    whose translations cannot be read."""
    results = session.results
    with results.lock():
        cells = translations.translated(results.plan, session.rows)
        lacking = cells.keys() - results.translations.rows().keys()
        accepted = session.ledger.standing().accepted if lacking else {}
        tracked = {
            key: session.tracker.translations(accepted[key]["run"])
            for key in cells
            if key in lacking and key in accepted
        }
        found = {
            key: translations.kept(cells[key], texts) for key, texts in tracked.items() if texts
        }
        rows = {key: session.rows[key] for key in lacking}
        results.write_translations(found, rows, session.related)
        present = results.translations.rows()
        return [key for key in tracked if key not in present]


def all_translations(plan: Plan, r: Row, places: Places) -> list[Translated]:
    """The translated test split of a row's run, which another study may have trained; MissingRuns
    if the tracker has none."""
    from harness.sweep.ledger import Ledger
    from harness.sweep.tracking import Tracker

    key, study = r["run_id"], r.get(REUSED) or plan.name
    found: list[Translated] | None = None
    if places.has_ledger:
        digests = {key: {name: r[name] for name in DIGESTS}}
        accepted = Ledger(study, places.state, places.storage, digests).standing().accepted
        if key in accepted:
            found = Tracker(study, places.state).translations(accepted[key]["run"])
    if not found:
        where = f"{places.state}: no translations of run {key} of study {study}"
        raise MissingRuns(f"{where}; name the state that it was trained in with --state")
    return found
