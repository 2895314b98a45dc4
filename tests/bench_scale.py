"""A study of 10,000 cells, 5,000 of them done: what planning, status and claiming cost.

`make bench` prints each beside its limit. A machine that is busy with other things is slower.
"""

import json
import multiprocessing
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from optuna.trial import TrialState, create_trial

from harness.session import Places, Session
from harness.sweep.lease import lease
from harness.sweep.ledger import Ledger
from harness.sweep.study import load

STUDY = """
from harness.sweep import Study
STUDY = Study(base="smoke.toml", axes={
    "scheme": ["post_norm", "rezero"], "model.depth": list(range(1, 51)), "seed": list(range(100)),
})
"""
DONE, WORKERS, CLAIMS = 5_000, 4, 40


def claim(state: Path, keys: list[str], ready: object, spans: object) -> None:
    """Seconds of each claim, the worker's first look at the ledger left out."""
    ledger = Ledger("vast", state, None, {})
    ledger.standing()
    ready.wait()  # type: ignore[attr-defined]
    for _ in range(CLAIMS):
        start = time.perf_counter()
        attempt = ledger.claim(keys)
        spans.put(time.perf_counter() - start)  # type: ignore[attr-defined]
        assert attempt is not None
        ledger.release(attempt)


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "vast.py"
        source.write_text(STUDY)
        start = time.perf_counter()
        plan = load(str(source))
        print(f"plan of {len(plan.cells)} cells: {time.perf_counter() - start:.2f} s (limit 3)")
        keys = [cell.key for cell in plan.cells]

        ledger = Ledger("vast", folder / "state", None, {})
        record = {f"measured_{i}": i / 7 for i in range(40)}
        record |= {"outcome": "trained", "final_loss": 2.5, "seconds": 1.0, "data_sha": None}
        session = Session(plan, Places(folder / "state", folder, folder))
        trials = []
        for key in keys[:DONE]:
            told = {"claim": {"cell": key, "token": key}, "lease": lease()}
            told["result"] = {"record": {**record, **session.digests[key]}, "run": "r"}
            trials.append(create_trial(state=TrialState.COMPLETE, value=2.5, user_attrs=told))
        ledger._study.add_trials(trials)

        out, seconds, megabytes = _status(source, folder)
        assert json.loads(out)["trained"] == DONE
        print(f"status: {seconds:.2f} s (limit 3), {megabytes:.0f} MB (limit 500)")

        context = multiprocessing.get_context("spawn")
        spans, ready = context.Queue(), context.Event()
        workers = [
            context.Process(target=claim, args=(folder / "state", keys, ready, spans))
            for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        time.sleep(10)
        ready.set()
        found = [spans.get() for _ in range(WORKERS * CLAIMS)]
        for worker in workers:
            worker.join()
        print(f"claim with {WORKERS} workers, median: {1000 * median(found):.0f} ms (limit 50)")


def _status(source: Path, folder: Path) -> tuple[str, float, float]:
    """Output, seconds, and the largest memory of any child so far."""
    words = [sys.executable, "-m", "harness", "status", str(source), "--json"]
    places = ["--state", str(folder / "state"), "--results", str(folder)]
    start = time.perf_counter()
    done = subprocess.run([*words, *places], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    return done.stdout, seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


if __name__ == "__main__":
    main()
