"""Every config loads; those of the paper hold its hyperparameters and build at reduced width."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.data import tasks
from harness.data.corpora.hub import preset
from harness.data.translation.options import Translation
from harness.training.config import Config, parse, read_toml, with_value
from harness.training.train import build
from tests import parallel

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))
# arXiv:2203.00555 Tables 4, 5 and 7; tokens are those of one optimizer step.
PAPER = {
    "iwslt14": {"lr": 5e-4, "tokens": 4_000, "steps": 8_000, "dropout": 0.4, "weight_decay": 1e-4},
    "wmt17": {
        "lr": 1.5e-3,
        "tokens": 128 * 4096,
        "steps": 100_000,
        "dropout": 0.4,
        "weight_decay": 1e-4,
    },
    "opus100": {
        "lr": 5e-4,
        "tokens": 128 * 4096,
        "steps": 21_000,  # four epochs in the paper; our estimate
        "dropout": 0.1,
        "weight_decay": 0.0,
    },
}


def path_of(name: str) -> Path:
    return next(path for path in CONFIGS if path.stem == name)


def config(name: str, **changes: Any) -> Config:
    path = path_of(name)
    given: dict[str, Any] = read_toml(path)
    for field, value in changes.items():
        given = with_value(given, field.replace("__", "."), value)
    return parse(given, str(path))


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS])
def test_the_config_loads(name: str) -> None:
    assert config(name).scheme in {"deepnorm", "post_norm", "rezero"}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_hyperparameters_are_the_papers(name: str) -> None:
    c, paper = config(name), PAPER[name]
    tokens = c.train.batch * c.train.accumulation
    assert {
        "lr": c.optim.lr,
        "tokens": tokens,
        "steps": c.train.steps,
        "dropout": c.model.dropout,
        "weight_decay": c.optim.weight_decay,
    } == paper
    assert (c.model.width, c.model.ffn, c.model.heads) == (512, 2048, 8)
    assert (c.optim.betas, c.optim.eps, c.optim.clip) == ((0.9, 0.98), 1e-8, 0.0)
    assert (c.optim.schedule, c.optim.warmup_steps) == ("inverse_sqrt", 4000)
    assert c.optim.label_smoothing == 0.1
    assert c.model.family == "encoder_decoder"


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_models_build_at_reduced_width(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    c = config(name, model__width=16, model__heads=2, model__ffn=32, data__pieces=80)
    assert isinstance(c.data, Translation)
    languages = re.findall(r"\w+", c.data.directions[0])
    path = parallel.write(tmp_path, c.data.corpus)
    path.write_text(path.read_text().replace("src\ttgt", "\t".join(languages)))
    task = tasks.load(c.data, tmp_path, c.model.family, c.train.length)
    model = build(c, task.vocabularies)
    assert [len(stack.blocks) for stack in model.stacks.values()] == [c.model.depth] * 2


@pytest.mark.parametrize("name", PAPER)
def test_each_says_which_hardware_and_time_it_expects(name: str) -> None:
    words = path_of(name).read_text()
    assert "# Hardware: " in words and "not measured" in words


@pytest.mark.parametrize("name", PAPER)
def test_a_corpus_of_the_paper_is_one_that_the_harness_builds(name: str) -> None:
    data = config(name).data
    assert isinstance(data, Translation)
    source = preset(data.corpus)
    assert source is not None
    assert {each for d in data.directions for each in d.split(">")} == set(source.columns)
    assert f"`harness data build {data.corpus}`" in path_of(name).read_text()
