"""What a signature tells of schemes that are known, and the files and tables that say it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import harness.signature
from harness.analysis.figures.signature import PALE, signature
from harness.analysis.looks import look
from harness.cli import app
from harness.signature import measure
from tests.commands import run

Rows = dict[tuple[str, str, int], dict[str, Any]]


def small(patch: pytest.MonkeyPatch, *depths: int, steps: int = 10) -> None:
    patch.setattr(harness.signature, "DEPTHS", depths)
    patch.setattr(harness.signature, "SEEDS", (0,))
    patch.setattr(harness.signature, "STEPS", steps)


def measured(scheme: str, encoders: int, decoders: int) -> Rows:
    rows = measure(scheme, encoders, decoders, lambda line: None)
    return {(row["scheme"], row["stack"], row["depth"]): row for row in rows}


def test_in_the_decoder_of_a_pair_depth_takes_post_norms_gradient_and_not_pre_norms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small(monkeypatch, 6, 48)
    rows = measured("pre_norm", 1, 1)
    falls = {
        scheme: rows[scheme, "decoder", 6]["gradient_first"]
        / rows[scheme, "decoder", 48]["gradient_first"]
        for scheme in ("post_norm", "pre_norm")
    }
    assert falls["post_norm"] > 100
    assert falls["pre_norm"] < 10
    deep = rows["post_norm", "decoder", 48]
    assert deep["gradient_first"] < deep["gradient_middle"] < deep["gradient_last"]
    # A norm of the sum keeps the scale; a plain sum grows with every block.
    assert all(deep[f"activation_{b}"] == pytest.approx(1, abs=1e-3) for b in ("first", "last"))
    deep = rows["pre_norm", "decoder", 48]
    assert deep["activation_first"] < deep["activation_middle"] < deep["activation_last"]


def test_deepnorm_moves_less_than_post_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, 6, 12)
    rows = measured("deepnorm", 0, 1)
    for depth in (6, 12):
        slow, fast = (rows[s, "decoder", depth]["update"] for s in ("deepnorm", "post_norm"))
        assert 0 < slow < fast / 2
    assert {stack for _, stack, _ in rows} == {"decoder"}


def test_the_update_is_told_once_and_post_norm_is_compared_with_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small(monkeypatch, 2, steps=2)
    rows = measured("post_norm", 1, 1)
    assert list(rows) == [("post_norm", "encoder", 2), ("post_norm", "decoder", 2)]
    assert rows["post_norm", "encoder", 2]["update"] is None
    assert rows["post_norm", "decoder", 2]["update"] > 0


def test_the_mean_is_geometric_and_hides_no_seed() -> None:
    assert harness.signature._mean([1.0, 100.0]) == pytest.approx(10.0)
    assert harness.signature._mean([0.0, 1.0]) == 0.0
    assert harness.signature._mean([1.0, None]) is None
    assert harness.signature._mean([1.0, math.inf]) is None


def test_the_command_prints_a_table_and_writes_the_same_files_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small(monkeypatch, 2, 4, steps=2)
    given = ["show", "rezero", "--decoders", "3", "--signature", "--results"]
    text = CliRunner().invoke(app, [*given, str(tmp_path / "a")])
    assert text.exit_code == 0
    stem = tmp_path / "a" / "signatures" / "rezero"
    assert f"{stem}.svg" in text.stderr.splitlines()
    layers, _, table = text.stdout.split("\n\n")
    assert len(layers.splitlines()) == 1 + 2 * 3
    head, *rows = (line.split() for line in table.splitlines())
    assert head[:4] == ["scheme", "stack", "depth", "gradient_first"]
    assert head[-1] == "update"
    assert [row[:3] for row in rows] == [
        [scheme, "decoder", depth] for scheme in ("rezero", "post_norm") for depth in ("2", "4")
    ]

    again = CliRunner().invoke(app, [*given, str(tmp_path / "b"), "--json"])
    told = json.loads(again.stdout)
    assert list(told) == ["sublayers", "added_parameters", "signature"]
    assert [row["depth"] for row in told["signature"]] == [2, 4, 2, 4]
    for suffix in ("svg", "png"):
        files = [tmp_path / folder / "signatures" / f"rezero.{suffix}" for folder in "ab"]
        assert files[0].read_bytes() == files[1].read_bytes()


def row(scheme: str, depth: int, **changes: float | None) -> dict[str, Any]:
    names = [f"{n}_{b}" for n in ("gradient", "activation") for b in ("first", "middle", "last")]
    values = dict.fromkeys([*names, "update"], 1.0)
    return {"scheme": scheme, "stack": "decoder", "depth": depth, **values, **changes}


def test_the_figure_has_the_schemes_look_and_post_norm_in_grey() -> None:
    rows = [row(scheme, depth) for scheme in ("deepnorm", "post_norm") for depth in (6, 12)]
    sheet = signature("deepnorm", rows, 10, "")
    assert [len(ax.lines) for ax in sheet.axes] == [12, 12, 4]  # a line and its markers
    for ax in sheet.axes:
        assert {line.get_color() for line in ax.lines} == {look("deepnorm").color, PALE}
        assert ax.lines[-1].get_color() == look("deepnorm").color
        low, high = ax.get_ylim()
        assert high / low >= 9.99
    alone = signature("post_norm", rows[2:], 10, "")
    assert {line.get_color() for line in alone.axes[0].lines} == {look("post_norm").color}


def test_what_no_log_axis_shows_is_said_in_words() -> None:
    rows = [row("deepnorm", 6, gradient_middle=0.0), row("deepnorm", 12, update=None)]
    gradient, activation, update = (
        [text.get_text() for text in ax.texts] for ax in signature("deepnorm", rows, 10, "").axes
    )
    assert gradient == ["deepnorm, middle at 6: exactly 0"]
    assert activation == [""]
    assert update == ["deepnorm, update at 12: no value"]


def test_a_folder_that_cannot_be_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out, err = run(tmp_path, "show", "rezero", "--signature", "--results", "file", code=1)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("file/signatures: Not a directory; ")


def test_a_family_that_a_scheme_does_not_serve_is_refused(tmp_path: Path) -> None:
    pair = ("--encoders", "2", "--decoders", "2")
    out, err = run(tmp_path, "show", "keel", *pair, "--signature", code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("scheme 'keel' is defined for encoder and decoder")
    assert list(tmp_path.iterdir()) == []
