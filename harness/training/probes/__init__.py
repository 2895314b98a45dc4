"""Measurements of a run as Lightning callbacks."""

from harness.training.probes.gradients import (
    GradientProbe,
    InitProbe,
    StreamProbe,
    branch_matrices,
)
from harness.training.probes.outputs import (
    Clock,
    Log,
    SkipProbe,
    TranslationProbe,
    UpdateProbe,
    ValidationProbe,
    WeightAverage,
)

__all__ = [
    "Clock",
    "GradientProbe",
    "InitProbe",
    "Log",
    "SkipProbe",
    "StreamProbe",
    "TranslationProbe",
    "UpdateProbe",
    "ValidationProbe",
    "WeightAverage",
    "branch_matrices",
]
