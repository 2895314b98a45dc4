"""Whether a scheme keeps what every scheme promises: each check in plain words, family by family.

Most checks run in float64 on tiny models with every parameter moved off its start, so that nothing
is right by being zero. Letters: B sequences, T targets, S sources, D width, K head width.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness.data import tasks
from harness.data.batches import Batch, as_batch
from harness.errors import ConfigError
from harness.model.initialise import calibrate
from harness.model.layers import Context, Residual
from harness.model.longhand import longhand
from harness.model.transformer import Transformer
from harness.schemes import FAMILIES, Learned, find
from harness.training.config import Config, parse
from harness.training.module import cross_entropy
from harness.training.optim import optimizer
from harness.training.train import build

DEPTHS = (1, 2, 6, 48, 200)  # at which gradients are to be finite
MOVED = 0.1  # standard deviation by which parameters leave their start
CLOSE = 1e-9  # relative, in float64
SYMBOLS = 6  # of the task's alphabet
NEAR = 0.05  # relative, of a standard deviation measured on 4,096 draws or more


class Finding(NamedTuple):
    """One check of one family; `problem` is empty where all is well, and a warning where it breaks
    no promise."""

    family: str
    check: str
    problem: str
    warning: bool = False


class Case(NamedTuple):
    """A scheme with its options in a family, a tiny model in general position, and a batch."""

    scheme: str
    options: Mapping[str, Any]
    family: str
    model: Transformer
    batch: Batch

    def features(self) -> Tensor:
        return self.model.features(*self.batch.model_inputs)

    def named(self) -> dict[str, nn.Parameter]:
        """Parameters that matter: a bias of keys shifts all scores of a query alike."""
        every = self.model.named_parameters()
        return {name: p for name, p in every if not name.endswith("f.k.bias")}

    def residuals(self) -> Iterator[tuple[str, Residual]]:
        for name, module in self.model.named_modules():
            if isinstance(module, Residual):
                yield name, module


Check = Callable[[Case], Iterator[str]]
CHECKS: dict[str, Check] = {}
WARNINGS: set[str] = set()  # checks whose problems break no promise


def check(words: str, *, warns: bool = False) -> Callable[[Check], Check]:
    """Registers a generator of problems: of everything that is not as the words say."""

    def register(function: Check) -> Check:
        CHECKS[words] = function
        WARNINGS.update([words] * warns)
        return function

    return register


def conform(scheme: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Every check in every family that the scheme serves, as it is made; ConfigError for an unknown
    scheme or option, and for a function that raises an error."""
    for family in (family for family in FAMILIES if family in find(scheme).families):
        for depth in (3, *DEPTHS):
            c = _config(scheme, options, family, depth=depth, width=8)
            if flaw := c.rule.rehearse(c.model.encoders, c.model.decoders, c.scheme_options):
                raise ConfigError(flaw)
        model, batch = _drawn(_config(scheme, options, family, depth=3, width=8))
        case = Case(scheme, options, family, _moved(model.double()), batch)
        for words, function in CHECKS.items():
            problems = list(function(case))
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            problem = problems[0] + more if problems else ""
            yield Finding(family, words, problem, words in WARNINGS)


def _config(
    scheme: str, options: Mapping[str, Any], family: str, depth: int, width: int, seed: int = 0
) -> Config:
    model = {"family": family, "depth": depth, "width": width, "heads": 2, "ffn": 2 * width}
    given = {
        "scheme": scheme,
        "scheme_options": dict(options),
        "seed": seed,
        "model": model,
        "data": {"name": "reverse", "symbols": SYMBOLS, "valid_sequences": 4},
        "optim": {"lr": 1e-3},
        "train": {"steps": 1, "batch": 4, "length": 6},
    }
    return parse(given, f"scheme {scheme!r}")


def _drawn(config: Config) -> tuple[Transformer, Batch]:
    """The config's model as it is drawn, and a batch."""
    task = tasks.load(config.data, Path(), config.model.family, config.train.length)
    batch = as_batch(task.train(config.seed, 0, config.train.batch))
    return calibrate(build(config, task.vocabularies).eval(), *batch.model_inputs), batch


@torch.no_grad()
def _moved(model: Transformer) -> Transformer:
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter += MOVED * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
    return model


@check("two calls of the function give the same wiring")
def _pure(case: Case) -> Iterator[str]:
    again = dict(case._replace(model=_drawn(_again(case))[0]).residuals())
    for name, residual in case.residuals():
        if residual.wiring != again[name].wiring:
            yield f"{name}: it gives now this, now that; read nothing but the place"


def _again(case: Case, **changes: Any) -> Config:
    given = {"depth": 3, "width": 8, **changes}
    return _config(case.scheme, case.options, case.family, **given)


@check("each sublayer is its equation, written out longhand")
def _equation(case: Case) -> Iterator[str]:
    seen: list[tuple[str, Residual, tuple[Tensor, Tensor, Context], Tensor]] = []
    handles = [
        residual.register_forward_hook(
            lambda module, args, out, name=name: seen.append((name, module, args, out))
        )
        for name, residual in case.residuals()
    ]
    with torch.no_grad():
        case.features()
        for handle in handles:
            handle.remove()
        for name, residual, args, out in seen:
            expected = longhand(residual, *args)
            if not torch.allclose(out, expected, rtol=CLOSE, atol=CLOSE):
                worst = float((out - expected).abs().max())
                yield f"{name}: differs by {worst:.2g} from its wiring {residual.wiring}"


