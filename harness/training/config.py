"""What one run is: a frozen, strict config, its errors in one line, and its identity. No torch."""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from harness.data.arrays import Validation
from harness.data.tasks import FAMILIES, TASKS, TaskOptions
from harness.data.translation.options import Translation
from harness.errors import ConfigError, did_you_mean
from harness.fields import Count, Flag, Level, Positive, Rate, Share, Strict, Typed, one_line
from harness.schemes import Family, Scheme, find, is_normed, wiring_digest

PROTOCOL = 2  # raised when the training loop's numbers change, or what is read off them
# Fields that came later, and the value, fixed for ever, at which they change nothing: there they
# are left out of a run's identity, so that older rows stay what they were.
NEUTRAL = {
    "model.cross_attention": True,
    "model.qk_norm": False,
    "probe.skip_blocks": False,
    "train.average": 1,
    "train.held_out": "valid",
}

ADDED = {1: ("held_out",)}  # after a protocol, whose runs knew no such field


def _table(value: Any) -> Any:
    """A section written as JSON on a command line; anything else as it is."""
    if isinstance(value, Typed):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _betas(value: Any) -> Any:
    """TOML has lists where Python has pairs; a command line has '[0.9, 0.98]'."""
    try:
        first, second = json.loads(value) if isinstance(value, Typed) else value
        return first, second
    except (ValueError, TypeError):
        raise PydanticCustomError("expected", "expected a list of two numbers") from None


class Model(Strict):
    family: Family
    depth: Positive  # layers of each stack
    decoder_depth: Positive | None = None  # of the decoder of a pair, where it differs
    width: Positive
    heads: Positive
    ffn: Positive
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    dropout: Share = 0.0
    cross_attention: Flag = True  # of the decoder of a pair; without it, it reads no encoder
    qk_norm: Flag = False  # whether queries and keys are normalised, over the whole width

    @model_validator(mode="after")
    def _one_spelling(self) -> "Model":
        """A decoder as deep as its encoder is the same cell whether or not it is said; so is a
        stack without partner, with or without cross-attention."""
        if self.decoder_depth is not None and self.family != "encoder_decoder":
            raise ConfigError(
                f"model.decoder_depth: only an encoder_decoder has it, got family {self.family!r}; "
                "set model.depth"
            )
        if self.decoder_depth == self.depth:
            object.__setattr__(self, "decoder_depth", None)
        if self.family != "encoder_decoder":
            object.__setattr__(self, "cross_attention", True)
        return self

    @property
    def encoders(self) -> int:
        return 0 if self.family == "decoder" else self.depth

    @property
    def decoders(self) -> int:
        return 0 if self.family == "encoder" else self.decoder_depth or self.depth


class Optim(Strict):
    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Rate
    betas: Annotated[tuple[Share, Share], BeforeValidator(_betas)] = (0.9, 0.98)
    eps: Rate = 1e-8
    weight_decay: Level = 0.0
    schedule: Literal["constant", "inverse_sqrt"] = "constant"
    warmup_steps: Count = 0
    clip: Level = 0.0  # largest gradient norm; 0 leaves gradients as they are
    label_smoothing: Share = 0.0


class Train(Strict):
    steps: Count  # optimizer steps; 0 measures the model as it is drawn, on one batch
    batch: Positive  # sequences, or tokens of a translation; `accumulation` batches a step
    length: Positive  # tokens a sequence
    accumulation: Positive = 1
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    validate_every: Count = 0  # optimizer steps; 0 validates at the end only
    average: Positive = 1  # last validations at which weights are noted, to end with their mean
    # What a run validates on: the validation set, or tokens that it does not train on either, as
    # runs do that choose a value; test splits are not translated then.
    held_out: Validation = "valid"

    @model_validator(mode="after")
    def _averaged(self) -> "Train":
        if self.average > 1 and not self.validate_every:
            raise ConfigError(
                f"train.average: the weights of the last {self.average} validations need some; "
                "set train.validate_every"
            )
        if self.average > (made := max(1, math.ceil(self.steps / (self.validate_every or 1)))):
            raise ConfigError(
                f"train.average: expected at most {made}, the validations of {self.steps} steps, "
                f"got {self.average}; lower it or train.validate_every"
            )
        return self


class Probe(Strict):
    window: Positive = 100  # first steps whose median is reported
    update_steps: Positive = 10  # steps after which the model update is measured
    skip_blocks: Flag = False  # whether the end of a run tries what each block is worth


