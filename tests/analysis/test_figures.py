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
from harness.errors import ConfigError, MissingRuns
from harness.results.table import Table
from harness.schemes import all_schemes

NAN = float("nan")
SCHEMES = ("post_norm", "pre_norm", "rezero", "b2t", "deepnorm")
DEPTHS = (6, 12, 24, 48)
AXES = ("scheme", "model.depth", "model.norm", "seed")
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
        for name in ("norm_first_{}_matrices", "norm_last_{}_down", "ratio_stream_{}"):
            gradients[f"grad_{name.format(stack)}"] = 0.5 / depth if present else NAN
    return {
        "run_id": hashlib.sha256(f"{scheme} {depth} {seed} {norm}".encode()).hexdigest()[:12],
        **{"scheme": scheme, "scheme_options": "{}", "family": family, "seed": seed},
        "encoder_layers": NAN if family == "decoder" else float(depth),
        "decoder_layers": NAN if family == "encoder" else float(depth),
        **{"model.depth": depth, "model.norm": norm, "outcome": outcome},
        **{"diverged_at": diverged_at, "final_loss": loss},
        **{"baseline_loss": 3.22, "reference_loss": 2.43},
        **gradients,
        "metric_idle_blocks": 1 / depth if loss == loss else NAN,
        **{"metric_source_gain": 3.2 - loss, "metric_bleu": 10 - loss},
        **{"metric_bleu_copy": 1.6, "metric_bleu_nearest": 5.3},
        **{"metric_loss_low": loss + 0.5, "metric_loss_high": loss - 0.5},
        "optim.lr": best_rate(scheme, depth),
    }


RATES = (1e-3, 3e-3, 1e-2)


def best_rate(scheme: str, depth: int) -> float:
    """What a tuning has chosen: less for deep models, and less for Post-Norm."""
    return RATES[(depth < 24) + (scheme != "post_norm")]


