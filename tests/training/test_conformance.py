"""Every scheme conforms, and one that does not is told what is wrong with it."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.errors import ConfigError
from harness.model import initialise, layers
from harness.schemes import Learned, Place, Wiring, all_schemes, find, on, scheme
from harness.training import conformance
from tests.commands import run

SCHEMES = sorted(all_schemes())
OPTIONS = [
    ("deepnorm", {"beta": False}),
    ("deepnorm", {"norm_lr": "depth", "encoder_constant": "torchscale"}),
    ("b2t", {"init": "released"}),
    ("ds_init", {"init": "released"}),
    ("admin", {"init": "log"}),
    ("admin", {"init": "constant"}),
    ("rezero", {"final_norm": True}),
    ("normformer", {"head_scale": "released", "residual_scale": True}),
    ("normformer", {"decoders_only": True, "qkv": "fused"}),
    ("sandwich", {"init": "released"}),
    ("complete_p", {"exponent": 0.5}),
]


def problems(name: str, **options: object) -> dict[str, str]:
    """The problems found, by check; one family speaks for all."""
    found = conformance.conform(name, options)
    return {each.check: each.problem for each in found if each.problem and not each.warning}


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "DEPTHS", (1, 2))


@pytest.mark.parametrize("name", SCHEMES)
def test_a_published_scheme_conforms_in_every_family_that_it_serves(name: str) -> None:
    found = list(conformance.conform(name, {}))
    assert [each for each in found if each.problem] == []
    assert len(found) == len(find(name).families) * len(conformance.CHECKS)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_published_scheme_conforms_with_its_options(
    name: str, options: dict[str, object]
) -> None:
    assert problems(name, **options) == {}


@pytest.mark.usefixtures("shallow")
def test_a_branch_without_weight_is_told_what_it_leaves_unused() -> None:
    @scheme("none", families=("decoder",))
    def silent(at: Place) -> Wiring:
        """x + 0 F(LN(x))"""
        return Wiring(norms=on("input"), branch=0.0)

    found = problems("silent")
    assert found.keys() == {
        "every parameter has a gradient",
        "every weight of a block changes the output",
    }
    first = "stacks.decoder.blocks.0.self.f.q.weight: no gradient; use it or do without it"
    assert found["every parameter has a gradient"].startswith(first)


@pytest.mark.usefixtures("shallow")
def test_a_function_that_reads_more_than_its_place_is_found() -> None:
    dice = random.Random(0)

    @scheme("none")
    def moody(at: Place) -> Wiring:
        """x times what comes to mind"""
        return Wiring(norms=on("input"), skip=dice.random() + 0.5)

    assert "two calls of the function give the same wiring" in problems("moody")


def test_gradients_that_overflow_are_found_with_their_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conformance, "DEPTHS", (1, 40))

    @scheme("none")
    def loud(at: Place) -> Wiring:
        """1000 x + F(x)"""
        return Wiring(skip=1000.0)

    found = problems("loud").values()
    assert any("a gradient is not finite at 40 layers" in problem for problem in found)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    ("owner", "name", "broken", "check"),
    [
        (
            layers.Residual,
            "value",
            lambda self, x, context: 2.0 * self.f(x, context, self.inner),
            "each sublayer is its equation, written out longhand",
        ),
        (
            initialise,
            "_draw",
            lambda weight, name, seed, std: weight.copy_(
                std**2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            ),
            "matrices have the deviation that the gains say",
        ),
        (
            layers.Residual,
            "factors",
            lambda self: iter(()),
            "factors on rate and epsilon reach the optimizer",
        ),
    ],
)
def test_a_broken_model_is_found(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    broken: Callable[..., Tensor],
    check: str,
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert check in problems("complete_p", exponent=0.5)


@pytest.mark.usefixtures("shallow")
def test_a_decoder_that_sees_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = layers.Attention.__init__

    def open_eyed(
        self: nn.Module, *args: object, causal: bool, cross: bool, **more: object
    ) -> None:
        real(self, *args, causal=False, cross=cross, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(layers.Attention, "__init__", open_eyed)
    assert "a decoder does not see what comes later" in problems("post_norm")


@pytest.mark.usefixtures("shallow")
def test_a_layer_that_should_start_closed_and_does_not_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @scheme("none")
    def closed(at: Place) -> Wiring:
        """x + a F(x), a learned from 0"""
        return Wiring(branch=Learned(0.0))

    assert problems("closed") == {}
    monkeypatch.setattr(layers.Residual, "_norm", lambda self, site, x: x + math.pi)
    assert "a layer whose branches start at 0 starts as the identity" in problems("closed")


NORMED = "a norm follows the last layer"


def warnings_of(name: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> dict[str, str]:
    """What that check alone says, by family; it never fails."""
    monkeypatch.setattr(conformance, "CHECKS", {NORMED: conformance.CHECKS[NORMED]})
    found = list(conformance.conform(name, options))
    assert all(each.warning for each in found)
    return {each.family: each.problem for each in found}


@pytest.mark.usefixtures("shallow")
def test_an_own_stream_that_no_norm_follows_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    @scheme("none")
    def branch_only(at: Place, *, final_norm: bool = False) -> Wiring:
        """x + F(LN(x))"""
        return Wiring(norms=on("input"))

    @scheme("none")
    def last_only(at: Place) -> Wiring:
        """LN(x + F(x)) at the end of the last layer"""
        return Wiring(norms=on("sum") if at.layer == at.depth and at.last else on("input"))

    words = "pre_norm has a final norm, this none; add final_norm=True to @scheme"
    assert warnings_of("branch_only", monkeypatch) == {
        "encoder": f"encoder: {words}",
        "decoder": f"decoder: {words}",
        "encoder_decoder": f"encoder: {words} (and 1 more)",
    }
    for name, options in (("branch_only", {"final_norm": True}), ("last_only", {})):
        assert not any(warnings_of(name, monkeypatch, **options).values())


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("name", ["pre_norm", "post_norm", "rezero", "t_fixup", "dlcl"])
def test_a_published_scheme_has_the_final_norm_that_its_source_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(warnings_of(name, monkeypatch).values())


def test_a_function_that_raises_is_one_line_with_its_place() -> None:
    @scheme("none")
    def broken(at: Place) -> Wiring:
        """x, until layer 48"""
        return Wiring(norms=on("sum"), branch=1 / (48 - at.layer))

    with pytest.raises(ConfigError) as refused:
        next(conformance.conform("broken", {}))
    place = "encoder layer 48 of 48, self"
    assert str(refused.value) == f"scheme 'broken': {place}: ZeroDivisionError: division by zero"


def test_an_unknown_scheme_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"unknown scheme 'deepnrm' .did you mean 'deepnorm'"):
        list(conformance.conform("deepnrm", {}))


def test_the_command_says_what_failed_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from harness.schemes import Place, Wiring, on, scheme\n"
        "from harness.sweep import Study\n"
        "@scheme('none', families=('decoder',))\n"
        "def mute(at: Place, *, loud: bool = False) -> Wiring:\n"
        "    '''x + 0 F(x)'''\n"
        "    return Wiring(norms=on('input'), branch=1.0 if loud else 0.0)\n"
        "STUDY = Study(base='smoke.toml', axes={'scheme': ['mute']})\n"
    )
    out, err = run(tmp_path, "check", "mute", "--study", "./mine.py", code=1)
    assert "decoder          every parameter has a gradient: FAILED: stacks.decoder" in out
    assert f"decoder          {NORMED}: warning: decoder: pre_norm has a final norm" in out
    assert err == "mute: 12 checks, 2 failed, 1 warned\n"
    out, err = run(
        tmp_path, "check", "mute", "--study", "./mine.py", "--option", "loud=true", "--json"
    )
    assert '"check": "weights can be saved and loaded"' in out
    assert err == "mute: 12 checks, 0 failed, 1 warned\n"
    _, err = run(tmp_path, "check", "mute", code=2)
    assert err.startswith("scheme: unknown scheme 'mute'")
