"""What became of a run: trained, stalled or diverged, why, and from which step on. Floats in, a
verdict out."""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

MARGIN = 0.05  # nats per token: closer to the plateau is at it
LEAP = 0.5  # nats per token: more than any noise at the plateau
GAP = 0.15  # nats per token: more than label smoothing sets training and validation apart
PATIENCE = 50  # consecutive steps
CLOSING = 10  # consecutive steps that end a run, whatever its last loss
SMOOTHING = 9  # losses in a median
SKIPS = 20  # steps in a row that a gradient scaler drops
# Its square leaves float32, and float32 clipping then zeroes the step silently.
LARGEST_NORM = 1.8e19


@dataclass(frozen=True)
class Divergence:
    reason: str  # loss_nonfinite, grad_nonfinite, blowup
    step: int  # 0-based optimizer step at which it began


class Outcome(NamedTuple):
    outcome: str  # trained, stalled, diverged
    reason: str | None = None  # of a stall: no_progress, collapsed, overfitted
    diverged_at: int | None = None


@dataclass
class Detector:
    """Watches a run's excess: its training loss (nats per token, unsmoothed) minus that of the
    better of two predictors without input (of targets alone, and by position) on the same targets.
    A model that reads nothing is at the plateau, from 0 up to the worse of them, `width` above.

    With medians of the last 9, a run has learned once its excess is below -0.05. It blows up

    - where after that it is 0.05 above the plateau, or at any time its loss above twice the larger
      of `baseline` and its first loss, for 50 consecutive steps;
    - where it ends so: for at least 10 steps, or for fewer if the loss after the last step is as
      high. A run that has come to the plateau and has not learned ends so 0.5 above it;
    - where the loss after the last step alone is 0.5 above a plateau to which it had come, or above
      twice the larger of `baseline` and its first loss.

    Shorter stretches are spikes. `scaled`: a gradient scaler drops non-finite steps by design, so
    that only 20 of them in a row count.
    """

    baseline: float
    scaled: bool = False
    learned: bool = False
    spikes: int = 0
    skipped: int = 0
    verdict: Divergence | None = None
    reached: bool = False  # whether it has come down to the plateau
    m: float = math.inf  # median excess
    _end: float = -math.inf  # excess after the last step
    _ceiling: float = math.nan
    _step: int = -1
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHING))
    _above: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHING))
    _high: list[int] = field(default_factory=list)  # steps of the present stretch
    _grave: int = 0  # its last steps in a row that count towards 50
    _dropped: list[int] = field(default_factory=list)  # steps in a row that the scaler dropped

    def observe(
        self, step: int, excess: float, gradient_norm: float, width: float = 0.0
    ) -> Divergence | None:
        """One optimizer step: its excess, the float64 norm of its gradient before clipping, and the
        plateau's width on its targets."""
        if self.verdict:
            return self.verdict
        self._step = step
        if not math.isfinite(excess):
            self.verdict = Divergence("loss_nonfinite", step)
        elif not gradient_norm <= LARGEST_NORM:  # also true of NaN
            self._drop(step)
        else:
            self._dropped = []
        if not self.verdict:
            self._watch(step, excess, excess - width)
        return self.verdict

    def validated(self, loss: float) -> Divergence | None:
        """A validation loss: one that is not finite is the doing of the latest step."""
        if not self.verdict and not math.isfinite(loss):
            self.verdict = Divergence("loss_nonfinite", self._step)
        return self.verdict

    def close(self, excess: float, width: float = 0.0) -> Divergence | None:
        """The run has ended; `excess` and `width` are of its last batch after the last step."""
        if self.verdict or self.validated(excess):
            return self.verdict
        self._end = excess
        above = excess - width
        if self._high and (len(self._high) >= CLOSING or self._is_high(excess, above)):
            self.verdict = Divergence("blowup", min(self._high[0], self._last_rise()))
        elif self._is_wrecked(excess, above):
            self.verdict = Divergence("blowup", self._last_rise())
        else:
            self.spikes += bool(self._high)
        return self.verdict

    def outcome(self, final: float) -> Outcome:
        """What became of a run that has been closed, by its last validation loss."""
        if self.verdict:
            return Outcome("diverged", self.verdict.reason, self.verdict.step)
        excess = final - self.baseline
        if excess < -MARGIN:
            return Outcome("trained")
        level = max(self.m, self._end)  # of training, at the end
        if self.learned and level >= -MARGIN:
            return Outcome("stalled", "collapsed")
        overfitted = self.learned and excess > level + GAP
        return Outcome("stalled", "overfitted" if overfitted else "no_progress")

    def _is_high(self, excess: float, above: float) -> bool:
        return (self.learned and above > MARGIN) or self._is_wrecked(excess, above)

    def _is_wrecked(self, excess: float, above: float) -> bool:
        return (self.reached and above > LEAP) or excess > self._ceiling

    def _last_rise(self) -> int:
        """The first of the latest steps in a row whose own loss was that of a wreck."""
        steps = self._step + 1
        for excess, above in zip(reversed(self._recent), reversed(self._above), strict=True):
            if not self._is_wrecked(excess, above):
                break
            steps -= 1
        return min(steps, self._step)

    def _drop(self, step: int) -> None:
        self.skipped += self.scaled
        self._dropped.append(step)
        if not self.scaled or len(self._dropped) >= SKIPS:
            self.verdict = Divergence("grad_nonfinite", self._dropped[0])

    def _watch(self, step: int, excess: float, above: float) -> None:
        if not self._recent:
            self._ceiling = self.baseline + 2 * max(0.0, excess)
        self._recent.append(excess)
        self._above.append(above)
        self.m, top = median(self._recent), median(self._above)
        full = len(self._recent) == SMOOTHING
        self.reached |= full and top <= MARGIN
        self.learned |= full and self.m < -MARGIN
        if self._is_high(self.m, top):
            self._high.append(step)
            grave = self.learned or self.m > self._ceiling
            self._grave = self._grave + 1 if grave else 0
            if self._grave >= PATIENCE:
                self.verdict = Divergence("blowup", step - PATIENCE + 1)
        elif self._high:
            self.spikes += 1
            self._high, self._grave = [], 0
