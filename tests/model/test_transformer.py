"""What every wired Transformer promises, by gradients: causality, masks, reach, identity, depth."""

import copy
import io
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness.model.initialise import initialise
from harness.model.transformer import Transformer
from harness.schemes import Learned, Place, StackFacts, Wiring, all_schemes, find

torch.set_num_threads(1)

SCHEMES = tuple(all_schemes())  # the built-in ones: no test has declared any yet
FAMILIES = {"encoder": (3, 0), "decoder": (0, 3), "encoder_decoder": (2, 3)}
SOURCES, TARGETS = 11, 13  # vocabularies
PAD = 0

every_family = pytest.mark.parametrize("family", FAMILIES)
core_scheme = pytest.mark.parametrize(
    "scheme", ["post_norm", "pre_norm", "rezero", "b2t", "deepnorm"]
)
every_model = pytest.mark.parametrize(
    ("scheme", "family"), [(s, f) for s in SCHEMES for f in FAMILIES if f in find(s).families]
)


def schemes_of(family: str) -> list[str]:
    return [scheme for scheme in SCHEMES if family in find(scheme).families]


def every_scheme_of(family: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scheme", schemes_of(family))


def build(
    scheme: str,
    encoders: int,
    decoders: int,
    *,
    width: int = 8,
    ffn: int = 12,
    dropout: float = 0.0,
    options: dict[str, object] | None = None,
    cross_attention: bool = True,
) -> Transformer:
    rule = find(scheme)
    model = Transformer(
        partial(rule.wire, options=options or {}),
        partial(rule.stack, options=options or {}),
        encoders=encoders,
        decoders=decoders,
        width=width,
        heads=2,
        ffn=ffn,
        norm="layernorm",
        dropout=dropout,
        vocabularies=(SOURCES, TARGETS),
        cross_attention=cross_attention,
    )
    return initialise(model, 0)


def open_gates(model: nn.Module) -> None:
    """ReZero's scalars leave zero, each for a value of its own."""
    with torch.no_grad():
        for number, parameter in enumerate(p for p in model.parameters() if p.ndim == 0):
            parameter.fill_(0.5 + 0.1 * number)


def opened(scheme: str, family: str) -> Transformer:
    model = build(scheme, *FAMILIES[family]).double()
    open_gates(model)
    return model


def inputs_of(family: str) -> tuple[Tensor, None, Tensor | None, None]:
    """Two sequences without padding, of tokens that all differ within a sequence."""
    inputs_BT = torch.tensor([[1, 7, 5, 12, 9], [3, 2, 10, 8, 4]])
    source_BS = torch.tensor([[5, 9, 10, 7, 6, 8], [4, 3, 2, 1, 5, 9]])
    return inputs_BT, None, source_BS if family == "encoder_decoder" else None, None


def reach(model: Transformer, inputs: tuple, table: nn.Embedding, position: int) -> Tensor:
    """|d projection of logits[0, position] / d embedding of each token|, one value a token."""
    logits_V = model(*inputs)[0, position]
    draw = torch.Generator().manual_seed(position)
    direction_V = torch.randn(logits_V.shape, generator=draw, dtype=logits_V.dtype)
    (gradient_VD,) = torch.autograd.grad(logits_V @ direction_V, table.weight)
    return gradient_VD.abs().amax(-1)


@pytest.mark.parametrize(
    ("scheme", "family"),
    [(s, f) for f in ("decoder", "encoder_decoder") for s in schemes_of(f)],
)
def test_a_decoders_logits_see_no_later_token_and_every_earlier_one(
    scheme: str, family: str
) -> None:
    model, inputs = opened(scheme, family), inputs_of(family)
    tokens_T = inputs[0][0]
    for t in range(len(tokens_T)):
        seen = reach(model, inputs, model.stacks["decoder"].embedding, t)[tokens_T]
        assert bool((seen[t + 1 :] == 0).all())
        assert bool((seen[: t + 1] > 1e-9).all())


@every_scheme_of("encoder")
def test_an_encoders_logits_see_every_token(scheme: str) -> None:
    model, inputs = opened(scheme, "encoder"), inputs_of("encoder")
    tokens_T = inputs[0][0]
    for t in range(len(tokens_T)):
        seen = reach(model, inputs, model.stacks["encoder"].embedding, t)[tokens_T]
        assert bool((seen > 1e-9).all())


@every_scheme_of("encoder")
def test_an_encoders_logits_see_no_padding(scheme: str) -> None:
    model = opened(scheme, "encoder")
    inputs_BT = torch.tensor([[1, 7, 5, PAD, PAD], [3, 2, 10, 8, 4]])
    for t in range(3):
        seen = reach(model, (inputs_BT, inputs_BT != PAD), model.stacks["encoder"].embedding, t)
        assert bool((seen[[1, 7, 5]] > 1e-9).all())
        assert seen[PAD] == 0


@every_scheme_of("encoder_decoder")
def test_a_decoder_sees_every_source_token_and_no_padding(scheme: str) -> None:
    model = opened(scheme, "encoder_decoder")
    inputs_BT = torch.tensor([[1, 7, 5, 12, 9], [3, 2, 10, 8, 4]])
    source_BS = torch.tensor([[5, 9, 10, PAD, PAD], [4, 3, 2, 1, 5]])
    inputs = inputs_BT, None, source_BS, source_BS != PAD
    for t in range(inputs_BT.shape[1]):
        seen = reach(model, inputs, model.stacks["encoder"].embedding, t)
        assert bool((seen[[5, 9, 10]] > 1e-9).all())
        assert seen[PAD] == 0
        assert bool((seen[[4, 3, 2, 1]] == 0).all())  # the other sentence of the batch


@every_model
def test_a_padded_batch_has_the_logits_of_each_sentence_alone(scheme: str, family: str) -> None:
    model = opened(scheme, family)
    targets = [[1, 7, 5, 12, 9], [3, 2], [6, 10, 8, 4]]
    sources = [[5, 9], [4, 3, 2, 1, 5, 9], [10]]

    def padded(rows: list[list[int]]) -> Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])

    inputs_BT, source_BS = padded(targets), padded(sources)
    paired = family == "encoder_decoder"
    batch_BTV = model(
        inputs_BT, inputs_BT != PAD, *((source_BS, source_BS != PAD) if paired else ())
    )
    for row, (target, source) in enumerate(zip(targets, sources, strict=True)):
        context = (None, torch.tensor([source]), None) if paired else ()
        alone_TV = model(torch.tensor([target]), *context)[0]
        torch.testing.assert_close(batch_BTV[row, : len(target)], alone_TV, rtol=1e-10, atol=1e-10)


