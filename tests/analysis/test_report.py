"""What `harness show` counts without building a model, against models that are built."""

from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from harness.analysis.report import (
    FORMATS,
    added_parameters,
    guessed_targets,
    metric_columns,
    numbers,
    show,
    unlearned,
)
from harness.analysis.statistics import edges, points
from harness.errors import ConfigError
from harness.model.transformer import Transformer
from harness.results.table import Table
from harness.schemes import Learned, Place, Wiring, all_schemes, find, on, registry, scheme
from harness.sweep.plan import Cell
from harness.training.config import parse, read_toml, with_value
from tests.analysis.test_statistics import tuned

ROOT = Path(__file__).parents[2]
FAMILIES = {"encoder": (3, 0), "decoder": (0, 3), "encoder_decoder": (2, 3)}


def parameters(name: str, encoders: int, decoders: int) -> int:
    rule = find(name)
    model = Transformer(
        partial(rule.wire, options={}),
        partial(rule.stack, options={}),
        encoders=encoders,
        decoders=decoders,
        width=64,
        heads=4,
        ffn=256,
        norm="layernorm",
        dropout=0.0,
        vocabularies=(5, 7),
    )
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_count_is_that_of_the_built_models(family: str) -> None:
    sizes = FAMILIES[family]
    plain = parameters("post_norm", *sizes)
    for name in [n for n, rule in all_schemes().items() if family in rule.families]:
        assert added_parameters(name, *sizes)["all"] == parameters(name, *sizes) - plain, name


def test_every_extent_of_a_coefficient_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "REGISTRY", dict(all_schemes()))

    @scheme("nowhere", dense=True, embedding_norm=True, final_norm=True)
    def everything(at: Place) -> Wiring:
        """All that can be learned"""
        heads = Learned(1.0, per="channel" if at.last else "head")
        return Wiring(
            norms=on("input", "inner", "output", "sum"),
            skip=Learned(1.0, per="layer"),
            branch=Learned(1.0),
            inner_scale=Learned(1.0, per="channel"),
            output_scale=heads,
        )

    for sizes in FAMILIES.values():
        added = added_parameters("everything", *sizes)
        assert added["all"] == added["norms"] + added["learned"]
        difference = parameters("everything", *sizes) - parameters("post_norm", *sizes)
        assert added["all"] == difference


def translated() -> Table:
    base = {"scheme": "b2t", "outcome": "trained", "final_loss": 3.0, "metric_bleu_copy": 3.538}
    base |= {"metric_bleu_nearest": 16.03, "bleu_signature": "nrefs:1|version:2"}
    runs = pd.DataFrame([base | {"seed": s, "metric_bleu": 5.0 + s} for s in (0, 1)])
    none = runs.iloc[:0]
    return Table("mine", ("scheme", "seed"), runs, pd.DataFrame(), none)


def test_a_table_shows_metrics_with_their_intervals_when_asked() -> None:
    table = translated()
    metrics = metric_columns(table, ["bleu"])
    assert metrics == metric_columns(table, ["metric_bleu"]) == ["metric_bleu"]
    head, line = show(points(table, metrics=metrics), ["scheme"], "csv", metrics).splitlines()
    assert head.endswith("final_loss,interval,metric_bleu,interval")
    # t(0.975, 1) = 12.706205 (printed tables)
    half = 12.706205 * 0.5**0.5 / 2**0.5
    assert line.endswith(f'3.000,"[3.000, 3.000]",5.500,"[{5.5 - half:.3f}, {5.5 + half:.3f}]"')
    with pytest.raises(ConfigError) as error:
        metric_columns(table, ["bleau"])
    assert str(error.value) == "--metric: mine has no metric 'bleau' (did you mean 'bleu'?)"


def test_a_tuned_value_at_an_edge_has_an_asterisk_and_in_csv_a_column() -> None:
    study = tuned({"b2t": [1e-3, 1e-2], "keel": [1, 3, 9]}, {"b2t": 1e-2, "keel": 3.0})
    frame, axes = points(study), ["scheme", "optim.lr"]
    shown = {form: show(frame, axes, form, (), edges(study, frame)) for form in FORMATS}
    lines = {form: text.splitlines() for form, text in shown.items()}
    assert [line.split()[1] for line in lines["text"]] == ["optim.lr", "0.01*", "3"]
    assert lines["text"][1].index("0.01*") + 5 == lines["text"][2].index(" 3 ") + 2  # to the right
    assert lines["md"][2].startswith("| b2t | 0.01* | 1 |")
    assert "b2t & 0.01* & 1 &" in shown["tex"]
    assert [line.split(",")[1] for line in lines["csv"]] == ["optim.lr", "0.01", "3"]
    assert [line.rpartition(",")[2] for line in lines["csv"]] == ["edge", "True", "False"]
    plain = translated()
    assert "edge" not in show(points(plain), ["scheme"], "csv", (), edges(plain, points(plain)))


def test_targets_that_are_no_language_codes_are_named_beside_their_scores() -> None:
    table = translated()
    config = with_value(read_toml(ROOT / "configs" / "translation.toml"), "seed", 0)
    cells = [
        Cell(parse(with_value(config, "data.directions", directions), "x"), ())
        for directions in (["src>tgt"], ["src>tgt", "en>de", "en>*"])
    ]
    (note,) = guessed_targets(table, cells)
    assert note.startswith("BLEU into 'tgt' is by sacrebleu's tokenizer 13a")
    assert guessed_targets(table, cells[:0]) == []
    without = table.runs.drop(columns="metric_bleu")
    assert guessed_targets(Table("x", (), without, without, without), cells) == []


def test_what_needs_no_learning_is_said_beside_translations_only() -> None:
    table = translated()
    table.runs.loc[2] = {"scheme": "b2t", "seed": 2, "outcome": "diverged", "bleu_signature": ""}
    assert unlearned(table) == [
        "BLEU without learning: 3.54 for the source copied, 16.03 for the translation of the "
        "nearest training source (nrefs:1|version:2)"
    ]
    other = table.runs.drop(columns="metric_bleu_nearest")
    assert unlearned(Table("mine", ("seed",), other, pd.DataFrame(), other.iloc[:0])) == []


def test_a_function_that_raises_is_one_line_with_its_place() -> None:
    @scheme("none")
    def broken(at: Place) -> Wiring:
        """x, until layer 1500"""
        return Wiring(branch=1 / (1500 - at.layer))

    with pytest.raises(ConfigError) as refused:
        numbers("broken", 0, 1501)
    place = "decoder layer 1500 of 1501, self"
    assert str(refused.value) == f"scheme 'broken': {place}: ZeroDivisionError: division by zero"
