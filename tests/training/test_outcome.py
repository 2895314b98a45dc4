"""What becomes of a run: against a slow twin, against sequences judged by hand, on the losses of a
model that reads nothing, and inside real training."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import tasks
from harness.data.arrays import IGNORE
from harness.data.baselines import baselines
from harness.data.batches import TrainingBatches
from harness.sweep.study import ROOT
from harness.training.config import Config, parse, read_toml, with_value
from harness.training.outcome import LARGEST_NORM, Detector, Divergence, Outcome
from harness.training.train import train

HERE = Path()
NAN, INF = math.nan, math.inf
BASELINE = 3.0  # of the unit tests: learned below 2.95, blown up above 3.05


def drive(
    losses: Sequence[float],
    norms: Sequence[float] = (),
    *,
    closing: float | None = None,
    width: float = 0.0,
    **options: Any,
) -> Detector:
    """A detector after a whole run; it stops at its verdict, as training does. The loss after the
    last step is `closing`, else that before it; the plateau is from 3 to 3 + width."""
    detector = Detector(BASELINE, **options)
    for step, loss in enumerate(losses):
        norm = norms[step] if step < len(norms) else 1.0
        if detector.observe(step, loss - BASELINE, norm, width):
            break
    detector.close((losses[-1] if closing is None else closing) - BASELINE, width)
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
        (2.96, 3.06, False),  # has not learned: the plateau is no ceiling
        (2.96, 3.49, False),
        (2.96, 3.51, True),  # half a nat above it to the end is
    ],
)
def test_margins_are_five_hundredths_of_a_nat(learned: float, high: float, diverges: bool) -> None:
    # m is the median of nine: it is high from the fifth high loss on.
    verdict = drive([learned] * 20 + [high] * 80).verdict
    assert verdict == (Divergence("blowup", 24) if diverges else None)


@pytest.mark.parametrize(("high", "steps"), [(5.9, 80), (6.1, 74)])
def test_twice_the_baseline_ends_a_run_that_has_not_learned(high: float, steps: int) -> None:
    # Whether it is above the plateau for good is seen at the end.
    detector = Detector(BASELINE)
    told = [detector.observe(s, x - BASELINE, 1.0) for s, x in enumerate([3.0] * 20 + [high] * 60)]
    assert next((s + 1 for s, verdict in enumerate(told) if verdict), 80) == steps
    assert detector.close(high - BASELINE) == Divergence("blowup", 24)


def test_a_high_first_loss_lifts_the_ceiling() -> None:
    # 2 x max(3, 4) = 8, of the first loss and not of the largest; m is high from step 24 on.
    calm = [3.0] * 40
    assert drive([4.0, *[3.0] * 19, *[7.9] * 80, *calm]).verdict is None
    assert drive([4.0, *[3.0] * 19, *[8.1] * 80, *calm]).verdict == Divergence("blowup", 24)
    assert drive([3.0, 9.0, *[3.0] * 18, *[6.1] * 80, *calm]).verdict == Divergence("blowup", 24)


def test_patience_is_fifty_steps() -> None:
    losses = [2.5] * 20 + [4.0] * 200
    detector = Detector(BASELINE)
    told = [detector.observe(step, loss - BASELINE, 1.0) for step, loss in enumerate(losses)]
    # m is high from step 24; its fiftieth step is 73.
    assert next(step for step, verdict in enumerate(told) if verdict) == 73
    assert told[73] == Divergence("blowup", 24)


def test_the_first_step_of_a_run_can_begin_a_blowup() -> None:
    # losses 4, 9, 9: medians 4, 6.5, 9; the ceiling is 8.
    assert drive([4.0] + [9.0] * 60).verdict == Divergence("blowup", 2)
    assert drive([4.0] + [9.0] * 3).verdict == Divergence("blowup", 1)


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
def test_a_stretch_at_the_end_counts_from_ten_steps_on_or_as_the_last_loss_says(
    last_steps: int, verdict: Divergence | None, spikes: int
) -> None:
    high = last_steps + 4  # losses of which the last `last_steps` have a high median
    losses = [2.5] * (100 - high) + [3.4] * high
    detector = drive(losses, closing=3.0)
    assert (detector.verdict, detector.spikes) == (verdict, spikes)
    as_high = Divergence("blowup", 100 - last_steps) if last_steps else None
    assert drive(losses, closing=3.06).verdict == as_high


@pytest.mark.parametrize(("high", "start"), [(13, 91), (6, 94), (3, 97), (1, 99), (0, 99)])
def test_half_a_nat_above_at_the_end_counts_from_the_last_step_on(high: int, start: int) -> None:
    # The last steps in a row that are as high; with none, the last step has broken the weights.
    detector = drive([2.5] * (100 - high) + [3.6] * high, closing=3.6)
    assert (detector.verdict, detector.spikes) == (Divergence("blowup", start), 0)
    assert drive([2.5] * 100, closing=3.4).verdict is None


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


def test_the_plateau_reaches_up_to_where_no_positions_are_told_apart() -> None:
    low, high = [2.9] * 20, [3.2] * 80
    assert drive(low + high).verdict == Divergence("blowup", 24)
    assert drive(low + high, width=0.2).verdict is None
    assert drive(low + [3.26] * 80, width=0.2).verdict == Divergence("blowup", 24)
    assert drive([3.1] * 80, closing=3.69, width=0.2).verdict is None
    assert drive([3.1] * 80, closing=3.71, width=0.2).verdict == Divergence("blowup", 79)


def test_what_has_not_come_to_the_plateau_does_not_leave_it() -> None:
    # Above its plateau a model that is no table of frequencies is noisy, batch by batch.
    assert drive([3.6] * 80, closing=5.9).verdict is None
    assert drive([3.6] * 80, closing=7.3).verdict == Divergence("blowup", 79)
    assert drive([3.6] * 40 + [4.4] * 40).verdict is None


def test_a_run_that_has_learned_stays_learned() -> None:
    # It climbs back slowly: the early medians below 2.95 are what makes 3.06 a blow-up.
    losses = [2.9] * 10 + [3.0] * 100 + [3.06] * 60
    assert drive(losses).verdict == Divergence("blowup", 114)


def test_the_first_verdict_stands() -> None:
    detector = Detector(BASELINE)
    first = Divergence("grad_nonfinite", 0)
    assert detector.observe(0, 0.0, NAN) == first
    assert detector.observe(1, NAN, 1.0) == first
    assert detector.validated(NAN) == first
    assert detector.close(NAN) == first


def slow_twin(losses: list[float], closing: float) -> tuple[int | None, int]:
    """(step of blow-up, spikes) by the definition's own words, with the whole run at hand."""
    steps = range(len(losses))
    m = [median(losses[max(0, s - 8) : s + 1]) for s in steps]
    learned = [any(value < BASELINE - 0.05 for value in m[8 : s + 1]) for s in steps]
    reached = [any(value <= BASELINE + 0.05 for value in m[8 : s + 1]) for s in steps]
    ceiling = 2 * max(BASELINE, losses[0])

    def is_high(s: int, value: float) -> bool:
        bar = BASELINE + (0.05 if learned[s] else 0.5 if reached[s] else INF)
        return value > bar or value > ceiling

    grave = [m[s] > BASELINE + 0.05 if learned[s] else m[s] > ceiling for s in steps]
    high = [is_high(s, m[s]) for s in steps]
    wrecked = closing > ceiling or (reached[-1] and closing > BASELINE + 0.5)
    rise = len(losses)
    while rise > max(0, len(losses) - 9) and (
        losses[rise - 1] > ceiling or (reached[-1] and losses[rise - 1] > BASELINE + 0.5)
    ):
        rise -= 1
    rise = min(rise, len(losses) - 1)
    spikes, start = 0, 0
    while start < len(high):
        if not high[start]:
            start += 1
            continue
        end = start
        while end < len(high) and high[end]:
            end += 1
        for s in range(start, end - 49):
            if all(grave[s : s + 50]):
                return s, spikes
        if end == len(high):
            if end - start >= 10 or is_high(end - 1, closing):
                return min(start, rise), spikes
            if wrecked:
                break
        spikes += 1
        start = end
    return (rise, spikes) if wrecked else (None, spikes)


