"""Tables of points, of the catalogue, and of one scheme's numbers, in four formats. No torch."""

import csv
import inspect
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.data.translation.languages import guessed
from harness.data.translation.options import ANY, Translation
from harness.errors import ConfigError, did_you_mean
from harness.results.columns import OUTCOMES
from harness.results.table import Table
from harness.schemes import FAMILIES, USUAL_SIZES, Learned, Scheme, all_schemes, find, places
from harness.sweep.plan import Cell

# The model that added parameters are counted in; its norms are LayerNorms.
REFERENCE_WIDTH, REFERENCE_HEADS, REFERENCE_FFN = 64, 4, 256


def show(
    points: pd.DataFrame,
    axes: list[str],
    form: str,
    metrics: Sequence[str] = (),
    edges: pd.DataFrame | None = None,
) -> str:
    """One line a point: axes, n, outcomes, mean final loss and metrics, each with its 95 %
    interval. Tuned values at an edge of those tried end with an asterisk; as CSV, whose values stay
    numbers, the last column tells."""
    measured = {"final_loss": ("final_loss", "low", "high")}
    measured |= {name: (name, f"{name}_low", f"{name}_high") for name in metrics}
    head = [*axes, "n", *OUTCOMES]
    for name in measured:
        head += [name, "interval"]
    marks = [{}] * len(points) if edges is None else edges.to_dict("records")
    told = form == "csv" and any(marks)
    head += ["edge"] if told else []
    star, rows = "" if form == "csv" else "*", []
    for (_, point), at_edge in zip(points.iterrows(), marks, strict=True):
        row = [_plain(point[axis]) + (star if at_edge.get(axis) else "") for axis in axes]
        row += [str(int(point[name])) for name in ("n", *OUTCOMES)]
        for columns in measured.values():
            mean, low, high = (point[name] for name in columns)
            row.append("" if math.isnan(mean) else f"{mean:.3f}")
            row.append("" if math.isnan(low) else f"[{low:.3f}, {high:.3f}]")
        row += [str(any(at_edge.values()))] if told else []
        rows.append(row)
    return FORMATS[form](head, rows)


def metric_columns(table: Table, names: Sequence[str]) -> list[str]:
    """Columns of task metrics by name, with or without 'metric_'; ConfigError for an unknown one,
    or for one without numbers."""
    known = [name for name in table.runs if str(name).startswith("metric_")]
    found = []
    for name in names:
        column = f"metric_{name.removeprefix('metric_')}"
        if column not in known:
            hint = did_you_mean(name, [str(each).removeprefix("metric_") for each in known])
            raise ConfigError(f"--metric: {table.study} has no metric '{name}'{hint}")
        found.append(column)
    return found


def unlearned(table: Table) -> list[str]:
    """In words, the BLEU that needs no learning on each test split that the table's runs have."""
    columns = ["metric_bleu_copy", "metric_bleu_nearest", "bleu_signature"]
    if not {*columns} <= {*table.runs}:
        return []
    found = table.runs[columns].dropna().drop_duplicates()
    return [
        f"BLEU without learning: {copied:.2f} for the source copied, {nearest:.2f} for the "
        f"translation of the nearest training source ({signature})"
        for copied, nearest, signature in found.itertuples(index=False)
    ]


def guessed_targets(table: Table, cells: Iterable[Cell]) -> list[str]:
    """In words, how BLEU was computed into targets whose names are no language codes. Those of
    'en>*' are known to the corpus alone: `harness run` names them."""
    if "metric_bleu" not in table.runs:
        return []
    tasks = [cell.config.data for cell in cells]
    written = (d for task in tasks if isinstance(task, Translation) for d in task.directions)
    return guessed(target for d in written if (target := d.split(">")[1]) != ANY)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def text(head: list[str], rows: list[list[str]]) -> str:
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(_is_number(c) for c in column[1:]) for column in columns]
    lines = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w)
            for c, w, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in (head, *rows)
    ]
    return "\n".join(lines) + "\n"


