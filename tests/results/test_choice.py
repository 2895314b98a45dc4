"""What a tuning chooses from its rows, and what a study's cells are before and after it."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results.choice import Row, best_of, beyond, grown, possible, resolved
from harness.sweep.plan import Plan, Values
from harness.sweep.study import load
from harness.training.config import parse, with_value
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


def test_runs_of_the_first_protocol_knew_no_tokens_of_their_own(tmp_path: Path) -> None:
    _, tuning = tuned(tmp_path)
    configs = [cell.config.model_dump(mode="json") for cell in tuning.cells]
    reported = [parse(with_value(each, "train.held_out", "valid"), "test") for each in configs]
    assert [cell.key for cell in tuning.of(1).cells] == [c.run_id_of(1) for c in reported]
    assert not {cell.key for cell in tuning.cells} & {c.run_id for c in reported}


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
    assert set(tuning.tried.values()) == {6}
    rows = {
        c.key: ended(final=1.0 if values == (3e-3, 5) else 2.0)
        for c in tuning.cells
        if (values := (c.config.optim.lr, c.config.optim.warmup_steps))
    }
    found = {(c.config.optim.lr, c.config.optim.warmup_steps) for c in resolved(whole, rows).cells}
    assert found == {(3e-3, 5)}


def test_a_study_without_tuning_has_tried_nothing(tmp_path: Path) -> None:
    plain = load(str(study(tmp_path, AXES)))
    assert (plain.tuning, plain.tuned, plain.tried, plain.waiting) == (None, (), {}, ())
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


# Values beyond the grid


@pytest.mark.parametrize(
    ("values", "up", "down"),
    [
        ([1e-3, 3e-3, 1e-2], [3e-2, 1e-1, 3e-1, 1.0], [3e-4, 1e-4, 3e-5]),
        ([3e-4, 1e-3, 3e-3, 1e-2], [3e-2, 1e-1], [1e-4, 3e-5]),
        ([1e-2, 3e-3, 1e-3], [3e-2], [3e-4]),  # in any order
        ([1, 3, 10], [30, 100], []),  # of integers there is none below 1
        ([1e-3, 2e-3, 4e-3], [8e-3, 1.6e-2, 3.2e-2], [5e-4, 2.5e-4]),
        ([100, 200, 400], [800, 1600], [50, 25, 12]),
        ([1.0, 2.0, 5.0, 10.0], [20.0, 50.0, 100.0], [0.5, 0.2, 0.1]),
        ([1e-3, 1e-2], [1e-1, 1.0], [1e-4]),
        ([1e-3, 3e-3], [9e-3, 2.7e-2], [3.3e-4]),  # nothing says that 1e-2 is meant
        ([3.16e-4, 1e-3, 3.16e-3], [1e-2, 3.16e-2], [1e-4]),
        ([0.12, 0.15], [0.19, 0.24], [0.096]),
        ([3, 4], [5, 6, 7], [2, 1]),
    ],
)
def test_a_grid_goes_on_as_it_is_spaced(
    values: list[float], up: list[float], down: list[float]
) -> None:
    for upwards, expected in ((True, up), (False, down)):
        tried = list(values)
        for value in expected:
            found = beyond(tried, upwards=upwards)
            assert found is not None and (found, type(found)) == (value, type(value))
            tried.append(found)
    if not down:
        assert beyond(values, upwards=False) is None


def at(whole: Plan, losses: Mapping[float, float], scheme: str | None = None) -> dict[str, Row]:
    """Rows of these rates of a tuning, also of values that it does not try yet."""
    assert whole.tuning
    rows: dict[str, Row] = {}
    for _ in range(9):
        for c in grown(whole.tuning, rows).cells:
            if scheme in (None, c.config.scheme) and c.config.optim.lr in losses:
                rows[c.key] = ended(final=losses[c.config.optim.lr])
    return rows


def tried_at(plan: Plan, scheme: str) -> list[float]:
    assert plan.tuning
    own = [c.config.optim.lr for c in plan.tuning.cells if c.config.scheme == scheme]
    return list(dict.fromkeys(own))


EXTENDED = f'{RATES}, "extend": 2'


def test_a_point_tries_the_next_value_while_its_best_stands_at_an_end(tmp_path: Path) -> None:
    whole, _ = tuned(tmp_path, EXTENDED)
    falling = {1e-3: 5.0, 3e-3: 4.0, 9e-3: 3.0, 2.7e-2: 2.0, 8.1e-2: 1.0}
    for known, tried in ((2, [1e-3, 3e-3, 9e-3]), (3, [1e-3, 3e-3, 9e-3, 2.7e-2])):
        found = resolved(whole, at(whole, dict(list(falling.items())[:known]), "rezero"))
        assert tried_at(found, "rezero") == tried
        assert tried_at(found, "post_norm") == [1e-3, 3e-3]  # nothing is known of it
        assert found.cells == () and len(found.waiting) == 6
    done = resolved(whole, at(whole, falling, "rezero"))  # two values beyond, and no third
    assert tried_at(done, "rezero") == [1e-3, 3e-3, 9e-3, 2.7e-2]
    assert rates(done.cells) == [("rezero", seed, 2.7e-2) for seed in (0, 1, 2)]
    assert done.tried == {("post_norm",): 2, ("rezero",): 4}
    assert done.tuning and done.tuning.tried == done.tried
    assert {c.config.seed for c in done.tuning.cells} == {8, 9}
    assert {c.config.train.held_out for c in done.tuning.cells} == {"tuning"}


def test_a_value_that_is_worse_ends_the_search_and_both_ends_count_together(tmp_path: Path) -> None:
    whole, _ = tuned(tmp_path, EXTENDED)
    found = resolved(whole, at(whole, {1e-3: 5.0, 3e-3: 4.0, 9e-3: 4.5}))
    assert tried_at(found, "rezero") == [1e-3, 3e-3, 9e-3]
    assert {lr for *_, lr in rates(found.cells)} == {3e-3} and not found.waiting
    down = resolved(whole, at(whole, {3.3e-4: 3.0, 1.1e-4: 2.0, 1e-3: 4.0, 3e-3: 5.0}))
    assert tried_at(down, "rezero") == [1e-3, 3e-3, 3.3e-4, 1.1e-4]
    assert {lr for *_, lr in rates(down.cells)} == {1.1e-4}


def test_a_best_value_inside_the_grid_tries_nothing_more(tmp_path: Path) -> None:
    whole, _ = tuned(tmp_path, '"optim.lr": [1e-3, 3e-3, 1e-2], "extend": 2')
    found = resolved(whole, at(whole, {1e-3: 3.0, 3e-3: 2.0, 1e-2: 3.0}))
    assert set(found.tried.values()) == {3} and not found.waiting


def test_without_extend_the_grid_is_all_that_is_tried(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    rows = at(whole, {1e-3: 3.0, 3e-3: 2.0})
    assert grown(tuning, rows) == tuning
    assert {lr for *_, lr in rates(resolved(whole, rows).cells)} == {3e-3}


def test_a_crash_beyond_the_grid_keeps_its_point_waiting(tmp_path: Path) -> None:
    whole, _ = tuned(tmp_path, EXTENDED)
    rows = at(whole, {1e-3: 3.0, 3e-3: 2.0})
    assert whole.tuning
    more = [c.key for c in grown(whole.tuning, rows).cells if c.config.optim.lr == 9e-3]
    found = resolved(whole, rows | dict.fromkeys(more, ended("crashed")))
    assert len(found.waiting) == 6 and len(more) == 4


def test_a_value_that_no_config_can_have_is_not_tried(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path, '"model.dropout": [0.4, 0.8], "extend": 2')
    at_dropout = {c.key: ended(final=1 - c.config.model.dropout) for c in tuning.cells}
    found = resolved(whole, at_dropout)  # 1.6 is no share
    assert not found.waiting and {c.config.model.dropout for c in found.cells} == {0.8}
    assert set(found.tried.values()) == {2}


def test_keys_that_values_beyond_the_grid_may_give_are_possible(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path, EXTENDED)
    for losses in (
        {1e-3: 5.0, 3e-3: 4.0, 9e-3: 3.0, 2.7e-2: 2.0},
        {1e-3: 4.0, 3e-3: 5.0, 3.3e-4: 3.0, 1.1e-4: 2.0},
    ):
        found = resolved(whole, at(whole, losses))
        assert found.tuning and found.by_key.keys() <= possible(whole)
        assert found.tuning.by_key.keys() <= possible(tuning)
        assert possible(found) == frozenset()


def test_a_variant_is_extended_too_and_a_path_that_set_fixes_is_not(tmp_path: Path) -> None:
    _, tuning = tuned(tmp_path, EXTENDED, sets=["model.depth=2"])
    assert (tuning.extend, len(tuning.cells)) == (2, 8)
    path = study(tmp_path, AXES, tune=f'{{{EXTENDED}, "seeds": [8, 9]}}')
    assert load(str(path), sets=["optim.lr=0.1"]).tuning is None
