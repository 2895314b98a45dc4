"""What the figures show, read back from the artists, and that files repeat byte for byte."""

import hashlib
import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.analysis import drawings, figures, looks
from harness.analysis.records import Table
from harness.errors import ConfigError, MissingRuns
from harness.schemes import all_schemes

NAN = float("nan")
SCHEMES = ("post_norm", "pre_norm", "rezero", "b2t", "deepnorm")
DEPTHS = (6, 12, 24, 48)
PLAN = ["scheme", "scheme_options", "family", "encoder_layers", "decoder_layers", "seed"]


def cell(scheme: str, depth: int, seed: int, family: str, norm: str) -> dict[str, object]:
    loss = 2.3 + 0.04 * SCHEMES.index(scheme) + 0.01 * seed + 0.001 * depth
    outcome, diverged_at = "trained", NAN
    if scheme == "post_norm" and depth >= 24:
        outcome, loss = "stalled", 3.21
    if scheme == "b2t" and depth == 48:
        outcome, loss, diverged_at = "diverged", NAN, 30.0 + seed
    gradients = {}
    for stack in ("encoder", "decoder"):
        present = family in (stack, "encoder_decoder")
        norms = (1 / depth, 0.0 if scheme == "rezero" else 2 / depth)
        for end, value in zip(("", "_init"), norms, strict=True):
            gradients[f"grad_norm_first_{stack}{end}"] = value if present else NAN
    return {
        "run_id": hashlib.sha256(f"{scheme} {depth} {seed} {norm}".encode()).hexdigest()[:12],
        **{"scheme": scheme, "scheme_options": "{}", "family": family, "seed": seed},
        "encoder_layers": NAN if family == "decoder" else float(depth),
        "decoder_layers": NAN if family == "encoder" else float(depth),
        **{"model.depth": depth, "model.norm": norm, "outcome": outcome},
        **{"diverged_at": diverged_at, "final_loss": loss},
        **{"baseline_loss": 3.22, "reference_loss": 2.43},
        **gradients,
    }


def make(family: str = "decoder", norms: tuple[str, ...] = ("layer",)) -> Table:
    """Five schemes, four depths, two seeds: post_norm stalls, b2t diverges, one is missing."""
    cells = itertools.product(norms, SCHEMES, DEPTHS, (1, 2))
    rows = pd.DataFrame([cell(scheme, depth, seed, family, n) for n, scheme, depth, seed in cells])
    absent = (rows["scheme"] == "rezero") & (rows["model.depth"] == 48) & (rows["seed"] == 2)
    runs = rows[~absent].reset_index(drop=True)
    curves = pd.DataFrame(
        [
            (run, step, "loss/train", "", 2.4 + 2 / (1 + step))
            for run in runs["run_id"]
            for step in range(0, 60, 10)
        ],
        columns=["run_id", "step", "series", "block", "value"],
    )
    missing = rows[absent][[*PLAN, "model.depth", "model.norm"]]
    return Table("quick", ("scheme", "model.depth", "model.norm", "seed"), runs, curves, missing)


@pytest.fixture(scope="module")
def table() -> Table:
    return make()


def strips(figure: Figure) -> list[Axes]:
    return [inset for ax in figure.axes for inset in ax.child_axes]


def markers(ax: Axes) -> list[Line2D]:
    return [line for line in ax.lines if line.get_marker() not in ("None", None, "")]


def count(axes: list[Axes]) -> int:
    return sum(len(line.get_xdata()) for ax in axes for line in markers(ax))


def in_strip(inset: Axes) -> list[tuple[str, str, float]]:
    """Name, colour and nearest planned depth of each marker."""
    names = [label.get_text() for label in inset.get_yticklabels()]
    return [
        (
            names[int(line.get_ydata()[0])],
            to_hex(line.get_color()),
            min(DEPTHS, key=lambda depth: abs(math.log2(depth / line.get_xdata()[0]))),
        )
        for line in markers(inset)
    ]


def test_depth_curve_draws_every_run_and_every_missing_cell(table: Table) -> None:
    figure = figures.depth_curve(table)
    assert count(figure.axes) == table.runs["final_loss"].notna().sum()
    assert count(strips(figure)) == table.runs["final_loss"].isna().sum() + len(table.missing)


def test_depth_curve_puts_runs_without_a_loss_in_the_strip(table: Table) -> None:
    (inset,) = strips(figures.depth_curve(table))
    b2t, rezero = (looks.LOOKS[scheme].color for scheme in ("b2t", "rezero"))
    assert sorted(in_strip(inset)) == sorted(
        [("diverged", b2t, 48), ("diverged", b2t, 48), ("missing", rezero, 48)]
    )