@check("every parameter has a gradient")
def _used(case: Case) -> Iterator[str]:
    case.model.zero_grad()
    cross_entropy(case.model(*case.batch.model_inputs).double(), case.batch.targets_BT).backward()
    for name, parameter in case.named().items():
        if parameter.grad is None or not parameter.grad.any():
            yield f"{name}: no gradient; use it or do without it"


@check("every weight of a block changes the output")
def _felt(case: Case) -> Iterator[str]:
    with torch.no_grad():
        before = case.features()
        for name, parameter in case.named().items():
            if ".blocks." not in name:
                continue
            kept = parameter.clone()
            parameter += 0.5 * torch.linspace(-1, 2, kept.numel(), dtype=kept.dtype).view_as(kept)
            if torch.equal(case.features(), before):
                yield f"{name}: the output does not depend on it"
            parameter.copy_(kept)


@check("matrices have the deviation that the gains say")
def _deviation(case: Case) -> Iterator[str]:
    model, _ = _drawn(_again(case, width=64))
    for name, residual in case._replace(model=model).residuals():
        for role, linear in residual.f.named_children():
            if not isinstance(linear, nn.Linear):
                continue
            fans = linear.in_features + linear.out_features
            expected = getattr(residual.wiring.gain, role) * math.sqrt(2 / fans)
            measured = float(linear.weight.detach().std())
            if abs(measured - expected) > NEAR * expected:
                yield f"{name}.{role}: deviation {measured:.4f}, expected {expected:.4f}"


@check("factors on rate and epsilon reach the optimizer")
def _factors(case: Case) -> Iterator[str]:
    options = _again(case).optim
    steps = optimizer(case.model.parameters(), options, fused=False, factors=case.model.factors())
    group_of = {id(p): group for group in steps.param_groups for p in group["params"]}
    for name, residual in case.residuals():
        w = residual.wiring
        for map_, factor in ((residual.f, w.lr), (residual.norms, w.norm_lr)):
            for parameter in map_.parameters():
                group = group_of[id(parameter)]
                expected = (factor * options.lr, w.eps * options.eps)
                found = (group["lr"], group["eps"])
                if found != expected:
                    yield f"{name}: (rate, epsilon) is {found}, expected {expected}"


@check("maps are named as in every scheme")
def _names(case: Case) -> Iterator[str]:
    plain, _ = _drawn(_config("post_norm", {}, case.family, 3, 8))
    maps = [{n for n, _ in m.named_parameters() if ".f." in n} for m in (plain, case.model)]
    for name in sorted(maps[0] ^ maps[1]):
        yield f"{name}: in one of post_norm and {case.scheme} only"


@check(f"gradients are finite at {', '.join(map(str, DEPTHS))} layers")
def _finite(case: Case) -> Iterator[str]:
    for depth in DEPTHS:
        model, batch = _drawn(_again(case, depth=depth))
        cross_entropy(model(*batch.model_inputs), batch.targets_BT).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                yield f"{name}: a gradient is not finite at {depth} layers"
                break


@check("a layer whose branches start at 0 starts as the identity")
def _identity(case: Case) -> Iterator[str]:
    model, batch = _drawn(_again(case))
    seen: list[tuple[str, Tensor, Tensor]] = []
    for name, block in model.named_modules():
        residuals = [r for r in block.children() if isinstance(r, Residual)]
        if residuals and all(_closed(r) for r in residuals):
            block.register_forward_hook(
                lambda _, args, out, name=name: seen.append((name, args[0], out))
            )
    with torch.no_grad():
        model.features(*batch.model_inputs)
    for name, x, out in seen:
        if not torch.equal(x, out):
            yield f"{name}: changes its input by up to {float((out - x).abs().max()):.2g}"


def _closed(residual: Residual) -> bool:
    """Whether its wiring leaves nothing but x at the start."""
    w = residual.wiring
    branch, skip = (c.init if isinstance(c, Learned) else c for c in (w.branch, w.skip))
    return branch == 0.0 and skip == 1.0 and w.bypass == 0.0 and "sum" not in w.norms


@check("a norm follows the last layer", warns=True)
def _normed(case: Case) -> Iterator[str]:
    """The source of a published scheme decides this; the author of another may have forgotten it,
    and then compares with schemes that have it."""
    if find(case.scheme).status != "own":
        return
    for name, stack in case.model.stacks.items():
        *_, last = stack.blocks[-1].values()
        if stack.norm is None and stack.dense is None and "sum" not in last.wiring.norms:
            yield f"{name}: pre_norm has a final norm, this none; add final_norm=True to @scheme"


@check("a decoder does not see what comes later")
def _causal(case: Case) -> Iterator[str]:
    if case.family == "encoder":
        return
    tokens_BT, _, *source = case.batch.model_inputs
    other_BT = tokens_BT.clone()
    other_BT[:, -1] = (other_BT[:, -1] + 1) % SYMBOLS  # another token
    with torch.no_grad():
        one, two = (case.model.features(t, None, *source) for t in (tokens_BT, other_BT))
    if not torch.allclose(one[:, :-1], two[:, :-1], rtol=CLOSE, atol=CLOSE):
        yield "the last token changes what stands before it"


@check("weights can be saved and loaded")
def _saved(case: Case) -> Iterator[str]:
    file = io.BytesIO()
    torch.save(case.model.state_dict(), file)
    file.seek(0)
    other, _ = _drawn(_again(case, seed=1))
    other.double().load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        if not torch.equal(case.features(), other.features(*case.batch.model_inputs)):
            yield "the loaded model gives another output: something is not in its state"
