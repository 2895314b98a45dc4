"""The paper's numbers as they are committed, and what is said of a file that is not whole."""

from pathlib import Path

import pytest

from harness.analysis.figures.paper import COLUMNS, published
from harness.errors import ConfigError
from harness.schemes import all_schemes

# arXiv:2203.00555 Table 1, WMT-17 En-De, BLEU at 6-6, 18-18, 50-50 and 100-100; None: diverged.
TABLE_1 = {
    "Post-LN": (28.1, None, None, None),
    "DS-Init": (27.9, None, None, None),
    "Admin": (27.9, 28.8, None, None),
    "ReZero": (26.9, None, None, None),
    "R-Fixup": (27.5, 28.4, 27.7, None),
    "T-Fixup": (27.5, 28.4, 27.9, None),
    "Pre-LN": (27.0, 28.1, 28.0, 27.4),
    "DLCL": (27.4, 28.2, None, 27.5),
    "NormFormer": (27.0, 28.3, 27.8, None),
    "DeepNet": (27.8, 28.8, 29.0, 28.9),
}
# Its Figure 6, IWSLT-14 De-En, read from the drawing, at 10-10, 20-20, ... 100-100.
FIGURE_6 = {
    "DeepNet": (29.8, 30.9, 31.1, 31.3, 31.2, 31.4, 31.7, 31.5, 31.5, 31.7),
    "Post-LN": (4.3, *[None] * 9),
    "Admin": (28.8, 29.2, 28.8, 28.2, 27.8, 22.6, 16.7, 16.9, None, None),
    "Pre-LN": (29.6, 29.1, 28.2, 27.0, 26.6, 26.3, 25.6, 25.1, 24.7, 24.3),
}
NAMES = {
    "Post-LN": "post_norm",
    "DS-Init": "ds_init",
    "Admin": "admin",
    "ReZero": "rezero",
    "R-Fixup": "",
    "T-Fixup": "t_fixup",
    "Pre-LN": "pre_norm",
    "DLCL": "dlcl",
    "NormFormer": "normformer",
    "DeepNet": "deepnorm",
}
DEPTHS = {"table_1": [6, 18, 50, 100], "figure_6": list(range(10, 101, 10))}
GOLDEN = [("table_1", label) for label in TABLE_1] + [("figure_6", label) for label in FIGURE_6]
both = pytest.mark.parametrize("name", DEPTHS)
HEAD = ",".join(COLUMNS)


@pytest.mark.parametrize(("name", "label"), GOLDEN)
def test_bleu_is_as_the_paper_has_it(name: str, label: str) -> None:
    rows = published(name)
    found = rows.loc[rows["label"] == label, "bleu"]
    expected = (TABLE_1 if name == "table_1" else FIGURE_6)[label]
    assert [None if bleu != bleu else bleu for bleu in found] == list(expected), (
        "only a correction of what was read from the paper may change results/paper"
    )


@both
def test_ten_schemes_stand_at_every_depth_once(name: str) -> None:
    rows = published(name)
    assert len(rows) == 10 * len(DEPTHS[name])
    assert (rows["encoder_layers"] == rows["decoder_layers"]).all()
    for label in NAMES:
        assert rows.loc[rows["label"] == label, "encoder_layers"].tolist() == DEPTHS[name]


@both
def test_the_papers_names_are_mapped_to_schemes_of_ours(name: str) -> None:
    rows = published(name)
    assert dict(zip(rows["label"], rows["scheme"], strict=True)) == NAMES
    assert set(NAMES.values()) - {""} <= set(all_schemes())


@pytest.mark.parametrize(
    ("name", "source", "confidence", "diverged"),
    [
        ("figure_6", "arXiv:2203.00555 Figure 6", "digitised", 11),
        ("table_1", "arXiv:2203.00555 Table 1", "printed", 15),
    ],
)
def test_each_row_says_where_it_is_from(
    name: str, source: str, confidence: str, diverged: int
) -> None:
    rows = published(name)
    assert set(rows["source"]) == {source}
    assert set(rows["confidence"]) == {confidence}
    assert (rows["status"] == "diverged").sum() == diverged
    if confidence == "digitised":
        assert rows["notes"].str.startswith("reading error 0.").all()


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        published("table_1", tmp_path)
    path = tmp_path / "table_1.csv"
    assert str(error.value) == f"{path}: no such file; restore it, or install the harness again"


ROW = "rezero,ReZero,6,6,{bleu},{status},somewhere,printed,"
WRONG = "not two depths, and BLEU or 'diverged'; restore the file"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([HEAD.replace("label,", "")], f"line 1: expected {HEAD}; restore the file"),
        ([HEAD, ROW.format(bleu="26.9", status="ok"), ROW.format(bleu="", status="ok")], "line 3"),
        ([HEAD, ROW.format(bleu="26.9", status="diverged")], f"line 2: {WRONG}"),
        ([HEAD, ROW.format(bleu="much", status="ok")], f"line 2: {WRONG}"),
        ([HEAD, ROW.format(bleu="26.9", status="ok").replace("6,6", "6,")], f"line 2: {WRONG}"),
        ([HEAD, ROW.format(bleu="26.9", status="ok") + ",more"], f"line 2: {WRONG}"),
        ([HEAD, "rezero,ReZero"], f"line 2: {WRONG}"),
        ([], "not readable as CSV"),
    ],
)
def test_a_file_that_is_not_whole_is_named_with_its_line(
    tmp_path: Path, rows: list[str], message: str
) -> None:
    (tmp_path / "table_1.csv").write_text("\n".join(rows))
    with pytest.raises(ConfigError) as error:
        published("table_1", tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'table_1.csv'}: {message}")
    assert str(error.value).endswith("restore the file")
    assert "\n" not in str(error.value)