def trials(cells: pd.DataFrame) -> Table:
    """A tuning of these cells on two seeds: the worst rates make a scheme diverge, b2t diverges at
    any rate at 48 layers and post_norm stalls from 24 on; of rezero's at 48 three are missing."""
    rows = []
    points = cells.drop_duplicates(["scheme", "model.depth", "model.norm"])
    for (_, row), rate, seed in itertools.product(points.iterrows(), RATES, (100, 101)):
        run = row.to_dict() | {"seed": seed, "optim.lr": rate}
        best = best_rate(run["scheme"], run["model.depth"])
        if run["outcome"] == "trained":
            run["final_loss"] += abs(math.log10(rate / best)) + 0.001 * (seed - 100)
            if rate > best:
                run |= {"outcome": "diverged", "final_loss": NAN, "diverged_at": float(seed)}
        rows.append(run | {"run_id": f"{run['run_id'][:8]}{RATES.index(rate)}{seed}"})
    every = pd.DataFrame(rows)
    deep = (every["scheme"] == "rezero") & (every["model.depth"] == 48)
    absent = deep & (every["optim.lr"] == 3e-3) | deep & (every["optim.lr"] == 1e-2) & (
        every["seed"] == 101
    )
    head = [*PLAN, "model.depth", "model.norm", "optim.lr"]
    runs, missing = every[~absent].reset_index(drop=True), every[absent][head]
    return Table("quick", AXES, runs, pd.DataFrame(), missing, ("optim.lr",))


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
    return Table("quick", AXES, runs, curves, missing, ("optim.lr",), trials(rows))


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
    drawn = {(here / f"{name}.svg").read_bytes() for name in figures.FIGURES}
    assert len(drawn) == len(figures.FIGURES)


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
            "unknown figure 'x' (known: by_resource, depth_curve, figure_6, gradient_depth, "
            "gradient_init, gradient_init_down, gradient_init_matrices, idle_blocks, loss_traces, "
            "outcome_map, placement, rate_depth, stream_init)",
        ),
    ],
)
def test_an_unknown_figure_is_answered_with_a_remedy(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        figures.find(name)
    assert str(error.value) == message


def test_nothing_to_draw_is_one_line_with_the_command(table: Table) -> None:
    with pytest.raises(MissingRuns) as error:
        figures.depth_curve(replace(table, runs=table.runs.iloc[:0], command="harness run quick"))
    remedy = "make them with 'harness run quick'"
    assert str(error.value) == f"quick: figure 'depth_curve' has no runs to draw; {remedy}"
    with pytest.raises(MissingRuns, match="'loss_traces' has no curves to draw"):
        figures.loss_traces(replace(table, curves=table.curves.iloc[:0]))


def test_a_lacking_column_is_named(table: Table) -> None:
    with pytest.raises(ConfigError) as error:
        figures.depth_curve(replace(table, runs=table.runs.drop(columns="baseline_loss")))
    column = "needs the column 'baseline_loss', which the results lack"
    assert str(error.value) == f"quick: figure 'depth_curve' {column}"


# Models as they are drawn


KINDS = ("encoder", "decoder", "encoder_decoder")
INIT_DEPTHS, INIT_SEEDS = (2, 4, 8), (0, 1, 2)
FACTORS = {2: 0.8, 3: 0.5}  # a layer, by its sublayers, of post_norm
INIT = {
    "gradient_init": "grad_norm_first_{}_init",
    "gradient_init_matrices": "grad_norm_first_{}_matrices",
    "gradient_init_down": "grad_norm_last_{}_down",
    "stream_init": "grad_ratio_stream_{}",
}
every_init = pytest.mark.parametrize("name", INIT)
TITLES = {
    ("encoder", "False"): {"encoder": "encoder-only"},
    ("decoder", "False"): {"decoder": "decoder-only"},
    ("encoder_decoder", "True"): {
        "encoder": "encoder of a pair",
        "decoder": "decoder of a pair",
    },
    ("encoder_decoder", "False"): {"decoder": "decoder of a pair, no cross-attention"},
}


def init_row(kind: tuple[str, str], scheme: str, depth: int, seed: int) -> dict[str, object]:
    family, crossed = kind
    row: dict[str, object] = {
        "run_id": hashlib.sha256(f"{kind} {scheme} {depth} {seed}".encode()).hexdigest()[:12],
        **{"scheme": scheme, "scheme_options": "{}", "family": family, "seed": seed},
        "encoder_layers": NAN if family == "decoder" else float(depth),
        "decoder_layers": NAN if family == "encoder" else float(depth),
        **{"model.family": family, "model.cross_attention": crossed, "model.depth": depth},
        **{"outcome": "stalled", "final_loss": 3.3},
    }
    for stack in ("encoder", "decoder"):
        factor = FACTORS[3 if stack == "decoder" and crossed == "True" else 2]
        norm = (1 + seed) * factor**depth if scheme == "post_norm" else 1.0 + seed / 10
        if family not in (stack, "encoder_decoder"):
            norm = NAN
        idle = (stack, family, crossed) == ("encoder", "encoder_decoder", "False")
        for name, pattern in INIT.items():
            value = 0.0 if scheme == "rezero" and name == "gradient_init_matrices" else norm
            if idle:
                value = NAN if name == "stream_init" else 0.0
            row[pattern.format(stack)] = value
    return row


INIT_AXES = ("model.family", "model.cross_attention", "scheme", "model.depth", "seed")


@pytest.fixture(scope="module")
def initial() -> Table:
    """Four kinds of stacks, of which a pair without cross-attention has an idle encoder."""
    schemes = ("post_norm", "pre_norm", "rezero")
    cells = itertools.product(TITLES, schemes, INIT_DEPTHS, INIT_SEEDS)
    runs = pd.DataFrame([init_row(*cell) for cell in cells])
    missing = runs.iloc[:0][[*PLAN, *INIT_AXES[:2], "model.depth"]]
    return Table("start", INIT_AXES, runs, pd.DataFrame(), missing)


def without(table: Table, absent: "pd.Series[bool]") -> Table:
    """The table with these of its runs missing."""
    missing = table.runs[absent][[*PLAN, *[a for a in table.axes if a not in PLAN]]]
    return replace(table, runs=table.runs[~absent], missing=pd.concat([table.missing, missing]))


def at_kind(runs: pd.DataFrame, kind: tuple[str, str]) -> pd.DataFrame:
    return runs[(runs["family"] == kind[0]) & (runs["model.cross_attention"] == kind[1])]


def kinds() -> list[tuple[str, tuple[str, str], str]]:
    """(title, kind, stack) of every panel, in order."""
    return [(t, kind, stack) for kind, by in TITLES.items() for stack, t in by.items()]


def dots(ax: Axes) -> list[tuple[str, float, float]]:
    """(colour, depth, height) of every seed's dot."""
    return [
        (to_hex(line.get_color()), min(INIT_DEPTHS, key=lambda d: abs(math.log2(d / x))), float(y))
        for line in ax.lines
        if line.get_marker() == "."
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
        if y == y
    ]


def strip_of(ax: Axes) -> list[tuple[str, str, float]]:
    return [
        (name, color, min(INIT_DEPTHS, key=lambda d: abs(math.log2(d / line.get_xdata()[0]))))
        for inset in ax.child_axes
        for (name, color, _), line in zip(in_strip(inset), markers(inset), strict=True)
    ]


@every_init
def test_an_initial_figure_has_a_panel_a_kind_of_stack_that_is_read(
    name: str, initial: Table
) -> None:
    axes = figures.find(name)(initial).axes
    assert [ax.get_title() for ax in axes] == [title for title, _, _ in kinds()]


@every_init
def test_an_initial_figure_draws_every_run_as_a_dot_or_in_the_strip(
    name: str, initial: Table
) -> None:
    runs = initial.runs.copy()
    for i, value in zip((0, 30, 60, 100), (0.0, NAN, math.inf, 1e-310), strict=True):
        for stack in ("encoder", "decoder"):
            column = INIT[name].format(stack)
            runs.loc[i, column] = value if runs.loc[i, column] > 0 else runs.loc[i, column]
    for ax, (_, kind, stack) in zip(
        figures.find(name)(replace(initial, runs=runs)).axes, kinds(), strict=True
    ):
        rows = at_kind(runs, kind)
        column = INIT[name].format(stack)
        placed = rows[(rows[column] > 1e-300) & (rows[column] < math.inf)]
        expected = zip(placed["scheme"], placed["model.depth"], placed[column], strict=True)
        assert sorted(dots(ax)) == sorted((looks.look(s).color, d, y) for s, d, y in expected)
        rest = rows.drop(placed.index)
        expected_strip = {
            (drawings.heightless(y, 1e-300), looks.look(scheme).color, depth)
            for scheme, depth, y in zip(
                rest["scheme"], rest["model.depth"], rest[column], strict=True
            )
        }
        found = strip_of(ax)
        assert set(found) == expected_strip
        assert len(found) == len(expected_strip)


def test_the_four_ways_to_have_no_height_are_told_apart(initial: Table) -> None:
    runs = initial.runs.copy()
    column = INIT["gradient_init"].format("encoder")
    for i, value in enumerate((0.0, NAN, math.inf, 1e-310)):  # of post_norm, encoder-only
        runs.loc[i, column] = value
    ax = figures.gradient_init(replace(initial, runs=runs)).axes[0]
    assert {name for name, *_ in strip_of(ax)} == {"exactly 0", "no value", "infinite", "< 1e-300"}


@every_init
def test_an_initial_figures_line_is_the_geometric_mean_of_the_seeds(
    name: str, initial: Table
) -> None:
    post = looks.LOOKS["post_norm"].color
    for ax, (_, kind, stack) in zip(figures.find(name)(initial).axes, kinds(), strict=True):
        (line,) = [
            each
            for each in ax.lines
            if to_hex(each.get_color()) == post and each.get_marker() == "None"
        ]
        factor = FACTORS[3 if (stack, kind[1]) == ("decoder", "True") else 2]
        mean = 6 ** (1 / 3)  # of seeds that start at 1, 2 and 3
        expected = [mean * factor**depth for depth in INIT_DEPTHS]
        np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), expected, rtol=1e-12)


def test_a_seed_without_a_height_leaves_its_depth_without_a_mean(initial: Table) -> None:
    runs = initial.runs.copy()
    column = INIT["gradient_init"].format("encoder")
    post, deepest = runs["scheme"] == "post_norm", runs["model.depth"] == 8
    runs.loc[post & deepest & (runs["seed"] == 0), column] = 0.0
    ax = figures.gradient_init(replace(initial, runs=runs)).axes[0]
    color = looks.LOOKS["post_norm"].color
    means = [
        line
        for line in ax.lines
        if to_hex(line.get_color()) == color and line.get_marker() in ("None", "o")
    ]
    assert len(means) == 2
    for line in means:
        heights = np.asarray(line.get_ydata(), dtype=float)
        assert np.isnan(heights).tolist() == [False, False, True]
    assert len([dot for dot in dots(ax) if dot[:2] == (color, 8)]) == 2


