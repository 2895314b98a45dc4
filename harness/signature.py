"""A scheme's signature: gradients, activations and early update over depth, of drawn models.

Small models take a few steps at a rate so low that the update does not saturate. Loads torch.
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.analysis import drawings
from harness.analysis.figures.signature import signature
from harness.schemes import Place
from harness.training.config import Config, parse
from harness.training.train import Trained, train

DEPTHS = (6, 12, 24, 48)  # layers of each stack
SEEDS = (0, 1, 2)
STEPS = 10
RATE = 1e-5  # at 1e-3 the update is near its bound for every scheme but rezero
COMPARED = "post_norm"

Tell = Callable[[str], None]


def sign(scheme: str, encoders: int, decoders: int, results: Path) -> list[dict[str, Any]]:
    """The signature's rows, and its figure as files; says on stderr how far it is, and where."""
    stem = results / "signatures" / scheme
    stem.parent.mkdir(parents=True, exist_ok=True)  # a folder that cannot be is told at once
    rows = measure(scheme, encoders, decoders, lambda line: print(line, file=sys.stderr))
    small = f"n = {len(SEEDS)} seeds, geometric mean; width 32, task reverse, Adam at {RATE:g}"
    drawings.save(signature(scheme, rows, STEPS, small), stem)
    print(stem.with_suffix(".svg"), file=sys.stderr)
    return rows


def measure(scheme: str, encoders: int, decoders: int, tell: Tell) -> list[dict[str, Any]]:
    """One row a scheme, stack and depth, for the kind of model that has these stacks; Post-Norm's
    for comparison come last. The update is the last stack's."""
    # The same numbers on any number of cores; and where others work too, threads wait for minutes.
    torch.set_num_threads(1)
    family = Place("self", "decoder", 1, encoders, decoders).family
    rows = []
    for name in dict.fromkeys((scheme, COMPARED)):
        for depth in DEPTHS:
            tell(f"signature: {name}, {depth} layers")
            # A synthetic task reads no folder of corpora.
            runs = [train(_config(name, family, depth, seed), Path()) for seed in SEEDS]
            rows += _rows(name, depth, runs)
    return rows


def _config(scheme: str, family: str, depth: int, seed: int) -> Config:
    return parse(
        {
            "scheme": scheme,
            "seed": seed,
            "model": {"family": family, "depth": depth, "width": 32, "heads": 4, "ffn": 128},
            "data": {"name": "reverse", "valid_sequences": 16},
            "optim": {"lr": RATE},
            "train": {"steps": STEPS, "batch": 16, "length": 16},
            "probe": {"update_steps": STEPS},
        },
        "signature",
    )


def _rows(scheme: str, depth: int, runs: Sequence[Trained]) -> list[dict[str, Any]]:
    """By stack: gradients and activations at step 0 of the first, a middle and the last block."""
    stacks = [s for s in ("encoder", "decoder") if f"grad_norm/{s}" in runs[0].curves.values]
    blocks = {"first": 0, "middle": depth // 2, "last": depth - 1}
    rows = []
    for stack in stacks:
        row: dict[str, Any] = {"scheme": scheme, "stack": stack, "depth": depth}
        for name, series in (("gradient", "grad_norm"), ("activation", "activation_rms")):
            profiles = [run.curves.array(f"{series}/{stack}")[0].tolist() for run in runs]
            for block, at in blocks.items():
                row[f"{name}_{block}"] = _mean([profile[at] for profile in profiles])
        updates = [run.record["update_norm"] for run in runs]
        row["update"] = _mean(updates) if stack == stacks[-1] else None
        rows.append(row)
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric; None where a seed has no finite value, 0 where one has 0."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if len(known) < len(values):
        return None
    return math.exp(sum(map(math.log, known)) / len(known)) if all(known) else 0.0