@every_family
def test_a_rezero_stack_is_the_identity_at_initialisation(family: str) -> None:
    model, inputs = build("rezero", *FAMILIES[family]), inputs_of(family)
    features_BTD = model.features(*inputs)
    last = model.stacks["encoder" if family == "encoder" else "decoder"]
    t_T1 = torch.arange(5.0)[:, None]
    angles = t_T1 / 10000 ** (torch.arange(0, 8, 2) / 8)
    positions_TD = torch.empty(5, 8)
    positions_TD[:, 0::2], positions_TD[:, 1::2] = angles.sin(), angles.cos()
    embedded_BTD = 8**0.5 * last.embedding.weight[inputs[0]] + positions_TD
    torch.testing.assert_close(features_BTD, embedded_BTD, rtol=0, atol=1e-6)
    last.blocks = nn.ModuleList()
    assert torch.equal(features_BTD, model.features(*inputs))


@every_family
def test_at_initialisation_only_the_scalars_of_rezeros_blocks_have_a_gradient(family: str) -> None:
    model, inputs = build("rezero", *FAMILIES[family]), inputs_of(family)
    model(*inputs).square().sum().backward()
    last = "encoder" if family == "encoder" else "decoder"
    for name, parameter in model.stacks.named_parameters():
        if "blocks" not in name:
            continue
        assert parameter.grad is not None
        nonzero = bool((parameter.grad != 0).any())
        # A pair's encoder is heard through cross-attention, whose gate is shut as well.
        assert nonzero == (parameter.ndim == 0 and name.startswith(last)), name


@every_family
def test_rezero_has_one_scalar_a_layer_shared_by_its_sublayers(family: str) -> None:
    model = build("rezero", *FAMILIES[family])
    scalars = {id(p) for p in model.parameters() if p.ndim == 0}
    assert len(scalars) == sum(FAMILIES[family])
    found = set()
    for stack in model.stacks.values():
        for block in stack.blocks:
            of_layer = {id(residual.branch) for residual in block.values()}
            assert len(of_layer) == 1
            found |= of_layer
    assert found == scalars