STRETCHES = st.lists(
    st.tuples(
        st.sampled_from([2.0, 2.94, 2.96, 3.04, 3.06, 3.4, 3.6, 5.9, 6.1, 9.0]), st.integers(1, 60)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(stretches=STRETCHES, closing=st.sampled_from([2.0, 3.4, 3.6, 7.0]))
def test_detector_equals_its_slow_twin(stretches: list[tuple[float, int]], closing: float) -> None:
    losses = [loss for loss, steps in stretches for _ in range(steps)]
    step, spikes = slow_twin(losses, closing)
    detector = drive(losses, closing=closing)
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


# Runs, and what a researcher would say of them. Losses in nats; reading nothing has 3.5.

PLATEAU = 3.5


class Run(NamedTuple):
    losses: list[float]  # of training
    valid: list[float]  # validation losses, evenly spaced, the last one after the last step
    outcome: Outcome
    closing: float | None = None  # after the last step, where that differs from the loss before it
    norm: float = 1.0  # of the last gradient


def line(start: float, end: float, steps: int) -> list[float]:
    return np.linspace(start, end, steps).tolist()


def noise(level: float, deviation: float, steps: int) -> list[float]:
    return np.random.default_rng(0).normal(level, deviation, steps).tolist()


LEARNS = [*line(5.0, 2.6, 60), *line(2.6, 2.4, 90)]
TO_PLATEAU = line(5.0, 3.5, 50)


def diverged(reason: str, step: int) -> Outcome:
    return Outcome("diverged", reason, step)


def stalled(reason: str) -> Outcome:
    return Outcome("stalled", reason)


TRAINED = Outcome("trained")
NO_PROGRESS, COLLAPSED, OVERFITTED = map(stalled, ("no_progress", "collapsed", "overfitted"))
RUNS = {
    # trained
    "learns": Run(LEARNS, [2.7, 2.5], TRAINED),
    "learns late": Run([*TO_PLATEAU, *[3.5] * 80, *line(3.5, 3.2, 40)], [3.5, 3.2], TRAINED),
    "learns and spikes": Run([*LEARNS, *[9.0] * 20, *[2.4] * 60], [2.5, 2.4], TRAINED),
    "spikes on its way": Run([*TO_PLATEAU, *[9.0] * 20, *LEARNS[60:]], [3.5, 2.4], TRAINED),
    "starts with a hump": Run([5.0, *[8.0] * 30, *LEARNS], [2.5], TRAINED),
    "goes down by stairs": Run([5.0] * 40 + [3.5] * 40 + [3.0] * 40 + [2.5] * 40, [2.6], TRAINED),
    "oscillates below the plateau": Run([3.2, 2.2] * 80, [2.6], TRAINED),
    "oscillates about a trend": Run([3.0, 4.2, 2.0] * 60, [3.0], TRAINED),
    "drifts up below the plateau": Run([*LEARNS, *line(2.4, 3.3, 200)], [2.5, 3.3], TRAINED),
    "overfits but beats the plateau": Run([*LEARNS, *line(2.4, 0.5, 200)], [2.5, 3.3], TRAINED),
    # stalled: never learned
    "stays at the plateau": Run([*TO_PLATEAU, *[3.5] * 100], [3.5], NO_PROGRESS),
    "stays there with noise": Run([*TO_PLATEAU, *noise(3.5, 0.03, 400)], [3.5], NO_PROGRESS),
    "stays above it": Run([*line(9.0, 4.5, 50), *noise(4.5, 0.1, 200)], [4.5], NO_PROGRESS),
    "is still on its way down": Run(line(9.0, 5.0, 100), [7.0, 5.0], NO_PROGRESS),
    "spikes at the plateau": Run([*TO_PLATEAU, *[8.0] * 30, *[3.5] * 60], [3.5], NO_PROGRESS),
    "has hardly begun": Run([*TO_PLATEAU, *line(3.5, 3.44, 40)], [3.46], NO_PROGRESS),
    # stalled: had learned
    "returns to the plateau": Run([*LEARNS, *line(2.4, 3.5, 30), *[3.5] * 80], [3.5], COLLAPSED),
    "returns with noise": Run([*LEARNS, *noise(3.5, 0.03, 200)], [2.5, 3.5], COLLAPSED),
    "drifts up to the plateau": Run([*LEARNS, *line(2.4, 3.52, 400)], [2.5, 3.52], COLLAPSED),
    "returns in the last steps": Run([*LEARNS, *[3.5] * 12], [2.5, 3.5], COLLAPSED),
    "returns in the last step": Run(LEARNS, [2.5, 3.5], COLLAPSED, closing=3.5),
    "overfits": Run([*LEARNS, *line(2.4, 0.5, 200)], [2.6, 4.0, 6.0], OVERFITTED),
    "overfits unseen": Run([*LEARNS, *line(2.4, 0.5, 200)], [6.0], OVERFITTED),
    # diverged: a blow-up
    "is wrecked in 13 steps": Run(
        [*LEARNS, *[19.6] * 13], [2.5, 19.6], diverged("blowup", 150 + 13 - 9)
    ),
    "is wrecked by the last step": Run(LEARNS, [2.5, 19.6], diverged("blowup", 149), closing=19.6),
    "doubles for good": Run([3.5] * 100 + [6.9] * 200, [3.5, 6.9], diverged("blowup", 104)),
    "ends a little above it": Run(
        [*LEARNS, *[3.7] * 8], [2.5, 3.7], diverged("blowup", 150 + 8 - 4)
    ),
    "leaves the plateau for good": Run(
        [*TO_PLATEAU, *[3.5] * 50, *[4.2] * 40], [3.5, 4.2], diverged("blowup", 104)
    ),
    "blows up after learning": Run([*LEARNS, *[3.6] * 80], [2.5, 3.6], diverged("blowup", 154)),
    # diverged: not finite
    "gets a gradient that is no number": Run(
        LEARNS, [2.5], diverged("grad_nonfinite", 149), norm=NAN
    ),
    "has a validation that is no number": Run(
        LEARNS, [2.5, NAN, 2.4], diverged("loss_nonfinite", 99)
    ),
    "ends with one": Run(LEARNS, [2.5, NAN], diverged("loss_nonfinite", 149), closing=2.4),
}


def judged(run: Run) -> Outcome:
    """As training goes: a step, then a validation where there is one, until a verdict."""
    detector, steps = Detector(PLATEAU), len(run.losses)
    due = {steps * (i + 1) // len(run.valid): loss for i, loss in enumerate(run.valid)}
    for step, loss in enumerate(run.losses):
        last = step + 1 == steps
        verdict = detector.observe(step, loss - PLATEAU, run.norm if last else 1.0)
        if last and not verdict:
            verdict = detector.close((loss if run.closing is None else run.closing) - PLATEAU)
        if not verdict and step + 1 in due:
            verdict = detector.validated(due[step + 1])
        if verdict:
            break
    return detector.outcome(run.valid[-1])


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_judged_as_a_researcher_would(name: str) -> None:
    assert judged(RUNS[name]) == RUNS[name].outcome


def test_runs_of_every_kind_are_judged() -> None:
    assert len(RUNS) == 32
    assert {(run.outcome.outcome, run.outcome.reason) for run in RUNS.values()} == {
        ("trained", None),
        *(("stalled", reason) for reason in ("no_progress", "collapsed", "overfitted")),
        *(("diverged", reason) for reason in ("blowup", "grad_nonfinite", "loss_nonfinite")),
    }


# A model that reads nothing: frequencies alone, on the batches of each config, in any order.

SHUFFLES, BATCHES = 400, 100
CONFIGS = {path.stem: read_toml(path) for path in sorted((ROOT / "configs").glob("*.toml"))}
WORDS = [f"{a}{b}" for a in "bcdfghklmnprst" for b in ("a", "en", "i", "os", "ul")]


def write_corpus(given: Mapping[str, Any], path: Path) -> None:
    """Sentences of words with Zipf's frequencies, in the columns of a config's corpus; short ones
    have other words than long ones, as labels have."""
    named = [each.split(">") for each in given.get("directions", ["src>tgt"])]
    named += [each.split(">") for each in given.get("low_resource", [])]
    columns = sorted({name for pair in named for name in pair if name != "*"})
    draw = np.random.default_rng(0)
    share = 1 / np.arange(1, len(WORDS) + 1)

    def sentence() -> str:
        size = draw.integers(3, 9)
        words = WORDS if size > 5 else WORDS[::-1]
        return " ".join(draw.choice(words, size, p=share / share.sum()))

    lines = [["split", *columns]]
    lines += [["train", *(sentence() for _ in columns)] for _ in range(400)]
    lines += [[split, *(sentence() for _ in columns)] for split in ("valid", "test") * 20]
    text = "".join("\t".join(each) + "\n" for each in lines)
    path.write_text(text)


@pytest.mark.parametrize("name", CONFIGS)
def test_frequencies_alone_never_learn_and_never_diverge(name: str, tmp_path: Path) -> None:
    given = CONFIGS[name]
    if given["data"]["name"] == "translation":
        write_corpus(given["data"], tmp_path / "zipf.tsv")
        given = with_value(given, "data.corpus", "zipf")
    c = parse(given, name)
    task = tasks.load(c.data, tmp_path, c.model.family, c.train.length)
    known, words = baselines(task, c.train.batch), task.vocabularies[1]
    smoothing = c.optim.label_smoothing
    batches = TrainingBatches(
        task, 0, c.train.batch, BATCHES, blind=known.blind, smoothing=smoothing
    )
    sample = task.sample().targets_BT
    counts = np.bincount(sample[sample != IGNORE], minlength=words) + 1
    p = (1 - smoothing) * counts / counts.sum() + smoothing / words
    read = [batches[i] for i in range(BATCHES)]
    targets = [batch.targets_BT[batch.targets_BT != IGNORE].numpy() for batch in read]
    low, high = np.array(
        [np.array(b.plateau) / len(t) for b, t in zip(read, targets, strict=True)]
    ).T
    unigram = np.array([-np.log(p[t]).mean() for t in targets])
    assert (np.minimum(abs(unigram - low), abs(unigram - high)) < 1e-9).all()
    draw = np.random.default_rng(0)
    for losses in (unigram, low, high, (low + high) / 2):  # by targets alone, by position, between
        for _ in range(SHUFFLES // 4):
            detector = Detector(known.loss)
            for step, i in enumerate(draw.permutation(BATCHES)):
                detector.observe(step, losses[i] - low[i], 1.0, high[i] - low[i])
            detector.close(losses[i] - low[i], high[i] - low[i])
            assert (detector.verdict, detector.learned, detector.spikes) == (None, False, 0)
    if given["data"]["name"] == "code_text":  # what a batch happens to hold cancels
        assert np.std(unigram) > 0.1 > 50 * np.std(unigram - low)


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
    closing: float | None = None  # the loss after the last step, minus baseline


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
        *(70, -1.0, "diverged", "blowup", 14),
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
        *(40, 0.1, "diverged", "blowup", 31),
    ),
    "high for some steps, but not at the end": Case(
        lambda b: [b - 0.1] * 27 + [b + 0.1] * 13,
        *(40, -1.0, "trained", None, None, 1),
        closing=0.0,
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
    "collapse": Case(
        lambda b: [b - 0.1] * 20 + [b] * 20,
        *(40, 0.0, "stalled", "collapsed", None),
    ),
    "overfitting": Case(
        lambda b: [b - 1.0] * 20,
        *(20, 1.0, "stalled", "overfitted", None),
    ),
    "wrecked by the last step": Case(
        lambda b: [b - 1.0] * 20,
        *(20, 9.0, "diverged", "blowup", 19),
        closing=9.0,
    ),
}


def tiny(config: Callable[..., Config], steps: int, accumulation: int = 1, **more: Any) -> Config:
    changes = {"model.depth": 1, "train.steps": steps, "train.accumulation": accumulation}
    changes |= {"train.batch": 2, "train.length": 4, "data.valid_sequences": 4, "optim.clip": 1.0}
    return config(changes | more)


def baseline_of(c: Config) -> float:
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    return baselines(task, c.train.batch).loss


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
    script(
        losses,
        accumulation=accumulation,
        valid=baseline + case.valid,
        closing=None if case.closing is None else baseline + case.closing,
        plateau=baseline,
        factors=case.factors,
    )
    record, curves, _ = train(c, HERE, log_every=log_every)
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
    record, _, _ = train(tiny(config, 12, accumulation=3), HERE)
    assert (record["reason"], record["diverged_at"]) == ("loss_nonfinite", 4)
    assert record["steps"] == 5


def test_a_validation_that_is_not_finite_ends_the_run(
    config: Callable[..., Config], script: Callable[..., None]
) -> None:
    script([2.0] * 12, valid=[2.0, NAN, 2.0])
    record, curves, _ = train(tiny(config, 12, **{"train.validate_every": 4}), HERE)
    assert (record["outcome"], record["reason"]) == ("diverged", "loss_nonfinite")
    assert (record["diverged_at"], record["steps"]) == (7, 8)
    assert curves.steps["loss/valid"] == [4, 8]
    assert record.get("final_loss") is None


NOISY = {
    "scheme": "pre_norm",
    "model.depth": 1,
    "data": {"name": "code_text", "valid_windows": 8},
    "train.batch": 2,
    "train.length": 8,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("accumulation", [1, 8])
@pytest.mark.parametrize("steps", [0, 1, 20])
def test_a_model_that_learns_nothing_makes_no_progress_however_small_its_batches(
    steps: int, accumulation: int, seed: int, config: Callable[..., Config]
) -> None:
    still = {"optim.lr": 1e-6, "train.steps": steps, "train.accumulation": accumulation}
    record, *_ = train(config(NOISY | still | {"seed": seed}), HERE)
    assert (record["outcome"], record["reason"]) == ("stalled", "no_progress")
    assert record["spikes"] == 0


def test_the_excess_over_the_plateau_is_a_series(config: Callable[..., Config]) -> None:
    c = tiny(config, 3, accumulation=2, **{"optim.label_smoothing": 0.1})
    _, curves, _ = train(c, HERE)
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    blind = baselines(task, c.train.batch).blind
    for step, loss in enumerate(curves.values["loss/train"]):
        batches = [task.train(c.seed, 2 * step + i, c.train.batch) for i in range(2)]
        better = sum(min(table.losses(b, 0.1).sum() for table in blind) for b in batches)
        targets = sum(int((b.targets_BT != IGNORE).sum()) for b in batches)
        assert curves.values["loss/excess"][step] == pytest.approx(
            loss - better / targets, rel=1e-6
        )


def test_weights_broken_by_the_last_step_are_divergence(config: Callable[..., Config]) -> None:
    # One step of 1e30 makes activations overflow: no training loss is left to tell it.
    record, _, _ = train(tiny(config, 1, **{"optim.name": "sgd", "optim.lr": 1e30}), HERE)
    assert record["outcome"] == "diverged"
    assert (record["reason"], record["diverged_at"]) == ("loss_nonfinite", 0)
    assert record.get("final_loss") is None


def test_a_rate_that_is_far_too_high_diverges_by_itself(config: Callable[..., Config]) -> None:
    more = {"scheme": "rezero", "optim.name": "sgd", "optim.lr": 1e4, "optim.clip": 0.0}
    record, curves, _ = train(tiny(config, 60, **more), HERE)
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
