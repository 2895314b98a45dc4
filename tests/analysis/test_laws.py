"""Laws are found exactly where they hold exactly, and in their interval where there is noise."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from harness.analysis import evidence
from harness.analysis.laws import (
    PAPERS,
    Law,
    extrapolated,
    geometric,
    held_out,
    parts,
    power,
    predictions,
)

NAN, INF = math.nan, math.inf
DEPTHS = (6, 12, 24, 48, 100)


def runs(values: dict[tuple[int, int], float]) -> pd.DataFrame:
    """One row a (seed, depth)."""
    rows = [(seed, float(depth), value) for (seed, depth), value in values.items()]
    return pd.DataFrame(rows, columns=["seed", "depth", "norm"])


def exact(law: str, seeds: int) -> pd.DataFrame:
    """Seeds that start at different heights and follow one law: 0.9 ** depth, or depth ** -0.5."""
    return runs(
        {
            (seed, depth): (1 + seed) * (0.9**depth if law == "geometric" else depth**-0.5)
            for seed in range(seeds)
            for depth in DEPTHS
        }
    )


def bounds(law: Law) -> tuple[float, float, float]:
    return law.low, law.value, law.high


@pytest.mark.parametrize("seeds", [2, 5, 12])  # Student's t, and a bootstrap
def test_exact_data_give_the_law_with_an_interval_of_no_width(seeds: int) -> None:
    for fit, name, truth in ((geometric, "geometric", 0.9), (power, "power", -0.5)):
        law = fit(exact(name, seeds), "norm")
        assert bounds(law) == pytest.approx((truth,) * 3, abs=1e-12)
        assert law.n == seeds
        assert law.spread < 1e-12


def test_a_law_does_not_hold_for_data_of_the_other() -> None:
    assert geometric(exact("power", 3), "norm").spread > 0.1
    assert power(exact("geometric", 3), "norm").spread > 0.1


def noisy(seeds: int, draw: int) -> pd.DataFrame:
    """What a seed has of its own in every layer, and what is new at every depth."""
    noise = np.random.default_rng(draw)
    frame = exact("geometric", seeds)
    own = np.log(0.9) + 0.02 * noise.standard_normal(seeds)
    new = 0.1 * noise.standard_normal(len(frame))
    return frame.assign(norm=np.exp(own[frame["seed"]] * frame["depth"] + new))


def test_19_of_20_intervals_over_three_noisy_seeds_hold_the_truth() -> None:
    fitted = [geometric(noisy(3, draw), "norm") for draw in range(200)]
    held = sum(law.low < 0.9 < law.high for law in fitted)
    assert 183 <= held <= 197  # 190 expected, standard deviation 3
    assert all(law.low < law.value < law.high for law in fitted)
    # Three of five residuals a seed are free.
    spread = math.sqrt(sum(law.spread**2 for law in fitted) / 200)
    assert spread == pytest.approx(0.1 * math.sqrt(3 / 5), rel=0.05)


def test_twelve_noisy_seeds_bracket_the_truth_closely() -> None:
    law = geometric(noisy(12, 0), "norm")
    assert law.low < 0.9 < law.high
    assert law.high - law.low < 0.04


def test_a_law_is_the_mean_over_seeds_of_their_own_slopes() -> None:
    # Slopes of the logarithm, by hand: log 2 and log 8 a layer; their mean is log 4.
    frame = runs({(0, 1): 1.0, (0, 2): 2.0, (1, 1): 100.0, (1, 2): 800.0})
    law = geometric(frame, "norm")
    assert law.value == pytest.approx(4.0)
    # mean +- t(0.975, 1) s / sqrt(2), t = 12.7062 (printed tables), s / sqrt(2) = log(4) / 2
    assert law.low == pytest.approx(4.0 * 4.0 ** (-12.7062 / 2), rel=1e-4)
    assert law.high == pytest.approx(4.0 * 4.0 ** (12.7062 / 2), rel=1e-4)
    assert law.n == 2


def test_depths_that_a_seed_lacks_do_not_bend_the_law() -> None:
    # Seed 1 stands a thousand times higher and has no shallow run: pooled, the law would rise.
    frame = runs(
        {(seed, d): 1000.0**seed * 0.9**d for seed in (0, 1) for d in DEPTHS if seed < d - 20}
        | {(0, 6): 0.9**6}
    )
    assert geometric(frame, "norm").value == pytest.approx(0.9, abs=1e-12)


def test_the_spread_is_the_root_mean_square_of_what_is_left() -> None:
    # Three depths, logarithms 0, 1, 0: the best line is flat at 1/3.
    frame = runs({(0, 1): 1.0, (0, 2): math.e, (0, 3): 1.0})
    left = math.sqrt((1 / 9 + 4 / 9 + 1 / 9) / 3)
    assert geometric(frame, "norm").spread == pytest.approx(left, rel=1e-12)


@pytest.mark.parametrize("value", [0.0, NAN, INF, -1.0])
@pytest.mark.parametrize("seeds", [3, 12])
def test_what_has_no_logarithm_is_left_out(value: float, seeds: int) -> None:
    frame = exact("geometric", seeds)
    frame.loc[(frame["seed"] == 1) & (frame["depth"] == 100), "norm"] = value
    law = geometric(frame, "norm")
    assert bounds(law) == pytest.approx((0.9,) * 3, abs=1e-12)
    assert law.n == seeds


@pytest.mark.parametrize("value", [0.0, NAN, INF])
def test_a_seed_left_with_one_depth_is_left_out(value: float) -> None:
    frame = exact("geometric", 3)
    frame.loc[(frame["seed"] == 1) & (frame["depth"] > 6), "norm"] = value
    frame.loc[(frame["seed"] == 1) & (frame["depth"] == 6), "norm"] = 1e9
    law = geometric(frame, "norm")
    assert law.value == pytest.approx(0.9, abs=1e-12)
    assert law.n == 2


def test_two_runs_of_a_seed_at_one_depth_are_no_law() -> None:
    frame = pd.concat([exact("geometric", 1).iloc[:1]] * 2)
    assert geometric(frame, "norm").n == 0


def test_one_seed_has_a_law_without_interval() -> None:
    law = geometric(exact("geometric", 1), "norm")
    assert law.value == pytest.approx(0.9, abs=1e-12)
    assert (math.isnan(law.low), math.isnan(law.high), law.n) == (True, True, 1)
    assert str(law) == "0.900"


@pytest.mark.parametrize("fit", [geometric, power])
def test_nothing_to_fit_is_a_law_of_no_seeds(fit) -> None:  # type: ignore[no-untyped-def]
    law = fit(exact("geometric", 3).assign(norm=0.0), "norm")
    assert law.n == 0
    assert all(math.isnan(x) for x in (*bounds(law), law.spread))
    assert fit(exact("geometric", 3).iloc[:0], "norm").n == 0


@pytest.mark.parametrize("seeds", [1, 4])
def test_a_law_that_holds_predicts_the_depth_that_was_held_out(seeds: int) -> None:
    # DEPTHS end with 48 and 100: by no change the logarithm is wrong by what one law does there.
    steps = {"geometric": 52 * math.log(0.9), "power": -0.5 * math.log(100 / 48)}
    for name, step in steps.items():
        found = held_out(exact(name, seeds).sample(frac=1, random_state=0), "norm")
        right, wrong = ("geometric", "power law")[:: 1 if name == "geometric" else -1]
        assert found[right] == pytest.approx(0, abs=1e-9)
        assert found["unchanged"] == pytest.approx(-step, rel=1e-9)
        assert found[wrong] > 0.1


def test_errors_at_the_held_out_depth_are_the_root_mean_square_over_seeds() -> None:
    # Logarithms 0, 1, and 2 or 5 at one layer more each: the line says 2, no change says 1.
    layers = {(seed, d): math.exp(d - 1) for seed in (0, 1) for d in (1, 2, 3)}
    found = held_out(runs(layers | {(1, 3): math.exp(5)}), "norm")
    assert found["geometric"] == pytest.approx(math.sqrt((0**2 + 3**2) / 2), rel=1e-9)
    assert found["unchanged"] == pytest.approx(math.sqrt((1**2 + 4**2) / 2), rel=1e-9)
    # The curve through 0 at 1 and 1 at 2 is log2 of the depth: 1.585 at 3.
    off = 2 - math.log2(3), 5 - math.log2(3)
    assert found["power law"] == pytest.approx(math.sqrt((off[0] ** 2 + off[1] ** 2) / 2), rel=1e-9)


@pytest.mark.parametrize("value", [0.0, NAN, INF])
def test_a_seed_with_two_depths_predicts_nothing(value: float) -> None:
    frame = exact("geometric", 2)
    frame.loc[(frame["seed"] == 1) & (frame["depth"] > 12), "norm"] = value
    assert held_out(frame, "norm")["geometric"] == pytest.approx(0, abs=1e-9)
    alone = held_out(frame[frame["seed"] == 1], "norm")
    assert list(alone) == ["geometric", "power law", "unchanged"]
    assert all(math.isnan(error) for error in alone.values())


def test_only_the_decoder_of_a_pair_is_geometric_at_a_depth_that_was_held_out() -> None:
    frame = extrapolated(evidence("grad_init")).set_index("stack")
    errors = frame[[name for name in frame if name.startswith("error: ")]].astype(float)
    best = errors.idxmin(axis=1) == "error: geometric"
    assert list(best[best].index) == ["decoder of a pair"]
    others = errors[~best]
    assert (others["error: unchanged"] < others["error: geometric"]).all()


def test_the_order_of_rows_does_not_matter() -> None:
    frame = exact("power", 4)
    frame["norm"] *= np.exp(np.random.default_rng(0).standard_normal(len(frame)))
    law, shuffled = (power(f, "norm") for f in (frame, frame.sample(frac=1, random_state=1)))
    assert bounds(shuffled) == pytest.approx(bounds(law), rel=1e-12)


def test_a_law_is_said_with_its_interval() -> None:
    assert str(Law(0.70711, 0.69, 0.7252, 20, 0.1)) == "0.707 [0.690, 0.725]"


def test_predictions_are_factors_a_layer() -> None:
    # (2/3)^(1/2) a layer whatever its sublayers; 2^(-1/2) a sublayer: 1/2 for two, 0.354 for three.
    assert list(predictions(2)) == list(predictions(3)) == list(PAPERS)
    assert list(predictions(2).values()) == pytest.approx([0.816497, 0.5], abs=1e-6)
    assert list(predictions(3).values()) == pytest.approx([0.816497, 0.353553], abs=1e-6)


@pytest.mark.parametrize("crossed", ["True", "False"])
def test_without_such_an_axis_a_decoder_reads_if_its_variance_was_measured(crossed: str) -> None:
    table = evidence("grad_init")
    axis = "model.cross_attention"
    rows = table.runs[(table.runs[axis] == crossed) & (table.runs["family"] == "encoder_decoder")]
    axes = tuple(name for name in table.axes if name != axis)
    plain = replace(table, axes=axes, runs=rows.drop(columns=axis), missing=table.missing.iloc[:0])
    titles = [part.title for part in parts(plain, "grad_norm_first_{}_init")]
    alone = ["decoder of a pair, no cross-attention"]
    assert titles == (["encoder of a pair", "decoder of a pair"] if crossed == "True" else alone)