def predicted(ax: Axes) -> list[Line2D]:
    return [line for line in ax.lines if to_hex(line.get_color()) == drawings.GREY]


def test_gradient_init_says_the_factor_and_what_papers_predict(initial: Table) -> None:
    figure = figures.gradient_init(initial)
    for ax, (_, kind, stack) in zip(figure.axes, kinds(), strict=True):
        sublayers = 3 if (stack, kind[1]) == ("decoder", "True") else 2
        factor = FACTORS[sublayers]
        (words,) = [text.get_text() for text in ax.texts]
        assert words == f"× {factor:.3f} [{factor:.3f}, {factor:.3f}] a layer"
        start = 6 ** (1 / 3) * factor**2
        for line, each in zip(predicted(ax), ((2 / 3) ** 0.5, 2 ** (-sublayers / 2)), strict=True):
            x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
            assert (x[0], x[-1]) == (2, 8)
            np.testing.assert_allclose(y, start * each ** (x - 2), rtol=1e-9)
    caption = figure.get_supxlabel()
    dashes, dots_of = caption.index("dashes (2/3)^(1/2) a layer"), caption.index("dots 2^(-1/2)")
    assert 0 < dashes < dots_of


def test_gradient_init_names_schemes_whose_matrices_have_no_gradient(initial: Table) -> None:
    words = "rezero: of the coefficients alone, the matrices' gradient is 0"
    runs = initial.runs.copy()
    rezero = runs["scheme"] == "rezero"
    columns = [f"grad_norm_first_{stack}" for stack in ("encoder", "decoder")]
    for column in columns:
        runs[f"{column}_matrices"] = runs[f"{column}_init"].where(~rezero, 0.0)
    still = replace(initial, runs=runs)
    assert figures.gradient_init(still).get_supxlabel().endswith(f"\n{words}")
    assert figures.gradient_init(without(still, rezero)).get_supxlabel().count("\n") == 2
    (first, *_) = runs.index[rezero & (runs[f"{columns[1]}_init"] > 0)]
    runs.loc[first, f"{columns[1]}_matrices"] = 1e-9
    assert words not in figures.gradient_init(replace(initial, runs=runs)).get_supxlabel()


def test_the_words_of_the_fit_stay_in_their_panel(initial: Table) -> None:
    figure = figures.gradient_init(initial)
    figure.draw_without_rendering()
    for ax in figure.axes:
        box = ax.texts[0].get_window_extent().transformed(ax.transAxes.inverted())
        assert box.x0 > 0
        assert box.x1 < 1


def test_only_gradient_init_is_fitted(initial: Table) -> None:
    for name in INIT:
        axes = figures.find(name)(initial).axes
        assert all(bool(ax.texts) == (name == "gradient_init") for ax in axes)
        assert all(bool(predicted(ax)) == (name == "gradient_init") for ax in axes)


def test_predictions_do_not_stretch_the_axis(initial: Table) -> None:
    runs = initial.runs.copy()
    for stack in ("encoder", "decoder"):
        column = INIT["gradient_init"].format(stack)
        runs[column] = runs[column].where(~(runs[column] > 0), 1.0 + runs["seed"] / 10)
    for ax in figures.gradient_init(replace(initial, runs=runs)).axes:
        lowest = min(float(line.get_ydata()[-1]) for line in predicted(ax))
        assert ax.get_ylim()[0] > 0.9 > lowest
        assert len(dots(ax)) == 27


@every_init
def test_one_depth_one_seed_and_no_post_norm_are_drawn_without_a_fit(
    name: str, initial: Table
) -> None:
    runs = initial.runs
    parts = {
        "one depth": runs[runs["model.depth"] == 4],
        "another seed a depth": runs[runs["seed"] == runs["model.depth"].map({2: 0, 4: 1, 8: 2})],
        "no post_norm": runs[runs["scheme"] == "pre_norm"],
    }
    for part in parts.values():
        axes = figures.find(name)(replace(initial, runs=part)).axes
        assert not any(ax.texts for ax in axes)
        assert not any(predicted(ax) for ax in axes)
        columns = [INIT[name].format(stack) for stack in ("encoder", "decoder")]
        assert sum(len(dots(ax)) for ax in axes) == (part[columns] > 0).sum().sum()


def test_the_fit_of_one_seed_has_no_interval(initial: Table) -> None:
    part = replace(initial, runs=initial.runs[initial.runs["seed"] == 1])
    words = [text.get_text() for ax in figures.gradient_init(part).axes for text in ax.texts]
    assert words[0] == "× 0.800 a layer"


@pytest.mark.parametrize("value", [0.0, NAN, math.inf])
def test_the_fit_leaves_out_what_has_no_logarithm(value: float, initial: Table) -> None:
    runs = initial.runs.copy()
    column = INIT["gradient_init"].format("encoder")
    runs.loc[(runs["seed"] == 0) & (runs["model.depth"] == 2), column] = value
    ax = figures.gradient_init(replace(initial, runs=runs)).axes[0]
    assert ax.texts[0].get_text() == "× 0.800 [0.800, 0.800] a layer"
    starts = [float(line.get_ydata()[0]) for line in predicted(ax)]
    assert starts == pytest.approx([6**0.5 * 0.8**2] * 2)


@every_init
def test_where_every_run_crashed_an_initial_figure_says_so(name: str, initial: Table) -> None:
    runs = initial.runs.assign(outcome="crashed", final_loss=NAN)
    for pattern in INIT.values():
        for stack in ("encoder", "decoder"):
            runs[pattern.format(stack)] = NAN
    table = replace(initial, runs=runs)
    for ax in figures.find(name)(table).axes:
        assert not dots(ax)
        assert len(strip_of(ax)) == 9  # one a scheme and depth
        assert {what for what, *_ in strip_of(ax)} == {"no value"}
    one = replace(initial, runs=pd.concat([at_kind(initial.runs, k) for k in list(TITLES)[1:]]))
    crashed = at_kind(runs, ("encoder", "False"))
    mixed = replace(one, runs=pd.concat([crashed, one.runs]))
    axes = {ax.get_title(): ax for ax in figures.find(name)(mixed).axes}
    assert len(axes) == 5
    assert {what for what, *_ in strip_of(axes["encoder-only"])} == {"no value"}


