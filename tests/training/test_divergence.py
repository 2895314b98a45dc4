"""The detector against a slow twin, against cases worked out by hand, and inside real training."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import tasks
from harness.data.baselines import losses as baseline_losses
from harness.training.config import Config
from harness.training.divergence import LARGEST_NORM, Detector, Divergence
from harness.training.train import train

HERE = Path()
NAN, INF = math.nan, math.inf
BASELINE = 3.0  # of the unit tests: learned below 2.95, blown up above 3.05


def drive(losses: Sequence[float], norms: Sequence[float] = (), **options: Any) -> Detector:
    """A detector after a whole run; it stops at its verdict, as training does."""
    detector = Detector(BASELINE, **options)
    for step, loss in enumerate(losses):
        if detector.observe(step, loss, norms[step] if step < len(norms) else 1.0):
            break
    detector.close()
    return detector


# Losses


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_one_nonfinite_loss_is_divergence_at_its_step(loss: float) -> None:
    detector = drive([3.0] * 7 + [loss, 3.0])
    assert detector.verdict == Divergence("loss_nonfinite", 7)


@pytest.mark.parametrize(
    ("learned", "high", "diverges"),
    [
        (2.94, 3.06, True),
        (2.94, 3.04, False),  # within the margin of the baseline
        (2.96, 3.06, False),  # has not learned: the baseline is no ceiling
        (2.96, 5.99, False),  # twice the baseline is
        (2.96, 6.01, True),
    ],
)
def test_margins_are_five_hundredths_of_a_nat(learned: float, high: float, diverges: bool) -> None:
    # m is the median of nine: it is high from the fifth high loss on.
    verdict = drive([learned] * 20 + [high] * 80).verdict
    assert verdict == (Divergence("blowup", 24) if diverges else None)


def test_a_high_first_loss_lifts_the_ceiling() -> None:
    # 2 x max(3, 4) = 8; the losses after the first stand where learning has not happened.
    assert drive([4.0, *[3.0] * 19, *[7.9] * 80]).verdict is None
    assert drive([4.0, *[3.0] * 19, *[8.1] * 80]).verdict == Divergence("blowup", 24)


def test_the_ceiling_is_of_the_first_loss_and_not_of_the_largest() -> None:
    assert drive([3.0, 9.0, *[3.0] * 18, *[6.1] * 80]).verdict == Divergence("blowup", 24)


def test_patience_is_fifty_steps() -> None:
    losses = [2.5] * 20 + [4.0] * 200
    detector = Detector(BASELINE)
    told = [detector.observe(step, loss, 1.0) for step, loss in enumerate(losses)]
    # m is high from step 24; its fiftieth step is 73.
    assert next(step for step, verdict in enumerate(told) if verdict) == 73
    assert told[73] == Divergence("blowup", 24)


def test_the_first_step_of_a_run_can_begin_a_blowup() -> None:
    # losses 4, 9, 9: medians 4, 6.5, 9; the ceiling is 8.
    assert drive([4.0] + [9.0] * 60).verdict == Divergence("blowup", 2)


@pytest.mark.parametrize(
    ("last_steps", "verdict", "spikes"),
    [
        (12, Divergence("blowup", 88), 0),
        (10, Divergence("blowup", 90), 0),
        (9, None, 1),
        (1, None, 1),
        (0, None, 0),
    ],
)
def test_a_stretch_at_the_end_counts_from_ten_steps_on(
    last_steps: int, verdict: Divergence | None, spikes: int
) -> None:
    high = last_steps + 4  # losses of which the last `last_steps` have a high median
    detector = drive([2.5] * (100 - high) + [4.0] * high)
    assert detector.verdict == verdict
    assert detector.spikes == spikes


def test_a_stretch_that_recovers_is_a_spike_however_long_below_patience() -> None:
    # 49 high medians: the losses high at 20..68 give medians high at 24..72.
    detector = drive([2.5] * 20 + [4.0] * 49 + [2.5] * 40)
    assert (detector.verdict, detector.spikes) == (None, 1)
    detector = drive([2.5] * 20 + [4.0] * 50 + [2.5] * 40)
    assert (detector.verdict, detector.spikes) == (Divergence("blowup", 24), 0)


def test_each_stretch_that_recovers_is_counted() -> None:
    calm, high = [2.5] * 20, [4.0] * 12
    assert drive(calm + (high + calm) * 3).spikes == 3


def test_four_high_losses_of_nine_are_no_spike() -> None:
    assert drive([2.5] * 20 + [100.0] * 4 + [2.5] * 20).spikes == 0
    assert drive([2.5] * 20 + [100.0] * 5 + [2.5] * 20).spikes == 1


def test_a_plateau_is_not_divergence() -> None:
    detector = drive([3.0] * 500)
    assert (detector.verdict, detector.spikes, detector.learned) == (None, 0, False)


def test_a_run_that_has_learned_stays_learned() -> None:
    # It climbs back slowly: the early medians below 2.95 are what makes 3.06 a blow-up.
    losses = [2.9] * 10 + [3.0] * 100 + [3.06] * 60
    assert drive(losses).verdict == Divergence("blowup", 114)


def test_the_first_verdict_stands() -> None:
    detector = Detector(BASELINE)
    for step, loss in enumerate([3.0, NAN, INF, 3.0]):
        detector.observe(step, loss, NAN)
        if step == 0:
            break
    assert detector.verdict == Divergence("grad_nonfinite", 0)
    assert detector.observe(1, NAN, 1.0) == Divergence("grad_nonfinite", 0)
    assert detector.close() == Divergence("grad_nonfinite", 0)


def slow_twin(losses: list[float]) -> tuple[int | None, int]:
    """(step of blow-up, spikes) by the definition's own words, with the whole run at hand."""
    m = [median(losses[max(0, s - 8) : s + 1]) for s in range(len(losses))]
    high = []
    for s in range(len(losses)):
        learned = any(value < BASELINE - 0.05 for value in m[: s + 1])
        beyond = m[s] > 2 * max(BASELINE, losses[0])
        high.append(beyond or (learned and m[s] > BASELINE + 0.05))
    spikes, start = 0, 0
    while start < len(high):
        if not high[start]:
            start += 1
            continue
        end = start
        while end < len(high) and high[end]:
            end += 1
        if end - start >= 50 or (end == len(high) and end - start >= 10):
            return start, spikes
        spikes += 1
        start = end
    return None, spikes


