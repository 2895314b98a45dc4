"""Series of a run by step, some of them by block: gathered, stored, and thinned. No torch."""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

DENSE_STEPS = 51  # steps 0 to 50 are all kept
BLOCKS = 16  # at most, a stack
EVERY_STEP = "loss/train"  # the series that every step of training has
SOME_BLOCKS = "coefficient/"  # series that have NaN for a block without the quantity


@dataclass
class Curves:
    """Values of each series: a number a step, or one number a block."""

    steps: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, series: str, step: int, value: float | Sequence[float]) -> None:
        self.steps.setdefault(series, []).append(step)
        self.values.setdefault(series, []).append(value)

    def array(self, series: str) -> NDArray[np.float64]:
        """Shape: steps, or steps x blocks."""
        return np.array(self.values.get(series, []), dtype=np.float64)

    def dumps(self) -> bytes:
        """All of it, as a compressed npz: 'steps:NAME' and 'values:NAME' for each series."""
        buffer = io.BytesIO()
        arrays = {f"steps:{name}": np.array(steps) for name, steps in self.steps.items()}
        arrays |= {f"values:{name}": self.array(name) for name in self.values}
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    @classmethod
    def loads(cls, stored: bytes) -> "Curves":
        curves = cls()
        with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
            for key in arrays.files:
                kind, name = key.split(":", 1)
                (curves.steps if kind == "steps" else curves.values)[name] = arrays[key].tolist()
        return curves

    def thinned(self, spaced: int) -> Iterator[tuple[int, str, int | None, float]]:
        """(step, series, one-based block or None, value): steps 0 to 50, then `spaced` evenly
        spaced ones, and a step after the last of training; at most 16 blocks, first and last
        included, of a coefficient those of the blocks that have it."""
        for series in sorted(self.steps):
            steps, values = self.steps[series], self.values[series]
            inside = min(len(steps), len(self.steps.get(EVERY_STEP, steps)))
            kept = [*kept_steps(inside, spaced), *range(inside, len(steps))]
            if not isinstance(values[0], list):
                yield from ((steps[i], series, None, values[i]) for i in kept)
                continue
            blocks = [
                block
                for block, value in enumerate(values[0])
                if not (series.startswith(SOME_BLOCKS) and math.isnan(value))
            ]
            spread = np.unique(np.linspace(0, len(blocks) - 1, BLOCKS).round().astype(int))
            for i in kept:
                yield from ((steps[i], series, blocks[b] + 1, values[i][blocks[b]]) for b in spread)


def kept_steps(steps: int, spaced: int) -> list[int]:
    """Indices of the first 51 steps and of `spaced` more, evenly spaced to the last."""
    head = list(range(min(steps, DENSE_STEPS)))
    rest = max(0, steps - DENSE_STEPS)
    tail = np.linspace(DENSE_STEPS, steps - 1, min(spaced, rest))
    return head + [int(i) for i in np.unique(np.round(tail))]
