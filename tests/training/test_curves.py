"""Series survive storage bit for bit, and thinning keeps the steps and blocks that it promises."""

import math

import pytest

from harness.training.curves import Curves, kept_steps

NAN, INF = math.nan, math.inf


def curves_of(steps: int, blocks: int = 3) -> Curves:
    curves = Curves()
    for step in range(steps):
        curves.add("loss/train", step, step / 7)
        curves.add(
            "grad_norm/decoder", step, [step + block / 100 for block in range(1, blocks + 1)]
        )
    return curves


def test_curves_come_back_from_storage_as_they_were() -> None:
    curves = curves_of(60)
    curves.add("loss/valid", 50, 0.1 + 0.2)
    curves.add("odd", 3, NAN)
    curves.add("odd", 5, INF)
    curves.add("odd", 7, -INF)
    curves.add("odd", 9, 5e-324)
    curves.add("odd blocks", 0, [NAN, 1e300])
    back = Curves.loads(curves.dumps())
    assert back.steps == curves.steps
    assert repr(back.values) == repr(curves.values)  # NaN is not equal to itself
    assert back.steps["odd"] == [3, 5, 7, 9]
    assert back.values["loss/valid"] == [0.1 + 0.2]


def test_an_empty_run_has_empty_curves() -> None:
    back = Curves.loads(Curves().dumps())
    assert (back.steps, back.values) == ({}, {})
    assert list(back.thinned(100)) == []
    assert Curves().array("loss/train").shape == (0,)


def test_the_same_series_are_the_same_bytes() -> None:
    assert curves_of(60).dumps() == curves_of(60).dumps()


def test_an_array_is_steps_by_blocks() -> None:
    assert curves_of(5).array("grad_norm/decoder").shape == (5, 3)
    assert curves_of(5).array("grad_norm/decoder")[4].tolist() == [4.01, 4.02, 4.03]


@pytest.mark.parametrize("steps", [1, 50, 51])
def test_the_first_51_steps_are_all_kept(steps: int) -> None:
    assert kept_steps(steps, 100) == list(range(steps))


def test_no_more_steps_are_kept_than_there_are() -> None:
    assert kept_steps(151, 100) == list(range(151))


@pytest.mark.parametrize("steps", [152, 400, 100_000])
@pytest.mark.parametrize("spaced", [100, 10, 2])
def test_later_steps_are_evenly_spaced_to_the_last(steps: int, spaced: int) -> None:
    kept = kept_steps(steps, spaced)
    assert kept[:51] == list(range(51))
    later = kept[51:]
    assert len(later) == spaced
    assert (later[0], later[-1]) == (51, steps - 1)
    exact = (steps - 1 - 51) / (spaced - 1)
    assert all(abs(step - (51 + i * exact)) <= 0.5 for i, step in enumerate(later))


def test_no_spaced_steps_leave_the_first_51() -> None:
    assert kept_steps(400, 0) == list(range(51))


def test_thinned_series_carry_their_steps_and_values() -> None:
    curves = Curves()
    for step in range(10, 400, 10):  # a series that is not measured at every step
        curves.add("loss/valid", step, step / 3)
    kept = list(curves.thinned(100))
    assert kept == [(step, "loss/valid", None, step / 3) for step in range(10, 400, 10)]


def test_up_to_sixteen_blocks_are_all_kept_and_counted_from_one() -> None:
    rows = [r for r in curves_of(1, blocks=16).thinned(100) if r[1] == "grad_norm/decoder"]
    assert [(block, value) for _, _, block, value in rows] == [
        (block, block / 100) for block in range(1, 17)
    ]


@pytest.mark.parametrize("blocks", [17, 31, 48, 1000])
def test_of_more_blocks_sixteen_are_kept_first_and_last_among_them(blocks: int) -> None:
    rows = [r for r in curves_of(1, blocks).thinned(100) if r[1] == "grad_norm/decoder"]
    kept = [block for _, _, block, _ in rows]
    assert len(kept) == 16
    assert (kept[0], kept[-1]) == (1, blocks)
    exact = (blocks - 1) / 15
    assert all(abs(block - (1 + i * exact)) <= 0.5 for i, block in enumerate(kept))
    assert [value for *_, value in rows] == [block / 100 for block in kept]


def test_a_single_block_is_its_stacks_first_and_last() -> None:
    rows = [r for r in curves_of(1, blocks=1).thinned(100) if r[1] == "grad_norm/decoder"]
    assert rows == [(0, "grad_norm/decoder", 1, 0.01)]


def test_thinning_is_the_same_after_storage() -> None:
    curves = curves_of(300, blocks=20)
    assert list(Curves.loads(curves.dumps()).thinned(100)) == list(curves.thinned(100))


@pytest.mark.parametrize("steps", [40, 51, 52, 400])
def test_a_value_after_the_last_step_moves_no_other(steps: int) -> None:
    curves = curves_of(steps)
    for step in range(steps + 1):
        curves.add("coefficient/decoder/ffn.branch", step, [step / 3, step / 5])
    kept = {name: [] for name in curves.steps}  # type: ignore[var-annotated]
    for step, name, block, _ in curves.thinned(10):
        if block in (None, 1):
            kept[name].append(step)
    assert kept["coefficient/decoder/ffn.branch"] == [*kept["loss/train"], steps]
    assert kept["grad_norm/decoder"] == kept["loss/train"]


def test_only_blocks_with_the_coefficient_are_kept_and_sixteen_of_them() -> None:
    curves = Curves()
    for step in range(2):
        row = [NAN if block % 2 else block + step / 2 for block in range(80)]
        curves.add("coefficient/decoder/ffn.branch", step, row)
        curves.add("grad_norm/decoder", step, row)
    for kept in (curves, Curves.loads(curves.dumps())):
        rows = list(kept.thinned(100))
        own = [r for r in rows if r[1].startswith("coefficient")]
        assert len(own) == 2 * 16
        assert {own[0][2], own[15][2]} == {1, 79}
        assert all(value == block - 1 + step / 2 for step, _, block, value in own if block)
        # Of a norm nothing is left out: it may be NaN where a run diverged.
        assert len(rows) - len(own) == 2 * 16


def test_a_coefficient_that_is_lost_in_a_run_is_kept() -> None:
    curves = Curves()
    curves.add("coefficient/decoder/ffn.branch", 0, [NAN, 1.0])
    curves.add("coefficient/decoder/ffn.branch", 1, [NAN, NAN])
    rows = [(step, block, repr(value)) for step, _, block, value in curves.thinned(100)]
    assert rows == [(0, 2, "1.0"), (1, 2, "nan")]