def test_markers_that_share_a_strip_do_not_hide_each_other(table: Table) -> None:
    runs = table.runs.assign(outcome="crashed", final_loss=NAN)
    (inset,) = strips(figures.depth_curve(replace(table, runs=runs)))
    crashed = [line for line in markers(inset) if line.get_ydata()[0] == 1]
    x = np.log2(sorted(line.get_xdata()[0] for line in crashed))
    assert len(crashed) == len(runs)
    assert np.diff(x).min() > 0.05


def test_stalled_runs_are_hollow_and_at_their_loss(table: Table) -> None:
    figure = figures.depth_curve(table)
    hollow = [
        line
        for line in markers(figure.axes[0])
        if line.get_markerfacecolor() == "white" and len(line.get_xdata())
    ]
    assert {to_hex(line.get_color()) for line in hollow} == {looks.LOOKS["post_norm"].color}
    assert [y for line in hollow for y in line.get_ydata()] == [3.21] * 4


def test_the_mean_line_ends_where_a_scheme_fails(table: Table) -> None:
    figure = figures.depth_curve(table)
    lines = {
        to_hex(line.get_color()): np.asarray(line.get_ydata(), dtype=float)
        for line in figure.axes[0].lines
        if line.get_marker() == "None" and len(line.get_xdata()) == len(DEPTHS)
    }
    runs = table.runs[table.runs["scheme"] == "post_norm"]
    means = runs.groupby("model.depth")["final_loss"].mean()
    expected = [means[6], means[12], NAN, NAN]
    np.testing.assert_allclose(lines[looks.LOOKS["post_norm"].color], expected)
    assert np.isnan(lines[looks.LOOKS["b2t"].color]).tolist() == [False] * 3 + [True]


def test_caption_tells_n_interval_and_missing_cells(table: Table) -> None:
    caption = figures.depth_curve(table).get_supxlabel()
    for fact in ("quick", "n = 1 to 2 seeds", "missing cells: 1", "Student t", "hollow: stalled"):
        assert fact in caption


def test_another_axis_makes_small_multiples() -> None:
    figure = figures.depth_curve(make(norms=("layer", "rms")))
    titles = [inset.get_title() for inset in strips(figure)]
    assert titles == ["norm layer", "norm rms"]


def test_ticks_of_an_encoder_decoder_name_both_stacks() -> None:
    ax = figures.depth_curve(make("encoder_decoder")).axes[0]
    labels = [ax.xaxis.get_major_formatter()(depth, 0) for depth in ax.get_xticks()]
    assert labels == ["6-6", "12-12", "24-24", "48-48"]


def test_outcome_map_says_what_became_of_each_cell(table: Table) -> None:
    texts = [text.get_text() for text in figures.outcome_map(table).axes[0].texts]
    by_cell = dict(zip(itertools.product(SCHEMES, DEPTHS), texts, strict=True))
    assert by_cell["deepnorm", 48] == "2/2"
    assert by_cell["post_norm", 24] == "stalled 2"
    assert by_cell["b2t", 48] == "diverged 2\n@ 31.5"
    assert by_cell["rezero", 48] == "1/2\nmissing 1"


def test_gradient_depth_draws_zeros_in_the_strip(table: Table) -> None:
    figure = figures.gradient_depth(table)
    window, start = figure.axes
    assert count([window]) == len(table.runs)
    zeros = (table.runs["scheme"] == "rezero").sum()
    assert count([start]) == len(table.runs) - zeros
    names = [name for name, *_ in in_strip(start.child_axes[0])]
    assert names.count("exactly 0") == zeros
    assert names.count("missing") == len(table.missing)


@pytest.mark.parametrize(
    ("value", "name"), [(NAN, "no value"), (math.inf, "infinite"), (1e-40, "< 1e-30")]
)
def test_gradients_without_a_height_are_named(table: Table, value: float, name: str) -> None:
    runs = table.runs.copy()
    runs.loc[0, "grad_norm_first_decoder"] = value
    window = figures.gradient_depth(replace(table, runs=runs)).axes[0]
    assert count([window]) == len(runs) - 1
    assert (name, looks.LOOKS["post_norm"].color, 6) in in_strip(window.child_axes[0])


def test_gradient_depth_has_a_panel_a_stack() -> None:
    titles = [ax.get_title() for ax in figures.gradient_depth(make("encoder_decoder")).axes]
    assert titles == [
        f"{stack}, {when}"
        for when in ("window median", "at step 0")
        for stack in ("encoder", "decoder")
    ]


def test_loss_traces_draw_each_run_and_mark_divergence(table: Table) -> None:
    axes = figures.loss_traces(table).axes
    traces = [line for ax in axes for line in ax.lines if len(line.get_xdata()) == 6]
    assert len(traces) == len(table.runs)
    assert sorted(line.get_xdata()[0] for line in markers(axes[-1])) == [31.0, 32.0]


