"""What the harness costs around the step, as ratios of times taken in turns within one run.

A bare loop runs the same model on the same batches: forward, backward, Adam. `make bench` prints
    depth, bare loop (ms a step), harness / bare, probes alone / bare
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from harness.data.batches import TrainingBatches
from harness.sweep.study import ROOT
from harness.training.config import Config, parse, read_toml, with_value
from harness.training.curves import Curves
from harness.training.module import cross_entropy
from harness.training.optim import optimizer
from harness.training.outcome import Detector
from harness.training.probes import GradientProbe
from harness.training.train import _task, build, train

STEPS, ROUNDS = 40, 3


def bare(config: Config) -> float:
    """Seconds a step of a plain loop."""
    task, *_ = _task(config, Path("data"))
    model = build(config, task.vocabularies)
    steps = optimizer(model.parameters(), config.optim, fused=True)
    batches = TrainingBatches(task, config.seed, config.train.batch, config.train.steps)
    start = time.perf_counter()
    for i in range(STEPS):
        batch = batches[i]
        steps.zero_grad()
        cross_entropy(model(*batch.model_inputs), batch.targets_BT).backward()
        steps.step()
    return (time.perf_counter() - start) / STEPS


def whole(config: Config) -> float:
    """Seconds a step of `train`, its probes included, validation excluded."""
    return float(train(config, Path("data")).record["seconds"]) / STEPS


def probes(config: Config) -> float:
    """Seconds of one reading of all gradient norms."""
    task, *_ = _task(config, Path("data"))
    model = build(config, task.vocabularies)
    batch = TrainingBatches(task, 0, config.train.batch, 1)[0]
    cross_entropy(model(*batch.model_inputs), batch.targets_BT).backward()
    probe = GradientProbe(Detector(3.0), Curves(), lambda step, scalars: None)
    probe.watch(model, torch.device("cpu"))
    start = time.perf_counter()
    for _ in range(STEPS):
        probe.norms()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    base = with_value(read_toml(ROOT / "configs/quick.toml"), "train.steps", STEPS)
    base = with_value(base, "train.validate_every", 0)
    print(f"{'depth':>5}  {'bare ms':>8}  {'harness / bare':>14}  {'probes / bare':>13}")
    for depth in (6, 24, 96):
        config = parse(with_value(base, "model.depth", depth), "bench")
        kinds: tuple[Callable[[Config], float], ...] = (bare, whole, probes)
        rounds = [[kind(config) for kind in kinds] for _ in range(ROUNDS)]  # in turns
        plain = median(r[0] for r in rounds)
        ratios = [median(r[i] / r[0] for r in rounds) for i in (1, 2)]
        print(f"{depth:5}  {1000 * plain:8.1f}  {ratios[0]:14.3f}  {ratios[1]:13.3f}")


if __name__ == "__main__":
    main()
