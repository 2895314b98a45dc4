"""The columns of runs.csv: their order, their kinds, and a run as a row of text. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.sweep.plan import Cell, Plan, spelling

Row = dict[str, str]

STACKS = ("encoder", "decoder")
IDENTITY = (
    *("study", "run_id", "scheme", "scheme_options", "family"),
    *("encoder_layers", "decoder_layers", "seed"),
)
LOSSES = (
    *("outcome", "reason", "diverged_at"),
    *("final_loss", "best_loss", "baseline_loss", "reference_loss"),
)
GRADIENTS = tuple(
    pattern.format(stack)
    for pattern in (
        "grad_norm_first_{}_init",
        "grad_norm_first_{}",
        "grad_norm_first_{}_matrices",
        "grad_norm_ratio_{}",
        "grad_ratio_stream_{}",
    )
    for stack in STACKS
)
DRAWN = (  # of runs that take no step
    *(f"grad_norm_last_{stack}{end}" for stack in STACKS for end in ("", "_matrices", "_down")),
    "branch_mean_square_ratio_cross",
)
COST = ("steps", "tokens", "parameters", "flops", "seconds", "peak_memory_mb")
PROVENANCE = (
    *("attempts", "spikes", "skipped_steps", "data_sha", "wiring_sha", "protocol", "commit"),
    *("torch", "device", "precision", "threads", "finished"),
)
FORMER = {"last_loss"}  # columns that older rows and records have, and that are not read
REUSED = "reused_from"  # the study that a row was taken over from, in rows that were
DIGESTS = ("data_sha", "wiring_sha")  # of corpus and scheme: a row counts while they are today's
OUTCOMES = ("trained", "stalled", "diverged", "crashed")  # each worse than the one before

MEASURED = {*LOSSES, *GRADIENTS, *DRAWN, "update_norm"}
INTEGERS = {
    *("encoder_layers", "decoder_layers", "seed", "tuned_over", "diverged_at", "steps", "tokens"),
    *("parameters", "flops", "attempts", "spikes", "skipped_steps", "protocol", "threads"),
}
REALS = {*MEASURED, "seconds", "peak_memory_mb"} - INTEGERS - {"outcome", "reason"}


def is_measurement(name: str) -> bool:
    """True for a column in which two runs of one cell must agree."""
    return name in MEASURED or name.startswith("metric_")


def is_number(name: str) -> bool:
    """True for a column of numbers, except for axes, whose kind the study decides."""
    return name in INTEGERS or name in REALS or name.startswith("metric_")


def row(plan: Plan, cell: Cell, record: Mapping[str, Any]) -> Row:
    """A run as text: config values by repr, measurements with six significant digits."""
    left_out = {"error", *FORMER}
    values = {name: _spelled(value) for name, value in record.items() if name not in left_out}
    digest = "" if record["outcome"] == "crashed" else cell.config.wiring_sha
    return {**planned(plan, cell), "data_sha": "", "wiring_sha": digest, **values}


def planned(plan: Plan, cell: Cell) -> Row:
    """The columns that a row's cell decides. While its tuned values are not chosen, these and
    run_id are empty."""
    config = cell.config
    layers = (config.model.encoders, config.model.decoders)
    known = cell.key in plan.by_key
    return {
        "study": plan.name,
        "run_id": cell.key if known else "",
        "scheme": config.scheme,
        "scheme_options": config.canonical_options,
        "family": config.model.family,
        **{f"{s}_layers": str(n) if n else "" for s, n in zip(STACKS, layers, strict=True)},
        "seed": str(config.seed),
        **{axis: spelling(value) for axis, value in zip(plan.axes, cell.values, strict=True)},
        **{path: spelling(config.at(path)) if known else "" for path in plan.tuned},
        "tuned_over": str(plan.tried.get(plan.point(cell), 0)),
    }


def measured(r: Row) -> Row:
    """The columns of a row in which two runs of its cell must agree, without empty ones."""
    return {name: value for name, value in r.items() if value and is_measurement(name)}


def differences(one: Row, other: Row) -> dict[str, tuple[str, str]]:
    """Measured columns in which two rows of a run differ, with both values."""
    a, b = measured(one), measured(other)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return {name: (a.get(name, "empty"), b.get(name, "empty")) for name in names}


def head(axes: Sequence[str]) -> list[str]:
    """The first columns, which identify a row."""
    return [*IDENTITY, *(axis for axis in axes if axis not in IDENTITY)]


def columns(plan: Plan, rows: Iterable[Row]) -> list[str]:
    """The contract's columns, those of runs of no steps if a row has them, and behind them
    sacrebleu's signature and whatever else the rows have."""
    # Not those that are empty throughout: rows back from retirement have columns of other plans.
    names = dict.fromkeys(name for r in rows for name, value in r.items() if value)
    metrics = sorted(name for name in names if name.startswith("metric_"))
    drawn = [name for name in DRAWN if name in names]
    found = [
        *(*head(plan.axes), *plan.tuned, "tuned_over", *LOSSES, *metrics),
        *(*GRADIENTS, *drawn, "update_norm", *COST, *PROVENANCE),
    ]
    return found + sorted(names.keys() - set(found))


def _spelled(value: Any) -> str:
    if value is None:
        return ""
    return "%.6g" % value if isinstance(value, float) else str(value)
