"""What the figures of translation show of ours, and of the paper's on axes of its own."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.analysis import figures, looks
from harness.analysis.figures import plot
from harness.analysis.figures.paper import published
from harness.errors import ConfigError
from harness.results.table import Table

NAN = float("nan")
SCHEMES = (
    *("post_norm", "b2t", "deepnorm", "pre_norm", "rezero"),
    *("dlcl", "normformer", "t_fixup", "ds_init", "admin"),
)
DEPTHS, SEEDS = (6, 12, 18), (0, 1, 2)
PLAN = [
    *("scheme", "scheme_options", "family", "encoder_layers", "decoder_layers", "seed"),
    "model.depth",
]
QUANTITIES = ("final_loss", "metric_source_gain", "metric_bleu")


def run(scheme: str, depth: int, seed: int) -> dict[str, object]:
    """post_norm stalls from 12 layers on, ds_init diverges at 18."""
    order = SCHEMES.index(scheme)
    outcome, loss, gain = "trained", 3.4 + 0.05 * order + 0.01 * seed, 1 - 0.09 * order
    bleu = 6.0 - 0.5 * order + 0.3 * seed
    if scheme == "post_norm" and depth >= 12:
        outcome, loss, gain, bleu = "stalled", 6.0, 0.0, 0.0
    if scheme == "ds_init" and depth == 18:
        outcome, loss, gain, bleu = "diverged", NAN, NAN, NAN
    return {
        "run_id": f"{scheme}-{depth}-{seed}",
        **{"scheme": scheme, "scheme_options": "{}", "family": "encoder_decoder", "seed": seed},
        **{"encoder_layers": float(depth), "decoder_layers": float(depth), "model.depth": depth},
        **{"outcome": outcome, "final_loss": loss, "baseline_loss": 5.638, "reference_loss": 3.852},
        **{"metric_source_gain": gain, "metric_bleu": bleu},
        **{"metric_bleu_copy": 1.6, "metric_bleu_nearest": 5.3},
        **{"metric_loss_low": loss + 0.6, "metric_loss_high": loss - 0.2},
        **{"metric_bleu_low": bleu / 2, "metric_bleu_high": bleu * 2},
    }


@pytest.fixture(scope="module")
def table() -> Table:
    """Ten schemes, three depths, three seeds; admin's deepest runs are missing."""
    rows = pd.DataFrame([run(*cell) for cell in itertools.product(SCHEMES, DEPTHS, SEEDS)])
    gone = (rows["scheme"] == "admin") & (rows["model.depth"] == 18)
    axes = ("scheme", "model.depth", "seed")
    return Table(
        "depth_sweep", axes, rows[~gone].reset_index(drop=True), pd.DataFrame(), rows[gone][PLAN]
    )


@pytest.fixture(scope="module")
def sheet(table: Table) -> Figure:
    return figures.figure_6(table)


def ours(sheet: Figure) -> dict[str, Axes]:
    return dict(zip(QUANTITIES, sheet.axes[:3], strict=True))


def papers(sheet: Figure) -> dict[str, Axes]:
    return dict(zip(("figure_6", "table_1"), sheet.axes[3:], strict=True))


def markers(ax: Axes) -> list[Line2D]:
    lines = [line for line in ax.lines if line.get_marker() not in ("None", None, "")]
    return [line for line in lines if len(line.get_xdata())]


def heights(ax: Axes, *, hollow: bool | None = None) -> list[float]:
    return sorted(
        y
        for line in markers(ax)
        if hollow is None or (line.get_markerfacecolor() == "white") == hollow
        for y in line.get_ydata()
    )


def strip(ax: Axes) -> list[tuple[str, str]]:
    """Name and colour of each marker beside the panel."""
    (inset,) = ax.child_axes
    names = [label.get_text() for label in inset.get_yticklabels()]
    return [(names[int(line.get_ydata()[0])], to_hex(line.get_color())) for line in markers(inset)]


@pytest.mark.parametrize("column", QUANTITIES)
def test_every_run_of_ours_is_a_marker_filled_where_it_trained(
    sheet: Figure, table: Table, column: str
) -> None:
    ax, trained = ours(sheet)[column], table.runs["outcome"] == "trained"
    assert heights(ax, hollow=False) == sorted(table.runs.loc[trained, column])
    assert heights(ax, hollow=True) == sorted(table.runs.loc[~trained, column].dropna())


@pytest.mark.parametrize("column", QUANTITIES)
def test_what_diverged_or_is_missing_stands_beside_each_panel(sheet: Figure, column: str) -> None:
    ds_init, admin = (looks.LOOKS[scheme].color for scheme in ("ds_init", "admin"))
    expected = [("diverged", ds_init)] * 3 + [("missing", admin)] * 3
    assert sorted(strip(ours(sheet)[column])) == expected


