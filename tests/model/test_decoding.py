"""Cached decoding against a slow search that follows decode's docstring, and what it promises."""

import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.model.decoding import decode
from harness.model.initialise import initialise
from harness.model.layers import Cache, Context
from harness.model.transformer import Transformer
from harness.schemes import all_schemes

torch.set_num_threads(1)

SCHEMES = {name: s for name, s in all_schemes().items() if "encoder_decoder" in s.families}
PAD, BOS, EOS = 0, 1, 2
BANNED = (PAD, BOS)
VOCABULARY = 12
PENALTIES = (-0.5, 0.0, 0.6, 1.0, 1.5)

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def build(
    scheme: str = "pre_norm", seed: int = 0, noise: float = 0.4, **choices: Any
) -> Transformer:
    """In float64 and evaluation mode, every parameter off its start: no gate is shut, no ties."""
    rule = SCHEMES[scheme]
    given = {
        **{"encoders": 2, "decoders": 2, "width": 8, "heads": 2, "ffn": 12, "norm": "layernorm"},
        **{"dropout": 0.0, "vocabularies": (VOCABULARY, VOCABULARY), **choices},
    }
    model = Transformer(partial(rule.wire, options={}), partial(rule.stack, options={}), **given)
    initialise(model, seed).double().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(noise * torch.randn(p.shape, generator=draw, dtype=p.dtype))
    return model


def varied(**choices: Any) -> Transformer:
    """One whose targets end at many different steps."""
    return build(seed=14, noise=0.3, **choices)


