"""What a scheme is in a whole model: its digest, which changes when any number of its wirings
does, and whether it has a norm at all. No torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any

from harness.schemes.registry import Scheme
from harness.schemes.wiring import places

LAYERS = 2048  # of a deeper stack so many layers count, evenly spaced, which takes 0.2 seconds


def wiring_digest(scheme: Scheme, options: Mapping[str, Any], encoders: int, decoders: int) -> str:
    """First 12 hex digits of SHA-256 over the wirings of all places and the facts of each stack; of
    a stack deeper than 2048 layers, over as many of them, evenly spaced.

    Fields at their default are left out, so that a field added later changes no digest. Floats
    count to 12 significant digits: the last ones differ between mathematical libraries. Empty if
    the scheme raises: training it is then a crash.
    """
    return _digest(scheme, json.dumps(options, sort_keys=True), encoders, decoders)


def is_normed(scheme: Scheme, options: Mapping[str, Any], encoders: int, decoders: int) -> bool:
    """True if the scheme has a norm in this model, at a sublayer or of a stack; also if the scheme
    raises. Of a stack deeper than 2048 layers as many of them count, evenly spaced."""
    return _is_normed(scheme, json.dumps(options, sort_keys=True), encoders, decoders)


@lru_cache(maxsize=4096)
def _is_normed(scheme: Scheme, options_json: str, encoders: int, decoders: int) -> bool:
    options = json.loads(options_json)
    try:
        for at in places(encoders, decoders, LAYERS):
            if at.layer == 1 and at.sublayer == "self":
                facts = scheme.stack(at, options)
                if facts.final_norm or facts.embedding_norm or facts.dense:
                    return True
            if scheme.wire(at, options).norms:
                return True
    except Exception:
        return True
    return False


@lru_cache(maxsize=4096)
def _digest(scheme: Scheme, options_json: str, encoders: int, decoders: int) -> str:
    options = json.loads(options_json)
    found = hashlib.sha256()
    try:
        for at in places(encoders, decoders, LAYERS):
            if at.layer == 1 and at.sublayer == "self":
                found.update(_text(scheme.stack(at, options)).encode())
            found.update(_text(scheme.wire(at, options)).encode())
    except Exception:  # a scheme is its author's code; a digest is no place to report its errors
        return ""
    return found.hexdigest()[:12]


@lru_cache(maxsize=4096)
def _text(record: Any) -> str:
    return json.dumps(_plain(record), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """The value as JSON has it: dataclasses as tables of their fields that are not at a default."""
    if is_dataclass(value):
        table = {}
        for field in fields(value):
            factory = field.default_factory
            default = field.default if factory is MISSING else factory()
            if (given := getattr(value, field.name)) != default:
                table[field.name] = _plain(given)
        return table
    if isinstance(value, frozenset):
        return sorted(value)
    return "%.12g" % (value + 0.0) if isinstance(value, float) else value  # -0.0 is 0.0