def test_a_run_that_trained_without_a_bleu_is_not_lost(table: Table) -> None:
    runs = table.runs.copy()
    runs.loc[runs["run_id"] == "rezero-12-1", "metric_bleu"] = NAN
    found = ours(figures.figure_6(replace(table, runs=runs)))["metric_bleu"]
    assert len(heights(found)) == runs["metric_bleu"].notna().sum()
    assert strip(found).count(("no value", looks.LOOKS["rezero"].color)) == 1


@pytest.mark.parametrize("column", QUANTITIES)
def test_means_and_intervals_are_those_of_the_panels_own_quantity(
    sheet: Figure, table: Table, column: str
) -> None:
    ax = ours(sheet)[column]
    lines = {
        to_hex(line.get_color()): np.asarray(line.get_ydata(), dtype=float)
        for line in ax.lines
        if line.get_marker() == "None" and len(line.get_xdata()) == len(DEPTHS)
    }
    for scheme in ("deepnorm", "post_norm", "ds_init"):
        runs = table.runs[table.runs["scheme"] == scheme]
        whole = runs.groupby("model.depth")["outcome"].agg(lambda found: (found == "trained").all())
        means = runs.groupby("model.depth")[column].mean().where(whole)
        np.testing.assert_allclose(lines[looks.LOOKS[scheme].color], means)
    ends = [path.vertices[:, 1] for bars in ax.collections for path in bars.get_paths()]
    # n = 3, a step of 0.01 or 0.3 between seeds: t(0.975, 2) / sqrt(3) = 2.4841 of it on each side
    half = {"final_loss": 0.024841, "metric_source_gain": 0.0, "metric_bleu": 0.745241}[column]
    np.testing.assert_allclose([(high - low) / 2 for low, high in ends], half, atol=1e-6)
    assert len(ends) == 10 + 9 + 7  # all at 6; at 12 not post_norm; at 18 ds_init and admin, too


def test_levels_are_named_with_their_values(sheet: Figure) -> None:
    texts = {name: [t.get_text() for t in ax.texts] for name, ax in ours(sheet).items()}
    assert texts == {
        "final_loss": ["baseline\n5.64", "bigram\n3.85"],
        "metric_source_gain": ["source\nnot used"],
        "metric_bleu": ["source copied\n1.6", "nearest in\ntraining\n5.3"],
    }
    drawn = [list(line.get_ydata()) for line in ours(sheet)["metric_bleu"].lines]
    for height in (1.6, 5.3):
        assert any(line == pytest.approx([height, height]) for line in drawn)


@pytest.mark.parametrize(("name", "drawn", "diverged"), [("figure_6", 89, 11), ("table_1", 25, 15)])
def test_the_papers_numbers_are_hollow_on_axes_of_their_own(
    sheet: Figure, name: str, drawn: int, diverged: int
) -> None:
    ax, rows = papers(sheet)[name], published(name)
    assert heights(ax, hollow=True) == sorted(rows["bleu"].dropna())
    assert heights(ax, hollow=False) == []
    assert len(heights(ax)) == drawn
    assert [what for what, _ in strip(ax)] == ["diverged (paper)"] * diverged


def test_no_two_panels_share_an_axis_of_height(sheet: Figure) -> None:
    names = [ax.get_ylabel().split("\n")[0] for ax in sheet.axes]
    assert names == ["validation loss", "source gain", "BLEU", "BLEU (paper)", "BLEU (paper)"]
    for ax in sheet.axes:
        assert set(ax.get_shared_y_axes().get_siblings(ax)) == {ax}


def test_a_scheme_of_the_paper_looks_like_ours(sheet: Figure) -> None:
    lines = {to_hex(line.get_color()): line for line in markers(papers(sheet)["table_1"])}
    deepnorm = lines[looks.LOOKS["deepnorm"].color]
    assert list(deepnorm.get_ydata()) == [27.8, 28.8, 29.0, 28.9]


def test_the_papers_depths_are_evenly_spaced_and_named(sheet: Figure) -> None:
    for name, depths in (("figure_6", range(10, 101, 10)), ("table_1", (6, 18, 50, 100))):
        ax = papers(sheet)[name]
        ticks = ax.get_xticks()
        assert np.diff(np.log2(ticks)) == pytest.approx(1)
        names = [ax.xaxis.get_major_formatter()(tick, 0) for tick in ticks]
        assert names == [str(depth) for depth in depths]


def test_what_only_the_paper_has_is_grey(sheet: Figure) -> None:
    assert len(set(to_rgb(looks.look("R-Fixup").color))) == 1
    for ax in papers(sheet).values():
        assert looks.look("R-Fixup").color in {to_hex(line.get_color()) for line in markers(ax)}


def test_the_legend_names_each_scheme_once(sheet: Figure) -> None:
    (legend,) = sheet.legends
    assert [text.get_text() for text in legend.get_texts()] == [*SCHEMES, "R-Fixup"]


def test_schemes_of_the_paper_that_a_study_lacks_are_in_the_legend(table: Table) -> None:
    part = table.runs[table.runs["scheme"].isin(["b2t", "pre_norm"])]
    sheet = figures.figure_6(replace(table, runs=part, missing=table.missing.iloc[:0]))
    names = [text.get_text() for text in sheet.legends[0].get_texts()]
    assert names[:2] == ["b2t", "pre_norm"]
    assert sorted(names[2:]) == sorted([*set(SCHEMES) - {"b2t", "pre_norm"}, "R-Fixup"])


