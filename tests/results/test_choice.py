"""What a tuning chooses from its rows, and what a study's cells are before and after it."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results.choice import Row, best_of, possible, resolved
from harness.sweep.plan import Plan, Values
from harness.sweep.study import load
from tests.sweep.test_plan import AXES, RATES, rates, tuned
from tests.sweep.test_study import study

BASELINE = 3.0


def ended(outcome: str = "trained", final: float | None = None) -> Row:
    """A row as far as a tuning reads it."""
    text = "" if final is None or outcome == "diverged" else f"{final:g}"
    return {"outcome": outcome, "final_loss": text, "baseline_loss": f"{BASELINE:g}"}


def test_the_lowest_mean_loss_wins_not_the_lowest_loss() -> None:
    tried = {
        (1e-3,): [ended(final=2.0), ended(final=2.0)],
        (3e-3,): [ended(final=1.0), ended(final=3.5)],
        (1e-2,): [ended(final=1.75), ended(final=2.0)],
    }
    assert best_of(tried) == (1e-2,)


@pytest.mark.parametrize("outcome", ["stalled", "diverged"])
def test_one_failed_run_loses_against_any_trained_ones(outcome: str) -> None:
    tried = {
        (1e-3,): [ended(outcome, 0.5), ended(final=0.5)],
        (3e-3,): [ended(final=4.0), ended(final=4.0)],
    }
    assert best_of(tried) == (3e-3,)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        # The fewest diverged, whatever else a value has.
        (["trained", "diverged"], ["stalled", "stalled"]),
        (["diverged", "diverged"], ["stalled", "diverged"]),
        # Of these the fewest stalled.
        (["stalled", "stalled"], ["trained", "stalled"]),
        (["diverged", "stalled"], ["diverged", "trained"]),
    ],
)
def test_the_fewest_diverged_wins_then_the_fewest_stalled(
    worse: list[str], better: list[str]
) -> None:
    losses = {"stalled": 3.2, "trained": 2.9, "diverged": None}
    tried = {
        (1e-3,): [ended(each, 0.1) for each in worse],
        (3e-3,): [ended(each, losses[each]) for each in better],
    }
    assert best_of(tried) == (3e-3,)


def test_of_as_many_failures_the_lowest_mean_wins_with_twice_the_baseline_for_divergence() -> None:
    tried = {
        (1e-3,): [ended("stalled", 3.1), ended("stalled", 3.4)],
        (3e-3,): [ended("stalled", 3.2), ended("stalled", 3.2)],
    }
    assert best_of(tried) == (3e-3,)
    counted: dict[Values, list[Row]] = {
        (1e-3,): [ended("diverged"), ended(final=2.0)],
        (3e-3,): [{**ended("diverged"), "baseline_loss": "2.5"}, ended(final=2.9)],  # 5 + 2.9
    }
    assert best_of(counted) == (3e-3,)
    counted[3e-3,][1] = ended(final=3.1)  # 5 + 3.1 are more than 6 + 2
    assert best_of(counted) == (1e-3,)


def test_of_equals_the_smaller_wins_and_numbers_are_numbers() -> None:
    for losses in (ended(final=2.0), ended("diverged"), ended("stalled", 3.0)):
        assert best_of({(v,): [losses] for v in (10.0, 9.0, 1e1)}) == (9.0,)
    pairs = [(2, 0.5), (1, 3.0), (1, 0.5)]
    assert best_of({values: [ended(final=1.0)] for values in pairs}) == (1, 0.5)


@pytest.mark.parametrize("lacking", [None, ended("crashed")])
def test_nothing_is_chosen_while_a_run_is_missing_or_crashed(lacking: Row | None) -> None:
    tried: dict[Values, list[Row | None]] = {
        (1e-3,): [ended(final=1.0), ended(final=1.0)],
        (3e-3,): [ended(final=9.0), lacking],
    }
    assert best_of(tried) is None


some_rows = st.builds(
    ended, st.sampled_from(["trained", "stalled", "diverged"]), st.floats(0.1, 9.0)
)


@given(st.lists(st.lists(some_rows, min_size=3, max_size=3), min_size=1, max_size=4), st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_rows_or_values(
    rows: list[list[Row]], draw: random.Random
) -> None:
    tried = [((i,), each) for i, each in enumerate(rows)]
    shuffled = [(values, draw.sample(each, len(each))) for values, each in tried]
    draw.shuffle(shuffled)
    assert best_of(dict(shuffled)) == best_of(dict(tried))


def rows_of(tuning: Plan, losses: Mapping[tuple[str, float], float]) -> dict[str, Row]:
    """A trained row of each cell of the tuning, by scheme and rate."""
    at = {cell.key: (cell.config.scheme, cell.config.optim.lr) for cell in tuning.cells}
    return {key: ended(final=losses[each]) for key, each in at.items()}


LOSSES = {
    ("post_norm", 1e-3): 1.0,
    ("post_norm", 3e-3): 2.0,
    ("rezero", 1e-3): 2.0,
    ("rezero", 3e-3): 1.0,
}


def test_runs_that_choose_validate_on_tokens_that_are_not_reported(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    assert {c.config.train.held_out for c in tuning.cells} == {"tuning"}
    found = resolved(whole, rows_of(tuning, LOSSES))
    assert {c.config.train.held_out for c in (*whole.waiting, *found.cells)} == {"valid"}
    _, reported = tuned(tmp_path, f'{RATES}, "held_out": "valid"')
    assert {c.config.train.held_out for c in reported.cells} == {"valid"}
    assert not reported.by_key.keys() & tuning.by_key.keys()


def test_an_axis_of_tables_is_tuned_point_by_point(tmp_path: Path) -> None:
    axes = '{"train": [{"steps": 1}, {"steps": 2}], "seed": [0]}'
    whole, tuning = tuned(tmp_path, axes=axes)
    assert [whole.point(c) for c in whole.waiting] == list(
        dict.fromkeys(map(whole.point, tuning.cells))
    )
    rows = {
        c.key: ended(final=abs(c.config.optim.lr - 1e-3 * (1 + c.config.train.steps)))
        for c in tuning.cells
    }
    found = resolved(whole, rows)
    assert [(c.config.train.steps, c.config.optim.lr) for c in found.cells] == [
        (1, 1e-3),
        (2, 3e-3),
    ]


def test_until_then_all_cells_wait(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    for plan in (whole, resolved(whole, {})):
        assert plan.cells == ()
        assert [c.values for c in plan.waiting] == [
            (scheme, seed) for scheme in ("post_norm", "rezero") for seed in (0, 1, 2)
        ]
        assert plan.size == 6 and tuning.size == 8


def test_each_point_has_the_rate_that_its_own_tuning_chose(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    found = resolved(whole, rows_of(tuning, LOSSES))
    assert found.waiting == () and found.size == 6
    assert rates(found.cells) == [
        *(("post_norm", seed, 1e-3) for seed in (0, 1, 2)),
        *(("rezero", seed, 3e-3) for seed in (0, 1, 2)),
    ]
    assert not found.by_key.keys() & tuning.by_key.keys()


def test_a_tuned_cell_is_the_cell_that_the_rate_alone_would_make(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    found = resolved(whole, rows_of(tuning, LOSSES))
    plain = load(str(study(tmp_path, AXES, name="plain")), sets=["optim.lr=3e-3"])
    assert found.by_key.keys() & plain.by_key.keys() == {c.key for c in plain.cells[3:]}


def test_a_point_that_lacks_a_row_waits_while_others_go_on(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    rows = rows_of(tuning, LOSSES)
    first = tuning.cells[0]
    assert first.config.scheme == "post_norm"
    for lacking in ({}, {first.key: ended("crashed")}):
        rows.pop(first.key, None)
        found = resolved(whole, {**rows, **lacking})
        assert [c.values for c in found.waiting] == [("post_norm", seed) for seed in (0, 1, 2)]
        assert rates(found.cells) == [("rezero", seed, 3e-3) for seed in (0, 1, 2)]


def test_two_tuned_paths_are_tried_as_a_product(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path, f'{RATES}, "optim.warmup_steps": [0, 5, 9]')
    assert len(tuning.cells) == 2 * 2 * 3 * 2
    assert tuning.tried == 6
    rows = {
        c.key: ended(final=1.0 if values == (3e-3, 5) else 2.0)
        for c in tuning.cells
        if (values := (c.config.optim.lr, c.config.optim.warmup_steps))
    }
    found = {(c.config.optim.lr, c.config.optim.warmup_steps) for c in resolved(whole, rows).cells}
    assert found == {(3e-3, 5)}


def test_a_study_without_tuning_has_tried_nothing(tmp_path: Path) -> None:
    plain = load(str(study(tmp_path, AXES)))
    assert (plain.tuning, plain.tuned, plain.tried, plain.waiting) == (None, (), 0, ())
    assert resolved(plain, {}) == plain


def test_only_selects_the_tuning_of_selected_points(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path, only=["scheme=rezero", "seed=1"])
    assert tuning.selected == tuple(c for c in tuning.cells if c.config.scheme == "rezero")
    assert [c.values for c in whole.selected_waiting] == [("rezero", 1)]
    found = resolved(whole, rows_of(tuning, LOSSES))
    assert [c.values for c in found.selected] == [("rezero", 1)]
    everything, all_of_it = tuned(tmp_path)
    assert tuning.by_key.keys() == all_of_it.by_key.keys()
    assert everything.size == whole.size


def test_a_waiting_cell_may_become_any_of_the_values_tried(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    ends = [
        resolved(whole, rows_of(tuning, dict.fromkeys(LOSSES, 2.0) | {(s, lr): 1.0}))
        for s, lr in LOSSES
    ]
    assert possible(whole) == {key for found in ends for key in found.by_key}
    assert possible(ends[0]) == frozenset()