@every_family
def test_a_dense_stack_starts_from_means_of_all_that_came_before(family: str) -> None:
    model = build("dlcl", *FAMILIES[family])
    for stack in model.stacks.values():
        weights = [w.tolist() for w in stack.dense.weights]
        layers = len(stack.blocks)
        assert weights == [pytest.approx([1 / n] * n) for n in range(1, layers + 2)]
        assert len(stack.dense.norms) == layers
    assert all(
        stack.dense is None for stack in build("pre_norm", *FAMILIES[family]).stacks.values()
    )


def test_an_embeddings_norm_sees_positions_and_stands_before_the_blocks() -> None:
    model, inputs = build("peri_norm", 0, 2), inputs_of("decoder")
    seen: list[Tensor] = []
    stack = model.stacks["decoder"]
    stack.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(*inputs)
    (x_BTD,) = seen
    torch.testing.assert_close(x_BTD.mean(-1), torch.zeros(2, 5), rtol=0, atol=1e-5)
    torch.testing.assert_close(x_BTD.var(-1, correction=0), torch.ones(2, 5), rtol=1e-3, atol=0)
    assert stack.embedding_norm is not None
    assert build("sandwich", 0, 2).stacks["decoder"].embedding_norm is None


@pytest.mark.parametrize(("scheme", "family"), [("reordered", f) for f in FAMILIES])
def test_normed_queries_and_keys_are_trained_too(scheme: str, family: str) -> None:
    rule, inputs = find(scheme), inputs_of(family)
    encoders, decoders = FAMILIES[family]
    model = Transformer(
        partial(rule.wire, options={}),
        partial(rule.stack, options={}),
        encoders=encoders,
        decoders=decoders,
        width=8,
        heads=2,
        ffn=12,
        norm="rmsnorm",
        dropout=0.0,
        vocabularies=(SOURCES, TARGETS),
        qk_norm=True,
    )
    initialise(model, 0)
    model(*inputs).square().sum().backward()
    norms = [p for name, p in model.named_parameters() if "q_norm" in name or "k_norm" in name]
    assert len(norms) == 2 * (encoders + decoders * (2 if encoders else 1))
    assert all(bool((p == 1).all()) and bool((p.grad != 0).any()) for p in norms)


def test_rezeros_final_norm_is_an_option() -> None:
    plain, normed = (
        build("rezero", 2, 2, options={"final_norm": final}) for final in (False, True)
    )
    for stack in ("encoder", "decoder"):
        assert plain.stacks[stack].norm is None
        assert isinstance(normed.stacks[stack].norm, nn.LayerNorm)


@every_family
def test_matrices_have_the_same_names_and_shapes_in_every_scheme(family: str) -> None:
    shapes = [
        {n: p.shape for n, p in build(scheme, *FAMILIES[family]).named_parameters() if p.ndim == 2}
        for scheme in schemes_of(family)
    ]
    encoders, decoders = FAMILIES[family]
    paired = family == "encoder_decoder"
    blocks = 6 * encoders + (10 if paired else 6) * decoders
    assert len(shapes[0]) == blocks + (2 if paired else 1) + 1
    assert all(other == shapes[0] for other in shapes)


@every_model
def test_every_parameter_gets_a_gradient(scheme: str, family: str) -> None:
    model = opened(scheme, family)
    logits_BTV = model(*inputs_of(family))
    direction = torch.randn(logits_BTV.shape, generator=torch.Generator().manual_seed(2))
    (logits_BTV * direction).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        largest = parameter.grad.abs().max().item()
        if name.endswith(".k.bias"):  # adds one number to all scores of a query: softmax is blind
            assert largest < 1e-12, name
        else:
            assert largest > 1e-9, name


@every_model
@torch.no_grad()
def test_changing_any_matrix_changes_the_output(scheme: str, family: str) -> None:
    model, inputs = opened(scheme, family), inputs_of(family)
    before_BTV = model(*inputs)
    for name, parameter in model.named_parameters():
        if parameter.ndim != 2:
            continue
        kept = parameter.clone()
        draw = torch.Generator().manual_seed(4)
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
        assert (model(*inputs) - before_BTV).abs().max() > 1e-7, name
        parameter.copy_(kept)
    assert torch.equal(model(*inputs), before_BTV)