def test_the_caption_tells_ours_from_the_papers(sheet: Figure) -> None:
    caption = sheet.get_supxlabel()
    for fact in (
        *("depth_sweep", "n = 3 seeds", "missing cells: 3", "Student t", "hollow: stalled"),
        *("hollow: the paper's, arXiv:2203.00555", "not to be mixed with ours", "other corpora"),
        *("read from the drawing", "reading error 0.1 to 0.3", "R-Fixup", "nearest in training"),
    ):
        assert fact in caption
    titles = [inset.get_title() for ax in papers(sheet).values() for inset in ax.child_axes]
    assert titles == [
        "paper, Figure 6: IWSLT-14 De-En (digitised)",
        "paper, Table 1: WMT-17 En-De (printed)",
    ]


@pytest.mark.parametrize("name", ["figure_6", "by_resource"])
def test_no_two_texts_of_a_figure_overlap(table: Table, name: str) -> None:
    sheet = figures.find(name)(table)
    sheet.draw_without_rendering()
    texts = [sheet._suptitle, sheet._supxlabel, *sheet.legends[0].get_texts()]
    for ax in itertools.chain(sheet.axes, *(panel.child_axes for panel in sheet.axes)):
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = axis.get_view_interval()
            texts += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    shown = [text for text in texts if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown]
    assert len(boxes) > 40
    for (a, box), (b, other) in itertools.combinations(boxes, 2):
        width, height = (
            min(getattr(box, end + "1"), getattr(other, end + "1"))
            - max(getattr(box, end + "0"), getattr(other, end + "0"))
            for end in "xy"
        )
        assert min(width, height) < 2, (a, b)  # pixels: a box is a little larger than its glyphs


@pytest.fixture(scope="module")
def folder(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drawn")
    figures.draw(figures.figure_6, table, path)
    return path


def test_two_drawings_are_the_same_bytes(table: Table, folder: Path, tmp_path: Path) -> None:
    figures.draw(figures.figure_6, table, tmp_path)
    for name in ("figure_6.svg", "figure_6.png", "figure_6.json"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_figure_is_stale_when_the_papers_rows_change(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not figures.stale(figures.figure_6, table, folder)
    monkeypatch.setattr(plot, "published", lambda name: published(name).iloc[1:])
    assert figures.stale(figures.figure_6, table, folder)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("figure_6", "reference_loss"),
        ("figure_6", "metric_source_gain"),
        ("figure_6", "metric_bleu"),
        ("figure_6", "metric_bleu_nearest"),
        ("by_resource", "metric_loss_high"),
    ],
)
def test_a_lacking_column_is_named(table: Table, name: str, column: str) -> None:
    with pytest.raises(ConfigError) as error:
        figures.find(name)(replace(table, runs=table.runs.drop(columns=column)))
    what = f"depth_sweep: figure {name!r} needs the column {column!r}"
    assert str(error.value) == f"{what}, which the results lack"


def test_by_resource_draws_every_run_of_both_groups(table: Table) -> None:
    axes = figures.by_resource(table).axes
    columns = [f"metric_{what}_{group}" for what in ("loss", "bleu") for group in ("low", "high")]
    for ax, column in zip(axes, columns, strict=True):
        assert heights(ax) == sorted(table.runs[column].dropna())
        assert sorted(name for name, _ in strip(ax)) == ["diverged"] * 3 + ["missing"] * 3
    titles = [inset.get_title() for ax in axes for inset in ax.child_axes]
    assert titles == ["low-resource pairs", "high-resource pairs"] * 2
    assert axes[0].get_ylim() == axes[1].get_ylim() != axes[2].get_ylim() == axes[3].get_ylim()


def test_by_resource_without_bleu_is_two_panels(table: Table) -> None:
    runs = table.runs.drop(columns=["metric_bleu_low", "metric_bleu_high"])
    axes = figures.by_resource(replace(table, runs=runs)).axes
    assert [heights(ax)[0] for ax in axes] == pytest.approx([3.4 + 0.6, 3.4 - 0.2])


@pytest.mark.filterwarnings("error")
def test_the_name_of_a_long_variant_leaves_the_panels_their_width(
    table: Table, sheet: Figure
) -> None:
    fields = ('directions=["tgt>src"]', "beam=3", "length_penalty=0.8", "max_words=12")
    name = "+data.".join(("study", *fields))
    long = figures.figure_6(replace(table, study=name))
    for drawn in (sheet, long):
        drawn.draw_without_rendering()
    widths = [[ax.get_window_extent().width for ax in drawn.axes] for drawn in (sheet, long)]
    assert widths[1] == pytest.approx(widths[0], rel=0.05)
    small = long._supxlabel  # type: ignore[attr-defined]
    assert small.get_window_extent().x1 <= long.bbox.x1
    assert name in small.get_text().replace("\n", "")