def test_a_scheme_whose_norms_are_all_zero_is_drawn_in_the_strip(initial: Table) -> None:
    part = replace(initial, runs=initial.runs[initial.runs["scheme"] == "rezero"])
    for ax in figures.gradient_init_matrices(part).axes:
        assert not dots(ax)
        assert {name for name, *_ in strip_of(ax)} <= {"exactly 0"}
        assert len(strip_of(ax)) == 3


@every_init
def test_missing_cells_of_an_initial_figure_stand_in_the_strip(name: str, initial: Table) -> None:
    runs = initial.runs
    gone = (runs["scheme"] == "pre_norm") & (runs["model.depth"] == 8) & (runs["seed"] > 0)
    for ax in figures.find(name)(without(initial, gone)).axes:
        assert ("missing", looks.LOOKS["pre_norm"].color, 8) in strip_of(ax)
        assert [what for what, *_ in strip_of(ax)].count("missing") == 1
    figure = figures.find(name)(without(initial, runs["family"] == "encoder"))
    assert "missing cells: 27" in figure.get_supxlabel()
    axes = {ax.get_title(): ax for ax in figure.axes}
    assert [what for what, *_ in strip_of(axes["encoder-only"])] == ["missing"] * 9
    assert not dots(axes["encoder-only"])
    assert "missing" not in {what for what, *_ in strip_of(axes["decoder-only"])}


def test_a_private_scheme_has_its_own_look_in_an_initial_figure(initial: Table) -> None:
    runs = initial.runs.assign(scheme=initial.runs["scheme"].replace("pre_norm", "my_idea"))
    figure = figures.gradient_init(replace(initial, runs=runs))
    colors = {color for color, _, _ in dots(figure.axes[0])}
    assert looks.look("my_idea").color in colors
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["post_norm", "my_idea", "rezero"]


def test_an_initial_figure_names_another_axis() -> None:
    titles = [ax.get_title() for ax in figures.gradient_init(make(norms=("layer", "rms"))).axes]
    assert titles == ["decoder-only, norm layer", "decoder-only, norm rms"]


# One depth


@pytest.fixture(scope="module")
def shallow() -> Table:
    """Five schemes and two norms at 48 layers: post_norm stalls, b2t diverges, one is missing."""
    table = make(norms=("layer", "rms"))
    at = {name: getattr(table, name) for name in ("runs", "missing")}
    return replace(
        table,
        axes=("scheme", "model.norm", "seed"),
        **{name: frame[frame["model.depth"] == 48] for name, frame in at.items()},
    )


IDLE = "metric_idle_blocks"


def names_of(ax: Axes) -> list[str]:
    """What the rows are called: the first panel says it for all."""
    assert ax.figure is not None
    return [label.get_text() for label in ax.figure.axes[0].get_yticklabels()]


def rows_of(ax: Axes) -> dict[str, int]:
    return dict(zip(names_of(ax), (int(y) for y in ax.get_yticks()), strict=True))


def words_of(ax: Axes) -> dict[str, str]:
    """What stands at the right of each scheme's row."""
    names = {row: name for name, row in rows_of(ax).items()}
    said = [text for text in ax.texts if text.get_text() != "*"]
    return {names[int(text.get_position()[1])]: text.get_text() for text in said}


def starred(ax: Axes) -> set[str]:
    """Schemes that an asterisk marks."""
    names = {row: name for name, row in rows_of(ax).items()}
    return {names[int(text.get_position()[1])] for text in ax.texts if text.get_text() == "*"}


def values_of(ax: Axes, scheme: str, *, filled: bool) -> list[float]:
    row = rows_of(ax)[scheme]
    found = []
    for line in markers(ax):
        if (line.get_markerfacecolor() != "white") == filled:
            assert to_hex(line.get_color()) in {looks.look(name).color for name in rows_of(ax)}
            found += [
                float(x)
                for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
                if round(y) == row and to_hex(line.get_color()) == looks.look(scheme).color
            ]
    return sorted(found)


def means_of(ax: Axes) -> dict[str, float]:
    names = {row: name for name, row in rows_of(ax).items()}
    return {
        names[round(sum(line.get_ydata()) / 2)]: float(line.get_xdata()[0])
        for line in ax.lines
        if line.get_color() == "black"
    }


def test_placement_draws_every_run_or_says_in_words_what_became_of_it(shallow: Table) -> None:
    axes = figures.placement(shallow).axes
    assert [ax.get_title() for ax in axes] == ["norm layer", "norm rms", "", ""]
    for ax, (column, norm) in zip(
        axes, itertools.product(("final_loss", IDLE), ("layer", "rms")), strict=True
    ):
        runs = shallow.runs[shallow.runs["model.norm"] == norm]
        assert list(rows_of(ax)) == list(SCHEMES)
        for scheme in SCHEMES:
            own = runs[runs["scheme"] == scheme]
            for filled in (True, False):
                drawn = own[(own["outcome"] == "trained") == filled][column].dropna()
                assert values_of(ax, scheme, filled=filled) == pytest.approx(sorted(drawn))
        assert words_of(ax) == {"b2t": "2 diverged", "rezero": "1 missing"}


def test_placement_marks_the_mean_where_all_trained(shallow: Table) -> None:
    ax = figures.placement(shallow).axes[0]
    own = shallow.runs[shallow.runs["model.norm"] == "layer"]
    means = own[own["outcome"] == "trained"].groupby("scheme")["final_loss"].mean()
    assert means_of(ax) == pytest.approx(means.to_dict())
    assert set(means_of(ax)) == {"pre_norm", "rezero", "deepnorm"}
    mixed = shallow.runs.copy()
    first = mixed.index[mixed["scheme"] == "deepnorm"][0]
    mixed.loc[first, ["outcome", "final_loss"]] = ["stalled", 3.3]
    again = figures.placement(replace(shallow, runs=mixed)).axes[0]
    assert set(means_of(again)) == {"pre_norm", "rezero"}
    assert values_of(again, "deepnorm", filled=False) == [3.3]