def places_asked(encoders: int, decoders: int, *, cross_attention: bool = True) -> list[Place]:
    asked = []

    def wire(at: Place) -> Wiring:
        asked.append(at)
        return Wiring()

    Transformer(
        wire,
        lambda at: StackFacts(),
        encoders=encoders,
        decoders=decoders,
        width=4,
        heads=1,
        ffn=4,
        norm="layernorm",
        dropout=0.0,
        vocabularies=(5, 5),
        cross_attention=cross_attention,
    )
    return asked


def test_a_scheme_is_asked_once_for_every_sublayer_in_order() -> None:
    assert places_asked(2, 0) == [
        Place(kind, "encoder", layer, 2, 0)  # type: ignore[arg-type]
        for layer in (1, 2)
        for kind in ("self", "ffn")
    ]
    assert places_asked(0, 2) == [
        Place(kind, "decoder", layer, 0, 2)  # type: ignore[arg-type]
        for layer in (1, 2)
        for kind in ("self", "ffn")
    ]
    assert places_asked(1, 2) == [
        Place("self", "encoder", 1, 1, 2),
        Place("ffn", "encoder", 1, 1, 2),
        *(
            Place(kind, "decoder", layer, 1, 2)  # type: ignore[arg-type]
            for layer in (1, 2)
            for kind in ("self", "cross", "ffn")
        ),
    ]


def test_a_decoder_alone_is_asked_for_no_cross_attention_and_knows_its_encoder() -> None:
    assert places_asked(1, 2, cross_attention=False) == [
        Place("self", "encoder", 1, 1, 2),
        Place("ffn", "encoder", 1, 1, 2),
        *(
            Place(kind, "decoder", layer, 1, 2)  # type: ignore[arg-type]
            for layer in (1, 2)
            for kind in ("self", "ffn")
        ),
    ]


def lonely(scheme: str) -> Transformer:
    """A pair whose decoder has no cross-attention."""
    model = build(scheme, *FAMILIES["encoder_decoder"], cross_attention=False).double()
    open_gates(model)
    return model


@core_scheme
def test_without_cross_attention_the_rest_keeps_its_names_and_draws(scheme: str) -> None:
    alone = build(scheme, *FAMILIES["encoder_decoder"], cross_attention=False)
    assert all("cross" not in block for block in alone.stacks["decoder"].blocks)
    pair = build(scheme, *FAMILIES["encoder_decoder"])
    assert all("cross" in block for block in pair.stacks["decoder"].blocks)
    rest = {n: p for n, p in pair.named_parameters() if ".cross." not in n or p.ndim == 0}
    if scheme == "rezero":  # a layer's gate is that of its sublayers, named by the first
        assert len(rest) == len({id(p) for p in rest.values()})
    found = dict(alone.named_parameters())
    assert list(found) == list(rest)
    assert all(torch.equal(found[name], p) for name, p in rest.items())


@core_scheme
@torch.no_grad()
def test_without_cross_attention_a_decoder_reads_no_source(scheme: str) -> None:
    model = lonely(scheme)
    inputs_BT, _, source_BS, _ = inputs_of("encoder_decoder")
    assert source_BS is not None
    one_BTV = model(inputs_BT, None, source_BS)
    assert torch.equal(one_BTV, model(inputs_BT, None, source_BS.flip(1)))
    assert torch.equal(one_BTV, model(inputs_BT, None, source_BS[:, :2], source_BS[:, :2] != 4))
    reading = opened(scheme, "encoder_decoder")
    two_BTV = reading(inputs_BT, None, source_BS)
    assert not torch.equal(two_BTV, reading(inputs_BT, None, source_BS.flip(1)))
    assert not torch.equal(one_BTV, two_BTV)


@core_scheme
def test_without_cross_attention_only_the_encoder_has_no_gradient(scheme: str) -> None:
    model = lonely(scheme)
    model(*inputs_of("encoder_decoder")).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("stacks.encoder."), name


