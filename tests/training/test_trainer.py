"""What the strategy for several processes takes for granted about the models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.data.batches import as_batch
from harness.data.ranks import Ranks
from harness.data.synthetic import Pairs, Reverse
from harness.errors import ConfigError
from harness.schemes import all_schemes
from harness.training.config import Config
from harness.training.train import build
from harness.training.trainer import trainer_for

FAMILIES = ("encoder", "decoder", "encoder_decoder")


def without_gradient(config: Config) -> set[str]:
    task = Pairs(Reverse(name="reverse", symbols=8), config.model.family, 8)
    model = build(config, task.vocabularies)
    model(*as_batch(task.train(0, 0, 4)).model_inputs).square().mean().backward()
    return {name for name, p in model.named_parameters() if p.grad is None}


@pytest.mark.parametrize("scheme", sorted(all_schemes()))
def test_every_parameter_of_every_scheme_has_a_gradient(
    scheme: str, config: Callable[..., Config]
) -> None:
    tried = 0
    for family in FAMILIES:
        try:
            c = config({"scheme": scheme, "model.family": family, "model.qk_norm": True})
        except ConfigError:  # a scheme of one stack
            continue
        assert without_gradient(c) == set()
        tried += 1
    assert tried


def test_an_encoder_that_no_decoder_reads_has_none(config: Callable[..., Config]) -> None:
    c = config({"model.family": "encoder_decoder", "model.cross_attention": False})
    found = without_gradient(c)
    task = Pairs(Reverse(name="reverse", symbols=8), "encoder_decoder", 8)
    names = {name for name, _ in build(c, task.vocabularies).named_parameters()}
    assert found == {name for name in names if name.startswith("stacks.encoder.")}


@pytest.mark.parametrize("cross", [True, False])
def test_each_rank_accumulates_its_share_and_looks_for_idle_parameters_where_there_are_some(
    cross: bool, config: Callable[..., Config]
) -> None:
    changes: dict[str, Any] = {"model.family": "encoder_decoder", "train.accumulation": 6}
    c = config(changes | {"model.cross_attention": cross})
    alone = trainer_for(c, [], 50)
    assert (alone.accumulate_grad_batches, alone.world_size) == (6, 1)
    trainer = trainer_for(c, [], 50, Ranks(rank=0, count=2))
    assert (trainer.accumulate_grad_batches, trainer.world_size) == (3, 2)
    assert trainer.strategy._ddp_kwargs == {"find_unused_parameters": not cross}
    assert trainer.strategy.root_device == torch.device("cpu")


def test_variables_that_slurm_has_left_do_not_count(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {"NTASKS": "4", "JOB_NAME": "deep", "JOB_ID": "7", "PROCID": "3", "LOCALID": "3"}
    for name, value in left.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    trainer = trainer_for(config(), [], 50)
    assert (trainer.world_size, trainer.global_rank, trainer.num_nodes) == (1, 0, 1)