def test_placement_bars_are_the_interval(shallow: Table) -> None:
    ax = figures.placement(shallow).axes[0]
    color = looks.LOOKS["deepnorm"].color
    (bar,) = [x for x in ax.lines if to_hex(x.get_color()) == color and x not in markers(ax)]
    own = shallow.runs[shallow.runs["model.norm"] == "layer"]
    own = own[own["scheme"] == "deepnorm"]["final_loss"]
    half = 12.7062 * abs(own.iloc[0] - own.iloc[1]) / 2  # t(0.975, 1), printed tables
    expected = [own.mean() - half, own.mean() + half]
    assert list(bar.get_xdata()) == pytest.approx(expected, rel=1e-5)


def test_placement_without_blocks_left_out_has_losses_alone(shallow: Table) -> None:
    plain = replace(shallow, runs=shallow.runs.drop(columns=IDLE))
    axes = figures.placement(plain).axes
    assert [ax.get_xlabel() for ax in axes] == ["validation loss (nats per token)"] * 2
    assert axes[0].figure is not None
    assert "idle" not in axes[0].figure.get_supxlabel()  # type: ignore[union-attr]


def test_placement_names_the_cost_under_which_a_block_is_idle(shallow: Table) -> None:
    from harness.training.probes.skips import IDLE_NATS  # torch, which no figure may load

    figure = figures.placement(shallow)
    assert figure.axes[-1].get_xlabel() == "share of idle blocks"
    assert f"idle: removal costs under {IDLE_NATS:g} nats" in figure.get_supxlabel()


def test_placement_says_of_a_scheme_without_any_run_that_it_is_missing(shallow: Table) -> None:
    runs = shallow.runs
    gone = (runs["scheme"] == "deepnorm") & (runs["model.norm"] == "layer")
    figure = figures.placement(without(shallow, gone))
    first, second, *_ = figure.axes
    assert words_of(first)["deepnorm"] == "2 missing"
    assert "deepnorm" not in words_of(second)
    assert len(values_of(second, "deepnorm", filled=True)) == 2
    axes = figures.placement(without(shallow, runs["model.norm"] == "layer")).axes
    (everything,) = [ax for ax in axes if ax.get_title() == "norm layer"]
    assert words_of(everything) == dict.fromkeys(SCHEMES, "2 missing")
    assert not markers(everything)
    assert not means_of(everything)


def test_placement_names_a_scheme_that_a_panel_has_no_cell_of(shallow: Table) -> None:
    ours = (shallow.runs["scheme"] == "rezero") & (shallow.runs["model.norm"] == "layer")
    gone = (shallow.missing["scheme"] == "rezero") & (shallow.missing["model.norm"] == "layer")
    part = replace(shallow, runs=shallow.runs[~ours], missing=shallow.missing[~gone])
    left, right = figures.placement(part).axes[:2]
    assert "no such cell" in [text.get_text() for text in left.texts]
    assert "no such cell" not in [text.get_text() for text in right.texts]


def test_placement_where_every_run_failed_is_words(shallow: Table) -> None:
    runs = shallow.runs.assign(outcome="crashed", final_loss=NAN, **{IDLE: NAN})
    runs.loc[runs.index[0], "outcome"] = "diverged"
    for ax in figures.placement(replace(shallow, runs=runs)).axes:
        assert not markers(ax)
        assert not means_of(ax)
        assert words_of(ax)["deepnorm"] == "2 crashed"
        assert words_of(ax)["rezero"] == "1 crashed, 1 missing"
    first = figures.placement(replace(shallow, runs=runs)).axes[0]
    assert sorted(words_of(first)["post_norm"].split(", ")) == ["1 crashed", "1 diverged"]


def test_placement_of_one_seed_and_a_private_scheme(shallow: Table) -> None:
    runs = shallow.runs[shallow.runs["seed"] == 1]
    runs = runs.assign(scheme=runs["scheme"].replace("deepnorm", "my_idea"))
    ax = figures.placement(replace(shallow, runs=runs)).axes[0]
    assert len(values_of(ax, "my_idea", filled=True)) == 1
    assert means_of(ax)["my_idea"] == values_of(ax, "my_idea", filled=True)[0]


def test_placement_takes_no_mean_over_depths(table: Table) -> None:
    axes = figures.placement(table).axes
    titles = [f"{depth} layers" for depth in DEPTHS]
    assert [ax.get_title() for ax in axes] == titles + [""] * 4
    for ax, depth in zip(axes, DEPTHS, strict=False):
        own = table.runs[
            (table.runs["scheme"] == "pre_norm") & (table.runs["model.depth"] == depth)
        ]
        assert means_of(ax)["pre_norm"] == pytest.approx(own["final_loss"].mean())
    assert [words_of(ax).get("rezero") for ax in axes[:4]] == [None] * 3 + ["1 missing"]


# A tuning


def tiles(ax: Axes) -> dict[tuple[int, float], str]:
    """Text by depth and rate."""
    depths = [int(name.split(",")[0]) for name in names_of(ax)]
    return {
        (depths[int(text.get_position()[1])], RATES[int(text.get_position()[0])]): text.get_text()
        for text in ax.texts
    }


def boxes(ax: Axes, *, filled: bool) -> list[tuple[int, float]]:
    """(depth, rate) of every stop bar, or of every frame."""
    depths = [int(name.split(",")[0]) for name in names_of(ax)]
    found = []
    for patch in ax.patches:
        middle = patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2
        if filled and patch.get_width() < 0.1:
            assert middle[0] % 1 == pytest.approx(0.49, abs=0.02)  # at the right edge
            found.append((depths[round(middle[1])], RATES[int(middle[0])]))
        if not filled and not patch.get_fill():
            found.append((depths[round(middle[1])], RATES[round(middle[0])]))
    return found


def by_title(figure: Figure) -> dict[str, Axes]:
    return {ax.get_title(): ax for ax in figure.axes}


def tuning_runs(table: Table) -> pd.DataFrame:
    assert table.tuning is not None
    return table.tuning.runs