STRETCHES = st.lists(
    st.tuples(st.sampled_from([2.0, 2.94, 2.96, 3.04, 3.06, 5.9, 6.1, 9.0]), st.integers(1, 60)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(stretches=STRETCHES)
def test_detector_equals_its_slow_twin(stretches: list[tuple[float, int]]) -> None:
    losses = [loss for loss, steps in stretches for _ in range(steps)]
    step, spikes = slow_twin(losses)
    detector = drive(losses)
    assert detector.verdict == (None if step is None else Divergence("blowup", step))
    assert detector.spikes == spikes


# Gradients


@pytest.mark.parametrize("norm", [NAN, INF, 1e20, 1.9e19])
def test_a_gradient_beyond_float32_clipping_is_divergence_at_its_step(norm: float) -> None:
    detector = drive([3.0] * 10, [1.0] * 4 + [norm])
    assert detector.verdict == Divergence("grad_nonfinite", 4)


def test_the_largest_norm_is_one_whose_square_fits_float32() -> None:
    assert drive([3.0] * 10, [LARGEST_NORM] * 10).verdict is None
    assert LARGEST_NORM == 1.8e19
    assert LARGEST_NORM**2 < 3.4028235e38 < 1.9e19**2


def test_a_nonfinite_loss_is_named_before_the_gradient_it_makes() -> None:
    assert drive([3.0, NAN], [1.0, NAN]).verdict == Divergence("loss_nonfinite", 1)


def test_a_scaler_may_drop_nineteen_steps_in_a_row() -> None:
    detector = drive([3.0] * 60, [1.0] * 5 + [INF] * 19 + [1.0] * 30, scaled=True)
    assert (detector.verdict, detector.skipped) == (None, 19)


def test_twenty_dropped_steps_in_a_row_are_divergence_at_the_first() -> None:
    detector = drive([3.0] * 60, [1.0] * 5 + [INF] * 30, scaled=True)
    assert detector.verdict == Divergence("grad_nonfinite", 5)
    assert detector.skipped == 20


def test_dropped_steps_that_are_not_in_a_row_only_count() -> None:
    norms = ([NAN] * 10 + [1.0]) * 4
    detector = drive([3.0] * 44, norms, scaled=True)
    assert (detector.verdict, detector.skipped) == (None, 40)


def test_without_a_scaler_no_step_is_skipped() -> None:
    assert drive([3.0] * 10, [INF]).skipped == 0


def test_a_nonfinite_loss_is_divergence_under_a_scaler_too() -> None:
    assert drive([3.0, NAN], [1.0, NAN], scaled=True).verdict == Divergence("loss_nonfinite", 1)


# In training: losses written by hand, in multiples of the task's own baseline b.


class Case(NamedTuple):
    losses: Callable[[float], list[float]]
    steps: int
    valid: float  # validation loss minus baseline
    outcome: str
    reason: str | None
    diverged_at: int | None
    spikes: int = 0
    trained_steps: int | None = None  # where fewer than `steps`
    factors: dict[int, float] | None = None  # on gradients, by step


CASES = {
    "nan": Case(
        lambda b: [b] * 7 + [NAN] + [b] * 4,
        *(12, -1.0, "diverged", "loss_nonfinite", 7),
        trained_steps=8,
    ),
    "nan at the last step": Case(
        lambda b: [b] * 11 + [NAN],
        *(12, -1.0, "diverged", "loss_nonfinite", 11),
    ),
    "inf": Case(
        lambda b: [b] * 7 + [INF] + [b] * 4,
        *(12, -1.0, "diverged", "loss_nonfinite", 7),
        trained_steps=8,
    ),
    "gradient 1e20": Case(
        lambda b: [b] * 12,
        *(12, -1.0, "diverged", "grad_nonfinite", 5),
        trained_steps=6,
        factors={5: 1e22},
    ),
    "gradient 1e15": Case(
        lambda b: [b] * 12,
        *(12, -1.0, "trained", None, None),
        factors={5: 1e15},
    ),
    # Median of nine: high from the fifth high loss; the fiftieth high median ends the run.
    "blow-up before learning": Case(
        lambda b: [b] * 10 + [2 * b + 0.1] * 60,
        *(70, -1.0, "diverged", "blowup", 14),
        trained_steps=14 + 50,
    ),
    "high before learning": Case(
        lambda b: [b] * 10 + [2 * b - 0.1] * 60,
        *(70, -1.0, "trained", None, None),
    ),
    "blow-up after learning": Case(
        lambda b: [b - 0.06] * 10 + [b + 0.06] * 60,
        *(70, -1.0, "diverged", "blowup", 14),
        trained_steps=14 + 50,
    ),
    "twelve steps before the end": Case(
        lambda b: [b - 0.1] * 24 + [b + 0.1] * 16,
        *(40, -1.0, "diverged", "blowup", 28),
    ),
    "nine steps before the end": Case(
        lambda b: [b - 0.1] * 27 + [b + 0.1] * 13,
        *(40, -1.0, "trained", None, None, 1),
    ),
    "spike": Case(
        lambda b: [b - 0.1] * 10 + [9 * b] * 10 + [b - 0.1] * 20,
        *(40, -1.0, "trained", None, None, 1),
    ),
    "plateau": Case(
        lambda b: [b] * 12,
        *(12, -0.04, "stalled", "no_progress", None),
    ),
    "just learned": Case(
        lambda b: [b] * 12,
        *(12, -0.06, "trained", None, None),
    ),
}


def tiny(config: Callable[..., Config], steps: int, accumulation: int = 1, **more: Any) -> Config:
    changes = {"model.depth": 1, "train.steps": steps, "train.accumulation": accumulation}
    changes |= {"train.batch": 2, "train.length": 4, "data.valid_sequences": 4, "optim.clip": 1.0}
    return config(changes | more)


def baseline_of(c: Config) -> float:
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    return baseline_losses(task, c.train.batch)[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("log_every", [1, 50])
def test_a_run_is_recorded_as_what_became_of_it(
    name: str,
    accumulation: int,
    log_every: int,
    config: Callable[..., Config],
    script: Callable[..., None],
) -> None:
    case = CASES[name]
    c = tiny(config, case.steps, accumulation)
    baseline = baseline_of(c)
    losses = case.losses(baseline)
    assert len(losses) == case.steps
    script(losses, accumulation=accumulation, valid=baseline + case.valid, factors=case.factors)
    record, curves = train(c, HERE, log_every=log_every)
    assert record["outcome"] == case.outcome
    assert record["reason"] == case.reason
    assert record["diverged_at"] == case.diverged_at
    assert record["spikes"] == case.spikes
    assert record["skipped_steps"] == 0
    assert record["baseline_loss"] == baseline
    trained_steps = case.trained_steps or case.steps
    assert record["steps"] == trained_steps
    told = curves.array("loss/train").tolist()
    assert told == pytest.approx(losses[:trained_steps], rel=1e-6, nan_ok=True)
    expected = None if case.outcome == "diverged" else baseline + case.valid
    assert record.get("final_loss") == (expected and pytest.approx(expected, rel=1e-6))
    assert record.get("best_loss") == record.get("final_loss")


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_one_nonfinite_batch_of_a_step_is_divergence(
    batch: int, config: Callable[..., Config], script: Callable[..., None]
) -> None:
    losses: list[Any] = [2.0] * 12
    losses[4] = [NAN if i == batch else 2.0 for i in range(3)]
    script(losses, accumulation=3)
    record, _ = train(tiny(config, 12, accumulation=3), HERE)
    assert (record["reason"], record["diverged_at"]) == ("loss_nonfinite", 4)
    assert record["steps"] == 5


def test_weights_broken_by_the_last_step_are_divergence(config: Callable[..., Config]) -> None:
    # One step of 1e30 makes activations overflow: no training loss is left to tell it.
    record, _ = train(tiny(config, 1, **{"optim.name": "sgd", "optim.lr": 1e30}), HERE)
    assert record["outcome"] == "diverged"
    assert (record["reason"], record["diverged_at"]) == ("loss_nonfinite", 0)
    assert record.get("final_loss") is None


def test_a_rate_that_is_far_too_high_diverges_by_itself(config: Callable[..., Config]) -> None:
    more = {"scheme": "rezero", "optim.name": "sgd", "optim.lr": 1e4, "optim.clip": 0.0}
    record, curves = train(tiny(config, 60, **more), HERE)
    losses = curves.array("loss/train")
    assert [math.isfinite(x) for x in losses] == [True, True, False]
    assert (record["outcome"], record["reason"]) == ("diverged", "loss_nonfinite")
    assert (record["diverged_at"], record["steps"]) == (2, 3)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_run_that_stops_early_pays_for_no_batch_that_it_did_not_train_on(
    accumulation: int, config: Callable[..., Config], script: Callable[..., None]
) -> None:
    whole = train(tiny(config, 4, accumulation), HERE).record
    script([2.0] * 3 + [NAN] * 9, accumulation=accumulation)
    stopped = train(tiny(config, 12, accumulation), HERE).record
    assert (stopped["outcome"], stopped["steps"]) == ("diverged", 4)
    assert (stopped["tokens"], stopped["flops"]) == (whole["tokens"], whole["flops"])
