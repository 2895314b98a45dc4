"""When a run has diverged, at which step it began, and why: floats in, a verdict out."""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

MARGIN = 0.05  # nats per token
PATIENCE = 50  # consecutive steps
CLOSING = 10  # consecutive steps that end a run
SMOOTHING = 9  # losses in a median
SKIPS = 20  # steps in a row that a gradient scaler drops
# Its square leaves float32, and float32 clipping then zeroes the step silently.
LARGEST_NORM = 1.8e19


@dataclass(frozen=True)
class Divergence:
    reason: str  # loss_nonfinite, grad_nonfinite, blowup
    step: int  # 0-based optimizer step at which it began


@dataclass
class Detector:
    """Watches training losses (nats per token, unsmoothed) against the task's baseline loss.

    With m the median of the last 9 losses: a run has learned once m < baseline - margin. It blows
    up where m > baseline + margin after that, or m > 2 max(baseline, first loss) at any time, for
    `patience` consecutive steps, or for at least 10 that last to the end of the run. Shorter
    stretches are spikes. `scaled`: a gradient scaler drops non-finite steps by design, so that only
    20 of them in a row count.
    """

    baseline: float
    margin: float = MARGIN
    patience: int = PATIENCE
    scaled: bool = False
    learned: bool = False
    spikes: int = 0
    skipped: int = 0
    verdict: Divergence | None = None
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHING))
    _ceiling: float = math.nan
    _high: list[int] = field(default_factory=list)  # steps of the present stretch
    _dropped: list[int] = field(default_factory=list)  # steps in a row that the scaler dropped

    def observe(self, step: int, loss: float, gradient_norm: float) -> Divergence | None:
        """One optimizer step: its loss and the float64 norm of its gradient before clipping."""
        if self.verdict:
            return self.verdict
        if not math.isfinite(loss):
            self.verdict = Divergence("loss_nonfinite", step)
        elif not gradient_norm <= LARGEST_NORM:  # also true of NaN
            self._drop(step)
        else:
            self._dropped = []
        if not self.verdict:
            self._watch(step, loss)
        return self.verdict

    def close(self) -> Divergence | None:
        """The run has ended: a stretch that lasts until now counts from 10 steps on."""
        if not self.verdict and self._high:
            if len(self._high) >= CLOSING:
                self.verdict = Divergence("blowup", self._high[0])
            else:
                self.spikes += 1
            self._high = []
        return self.verdict

    def _drop(self, step: int) -> None:
        self.skipped += self.scaled
        self._dropped.append(step)
        if not self.scaled or len(self._dropped) >= SKIPS:
            self.verdict = Divergence("grad_nonfinite", self._dropped[0])

    def _watch(self, step: int, loss: float) -> None:
        if not self._losses:
            self._ceiling = 2 * max(self.baseline, loss)
        self._losses.append(loss)
        m = median(self._losses)
        self.learned |= m < self.baseline - self.margin
        if (self.learned and m > self.baseline + self.margin) or m > self._ceiling:
            self._high.append(step)
            if len(self._high) >= self.patience:
                self.verdict = Divergence("blowup", self._high[0])
        elif self._high:
            self.spikes += 1
            self._high = []