def test_rate_depth_has_a_tile_a_cell_with_its_mean_or_its_fate(table: Table) -> None:
    axes = by_title(figures.rate_depth(table))
    assert list(axes) == list(SCHEMES)
    runs = tuning_runs(table)
    for scheme, ax in axes.items():
        assert set(tiles(ax)) == set(itertools.product(DEPTHS, RATES))
        assert [label.get_text() for label in ax.get_xticklabels()] == ["0.001", "0.003", "0.01"]
        for (depth, rate), text in tiles(ax).items():
            own = runs[(runs["scheme"] == scheme) & (runs["model.depth"] == depth)]
            own = own[own["optim.lr"] == rate]
            if len(own) == 2 and (own["outcome"] == "trained").all():
                assert text == f"{own['final_loss'].mean():.3f}"
            else:
                assert text.split()[0] in ("stalled", "diverged", "missing")
    assert tiles(axes["post_norm"])[24, 1e-3] == "stalled 2"
    assert tiles(axes["b2t"])[48, 1e-3] == "diverged 2"
    assert tiles(axes["deepnorm"])[24, 1e-2] == "diverged 2"
    assert tiles(axes["rezero"])[48, 3e-3] == "missing 2"
    assert tiles(axes["rezero"])[48, 1e-2] == "diverged 1\nmissing 1"


def test_words_of_rate_depth_stay_in_their_tile() -> None:
    # Four rates side by side, as a study has them.
    table = make()
    assert table.tuning is not None
    runs = tuning_runs(table)
    fourth = runs[runs["optim.lr"] == 1e-2].assign(**{"optim.lr": 3e-2, "run_id": "x"})
    tuning = replace(table.tuning, runs=pd.concat([runs, fourth]))
    figure = figures.rate_depth(replace(table, tuning=tuning))
    figure.draw_without_rendering()
    for ax in figure.axes:
        for text in ax.texts:
            box = text.get_window_extent().transformed(ax.transData.inverted())
            column, row = text.get_position()
            assert abs(box.x0 - column) < 0.5
            assert abs(box.x1 - column) < 0.5
            assert abs(box.y0 - row) < 0.5
            assert abs(box.y1 - row) < 0.5


def test_labels_of_placement_do_not_meet(shallow: Table) -> None:
    figure = figures.placement(shallow)
    figure.draw_without_rendering()
    for left, right in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        ends = left.xaxis.label.get_window_extent().x1, right.xaxis.label.get_window_extent().x0
        assert ends[0] < ends[1]


def test_rate_depth_fills_a_tile_by_its_worst_outcome(table: Table) -> None:
    ax = by_title(figures.rate_depth(table))["b2t"]
    fills = {
        (round(p.get_x() + 0.48), round(p.get_y() + 0.47)): to_hex(p.get_facecolor())
        for p in ax.patches
        if p.get_width() == pytest.approx(0.96)
    }
    assert len(fills) == len(DEPTHS) * len(RATES)
    assert fills[0, 3] == drawings.TILES["diverged"][0]
    assert fills[0, 0] == drawings.TILES["trained"][0]


def test_rate_depth_frames_the_rate_that_was_chosen(table: Table) -> None:
    for scheme, ax in by_title(figures.rate_depth(table)).items():
        expected = [(depth, best_rate(scheme, depth)) for depth in DEPTHS]
        assert boxes(ax, filled=False) == expected
    gone = (table.runs["scheme"] == "b2t") & (table.runs["model.depth"] == 12)
    ax = by_title(figures.rate_depth(without(table, gone)))["b2t"]
    assert [depth for depth, _ in boxes(ax, filled=False)] == [6, 24, 48]


def dashed(ax: Axes) -> list[int]:
    """Depths whose frame is dashed."""
    depths = [int(name.split(",")[0]) for name in names_of(ax)]
    frames = [patch for patch in ax.patches if not patch.get_fill()]
    return [
        depths[round(p.get_y() + 0.44)] for p in frames if p.get_linestyle() not in ("-", "solid")
    ]


def test_rate_depth_dashes_the_frame_of_a_rate_at_an_edge(table: Table) -> None:
    axes = by_title(figures.rate_depth(table))
    assert dashed(axes["post_norm"]) == [24, 48]  # at the smallest
    assert dashed(axes["deepnorm"]) == [6, 12]  # at the largest


def test_rate_depth_leaves_blank_what_other_points_tried_beyond_the_grid(table: Table) -> None:
    assert table.tuning is not None
    runs = tuning_runs(table)
    point = (runs["scheme"] == "deepnorm") & (runs["model.depth"] == 6)
    more = runs[point & (runs["optim.lr"] == 1e-2)].assign(**{"optim.lr": 3e-2, "final_loss": 2.0})
    tuning = replace(table.tuning, runs=pd.concat([runs, more], ignore_index=True))
    axes = by_title(figures.rate_depth(replace(table, tuning=tuning)))
    for scheme, ax in axes.items():
        assert len(ax.get_xticks()) == 4
        assert len(ax.texts) == 12 + (scheme == "deepnorm")
    assert dashed(axes["deepnorm"]) == [12]  # 1e-2 is inside of what depth 6 has tried
    gone = tuning.runs["optim.lr"] == 3e-2
    lost = replace(
        tuning,
        runs=tuning.runs[~gone],
        missing=pd.concat([tuning.missing, tuning.runs[gone][tuning.missing.columns]]),
    )
    ax = by_title(figures.rate_depth(replace(table, tuning=lost)))["deepnorm"]
    assert [text.get_text() for text in ax.texts].count("missing 2") == 1


def asterisks(ax: Axes) -> set[tuple[str, int]]:
    """Colour and nearest planned depth of each asterisk."""
    return {
        (to_hex(text.get_color()), min(DEPTHS, key=lambda d: abs(math.log(text.xy[0] / d))))
        for text in ax.texts
        if text.get_text() == "*"
    }


def test_depth_curve_marks_what_stands_at_an_edge_of_the_rates_tried(table: Table) -> None:
    figure = figures.depth_curve(table)
    edges = {("post_norm", 24), ("post_norm", 48)}
    edges |= {(scheme, depth) for scheme in SCHEMES[1:] for depth in (6, 12)}
    assert SCHEMES[0] == "post_norm"
    colors = {scheme: to_hex(looks.look(scheme).color) for scheme in SCHEMES}
    assert asterisks(figure.axes[0]) == {(colors[scheme], depth) for scheme, depth in edges}
    note = "*: optim.lr at an edge of the values tried"
    assert note in figure.get_supxlabel()
    plain = figures.depth_curve(replace(table, tuned=(), tuning=None))
    assert not asterisks(plain.axes[0]) and note not in plain.get_supxlabel()


