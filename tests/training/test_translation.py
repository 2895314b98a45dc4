"""Translation from the config to the record: padding changes nothing, sources are read, scores are
of the test split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness.training.train
from harness.data import tasks
from harness.data.arrays import BOS, EOS, IGNORE, MASK, PAD, UNKNOWN
from harness.data.batches import as_batch, mask
from harness.data.translation.task import Parallel
from harness.errors import ConfigError
from harness.model.decoding import decode
from harness.model.transformer import Transformer
from harness.schemes import all_schemes
from harness.training.config import Config, parse, read_toml, with_value
from harness.training.module import cross_entropy
from harness.training.train import build, train
from tests import parallel

torch.set_num_threads(1)

ROOT = Path(__file__).parents[2]
HELD = ("valid", "tuning")
SMALL = {
    "data.corpus": "toy",
    "data.pieces": 80,
    "data.max_words": 0,
    "model.depth": 2,
    "model.width": 16,
    "model.heads": 2,
    "model.ffn": 32,
    "train.batch": 300,
    "train.validate_every": 0,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parallel.write(tmp_path)
    return tmp_path


def small(**changes: Any) -> Config:
    given = read_toml(ROOT / "configs" / "translation.toml")
    for path, value in (SMALL | {k.replace("__", "."): v for k, v in changes.items()}).items():
        given = with_value(given, path, value)
    return parse(given, "test")


def task_of(config: Config, folder: Path) -> Parallel:
    task = tasks.load(config.data, folder, "encoder_decoder", config.train.length)
    assert isinstance(task, Parallel)
    return task


def stirred(config: Config, task: Parallel) -> Transformer:
    """A model whose every parameter says something: gates and heads that start at zero, too."""
    model = build(config, task.vocabularies).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=draw)
    return model


PAIRED = [name for name, rule in all_schemes().items() if "encoder_decoder" in rule.families]


@pytest.mark.parametrize("scheme", PAIRED)
def test_padding_changes_neither_loss_nor_translation(scheme: str, folder: Path) -> None:
    config = small(scheme=scheme)
    task = task_of(config, folder)
    model = stirred(config, task)
    batch = as_batch(task.valid(10_000)[0])
    assert batch.mask_BT is not None and batch.source_mask_BS is not None
    together_BT = -torch.log_softmax(model(*batch.model_inputs), -1)
    said = translations(model, batch.source_BS)
    assert len(set(map(tuple, said))) > 1
    for row in range(0, len(batch.inputs_BT), 4):
        targets = int((batch.targets_BT[row] != IGNORE).sum())
        inputs_BT = batch.inputs_BT[row : row + 1, :targets]
        source_BS = batch.source_BS[row : row + 1, batch.source_mask_BS[row]]
        alone_BT = -torch.log_softmax(model(inputs_BT, None, source_BS, None), -1)
        expected = together_BT[row, :targets]
        torch.testing.assert_close(alone_BT[0], expected, atol=1e-5, rtol=1e-5)
        assert translations(model, source_BS) == [said[row]]


def translations(model: Transformer, source_BS: torch.Tensor) -> list[list[int]]:
    banned = (PAD, BOS, UNKNOWN, MASK)
    source_mask = mask(source_BS)
    return decode(
        model, source_BS, source_mask, bos=BOS, eos=EOS, longest=12, beam=2, banned=banned
    )


@pytest.mark.parametrize("scheme", ["rezero", "deepnorm"])
def test_a_model_of_two_layers_learns_the_made_up_language(scheme: str, folder: Path) -> None:
    config = small(scheme=scheme, train__steps=250, optim__lr=1e-2, model__width=32)
    record, _, translations = train(config, folder)
    assert record["outcome"] == "trained"
    assert record["metric_source_gain"] > 1
    assert record["metric_bleu"] > record["metric_bleu_nearest"] > record["metric_bleu_copy"]
    assert 0 < record["metric_chrf"] <= 100
    assert record["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")
    assert record["data_sha"] == tasks.data_sha(config.data, folder)
    (test,) = task_of(config, folder).tests
    assert [(each.source, each.reference) for each in translations] == test.pairs
    assert test.score([each.hypothesis for each in translations]).bleu == record["metric_bleu"]


def test_a_run_counts_the_targets_of_its_batches_without_padding(folder: Path) -> None:
    config = small(train__steps=3)
    task = task_of(config, folder)
    batches = [task.train(0, index, 300).targets_BT for index in range(3)]
    record = train(config, folder).record
    assert record["tokens"] == sum(int((targets != IGNORE).sum()) for targets in batches)


def test_beam_and_length_penalty_reach_the_search(folder: Path) -> None:
    scores = [
        train(small(train__steps=60, optim__lr=1e-2, **given), folder).record["metric_chrf"]
        for given in ({}, {"data__beam": 4}, {"data__beam": 4, "data__length_penalty": 3.0})
    ]
    assert len(set(scores)) == 3


def test_groups_of_directions_are_reported_beside_the_whole(folder: Path) -> None:
    parallel.write_many(folder)
    given = {"data.directions": ["en>de", "en>bk"], "data.low_resource": ["en>bk"]}
    config = small(
        **{k.replace(".", "__"): v for k, v in given.items()},
        data__corpus="many",
        data__low_pairs=20,
        train__steps=20,
        train__length=60,
    )
    record, _, translations = train(config, folder)
    assert [each.direction for each in translations] == ["en>de"] * 24 + ["en>bk"] * 24
    task = task_of(config, folder)
    targets = {"high": 0, "low": 0}
    for arrays in task.valid(300):
        targets[arrays.group] += int((arrays.targets_BT != IGNORE).sum())
    for whole, name in (("final_loss", "loss"), ("metric_source_gain", "source_gain")):
        parts = [record[f"metric_{name}_{group}"] for group in targets]
        assert record[whole] == pytest.approx(np.average(parts, weights=[*targets.values()]))
    for name in ("bleu", "chrf"):
        parts = [record[f"metric_{name}_{group}"] for group in targets]
        assert record[f"metric_{name}"] == pytest.approx(np.mean(parts))


def test_a_pair_without_a_neighbour_says_nothing_of_the_source_gain(folder: Path) -> None:
    parallel.write_many(folder)
    path = folder / "many.tsv"
    lines, met = [], False
    for line in path.read_text().splitlines():  # one validation pair of en>bk, all of en>de
        split, en, de, bk, _ = line.split("\t")
        lines.append(f"{split}\t{en}\t{de}\t{'' if split == 'valid' and met else bk}\t")
        met |= split == "valid"
    path.write_text("\n".join([path.read_text().splitlines()[0], *lines[1:]]) + "\n")
    given = {"data__corpus": "many", "data__directions": ["en>de", "en>bk"], "train__length": 60}
    low = given | {"data__low_resource": ["en>bk"], "train__steps": 5}
    record = train(small(**low), folder).record
    assert "metric_source_gain_low" not in record
    assert record["metric_source_gain"] == record["metric_source_gain_high"] != 0
    targets = [
        int((a.targets_BT != IGNORE).sum()) for a in task_of(small(**low), folder).valid(300)
    ]
    parts = [record[f"metric_loss_{group}"] for group in ("high", "low")]
    weights = [sum(targets[:-1]), targets[-1]]
    assert record["final_loss"] == pytest.approx(np.average(parts, weights=weights))


def test_a_run_of_a_tuning_never_translates_the_test_split(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tests", "sources", "texts"):
        monkeypatch.delattr(Parallel, name)
    tuned = train(small(train__steps=3, train__held_out="tuning"), folder)
    assert tuned.record["metric_source_gain"] is not None
    assert not [name for name in tuned.record if "bleu" in name or "chrf" in name]


def test_a_tuning_has_the_model_and_not_the_tokens_of_the_runs_it_is_for(folder: Path) -> None:
    pair = {"train__steps": 2, "data__test_pairs": 1}
    reported, tuned = (train(small(**pair, train__held_out=h), folder).record for h in HELD)
    assert tuned["parameters"] == reported["parameters"]
    assert tuned["data_sha"] == reported["data_sha"]
    for name in ("baseline_loss", "reference_loss", "final_loss"):
        assert tuned[name] != reported[name]


def test_a_diverged_run_is_not_translated(folder: Path) -> None:
    trained = train(small(train__steps=60, optim__lr=1e6, scheme="pre_norm"), folder)
    record = trained.record
    assert (record["outcome"], trained.translations) == ("diverged", [])
    assert not [name for name in record if name.startswith("metric_")]


def test_the_weights_of_the_last_validations_are_averaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Transformer] = []
    monkeypatch.setattr(
        harness.training.train, "build", lambda *given: built.append(build(*given)) or built[-1]
    )
    # Runs that stop where the one run notes its weights; the last step counts as a validation.
    for steps in (6, 9, 10):
        train(small(train__steps=steps, train__validate_every=3), folder)
    config = small(train__steps=10, train__validate_every=3, train__average=3)
    record = train(config, folder).record
    *ends, averaged = (list(model.parameters()) for model in built)
    for mine, parts in zip(averaged, zip(*ends, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(parts).mean(0))
    batches = [as_batch(a) for a in task_of(config, folder).valid(config.train.batch)]
    model = built[-1].eval()
    with torch.no_grad():
        losses = [float(cross_entropy(model(*b.model_inputs), b.targets_BT)) for b in batches]
    weights = [batch.targets for batch in batches]
    assert record["final_loss"] == pytest.approx(np.average(losses, weights=weights))


def test_averaging_needs_validations_and_one_is_the_default() -> None:
    with pytest.raises(ConfigError, match=r"test: train.average: .*; set train.validate_every"):
        small(train__average=2)
    assert small(train__average=1).run_id == small().run_id
    assert small(train__average=2, train__validate_every=5).run_id != small().run_id


def test_a_budget_holds_two_pairs_of_the_longest() -> None:
    with pytest.raises(ConfigError, match=r"train.batch: 79 tokens do not hold two pairs of"):
        small(train__batch=79)
    small(train__batch=80)


def test_without_test_pairs_nothing_is_scored(folder: Path) -> None:
    parallel.write(folder, test=0)
    record = train(small(train__steps=2), folder).record
    assert record.pop("bleu_signature") is None
    assert not [name for name in record if "bleu" in name or "chrf" in name]


def test_a_run_can_be_told_to_end_while_it_translates(folder: Path) -> None:
    def log(step: int, scalars: dict[str, float]) -> None:
        if step == 2 and not scalars:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(small(train__steps=2), folder, log)
