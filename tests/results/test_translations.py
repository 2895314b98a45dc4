"""translations.tsv: which pairs of which runs it holds, in which order, under which notice."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.data.translation.translations import Translated
from harness.errors import ConfigError
from harness.results import translations
from harness.results.columns import row
from harness.results.store import Results
from harness.results.translations import Kept, TranslationsFile, kept, translated
from harness.sweep.plan import Plan
from harness.sweep.study import load

RECORD = {"outcome": "trained", "final_loss": 2.0, "data_sha": "a" * 12, "metric_bleu": 7.0}


def study(*sets: str) -> Plan:
    return load(
        "translation_quick", sets=["seed=5,3", "scheme=rezero,admin", "model.depth=2", *sets]
    )


def some(*texts: str, direction: str = "src>tgt") -> list[Translated]:
    return [Translated(direction, text, text.upper(), text[::-1]) for text in texts]


def kept_of(plan: Plan, *texts: str) -> dict[str, Kept]:
    return {cell.key: kept(cell, some(cell.config.scheme, *texts)) for cell in plan.first_seeds}


def test_fifty_pairs_of_a_run_are_kept_evenly_over_its_directions() -> None:
    cell = study().cells[0]
    (one,) = {len(kept(cell, some(*map(str, range(count)))).pairs) for count in (50, 51, 900)}
    assert one == 50
    assert kept(cell, some(*map(str, range(900)))).pairs[49].source == "49"
    names = [f"en>{i}" for i in range(17)]
    many = [pair for name in names for pair in some("a", "b", "c", "d", direction=name)]
    found = kept(cell, many).pairs
    assert [pair.direction for pair in found] == [*names, *names, *names[:16]]
    assert Counter(pair.source for pair in found) == {"a": 17, "b": 17, "c": 16}


def test_runs_are_those_of_the_first_seed_that_translated() -> None:
    plan = study()
    assert [(c.config.scheme, c.config.seed) for c in plan.first_seeds] == [
        ("rezero", 5),
        ("admin", 5),
    ]
    rows = {cell.key: row(plan, cell, RECORD) for cell in plan.cells}
    diverged = {"outcome": "diverged", "data_sha": "a" * 12}
    rows[plan.first_seeds[0].key] = row(plan, plan.first_seeds[0], diverged)
    assert translated(plan, rows) == {plan.first_seeds[1].key: plan.first_seeds[1]}
    assert translated(plan, {}) == {}


def test_the_same_runs_are_the_same_bytes_in_the_plans_order(tmp_path: Path) -> None:
    plan = study()
    runs = kept_of(plan, "a\tb", "c\nd")
    together, apart = (TranslationsFile(tmp_path / name) for name in ("one", "two"))
    together.write(runs, plan)
    for key in reversed(runs):
        apart.write({key: runs[key]}, plan)
    apart.write({}, plan)
    assert apart.path.read_bytes() == together.path.read_bytes()
    assert [*apart.rows()] == [cell.key for cell in plan.first_seeds]
    assert apart.rows() == runs
    assert [pair.source for pair in runs[plan.first_seeds[0].key].pairs] == ["rezero", "a b", "c d"]


def test_nothing_is_written_of_no_run(tmp_path: Path) -> None:
    TranslationsFile(tmp_path / "none").write({}, study())
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_no_longer_the_first_leaves_and_one_of_another_plan_stays(
    tmp_path: Path,
) -> None:
    plan, file = study(), TranslationsFile(tmp_path / "t.tsv")
    runs = kept_of(plan, "a")
    file.write(runs, plan)
    turned = replace(plan, cells=tuple(reversed(plan.cells)))
    file.write({}, turned)
    assert file.rows() == {}
    file.write(runs, plan)
    less = replace(plan, cells=tuple(c for c in plan.cells if c.config.scheme == "admin"))
    file.write({}, less)
    assert [*file.rows()] == [*reversed(runs)]
    file.write({}, plan)
    assert file.rows() == runs


@pytest.mark.parametrize(
    ("corpus", "name", "words"),
    [
        ("help-de-en", "help-de-en", "Mozilla Public License 2.0, https://mozilla.org/MPL/2.0/"),
        ("far/deu-eng.tsv.gz", "help-de-en", "written and translated by the LibreOffice"),
        ("iwslt14", "iwslt14", "licence: CC-BY-NC-ND-4.0"),
        ("multi30k", "multi30k", "made from hub: bentrevett/multi30k; licence: see the source"),
        ("/home/me/mine.tsv", "mine", "texts of corpus mine, whose own licence holds"),
    ],
)
def test_the_file_begins_with_a_notice_of_each_corpus(
    corpus: str, name: str, words: str, tmp_path: Path
) -> None:
    plan, file = study(f"data.corpus={corpus}"), TranslationsFile(tmp_path / "t.tsv")
    file.write(kept_of(plan, "#a"), plan)
    notice, header, first, *_ = file.path.read_text().split("\n")
    assert notice.startswith("# texts of corpus ") and words in notice
    assert header == "run_id\tcorpus\tdirection\tsource\treference\thypothesis"
    assert first.split("\t")[1] == name
    assert [pair.source for pair in file.rows()[plan.cells[0].key].pairs] == ["rezero", "#a"]
    assert "/" not in name and "/home" not in file.path.read_text()


def test_a_file_too_large_keeps_fewer_pairs_of_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = study()
    runs = kept_of(plan, *(f"text {i}" for i in range(49)))
    whole, twice = (TranslationsFile(tmp_path / name) for name in ("whole", "twice"))
    whole.write(runs, plan)
    assert {len(each.pairs) for each in whole.rows().values()} == {50}
    monkeypatch.setattr(translations, "LARGEST_BYTES", 2000)
    for run, each in runs.items():
        twice.write({run: each}, plan)
    whole.write({}, plan)
    assert whole.path.read_bytes() == twice.path.read_bytes()
    assert {len(each.pairs) for each in whole.rows().values()} == {12}
    assert whole.path.stat().st_size < 2000


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-3],
        lambda b: b[: b.index(b"direction")],
        lambda b: b.replace(b"\tA B C D\t", b"\t", 1),
        lambda b: b"\xff" + b,
        lambda b: b"",
    ],
)
def test_a_damaged_file_is_named(damage: Any, tmp_path: Path) -> None:
    plan, file = study(), TranslationsFile(tmp_path / "t.tsv")
    file.write(kept_of(plan, "a b c d"), plan)
    path = file.path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=f"^{path}: not readable: .*; restore or remove it$"):
        file.rows()


def test_translations_leave_with_the_row_that_another_replaces(tmp_path: Path) -> None:
    plan = study()
    results = Results(tmp_path, plan)
    rows = {cell.key: row(plan, cell, RECORD) for cell in plan.cells}
    results.write(rows)
    results.write_translations(kept_of(plan, "a"), {}, [])
    results.write(rows)
    assert len(results.translations.rows()) == 2
    key, other = (cell.key for cell in plan.first_seeds)
    results.write({**rows, key: row(plan, plan.by_key[key], {**RECORD, "final_loss": 3.0})})
    assert [*results.translations.rows()] == [other]
