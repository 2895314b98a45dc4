"""Tables of points, of the catalogue, and of one scheme's numbers, in four formats. No torch."""

import csv
import io
import math
from collections.abc import Callable

import pandas as pd

from harness.analysis.records import OUTCOMES
from harness.schemes import Learned, Place, all_schemes, find


def show(points: pd.DataFrame, axes: list[str], form: str) -> str:
    """One line a point: axes, n, outcomes, mean final loss with its 95 % interval."""
    head = [*axes, "n", *OUTCOMES, "final_loss", "interval"]
    return FORMATS[form](head, [_cells(point, axes) for _, point in points.iterrows()])


def _cells(point: pd.Series, axes: list[str]) -> list[str]:
    counts = [str(int(point[name])) for name in ("n", *OUTCOMES)]
    loss, low, high = (point[name] for name in ("final_loss", "low", "high"))
    shown = "" if math.isnan(loss) else f"{loss:.3f}"
    interval = "" if math.isnan(low) else f"[{low:.3f}, {high:.3f}]"
    return [*(_plain(point[axis]) for axis in axes), *counts, shown, interval]


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
        float(cell or "0")
    except ValueError:
        return False
    return True


def catalogue() -> list[dict[str, object]]:
    """Every scheme: name, equation, norm sites in a layer, final norm, options, source."""
    rows = []
    for name, scheme in all_schemes().items():
        sites = {
            site
            for sublayer in ("self", "ffn")
            for site in scheme.wire(Place(sublayer, "encoder", 1, 6, 0), {}).norms
        }
        rows.append(
            {
                "name": name,
                "equation": scheme.equation,
                "norms": " ".join(sorted(sites)) or "none",
                "final_norm": scheme.stack(Place("self", "encoder", 1, 6, 0), {}).final_norm,
                "options": " ".join(f"{k}={v}" for k, v in scheme.options.items()),
                "source": scheme.source,
            }
        )
    return rows


def constants(name: str, encoders: int, decoders: int) -> list[dict[str, object]]:
    """One row a sublayer: every number of its wiring; a learned one as its start and extent."""
    scheme = find(name)
    rows = []
    for stack, layers in (("encoder", encoders), ("decoder", decoders)):
        kinds = ("self", "cross", "ffn") if stack == "decoder" and encoders else ("self", "ffn")
        for layer in range(1, layers + 1):
            for kind in kinds:
                wiring = scheme.wire(Place(kind, stack, layer, encoders, decoders), {})  # type: ignore[arg-type]
                rows.append(
                    {
                        "stack": stack,
                        "layer": layer,
                        "sublayer": kind,
                        "norms": " ".join(sorted(wiring.norms)) or "none",
                        "skip": _coefficient(wiring.skip),
                        "branch": _coefficient(wiring.branch),
                        "bypass": wiring.bypass,
                        "input_scale": wiring.input_scale,
                        **{f"gain_{role}": gain for role, gain in vars(wiring.gain).items()},
                    }
                )
    return rows


def _coefficient(value: float | Learned) -> float | str:
    return f"learned from {value.init:g} a {value.per}" if isinstance(value, Learned) else value


FORMATS: dict[str, Callable[[list[str], list[list[str]]], str]] = {
    "text": text,
    "csv": _csv,
    "md": _markdown,
    "tex": _latex,
}