def test_loss_traces_survive_a_loss_that_is_infinite_at_once(table: Table) -> None:
    curves = table.curves.copy()
    curves.loc[0, "value"] = math.inf
    assert np.isfinite(figures.loss_traces(replace(table, curves=curves)).axes[0].get_ylim()).all()


@pytest.mark.parametrize("pair", list(itertools.combinations(SCHEMES, 2)), ids="-".join)
def test_first_five_schemes_differ_in_grey_marker_and_dashes(pair: tuple[str, str]) -> None:
    a, b = (looks.LOOKS[scheme] for scheme in pair)
    assert abs(looks.lightness(a.color) - looks.lightness(b.color)) > 8
    assert a.marker != b.marker
    assert a.dashes != b.dashes


def test_every_published_scheme_has_a_look_of_its_own() -> None:
    published = {n for n, rule in all_schemes().items() if rule.status != "own"}
    assert published == set(looks.LOOKS)


def test_no_two_schemes_look_alike_in_grey() -> None:
    for a, b in itertools.combinations(looks.LOOKS.values(), 2):
        lighter = abs(looks.lightness(a.color) - looks.lightness(b.color))
        assert a.color != b.color
        assert a.marker != b.marker or (a.dashes != b.dashes and lighter > 25)


def test_worse_outcomes_are_darker_and_hatched_differently() -> None:
    worse = [drawings.TILES[outcome] for outcome in ("trained", "stalled", "diverged", "crashed")]
    grey = [looks.lightness(fill) for fill, *_ in worse]
    assert all(a - b > 12 for a, b in itertools.pairwise(grey))
    assert len({hatch for *_, hatch in worse}) == 4


def test_a_private_scheme_never_looks_published() -> None:
    mine = looks.look("my_idea")
    assert mine == looks.look("my_idea")
    assert mine.marker not in {look.marker for look in looks.LOOKS.values()}


SCRIPT = """
import sys
from pathlib import Path
from tests.analysis.test_figures import figures, make
for plot in figures.FIGURES.values():
    figures.draw(plot, make(), Path(sys.argv[1]))
assert not {"torch", "matplotlib.pyplot"} & set(sys.modules)
"""


def test_two_processes_write_the_same_bytes(table: Table, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", SCRIPT, str(there)], check=True, cwd=root)
    for plot in figures.FIGURES.values():
        assert figures.draw(plot, table, here) == here / f"{plot.name}.svg"
    names = sorted(path.name for path in here.iterdir())
    expected = itertools.product(figures.FIGURES, ("svg", "png", "json"))
    assert names == sorted(f"{name}.{suffix}" for name, suffix in expected)
    for name in names:
        assert (here / name).read_bytes() == (there / name).read_bytes(), name


def test_a_figure_is_stale_when_rows_it_shows_change(table: Table, tmp_path: Path) -> None:
    plot = figures.outcome_map
    assert figures.stale(plot, table, tmp_path)
    figures.draw(plot, table, tmp_path)
    assert not figures.stale(plot, table, tmp_path)
    assert not figures.stale(plot, replace(table, curves=table.curves.iloc[:3]), tmp_path)
    assert figures.stale(plot, replace(table, runs=table.runs.iloc[1:]), tmp_path)
    (tmp_path / "outcome_map.png").unlink()
    assert figures.stale(plot, table, tmp_path)


@pytest.mark.parametrize("name", ["depth-curve", "depth_curve"])
def test_figures_are_found_by_either_spelling(name: str) -> None:
    assert figures.find(name) is figures.depth_curve


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("depth-curv", "unknown figure 'depth-curv' (did you mean 'depth_curve'?)"),
        (
            "x",
            "unknown figure 'x' (known: depth_curve, gradient_depth, loss_traces, outcome_map)",
        ),
    ],
)
def test_an_unknown_figure_is_answered_with_a_remedy(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        figures.find(name)
    assert str(error.value) == message


def test_nothing_to_draw_is_one_line_with_the_command(table: Table) -> None:
    with pytest.raises(MissingRuns) as error:
        figures.depth_curve(replace(table, runs=table.runs.iloc[:0]))
    remedy = "`harness run quick` makes them"
    assert str(error.value) == f"quick: figure 'depth_curve' has no runs to draw; {remedy}"
    with pytest.raises(MissingRuns, match="'loss_traces' has no curves to draw"):
        figures.loss_traces(replace(table, curves=table.curves.iloc[:0]))


def test_a_lacking_column_is_named(table: Table) -> None:
    with pytest.raises(ConfigError) as error:
        figures.depth_curve(replace(table, runs=table.runs.drop(columns="baseline_loss")))
    column = "needs the column 'baseline_loss', which the results lack"
    assert str(error.value) == f"quick: figure 'depth_curve' {column}"
