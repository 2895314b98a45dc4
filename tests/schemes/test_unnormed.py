"""Schemes without norms: golden constants; rezero's are in test_catalogue.py."""

import pytest

from harness.schemes import Gain, StackFacts, Wiring, find
from tests.schemes.test_post import near, wirings


@pytest.mark.parametrize(
    ("encoders", "decoders", "of_encoder", "of_decoder", "embeddings"),
    # layer6ai-labs/T-Fixup: 0.67 N^(-1/4), (9M)^(-1/4), and (9n)^(-1/4) of each stack's layers
    [
        (6, 6, 0.4281, 0.3689, (0.3689, 0.3689)),
        (18, 18, 0.3253, 0.2803, (0.2803, 0.2803)),
        (18, 6, 0.3253, 0.3689, (0.2803, 0.3689)),
    ],
)
def test_t_fixup_draws_value_paths_and_embeddings_smaller(
    encoders: int,
    decoders: int,
    of_encoder: float,
    of_decoder: float,
    embeddings: tuple[float, float],
) -> None:
    rule = find("t_fixup")
    for at, wiring in wirings("t_fixup", encoders, decoders).items():
        near(wiring.gain.v, of_encoder if at.stack == "encoder" else of_decoder)
        assert wiring == Wiring(gain=Gain.value_path(wiring.gain.v))
        facts = rule.stack(at, {})
        near(facts.embedding_gain, embeddings[at.stack == "decoder"])
        assert facts == StackFacts(embedding_gain=facts.embedding_gain)
