"""Intervals against the textbook; points and panels against small tables written by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from harness.analysis.statistics import (
    at_edges,
    edges,
    geometric_means,
    interval,
    panels,
    points,
)
from harness.results.table import Table

NAN = float("nan")
PLAN = ["scheme", "scheme_options", "family", "encoder_layers", "decoder_layers", "seed"]


def table(rows: list[dict[str, object]], axes: tuple[str, ...]) -> Table:
    base = {"scheme": "b2t", "scheme_options": "{}", "family": "decoder", "encoder_layers": NAN}
    runs = pd.DataFrame([base | {"outcome": "trained"} | row for row in rows])
    missing = runs.iloc[:0].reindex(columns=list(dict.fromkeys([*PLAN, *axes])))
    return Table("study", axes, runs, pd.DataFrame(), missing)


def test_one_empty_value_leaves_its_key_without_a_geometric_mean() -> None:
    values, keys = pd.Series([1.0, 100.0, 4.0, NAN]), pd.Series([6.0, 6.0, 12.0, 12.0])
    means = geometric_means(values, keys)
    assert means[6.0] == pytest.approx(10.0) and math.isnan(means[12.0])


def test_interval_is_students_t_below_ten_values() -> None:
    # mean +- t(0.975, n - 1) s / sqrt(n); t(0.975, 2) = 4.302653 (printed tables)
    mean, low, high = interval([1.0, 2.0, 4.0])
    half = 4.302653 * math.sqrt(7 / 3) / math.sqrt(3)
    assert (mean, low, high) == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half), rel=1e-6)


def test_interval_is_a_bootstrap_from_ten_values_on() -> None:
    values = np.random.default_rng(3).exponential(size=10)
    mean, low, high = interval(values)
    resamples = np.random.default_rng(1).choice(values, (20_000, 10)).mean(axis=1)
    assert mean == pytest.approx(values.mean())
    # BCa moves both bounds of a right-skewed sample up from the plain percentiles, not by much.
    plain = np.quantile(resamples, (0.025, 0.975))
    assert (low, high) == pytest.approx(plain, abs=0.35 * (plain[1] - plain[0]))
    assert low > plain[0]
    assert high > plain[1]
    assert high - mean != pytest.approx(mean - low, rel=1e-3)
    student = stats.t.interval(0.95, 9, mean, stats.sem(values))
    assert high != pytest.approx(student[1], rel=1e-3)


@pytest.mark.parametrize("n", [3, 12])
def test_interval_ignores_the_order_of_values(n: int) -> None:
    values = np.random.default_rng(0).normal(size=n)
    assert interval(values) == interval(values[::-1])


def test_interval_of_one_value_has_no_bounds() -> None:
    mean, low, high = interval([2.5])
    assert mean == 2.5
    assert math.isnan(low)
    assert math.isnan(high)
    assert all(math.isnan(bound) for bound in interval([]))


@pytest.mark.parametrize("n", [2, 10])
def test_interval_of_equal_values_is_a_point(n: int) -> None:
    assert interval([2.5] * n) == (2.5, 2.5, 2.5)


@pytest.mark.parametrize("n", [3, 12])
def test_interval_of_values_that_differ_by_rounding_is_a_point(n: int) -> None:
    values = [-0.1 * (1 + 2**-52 * (i % 2)) for i in range(n)]
    assert len(set(values)) == 2
    assert interval(values) == pytest.approx((-0.1, -0.1, -0.1), rel=1e-14)
    apart = [-0.1 * (1 + 1e-6 * i) for i in range(n)]
    mean, low, high = interval(apart)
    assert low < mean < high


def test_points_count_outcomes_and_average_only_whole_points() -> None:
    rows = [
        {"model.depth": 6, "decoder_layers": 6, "seed": 1, "final_loss": 2.0},
        {"model.depth": 6, "decoder_layers": 6, "seed": 2, "final_loss": 3.0},
        {"model.depth": 48, "decoder_layers": 48, "seed": 1, "final_loss": 2.0},
        {
            "model.depth": 48,
            "decoder_layers": 48,
            "seed": 2,
            "final_loss": 3.2,
            "outcome": "stalled",
        },
        {
            "model.depth": 12,
            "decoder_layers": 12,
            "seed": 1,
            "final_loss": NAN,
            "outcome": "crashed",
        },
    ]
    found = points(table(rows, ("scheme", "model.depth", "seed")))
    assert list(found.columns) == [
        "scheme", "model.depth", "n", "trained", "stalled", "diverged", "crashed",
        "final_loss", "low", "high",
    ]  # fmt: skip
    assert found["model.depth"].tolist() == [6, 48, 12]
    assert found[["n", "trained", "stalled", "crashed"]].to_numpy().tolist() == [
        [2, 2, 0, 0],
        [2, 1, 1, 0],
        [1, 0, 0, 1],
    ]
    assert found["final_loss"].fillna(-1).tolist() == [2.5, -1, -1]


def test_a_metric_is_averaged_where_every_run_of_a_point_has_it() -> None:
    rows = [
        {"depth": depth, "seed": seed, "outcome": outcome, "final_loss": 1.0, "metric_bleu": bleu}
        for depth, seed, outcome, bleu in [
            *((6, 0, "trained", 1.0), (6, 1, "trained", 4.0)),
            *((12, 0, "stalled", 0.0), (12, 1, "trained", 3.0)),
            *((18, 0, "diverged", NAN), (18, 1, "trained", 2.0)),
        ]
    ]
    found = points(table(rows, ("depth", "seed")), metrics=["metric_bleu"])
    assert found["metric_bleu"].tolist()[:2] == [2.5, 1.5]  # a stalled run has its BLEU
    assert math.isnan(found["metric_bleu"].iloc[2])
    _, low, high = interval([1.0, 4.0])
    assert (found["metric_bleu_low"][0], found["metric_bleu_high"][0]) == (low, high)
    assert "metric_bleu" not in points(table(rows, ("depth", "seed")))


def test_points_keep_empty_axis_values_and_options_apart() -> None:
    rows = [
        {"scheme_options": options, "optim.clip": clip, "seed": 1, "final_loss": 2.0}
        for options in ("{}", '{"beta":false}')
        for clip in (NAN, 1.0)
    ]
    found = points(table(rows, ("scheme_options", "optim.clip", "seed")))
    assert found["scheme_options"].tolist() == ["{}", "{}", '{"beta":false}', '{"beta":false}']
    assert found["optim.clip"].isna().tolist() == [True, False, True, False]


def test_points_of_a_study_of_seeds_is_one_row() -> None:
    rows = [{"seed": seed, "final_loss": float(seed)} for seed in (1, 2, 3)]
    found = points(table(rows, ("seed",)))
    assert found[["n", "final_loss"]].to_numpy().tolist() == [[3, 2.0]]


def test_panels_split_axes_that_vary_and_name_both_stacks() -> None:
    rows = [
        {"model.depth": depth, "encoder_layers": depth, "decoder_layers": depth, "seed": 1,
         "model.norm": norm, "model.width": 48, "final_loss": 2.0}
        for norm in ("layer", "rms")
        for depth in (12, 6)
    ]  # fmt: skip
    found = panels(table(rows, ("scheme", "model.depth", "model.norm", "model.width", "seed")))
    assert [panel.title for panel in found] == ["norm layer", "norm rms"]
    assert [panel.ticks for panel in found] == [{6.0: "6-6", 12.0: "12-12"}] * 2
    assert [len(panel.runs) for panel in found] == [2, 2]


def test_depth_comes_from_the_layers_where_it_is_no_axis() -> None:
    rows = [{"decoder_layers": 24.0, "seed": 1, "final_loss": 2.0}]
    (panel,) = panels(table(rows, ("scheme", "seed")))
    assert panel.ticks == {24.0: "24"}


def tuned(
    tried: dict[str, list[object]], chosen: dict[str, object], path: str = "optim.lr"
) -> Table:
    """A study of these schemes at what they chose of what they tried."""
    base = {"seed": 0, "final_loss": 1.0}
    runs = [base | {"scheme": scheme, path: value} for scheme, value in chosen.items()]
    trials = [base | {"scheme": s, path: value} for s, each in tried.items() for value in each]
    whole, tuning = (table(rows, ("scheme", "seed")) for rows in (runs, trials))
    return replace(whole, tuned=(path,), tuning=replace(tuning, tuned=(path,)))


def test_a_value_at_an_edge_is_the_smallest_or_largest_that_its_own_point_tried() -> None:
    grid = [1e-3, 3e-3, 1e-2]
    tried = {"b2t": grid, "keel": grid, "rezero": grid, "pre_norm": [*grid, 3e-2], "admin": [1e-2]}
    chosen = {"b2t": 1e-3, "keel": 3e-3, "rezero": 1e-2, "pre_norm": 1e-2, "admin": 1e-2}
    study = tuned(tried, chosen)  # type: ignore[arg-type]
    found = edges(study, points(study))
    assert found["optim.lr"].to_list() == [True, False, True, False, False]
    assert at_edges(found) == [
        "*: 2 of 5 points have the smallest or largest optim.lr that was tried: the best may lie "
        "beyond"
    ]
    assert edges(study, study.runs)["optim.lr"].to_list() == [True, False, True, False, False]


def test_words_have_no_edge_and_neither_has_a_study_without_tuning() -> None:
    study = tuned({"b2t": ["adam", "sgd"]}, {"b2t": "sgd"}, "optim.name")
    assert not edges(study, points(study)).any(axis=None)
    assert at_edges(edges(study, points(study))) == []
    plain = replace(study, tuned=(), tuning=None)
    assert edges(plain, points(plain)).shape == (1, 0)
    assert at_edges(edges(plain, points(plain))) == []