def _csv(head: list[str], rows: list[list[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex(head: list[str], rows: list[list[str]]) -> str:
    body = "".join(" & ".join(map(_escape, line)) + r" \\" + "\n" for line in rows)
    top = " & ".join(map(_escape, head)) + r" \\"
    return (
        f"\\begin{{tabular}}{{{'l' * len(head)}}}\n\\hline\n{top}\n\\hline\n{body}\\hline\n"
        "\\end{tabular}\n"
    )


def _escape(cell: str) -> str:
    return "".join("\\" + letter if letter in "_%&#${}" else letter for letter in cell)


def _is_number(cell: str) -> bool:
    try:
        float(cell.removesuffix("*") or "0")
    except ValueError:
        return False
    return True


def catalogue() -> list[dict[str, object]]:
    """Every scheme: what it says of sublayers and stacks, its options, and where it was read."""
    rows = []
    for name, scheme in all_schemes().items():
        found = [at for family in scheme.families for at in places(*USUAL_SIZES[family])]
        wirings = [scheme.wire(at, {}) for at in found]
        facts = scheme.stack(found[0], {})
        sites: set[str] = {site for wiring in wirings for site in wiring.norms}
        learned = {f"{c} per {v.per}" for w in wirings for c, v in w.learned.items()}
        sites |= {"embedding"} if facts.embedding_norm else set()
        learned |= {"layers combined"} if facts.dense else set()
        rows.append(
            {
                "name": name,
                "equation": scheme.equation,
                "norms": " ".join(sorted(sites)) or "none",
                "learned": ", ".join(sorted(learned)) or "none",
                "init": scheme.init,
                "families": "all" if scheme.families == FAMILIES else " ".join(scheme.families),
                "final_norm": facts.final_norm,
                "options": " ".join(f"{k}={v}" for k, v in scheme.options.items()),
                "source": scheme.source,
                "status": scheme.status,
            }
        )
    return rows


def described(name: str) -> str:
    """A scheme's source, what was read of it, and its docstring: options and departures."""
    scheme = find(name)
    text = inspect.getdoc(scheme.function) or ""
    return f"{name}: {scheme.source} (read in: {scheme.status})\n{text}"


def usual_sizes(name: str) -> tuple[int, int]:
    """Six layers a stack, of a pair where the scheme is defined for pairs."""
    families = find(name).families
    pair = "encoder_decoder" in families
    return 6 * (pair or "decoder" not in families), 6 * (pair or "decoder" in families)


def constants(name: str, encoders: int, decoders: int) -> list[dict[str, object]]:
    """One row a sublayer: every number of its wiring, a learned one as its start and extent.

    Columns after the gains are there where some sublayer's number is not the neutral one.
    """
    scheme = find(name)
    rows = []
    for at in places(encoders, decoders):
        wiring = scheme.wire(at, {})
        rows.append(
            {
                "stack": at.stack,
                "layer": at.layer,
                "sublayer": at.sublayer,
                "norms": " ".join(sorted(wiring.norms)) or "none",
                "skip": _coefficient(wiring.skip),
                "branch": _coefficient(wiring.branch),
                "bypass": wiring.bypass,
                "input_scale": wiring.input_scale,
                **{f"gain_{role}": gain for role, gain in vars(wiring.gain).items()},
                "inner_scale": _coefficient(wiring.inner_scale),
                "output_scale": _coefficient(wiring.output_scale),
                "lr": wiring.lr,
                "norm_lr": wiring.norm_lr,
                "eps": wiring.eps,
            }
        )
    for column in ("inner_scale", "output_scale", "lr", "norm_lr", "eps"):
        if all(row[column] == 1.0 for row in rows):
            for row in rows:
                del row[column]
    return rows


def added_parameters(name: str, encoders: int, decoders: int) -> dict[str, int]:
    """How many parameters a scheme has beyond Post-Norm's, in the reference model."""
    norms, learned = _parameters(find(name), encoders, decoders)
    plain, _ = _parameters(find("post_norm"), encoders, decoders)
    return {"norms": norms - plain, "learned": learned, "all": norms - plain + learned}


def _parameters(scheme: Scheme, encoders: int, decoders: int) -> tuple[int, int]:
    """Of norms, and of learned coefficients: what the model room makes of wirings and facts."""
    channels, learned = 0, 0
    shared: set[tuple[str, int, str]] = set()  # by a layer's sublayers
    for at in places(encoders, decoders):
        wiring = scheme.wire(at, {})
        inner = REFERENCE_FFN if at.sublayer == "ffn" else REFERENCE_WIDTH
        channels += sum(inner if site == "inner" else REFERENCE_WIDTH for site in wiring.norms)
        for coefficient, value in wiring.learned.items():
            if value.per == "layer":
                shared.add((at.stack, at.layer, coefficient))
                continue
            width = inner if coefficient == "inner_scale" else REFERENCE_WIDTH
            learned += {"sublayer": 1, "channel": width, "head": REFERENCE_HEADS}[value.per]
        if at.layer == 1 and at.sublayer == "self":
            facts, layers = scheme.stack(at, {}), at.depth
            whole = facts.embedding_norm + facts.final_norm + layers * facts.dense
            channels += whole * REFERENCE_WIDTH
            learned += facts.dense * (layers + 1) * (layers + 2) // 2  # 1 + ... + (layers + 1)
    return 2 * channels, learned + len(shared)  # a norm has a gain and a bias a channel


def numbers(name: str, encoders: int, decoders: int) -> dict[str, Any]:
    """All that is known of a scheme at a depth without building it; ConfigError for a function that
    raises an error."""
    if flaw := find(name).rehearse(encoders, decoders, {}, max(encoders, decoders)):
        raise ConfigError(flaw)
    return {
        "sublayers": constants(name, encoders, decoders),
        "added_parameters": added_parameters(name, encoders, decoders),
    }


def numbers_text(said: Mapping[str, Any]) -> str:
    """The numbers as a table with a line below; and a table of the signature, if there is one."""
    added = said["added_parameters"]
    parts = [
        _table(said["sublayers"], "{:.4f}"),
        f"parameters beyond post_norm at width {REFERENCE_WIDTH}: {added['all']} "
        f"(norms {added['norms']}, learned {added['learned']})\n",
    ]
    if "signature" in said:
        parts.append(_table(said["signature"], "{:.3g}"))
    return "\n".join(parts)


def _table(rows: list[dict[str, object]], form: str) -> str:
    """Decimals by a format; what has no value is empty."""
    cells = [
        [
            form.format(v) if isinstance(v, float) else "" if v is None else str(v)
            for v in row.values()
        ]
        for row in rows
    ]
    return text(list(rows[0]), cells)


def _coefficient(value: float | Learned) -> float | str:
    if not isinstance(value, Learned):
        return value
    start = "one batch" if value.profiled else f"{value.init:g}"
    return f"learned from {start} a {value.per}"


FORMATS: dict[str, Callable[[list[str], list[list[str]]], str]] = {
    "text": text,
    "csv": _csv,
    "md": _markdown,
    "tex": _latex,
}