def draw_sources(rng: random.Random, count: int, longest: int = 6) -> list[list[int]]:
    lengths = [rng.randint(1, longest) for _ in range(count)]
    return [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


def padded(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    length = max(map(len, sources))
    source_BS = torch.tensor([row + [PAD] * (length - len(row)) for row in sources])
    return source_BS, source_BS != PAD


def fast(model: Transformer, sources: list[list[int]], **choices: Any) -> list[list[int]]:
    return decode(model, *padded(sources), **{"bos": BOS, "eos": EOS, "banned": BANNED, **choices})


@torch.no_grad()
def next_logs(model: Transformer, source: list[int], written: list[list[int]]) -> list[list[float]]:
    """Log-probabilities of the token after each, by a forward pass over all that was written."""
    inputs_BT = torch.tensor([[BOS, *tokens] for tokens in written])
    logits_BTV = model(inputs_BT, None, torch.tensor([source] * len(written)), None)
    return logits_BTV[:, -1].log_softmax(-1).tolist()


def slow(
    model: Transformer,
    source: list[int],
    longest: int,
    beam: int = 1,
    length_penalty: float = 1.0,
    banned: tuple[int, ...] = BANNED,
    eos: int = EOS,
) -> list[int]:
    """decode's docstring, literally."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 1):
        candidates = []
        logs = next_logs(model, source, [written for _, written in live])
        for (total, written), log_V in zip(live, logs, strict=True):
            allowed = [t for t in range(len(log_V)) if t not in banned]
            for token in [eos] if length == longest else allowed:
                candidates.append((total + log_V[token], [*written, token]))
        candidates.sort(key=lambda candidate: -candidate[0])  # stable
        for total, written in candidates[:beam]:
            if written[-1] == eos:
                ended.append((total / length**length_penalty, written[:-1]))
        live = [(total, written) for total, written in candidates if written[-1] != eos][:beam]
        if len(ended) >= beam:
            break
    return max(ended, key=lambda hypothesis: hypothesis[0])[1]


def score(model: Transformer, source: list[int], target: list[int], length_penalty: float) -> float:
    tokens = [*target, EOS]
    logs = [next_logs(model, source, [tokens[:t]])[0][token] for t, token in enumerate(tokens)]
    return sum(logs) / len(tokens) ** length_penalty


def random_case(scheme: str, number: int) -> tuple[Transformer, list[list[int]], dict[str, Any]]:
    rng = random.Random(f"{scheme} {number}")
    model = build(
        scheme,
        seed=rng.randrange(10**6),
        noise=rng.choice([0.3, 0.6]),
        encoders=rng.randint(1, 2),
        decoders=rng.randint(1, 3),
        width=rng.choice([8, 12, 16]),
        norm=rng.choice(["layernorm", "rmsnorm"]),
        qk_norm=rng.random() < 0.3,
        cross_attention=rng.random() < 0.8,
    )
    search = {
        "longest": rng.randint(1, 9),
        "beam": rng.choice([1, 1, 2, 3, 5]),
        "length_penalty": rng.choice(PENALTIES),
        "banned": rng.choice([(), BANNED, (0, 1, 3)]),
    }
    return model, draw_sources(rng, 3), search


@every_scheme
def test_cached_search_writes_what_the_slow_one_writes(scheme: str) -> None:
    lengths, cut = set(), 0
    for number in range(12):
        model, sources, search = random_case(scheme, number)
        expected = [slow(model, source, **search) for source in sources]
        assert fast(model, sources, **search) == expected, search
        lengths |= set(map(len, expected))
        cut += sum(len(target) == search["longest"] - 1 for target in expected)
    assert len(lengths) >= 4  # targets of many lengths
    assert 0 < cut < 36  # some had to end, some ended by themselves


@every_scheme
@torch.no_grad()
def test_cached_steps_have_the_log_probabilities_of_a_whole_forward_pass(scheme: str) -> None:
    model = build(scheme, noise=0.1, encoders=12, decoders=12, width=16, heads=4).float()
    sources = [[5, 9, 10, 7], [4, 3, 11, 8, 5, 9, 6], [6]]
    inputs_BT = torch.tensor([[BOS, 7, 5, 11, 9, 3], [BOS, 8, 8, 4, 10, 6], [BOS, 3, 9, 9, 4, 5]])
    source_BS, mask_BS = padded(sources)
    memory_BSD = model.stacks["encoder"](source_BS, Context(mask_BS))
    context = Context(None, memory_BSD, mask_BS, Cache())
    steps = [model.stacks["decoder"](inputs_B1, context) for inputs_B1 in inputs_BT.split(1, dim=1)]
    stepped_BTV = model.output(torch.cat(steps, dim=1)).log_softmax(-1)
    assert context.cache.length == 6
    for row, source in enumerate(sources):  # alone, without padding
        whole_1TV = model(inputs_BT[row : row + 1], None, torch.tensor([source]), None)
        torch.testing.assert_close(
            stepped_BTV[row], whole_1TV[0].log_softmax(-1), rtol=0, atol=1e-5
        )


def test_a_beam_of_one_takes_the_likeliest_token_until_it_is_eos() -> None:
    model = varied()
    sources = draw_sources(random.Random(4), 20)
    for source, target in zip(sources, fast(model, sources, longest=10), strict=True):
        written: list[int] = []
        while len(written) < 9:
            (log_V,) = next_logs(model, source, [written])
            token = max(set(range(VOCABULARY)) - set(BANNED), key=log_V.__getitem__)
            if token == EOS:
                break
            written.append(token)
        assert target == written


@pytest.mark.parametrize("beam", [1, 4])
def test_sentences_that_end_at_different_steps_write_what_each_writes_alone(beam: int) -> None:
    model = varied()
    many = draw_sources(random.Random(5), 100)
    alone = {
        len(target): (source, target)
        for source in many
        for target in fast(model, [source], longest=12, beam=beam)
    }
    assert len(alone) >= 8
    sources, targets = zip(*alone.values(), strict=True)
    assert fast(model, list(sources), longest=12, beam=beam) == list(targets)


def test_a_source_of_one_token_needs_no_mask() -> None:
    model = build(seed=1)
    for token in range(3, VOCABULARY):
        source_BS = torch.tensor([[token]])
        search = {"longest": 6, "beam": 3, "length_penalty": 1.0}
        found = decode(model, source_BS, None, bos=BOS, eos=EOS, banned=BANNED, **search)
        assert found == [slow(model, [token], **search)]


@pytest.mark.parametrize("beam", [1, 3])
def test_banned_tokens_never_appear(beam: int) -> None:
    model = varied()
    sources = draw_sources(random.Random(2), 10)
    wanted = {t for target in fast(model, sources, longest=8, beam=beam) for t in target}
    assert len(wanted) >= 3
    for token in wanted:
        without = fast(model, sources, longest=8, beam=beam, banned=(*BANNED, token))
        assert {t for target in without for t in target} & {*BANNED, token, EOS} == set()


def test_a_greedy_target_of_few_steps_begins_that_of_many() -> None:
    model = varied()
    sources = draw_sources(random.Random(2), 20)
    free = fast(model, sources, longest=12)
    assert max(map(len, free)) == 11 > min(map(len, free))
    for longest in range(1, 12):
        cut = fast(model, sources, longest=longest)
        assert cut == [target[: longest - 1] for target in free]


@pytest.mark.parametrize("beam", [1, 3])
def test_each_sentence_may_have_a_limit_of_its_own(beam: int) -> None:
    model = varied()
    sources = draw_sources(random.Random(3), 12)
    limits = [1 + i % 7 for i in range(12)]
    alone = [
        fast(model, [source], longest=limit, beam=beam)[0]
        for source, limit in zip(sources, limits, strict=True)
    ]
    assert fast(model, sources, longest=limits, beam=beam) == alone
    assert alone != fast(model, sources, longest=7, beam=beam)


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_all_sequences_finds_the_best_of_all(seed: int, length_penalty: float) -> None:
    model = build(seed=seed, noise=0.6, vocabularies=(VOCABULARY, 4))
    source, longest = [5, 9, 4], 4
    everything = [
        list(target)
        for length in range(longest)
        for target in itertools.product((0, 1, 3), repeat=length)
    ]
    assert len(everything) == 1 + 3 + 9 + 27
    scores = [score(model, source, target, length_penalty) for target in everything]
    best = everything[scores.index(max(scores))]
    search = {"longest": longest, "length_penalty": length_penalty, "banned": ()}
    assert fast(model, [source], beam=4**longest, **search) == [best]
    for beam in (1, 2, 3):
        (target,) = fast(model, [source], beam=beam, **search)
        assert score(model, source, target, length_penalty) <= max(scores)


@pytest.mark.parametrize("eos", [0, 3, 5])
@pytest.mark.parametrize("beam", [1, 2, 3, 10])
def test_of_equals_the_earlier_hypothesis_and_the_lower_token_come_first(
    beam: int, eos: int
) -> None:
    model = build(vocabularies=(VOCABULARY, 6))
    nn.init.zeros_(model.output.weight)  # all tokens are equally likely
    for length_penalty in (0.0, 1.0):
        search = {"longest": 4, "beam": beam, "length_penalty": length_penalty, "banned": (1,)}
        assert fast(model, [[5, 9]], eos=eos, **search) == [slow(model, [5, 9], eos=eos, **search)]
    if beam == 1:
        lowest = [] if eos == 0 else [0, 0, 0]
        assert fast(model, [[5]], eos=eos, longest=4, banned=(1,)) == [lowest]


def calls(module: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of what a module is given, filled as it is called."""
    shapes: list[tuple[int, ...]] = []
    module.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    return shapes


def test_memory_is_read_once_a_sentence_and_targets_a_position_a_step() -> None:
    model = varied(decoders=1)
    (block,) = model.stacks["decoder"].blocks
    encoder = calls(model.stacks["encoder"])
    memory, target = calls(block["cross"].f.k), calls(block["self"].f.k)
    sources = draw_sources(random.Random(3), 5)
    targets = fast(model, sources, longest=9, beam=3)
    length = max(map(len, sources))
    assert encoder == [(5, length)]
    assert memory == [(5, length, 8)]
    assert {shape[1:] for shape in target} == {(1, 8)}
    assert [shape[0] for shape in target[:2]] == [5, 15]  # all start from one bos
    assert target[-1][0] < 15  # who is done has left
    assert max(map(len, targets)) < len(target) <= 9


def test_a_search_ends_when_no_live_hypothesis_can_win() -> None:
    model = varied()
    steps = calls(model.stacks["decoder"])
    sources = draw_sources(random.Random(8), 12)
    search = {"longest": 30, "beam": 5, "length_penalty": 0.0}
    expected = [slow(model, source, **search) for source in sources]
    waited = len(steps)  # the slow search ends with five
    del steps[:]
    assert [fast(model, [source], **search)[0] for source in sources] == expected
    assert len(steps) < 0.9 * waited


class Script(nn.Module):
    """Logits that depend on the step alone: probabilities of tokens 3 and 4 and of eos."""

    def __init__(self, *steps: tuple[float, float, float]) -> None:
        super().__init__()
        self.steps = iter(steps)

    def forward(self, features_ND: Tensor) -> Tensor:
        logits_NV = features_ND.new_full((len(features_ND), 5), 1e-9)
        logits_NV[:, [3, 4, EOS]] = features_ND.new_tensor(next(self.steps))
        return logits_NV.log()


@pytest.mark.parametrize(
    ("length_penalty", "target"), [(1.0, [3] * 5), (0.0, []), (-1.0, []), (2.0, [3] * 5)]
)
def test_a_long_target_may_still_win_after_a_likelier_short_one_has_ended(
    length_penalty: float, target: list[int]
) -> None:
    model = build()
    # ln 0.65 = -0.43 for the empty target; ln 0.345 = -1.06 for the other, over 6 tokens.
    model.output = Script((0.345, 0.005, 0.65), *[(1.0, 1e-5, 1e-5)] * 4, (1e-5, 1e-5, 1.0))
    found = fast(model, [[5]], longest=6, beam=2, length_penalty=length_penalty)
    assert found == [target]


def test_with_a_negative_penalty_the_next_step_may_still_win() -> None:
    model = build()
    # -1.2 x 1 for the empty target; -0.36 x 2 for the next, which would be -0.36 x 6 at the end.
    model.output = Script((0.699, 0.001, 0.3), (1e-5, 1e-5, 1.0), *[(1.0, 1e-5, 1e-5)] * 4)
    assert fast(model, [[5]], longest=6, beam=2, length_penalty=-1.0) == [[3]]


def test_a_beam_may_be_wider_than_what_can_be_written() -> None:
    banned = tuple(set(range(VOCABULARY)) - {EOS, 3})
    lengths = set()
    for seed, length_penalty in itertools.product(range(3), (0.0, 1.5)):
        model = build(seed=seed)
        search = {"longest": 30, "beam": 20, "length_penalty": length_penalty, "banned": banned}
        expected = slow(model, [5, 9], **search)
        assert fast(model, [[5, 9]], **search) == [expected]
        lengths.add(len(expected))
    assert {0, 19} <= lengths  # in each step one ends and one lives on: twenty have ended by then


@pytest.mark.parametrize("training", [True, False])
def test_dropout_rests_while_decoding_and_the_models_mode_comes_back(training: bool) -> None:
    model = varied(dropout=0.5).train(training)
    sources = draw_sources(random.Random(1), 10)
    found = fast(model, sources, longest=8, beam=2)
    assert all(module.training is training for module in model.modules())
    assert found == fast(varied(), sources, longest=8, beam=2)
    assert all(p.grad is None for p in model.parameters())


def test_a_cache_takes_one_position_at_a_time() -> None:
    model = build()
    memory_BSD = torch.zeros(1, 2, 8, dtype=torch.float64)
    with pytest.raises(AssertionError, match="one position at a time"):
        model.stacks["decoder"](torch.tensor([[BOS, 5]]), Context(None, memory_BSD, None, Cache()))


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_of_nans_writes_nothing(beam: int) -> None:
    model = build()
    nn.init.constant_(model.output.weight, float("nan"))
    assert fast(model, [[5, 9], [4]], longest=5, beam=beam) == [[], []]
