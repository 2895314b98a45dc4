"""Measurements of a run as Lightning callbacks."""

from harness.training.probes.coefficients import CoefficientProbe
from harness.training.probes.gradients import (
    GradientProbe,
    InitProbe,
    StreamProbe,
    branch_matrices,
)
from harness.training.probes.outputs import (
    Clock,
    Log,
    TranslationProbe,
    ValidationProbe,
    WeightAverage,
)
from harness.training.probes.skips import SkipProbe
from harness.training.probes.states import StateProbe

__all__ = [
    "Clock",
    "CoefficientProbe",
    "GradientProbe",
    "InitProbe",
    "Log",
    "SkipProbe",
    "StateProbe",
    "StreamProbe",
    "TranslationProbe",
    "ValidationProbe",
    "WeightAverage",
    "branch_matrices",
]