def test_placement_marks_what_stands_at_an_edge_of_the_rates_tried(shallow: Table) -> None:
    figure = figures.placement(shallow)
    tuning = shallow.tuning
    assert tuning is not None
    of_depth = replace(tuning, runs=tuning.runs[tuning.runs["model.depth"] == 48])
    figure = figures.placement(replace(shallow, tuning=of_depth))
    losses, idle = figure.axes[:2], figure.axes[2:]
    assert [starred(ax) for ax in losses] == [{"post_norm"}] * 2
    assert [starred(ax) for ax in idle] == [set()] * 2
    assert "*: optim.lr at an edge of the values tried" in figure.get_supxlabel()


def test_rate_depth_stops_at_the_largest_rate_at_which_all_seeds_trained(table: Table) -> None:
    runs = tuning_runs(table)
    for scheme, ax in by_title(figures.rate_depth(table)).items():
        own = runs[(runs["scheme"] == scheme) & (runs["outcome"] == "trained")]
        whole = own.groupby(["model.depth", "optim.lr"])["seed"].nunique()
        whole = whole[whole == 2].reset_index()
        largest = whole.groupby("model.depth")["optim.lr"].max()
        assert boxes(ax, filled=True) == list(largest.items())
    assert not boxes(by_title(figures.rate_depth(table))["post_norm"], filled=True)[2:]


def test_a_seed_that_failed_or_is_missing_moves_the_stop(table: Table) -> None:
    assert table.tuning is not None
    runs = tuning_runs(table).copy()
    best = (runs["scheme"] == "deepnorm") & (runs["model.depth"] == 6) & (runs["optim.lr"] == 1e-2)
    assert boxes(by_title(figures.rate_depth(table))["deepnorm"], filled=True)[0] == (6, 1e-2)
    (one, other) = runs.index[best]
    for changed in (
        runs.assign(outcome=runs["outcome"].where(runs.index != one, "stalled")),
        runs.drop(index=one),
        runs.drop(index=[one, other]),
    ):
        trials_now = replace(table.tuning, runs=changed)
        ax = by_title(figures.rate_depth(replace(table, tuning=trials_now)))["deepnorm"]
        assert boxes(ax, filled=True)[0] == (6, 3e-3)


def test_rate_depth_where_all_failed_has_no_stop(table: Table) -> None:
    assert table.tuning is not None
    runs = tuning_runs(table).assign(outcome="crashed", final_loss=NAN, diverged_at=NAN)
    figure = figures.rate_depth(replace(table, tuning=replace(table.tuning, runs=runs)))
    for ax in figure.axes:
        assert not boxes(ax, filled=True)
        assert len(boxes(ax, filled=False)) == 4
        assert all(text.startswith(("crashed", "missing")) for text in tiles(ax).values())