@pytest.mark.parametrize("scheme", ["post_norm", "deepnorm"])
def test_flops_without_cross_attention_are_those_that_torch_counts(scheme: str) -> None:
    model = build(scheme, *FAMILIES["encoder_decoder"], cross_attention=False)
    inputs_BT, _, source_BS, _ = inputs_of("encoder_decoder")
    assert source_BS is not None
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(inputs_BT[:1], None, source_BS[:1])
    assert model.flops(5, 6) == counter.get_total_flops()


def test_source_and_target_have_vocabularies_of_their_own() -> None:
    pair = build("pre_norm", 1, 1)
    assert pair.stacks["encoder"].embedding.num_embeddings == SOURCES
    assert pair.stacks["decoder"].embedding.num_embeddings == TARGETS
    assert pair.output.out_features == TARGETS
    assert pair.output.bias is None
    assert build("pre_norm", 1, 0).stacks["encoder"].embedding.num_embeddings == TARGETS
    assert build("pre_norm", 0, 1).stacks["decoder"].embedding.num_embeddings == TARGETS


def test_a_learned_coefficient_of_a_layer_is_not_shared_between_layers_and_stacks() -> None:
    def wire(at: Place) -> Wiring:
        return Wiring(skip=Learned(float(at.layer), per="layer"))

    model = Transformer(
        wire,
        lambda at: StackFacts(),
        encoders=2,
        decoders=2,
        width=4,
        heads=1,
        ffn=4,
        norm="layernorm",
        dropout=0.0,
        vocabularies=(5, 5),
    )
    scalars = [p.item() for p in model.parameters() if p.ndim == 0]
    assert scalars == [1.0, 2.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("scheme", "encoders", "decoders"),
    [("deepnorm", 0, 1000), ("rezero", 500, 500)],
)
def test_a_thousand_layers_build_train_save_load_and_copy(
    scheme: str, encoders: int, decoders: int
) -> None:
    model = build(scheme, encoders, decoders, ffn=8)
    inputs = inputs_of("encoder_decoder" if encoders else "decoder")
    twin = copy.deepcopy(model)
    first_BTV = model(*inputs)
    assert bool(first_BTV.isfinite().all())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    nn.functional.cross_entropy(first_BTV.flatten(0, 1), inputs[0].flatten()).backward()
    optimizer.step()
    with torch.no_grad():
        trained_BTV = model(*inputs)
        assert not torch.equal(trained_BTV, first_BTV)
        assert torch.equal(twin(*inputs), first_BTV)  # a copy holds nothing of the model's

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert len(list(twin.parameters())) == len(list(model.parameters()))
    with torch.no_grad():
        assert torch.equal(twin(*inputs), trained_BTV)


@every_family
@pytest.mark.parametrize("scheme", ["post_norm", "rezero"])
def test_flops_are_those_that_torch_counts(scheme: str, family: str) -> None:
    model = build(scheme, *FAMILIES[family])
    inputs_BT, _, source_BS, _ = inputs_of(family)
    paired = source_BS is not None
    one = inputs_BT[:1], None, source_BS[:1] if paired else None, None
    # torch counts no operation of its fused attention kernel on CPU; the plain kernel's it does.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*one)
    assert model.flops(5, 6 if paired else 0) == counter.get_total_flops()


@every_model
def test_dropout_acts_in_training_only(scheme: str, family: str) -> None:
    dropping, plain = (build(scheme, *FAMILIES[family], dropout=p) for p in (0.3, 0.0))
    open_gates(dropping)
    open_gates(plain)
    inputs = inputs_of(family)

    def forward(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return dropping(*inputs)

    assert not torch.equal(forward(1), forward(2))
    assert torch.equal(forward(1), forward(1))
    dropping.eval()
    assert torch.equal(forward(1), forward(2))
    assert torch.equal(forward(1), plain(*inputs))


def test_dropout_falls_on_the_embedded_input() -> None:
    model, inputs = build("rezero", 0, 2, dropout=0.5), inputs_of("decoder")
    torch.manual_seed(0)
    dropped_BTD = model.features(*inputs)  # ReZero's blocks are the identity here
    model.eval()
    whole_BTD = model.features(*inputs)
    gone = dropped_BTD == 0
    assert bool((gone | torch.isclose(dropped_BTD, 2 * whole_BTD)).all())
    assert 20 < int(gone.sum()) < 60  # of 80
