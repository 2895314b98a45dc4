"""What `harness show` counts without building a model, against models that are built."""

from functools import partial

import pytest

from harness.analysis.report import added_parameters
from harness.model.transformer import Transformer
from harness.schemes import Learned, Place, Wiring, all_schemes, find, on, registry, scheme

FAMILIES = {"encoder": (3, 0), "decoder": (0, 3), "encoder_decoder": (2, 3)}


def parameters(name: str, encoders: int, decoders: int) -> int:
    rule = find(name)
    model = Transformer(
        partial(rule.wire, options={}),
        partial(rule.stack, options={}),
        encoders=encoders,
        decoders=decoders,
        width=64,
        heads=4,
        ffn=256,
        norm="layernorm",
        dropout=0.0,
        vocabularies=(5, 7),
    )
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_count_is_that_of_the_built_models(family: str) -> None:
    sizes = FAMILIES[family]
    plain = parameters("post_norm", *sizes)
    for name in [n for n, rule in all_schemes().items() if family in rule.families]:
        assert added_parameters(name, *sizes)["all"] == parameters(name, *sizes) - plain, name


def test_every_extent_of_a_coefficient_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "REGISTRY", dict(all_schemes()))

    @scheme("nowhere", dense=True, embedding_norm=True, final_norm=True)
    def everything(at: Place) -> Wiring:
        """All that can be learned"""
        heads = Learned(1.0, per="channel" if at.last else "head")
        return Wiring(
            norms=on("input", "inner", "output", "sum"),
            skip=Learned(1.0, per="layer"),
            branch=Learned(1.0),
            inner_scale=Learned(1.0, per="channel"),
            output_scale=heads,
        )

    for sizes in FAMILIES.values():
        added = added_parameters("everything", *sizes)
        assert added["all"] == added["norms"] + added["learned"]
        difference = parameters("everything", *sizes) - parameters("post_norm", *sizes)
        assert added["all"] == difference