class Config(Strict):
    scheme: str
    scheme_options: dict[str, Any] = Field(default_factory=dict)
    seed: Count
    model: Model
    data: TaskOptions
    optim: Optim
    train: Train
    probe: Probe = Probe()

    @model_validator(mode="before")
    @classmethod
    def _normal(cls, given: Any) -> Any:
        """Options are checked against the scheme's signature; those at their default go."""
        if not isinstance(given, Mapping):
            return given
        given = dict(given)
        scheme, options = given.get("scheme"), given.get("scheme_options", {})
        if isinstance(scheme, str):
            given["scheme"] = str(scheme)
            rule = find(scheme)
            options = _table(options)
            if isinstance(options, Typed):
                text = str(options)
                raise ConfigError(f"scheme_options: expected a JSON table, got {text!r}")
            if isinstance(options, Mapping):
                given["scheme_options"] = rule.check(options)
        return given

    @model_validator(mode="after")
    def _shapes(self) -> "Config":
        model = self.model
        if model.width % model.heads:
            raise ConfigError(
                f"model.heads: {model.heads} does not divide model.width {model.width}; "
                "choose a divisor"
            )
        if isinstance(self.data, Translation) and self.train.batch < 2 * self.train.length:
            raise ConfigError(
                f"train.batch: {self.train.batch} tokens do not hold two pairs of train.length "
                f"{self.train.length}; raise it"
            )
        try:
            self.rule.serve(model.family)
        except ConfigError as error:
            raise ConfigError(f"model.family: {error}") from None
        usual = Model.model_fields["norm"].default
        wired = self.rule, self.scheme_options, model.encoders, model.decoders
        if model.norm != usual and not model.qk_norm and not is_normed(*wired):
            # Without norms it is the same cell whatever their kind is said to be.
            object.__setattr__(self, "model", model.model_copy(update={"norm": usual}))
        served = FAMILIES[self.data.name]
        if model.family not in served:
            raise ConfigError(
                f"model.family: task '{self.data.name}' needs {' or '.join(served)}, "
                f"got {model.family!r}"
            )
        return self

    @cached_property
    def rule(self) -> Scheme:
        return find(self.scheme)

    @property
    def canonical_options(self) -> str:
        return canonical(self.scheme_options)

    @cached_property
    def run_id(self) -> str:
        """First 12 hex digits of SHA-256 over config, protocol and the scheme's revision."""
        return self.run_id_of(PROTOCOL)

    def run_id_of(self, protocol: int) -> str:
        """The run_id that the cell has, or had, under a protocol."""
        config = self.model_dump(mode="json")
        for path, value in NEUTRAL.items():
            section, _, field = path.partition(".")
            if config[section][field] == value or field in ADDED.get(protocol, ()):
                del config[section][field]
        identity = {
            "config": config,
            "protocol": protocol,
            "revision": self.rule.revision,
        }
        return hashlib.sha256(canonical(identity).encode()).hexdigest()[:12]

    @cached_property
    def wiring_sha(self) -> str:
        """Digest of the scheme's wirings in this model; empty if the scheme raises."""
        model = self.model
        return wiring_digest(self.rule, self.scheme_options, model.encoders, model.decoders)

    def at(self, path: str) -> Any:
        """The value at a dotted path, such as 'optim.lr' or 'scheme_options.beta'."""
        head, _, rest = path.partition(".")
        if head == "scheme_options" and rest:
            return {**self.rule.options, **self.scheme_options}[rest]
        if path == "model.decoder_depth":
            return self.model.decoders  # said or not, it is what the cell has
        if path == "model.cross_attention":  # a single stack has none, whatever was said
            return self.model.cross_attention and self.model.family == "encoder_decoder"
        value = getattr(self, head)
        value = getattr(value, rest) if rest else value
        return value.model_dump(mode="json") if isinstance(value, Strict) else value


def canonical(value: Any) -> str:
    """JSON with sorted keys, no spaces, floats as repr; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse(given: Mapping[str, Any], source: str) -> Config:
    """A config from a nested mapping; ConfigError 'source: field: what is wrong' otherwise."""
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # A misspelt field is also a missing one; the misspelling is what helps.
        first = min(errors, key=lambda each: each["type"] != "extra_forbidden")
        raise ConfigError(f"{source}: {one_line(first, _known_fields(given))}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _known_fields(given: Mapping[str, Any]) -> dict[str, Iterable[str]]:
    sections: dict[str, type[Strict]] = {
        "model": Model,
        "optim": Optim,
        "train": Train,
        "probe": Probe,
    }
    known: dict[str, Iterable[str]] = {name: kind.model_fields for name, kind in sections.items()}
    data = given.get("data")
    task = TASKS.get(str(data.get("name"))) if isinstance(data, Mapping) else None
    return known | {"": Config.model_fields, "data": task.model_fields if task else ()}


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.toml")])
        raise ConfigError(f"{path}: no such file{near}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from None


def with_value(given: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a nested mapping with the value at a dotted path set. A table merges into the
    section that it meets; one that names another task has nothing of the task before."""
    head, _, rest = path.partition(".")
    inner = given.get(head)
    if rest:
        value = with_value(inner if isinstance(inner, Mapping) else {}, rest, value)
    elif isinstance(inner, Mapping):
        value = _table(value)
        if isinstance(value, Mapping) and (head != "data" or _same_task(inner, value)):
            value = {**inner, **value}
    return {**given, head: value}


def _same_task(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return "name" not in other or one.get("name") == other["name"]
