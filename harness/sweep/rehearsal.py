"""What can be known of cells before they run: what their schemes do at every place, and about how
much memory and time a run needs. No torch."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from harness.data.translation.options import Translation
from harness.schemes import kinds, twin
from harness.schemes.registry import REHEARSED
from harness.training.config import Config

LAYERS = 50_000  # tried of all models together: a second
BYTES = 4  # of a number
COPIES = {"sgd": 2}  # of each parameter: itself, its gradient, and Adam's two moments
CHARACTERS = 256  # of a vocabulary, where no config says
# In the committed studies: memory beyond that of the libraries over what is counted here, 1.3 to
# 2.2, and operations a second of one core, 1e10 to 6e10.
OVERHEAD = 1.7
SPEED = 2e10
LONG_HOURS = 24.0  # a run that takes longer is worth a word


def flaws(configs: Iterable[Config]) -> Iterator[str]:
    """A line for each model whose scheme raises an error of its own somewhere, which is a cell's
    crash, or is another scheme at this depth; ConfigError for a wiring that no model can have."""
    models = {
        (c.scheme, c.canonical_options, c.model.encoders, c.model.decoders): c for c in configs
    }
    most = max(10, min(REHEARSED, LAYERS // max(1, len(models))))
    for c in models.values():
        sizes = c.model.encoders, c.model.decoders
        if words := c.rule.rehearse(*sizes, c.scheme_options, most):
            yield f"{words}; such cells crash"
        elif name := twin(c.rule, c.scheme_options, *sizes, most):
            depth = " and ".join(f"{layers}" for layers in dict.fromkeys(sizes) if layers)
            yield (
                f"scheme {c.scheme!r} is {name!r} at model.depth {depth}: no number of the two "
                "differs there; choose another depth, option or scheme to compare them"
            )


class Need(NamedTuple):
    """What one run needs, about."""

    memory: float  # bytes
    operations: float


def need(config: Config) -> Need:
    """From parameters, activations that the backward pass reads, and matrix products; a batch of a
    translation is full."""
    model, train = config.model, config.train
    width, ffn, length = model.width, model.ffn, train.length
    vocabulary = config.data.pieces if isinstance(config.data, Translation) else CHARACTERS
    tokens = train.batch * (1 if isinstance(config.data, Translation) else length)
    paired = model.family == "encoder_decoder" and model.cross_attention
    sublayers = model.encoders * len(kinds("encoder", cross=paired)) + model.decoders * len(
        kinds("decoder", cross=paired)
    )
    fed = model.encoders + model.decoders
    attended = sublayers - fed
    matrices = 4 * attended * width**2 + 2 * fed * width * ffn + width * vocabulary
    # Inputs of norms, maps and sums, and for each head scores and weights of a token.
    kept = attended * (7 * width + 2 * model.heads * length) + fed * (3 * width + 2 * ffn)
    parameters = matrices + width * vocabulary
    copies = COPIES.get(config.optim.name, 4) + (train.average if train.average > 1 else 0)
    memory = OVERHEAD * BYTES * (copies * parameters + tokens * (kept + 2 * vocabulary))
    forward = 2 * tokens * (matrices + 2 * attended * width * length)
    return Need(memory, 3.0 * max(1, train.steps) * train.accumulation * forward)


def speed(rows: Iterable[Mapping[str, str]]) -> float | None:
    """Operations a second of finished runs; None before any."""
    timed = [(float(r["flops"]), float(r["seconds"])) for r in rows if r.get("seconds")]
    seconds = sum(taken for _, taken in timed)
    return sum(flops for flops, _ in timed) / seconds if seconds else None


def excess(configs: Iterable[Config], rows: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """A line where the largest run needs more memory than there is, and one where the longest
    takes more than a day."""
    found = [(need(c), c) for c in configs]
    if not found:
        return
    known = speed(rows)
    largest, config = max(found, key=lambda each: each[0].memory)
    if (there := _memory()) and largest.memory > there:
        yield (
            f"{_shape(config)}: needs about {_giga(largest.memory)} of memory; this machine has "
            f"{_giga(there)}"
        )
    longest, config = max(found, key=lambda each: each[0].operations)
    hours = longest.operations / (known or SPEED) / 3600
    if hours > LONG_HOURS:
        at = "of its finished runs" if known else "of one core"
        yield f"{_shape(config)}: takes about {_plainly(hours / 24)} days at the speed {at}"


def _memory() -> int | None:
    """Bytes of this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, AttributeError):  # a name that this system does not have
        return None


def _giga(size: float) -> str:
    return f"{_plainly(size / 2**30)} GiB"


def _plainly(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _shape(config: Config) -> str:
    model, train = config.model, config.train
    layers = "+".join(str(n) for n in (model.encoders, model.decoders) if n)
    return (
        f"a run of {config.scheme} (model.depth {layers}, model.width {model.width}, train.batch "
        f"{train.batch}, train.length {train.length}, train.steps {train.steps})"
    )
