"""The digest of a scheme in a model: equal while its numbers are, and another when one changes."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.schemes import (
    Gain,
    Learned,
    Place,
    Wiring,
    all_schemes,
    find,
    on,
    scheme,
    wiring_digest,
)
from harness.schemes import digest as module

ROOT = Path(__file__).parents[2]


def declared(function: Callable[..., Wiring], **facts: object) -> str:
    """The digest of a scheme in a decoder of two layers."""
    all_schemes().pop(function.__name__, None)
    scheme("mine", **facts)(function)  # type: ignore[arg-type]
    return wiring_digest(find(function.__name__), {}, 0, 2)


def mine(wiring: Wiring, **facts: object) -> str:
    def own(at: Place) -> Wiring:
        return wiring

    return declared(own, **facts)


PLAIN = Wiring(norms=on("sum"), branch=0.5, gain=Gain.value_path(0.7))


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, norms=on("sum", "input")),
        replace(PLAIN, branch=5.0),
        replace(PLAIN, branch=Learned(0.5)),
        replace(PLAIN, branch=Learned(0.5, per="channel")),
        replace(PLAIN, skip=Learned(1.0, per="channel", profiled=True)),
        replace(PLAIN, skip=2.0),
        replace(PLAIN, bypass=1.0),
        replace(PLAIN, input_scale=0.5),
        replace(PLAIN, inner_scale=0.5),
        replace(PLAIN, output_scale=0.5),
        replace(PLAIN, gain=Gain.value_path(0.7000001)),
        replace(PLAIN, lr=0.5),
        replace(PLAIN, norm_lr=0.5),
        replace(PLAIN, eps=0.5),
    ],
    ids=map(str, range(14)),
)
def test_every_number_of_a_wiring_counts(other: Wiring) -> None:
    assert mine(other) != mine(PLAIN)


def test_every_fact_of_a_stack_counts() -> None:
    digests = {
        mine(PLAIN),
        mine(PLAIN, final_norm=True),
        mine(PLAIN, embedding_norm=True),
        mine(PLAIN, dense=True),
        mine(PLAIN, embedding_gain=lambda at: 0.5),
    }
    assert len(digests) == 5


def test_a_number_of_one_place_counts() -> None:
    def last(at: Place) -> Wiring:
        return replace(PLAIN, branch=0.4) if at.layer == 2 and at.last else PLAIN

    assert declared(last) != mine(PLAIN)


def test_how_a_number_is_computed_does_not_count() -> None:
    third = replace(PLAIN, branch=1 / 3)
    assert mine(third) == mine(replace(PLAIN, branch=0.1 / 0.3))  # they differ in the last digit
    assert 1 / 3 != 0.1 / 0.3
    assert mine(PLAIN) == mine(replace(PLAIN, skip=1), families=("decoder",), status="paper")
    zeros = []
    for zero in (0.0, -0.0):
        module._text.cache_clear()  # it takes the two for one
        zeros.append(mine(replace(PLAIN, branch=zero)))
    assert zeros[0] == zeros[1]


def test_options_and_depth_count() -> None:
    deepnorm = find("deepnorm")
    digests = {
        wiring_digest(deepnorm, options, *size)
        for options in ({}, {"beta": False}, {"norm_lr": "depth"})
        for size in ((0, 6), (6, 0), (6, 6), (0, 12))
    }
    assert len(digests) == 3 * 4 - 3  # a single stack is wired alike as encoder and decoder


def test_a_field_added_later_changes_no_digest_at_its_default() -> None:
    assert module._plain(Wiring()) == {}
    assert module._plain(PLAIN) == {
        "norms": ["sum"],
        "branch": "0.5",
        "gain": dict.fromkeys(("v", "o", "up", "down"), "0.7"),
    }


def test_a_stack_of_any_depth_has_a_digest_at_once() -> None:
    wired = 0

    def counted(at: Place) -> Wiring:
        nonlocal wired
        wired += 1
        return PLAIN

    scheme("mine")(counted)
    assert len(wiring_digest(find("counted"), {}, 0, 10**9)) == 12
    assert wired == 2 * module.LAYERS


def test_a_scheme_that_raises_has_no_digest() -> None:
    def broken(at: Place) -> Wiring:
        raise ZeroDivisionError

    assert declared(broken) == ""


def test_the_committed_rows_have_todays_digests() -> None:
    with (ROOT / "results/depth_text/runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for r in rows:
        sizes = [int(r[f"{stack}_layers"] or 0) for stack in ("encoder", "decoder")]
        assert r["wiring_sha"] == wiring_digest(find(r["scheme"]), {}, *sizes)