def test_rate_depth_of_one_depth_one_seed_and_a_private_scheme(table: Table) -> None:
    assert table.tuning is not None

    def cut(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame[(frame["model.depth"] == 6) & (frame["seed"].isin([1, 100]))]
        frame = frame[frame["scheme"].isin(["deepnorm", "pre_norm"])]
        return frame.assign(scheme=frame["scheme"].replace("deepnorm", "my_idea"))

    part = replace(
        table,
        runs=cut(table.runs),
        missing=cut(table.missing),
        tuning=replace(
            table.tuning, runs=cut(table.tuning.runs), missing=cut(table.tuning.missing)
        ),
    )
    axes = by_title(figures.rate_depth(part))
    assert list(axes) == ["pre_norm", "my_idea"]
    assert boxes(axes["my_idea"], filled=False) == [(6, 1e-2)]
    assert boxes(axes["my_idea"], filled=True) == [(6, 1e-2)]


def test_rate_depth_without_other_axes_has_one_row(table: Table) -> None:
    assert table.tuning is not None
    axes = ("scheme", "seed")
    runs, tried = (t[t["model.depth"] == 6] for t in (table.runs, tuning_runs(table)))
    part = replace(table, axes=axes, runs=runs, missing=table.missing.iloc[:0])
    tuning = replace(table.tuning, axes=axes, runs=tried, missing=table.tuning.missing.iloc[:0])
    for ax in figures.rate_depth(replace(part, tuning=tuning)).axes:
        assert len(ax.texts) == len(RATES)


def test_rate_depth_leaves_blank_what_nobody_planned(table: Table) -> None:
    assert table.tuning is not None
    runs = tuning_runs(table)
    planned = ~((runs["scheme"] == "pre_norm") & (runs["model.depth"] == 24))
    tuning = replace(table.tuning, runs=runs[planned])
    axes = by_title(figures.rate_depth(replace(table, tuning=tuning)))
    assert {depth for depth, _ in tiles(axes["pre_norm"])} == {6, 12, 48}
    assert {depth for depth, _ in tiles(axes["deepnorm"])} == {6, 12, 24, 48}


def test_rate_depth_names_another_axis() -> None:
    ax = figures.rate_depth(make(norms=("layer", "rms"))).axes[0]
    names = names_of(ax)
    assert names == [f"{depth}, {norm}" for norm in ("layer", "rms") for depth in DEPTHS]
    assert len(ax.texts) == len(names) * len(RATES)


def test_a_study_without_tuning_has_no_rate_depth(table: Table) -> None:
    with pytest.raises(MissingRuns) as error:
        figures.rate_depth(replace(table, tuned=(), tuning=None))
    assert str(error.value) == (
        "quick: figure 'rate_depth' has no tuning to draw; declare `tune` in the study"
    )


@pytest.mark.parametrize(
    ("tuned", "message"),
    [
        (("optim.lr", "optim.eps"), "draws one tuned path, not more"),
        (("optim.schedule",), "draws numbers, optim.schedule has none"),
    ],
)
def test_rate_depth_draws_one_number(table: Table, tuned: tuple[str, ...], message: str) -> None:
    assert table.tuning is not None
    runs = tuning_runs(table).assign(**{"optim.eps": 1e-8, "optim.schedule": "constant"})
    tuning = replace(table.tuning, tuned=tuned, runs=runs)
    with pytest.raises(ConfigError) as error:
        figures.rate_depth(replace(table, tuned=tuned, tuning=tuning))
    assert str(error.value) == f"quick: figure 'rate_depth' {message}"


def test_a_figure_of_a_tuning_is_stale_when_its_rows_change(table: Table, tmp_path: Path) -> None:
    assert table.tuning is not None
    runs, missing = table.tuning.runs, table.tuning.missing
    others = [
        replace(table, tuning=replace(table.tuning, runs=runs.iloc[1:])),
        replace(table, tuning=replace(table.tuning, missing=missing.iloc[1:])),
        replace(table, tuning=replace(table.tuning, runs=runs.assign(final_loss=2.0))),
    ]
    for plot in (figures.rate_depth, figures.depth_curve, figures.outcome_map):
        figures.draw(plot, table, tmp_path)
        assert not figures.stale(plot, table, tmp_path)
        reads = plot is not figures.outcome_map
        assert [figures.stale(plot, other, tmp_path) for other in others] == [reads] * 3


# Idle blocks by rate

COST = "metric_idle_cost"


def idle_of(table: Table, **columns: object) -> Table:
    assert table.tuning is not None
    return replace(table, tuning=replace(table.tuning, runs=table.tuning.runs.assign(**columns)))


def test_idle_blocks_has_a_tile_a_scheme_and_rate_with_its_mean_share_or_its_fate(
    table: Table,
) -> None:
    runs = tuning_runs(table)
    share = (runs["seed"] - 100) / 8 + runs["model.depth"] / 100
    lost = runs["outcome"] == "diverged"
    changed = idle_of(table, **{IDLE: share.where(~lost)})
    axes = figures.idle_blocks(changed).axes
    assert [ax.get_title() for ax in axes] == [
        f"share of idle blocks\ndepth {depth}" for depth in DEPTHS
    ]
    for ax, depth in zip(axes, DEPTHS, strict=True):
        found = {(int(t.get_position()[1]), int(t.get_position()[0])): t for t in ax.texts}
        assert len(ax.texts) == len(found) == len(SCHEMES) * len(RATES)
        for (row, column), text in found.items():
            own = tuning_runs(changed)
            own = own[(own["scheme"] == SCHEMES[row]) & (own["model.depth"] == depth)]
            own = own[own["optim.lr"] == RATES[column]]
            if len(own) == 2 and own[IDLE].notna().all():
                assert text.get_text() == f"{own[IDLE].mean():.2f}"
            else:
                assert text.get_text().split()[0] in ("diverged", "missing")
        assert boxes_of(ax) == {
            (row, RATES.index(best_rate(scheme, depth))) for row, scheme in enumerate(SCHEMES)
        }


def test_idle_blocks_leaves_blank_what_other_points_tried_and_dashes_edges(table: Table) -> None:
    assert table.tuning is not None
    runs = tuning_runs(table).assign(**{IDLE: 0.5})
    point = (runs["scheme"] == "deepnorm") & (runs["model.depth"] == 6)
    more = runs[point & (runs["optim.lr"] == 1e-2)].assign(**{"optim.lr": 3e-2})
    tuning = replace(table.tuning, runs=pd.concat([runs, more], ignore_index=True))
    first, *others = figures.idle_blocks(replace(table, tuning=tuning)).axes
    assert len(first.texts) == len(SCHEMES) * len(RATES) + 1
    for ax in others:
        assert len(ax.texts) == len(SCHEMES) * len(RATES)
    styles = [
        [p.get_linestyle() for p in ax.patches if not p.get_fill()] for ax in (first, *others)
    ]
    at_edge = [
        [best_rate(scheme, depth) in (RATES[0], RATES[-1]) for scheme in SCHEMES]
        for depth in DEPTHS
    ]
    at_edge[0][SCHEMES.index("deepnorm")] = False  # 1e-2 is inside of what depth 6 has tried
    assert [[style not in ("-", "solid") for style in own] for own in styles] == at_edge


def boxes_of(ax: Axes) -> set[tuple[int, int]]:
    """Row and column of each framed tile."""
    frames = [p for p in ax.patches if not p.get_fill()]
    return {(round(p.get_y() + 0.44), round(p.get_x() + 0.45)) for p in frames}


def test_idle_blocks_shows_the_cost_of_their_removal_where_it_was_measured(table: Table) -> None:
    # Rows of an older protocol have no cost: their tiles say what became of the runs.
    runs = tuning_runs(table)
    cost = pd.Series(0.25, index=runs.index).where(runs["scheme"] != "pre_norm")
    axes = figures.idle_blocks(idle_of(table, **{COST: cost})).axes
    assert len(axes) == 2 * len(DEPTHS)
    below = axes[len(DEPTHS)]
    assert below.get_title() == "idle cost (nats)\ndepth 6"
    words: dict[int, list[str]] = {}
    for text in below.texts:
        words.setdefault(int(text.get_position()[1]), []).append(text.get_text())
    assert words[SCHEMES.index("deepnorm")] == ["0.250"] * 3
    assert words[SCHEMES.index("pre_norm")] == ["2/2"] * 3


def test_idle_blocks_of_rows_without_their_measurement_is_one_line(table: Table) -> None:
    assert table.tuning is not None
    runs = table.tuning.runs.drop(columns=IDLE)
    with pytest.raises(ConfigError) as error:
        figures.idle_blocks(replace(table, tuning=replace(table.tuning, runs=runs)))
    assert str(error.value) == (
        "quick: figure 'idle_blocks' needs the column 'metric_idle_blocks' in the tuning's rows; "
        "set probe.skip_blocks = true"
    )
    with pytest.raises(MissingRuns, match="figure 'idle_blocks' has no tuning to draw"):
        figures.idle_blocks(replace(table, tuned=(), tuning=None))


def test_a_new_name_of_a_column_makes_no_figure_stale(table: Table, tmp_path: Path) -> None:
    old, new = ("branch_variance_cross", "branch_mean_square_ratio_cross")
    of = {name: replace(table, runs=table.runs.assign(**{name: 0.25})) for name in (old, new)}
    figures.draw(figures.outcome_map, of[old], tmp_path)
    assert not figures.stale(figures.outcome_map, of[new], tmp_path)
    other = replace(table, runs=table.runs.assign(**{new: 0.5}))
    assert figures.stale(figures.outcome_map, other, tmp_path)
