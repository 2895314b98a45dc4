"""Study files, plans, and what a command line does to them."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.sweep.study import Plan, load, spelling
from tests.commands import run

BASE = """{
    "scheme": "deepnorm", "seed": 0,
    "model": {"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16},
    "data": {"name": "reverse"},
    "optim": {"lr": 1e-3},
    "train": {"steps": 2, "batch": 2, "length": 4},
}"""


def study(
    folder: Path, axes: str, name: str = "mine", before: str = "", tune: str = "None"
) -> Path:
    path = folder / f"{name}.py"
    path.write_text(
        f'"""A question?"""\nfrom harness.sweep import Study\n{before}\n'
        f"STUDY = Study(base={BASE}, axes={axes}, tune={tune})\n"
    )
    return path


def plan(folder: Path, axes: str, **words: list[str]) -> Plan:
    return load(str(study(folder, axes)), **words)


def message(*arguments: object, **words: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **words)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_cells_are_the_product_of_the_axes_in_order(tmp_path: Path) -> None:
    found = plan(
        tmp_path, '{"scheme": ["post_norm", "deepnorm"], "model.depth": [2, 1], "seed": [0]}'
    )
    assert [c.values for c in found.cells] == [
        ("post_norm", 2, 0),
        ("post_norm", 1, 0),
        ("deepnorm", 2, 0),
        ("deepnorm", 1, 0),
    ]
    assert found.chosen == {c.key for c in found.cells}


def test_two_spellings_of_a_value_are_one_cell(tmp_path: Path) -> None:
    found = plan(tmp_path, '{"model.depth": [2, 2.0], "optim.lr": [1e-3, 0.001], "seed": [0]}')
    assert len(found.cells) == 1


def test_the_built_in_studies_load_and_quick_has_forty_cells() -> None:
    assert len(load("quick").cells) == 40
    assert len(load("smoke").cells) == 8


def test_set_replaces_an_axis_and_keeps_the_name(tmp_path: Path) -> None:
    found = plan(tmp_path, '{"model.depth": [1, 2], "seed": [0]}', sets=["model.depth=3,064"])
    assert found.name == "mine"
    assert [c.values[0] for c in found.cells] == [3, 64]


def test_set_elsewhere_makes_a_variant_with_a_name_of_its_own(tmp_path: Path) -> None:
    plain = plan(tmp_path, '{"seed": [0]}')
    variant = plan(tmp_path, '{"seed": [0]}', sets=["optim.lr=3e-4"])
    assert variant.name == "mine+optim.lr=0.0003"
    assert variant.axes == ("seed", "optim.lr")
    assert variant.cells[0].config.optim.lr == 3e-4
    assert variant.cells[0].key != plain.cells[0].key


def test_only_chooses_cells_and_changes_no_identity(tmp_path: Path) -> None:
    axes = '{"scheme": ["post_norm", "rezero"], "model.depth": [1, 2], "seed": [0, 1]}'
    whole = plan(tmp_path, axes)
    part = plan(tmp_path, axes, only=["model.depth=2.0", "scheme=rezero"])
    assert [c.key for c in part.cells] == [c.key for c in whole.cells]
    assert part.chosen == {c.key for c in whole.cells if c.values[:2] == ("rezero", 2)}


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ("model.depht=2", "--only model.depht: not an axis of mine (did you mean 'model.depth'?)"),
        ("model.depth=7", "--only model.depth=7: no cell has it (cells have: 1, 2)"),
        ("model.depth", "--only model.depth: expected path=v or path=v,v"),
        ("model.depth=1,,2", "'1,,2': an empty value; write v or v,v"),
        ("model.depth=x", "--only model.depth: model.depth: expected a positive integer, got 'x'"),
    ],
)
def test_only_refuses_what_no_cell_has(tmp_path: Path, only: str, words: str) -> None:
    path = study(tmp_path, '{"model.depth": [1, 2], "seed": [0]}')
    assert message(str(path), only=[only]) == words


def test_a_misspelt_study_is_refused_with_a_hint() -> None:
    assert message("qick") == "study 'qick': not in studies/ (did you mean 'quick'?)"
    assert message("no/such.py") == "no/such.py: no such study file; name a study or a path to one"


def test_a_file_that_shadows_a_built_in_study_is_refused(tmp_path: Path) -> None:
    path = study(tmp_path, '{"seed": [0]}', name="quick")
    assert message(str(path)).endswith("the built-in study 'quick' has this name; rename the file")


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ('{"model.depht": [1]}', "model: unknown field 'depht' (did you mean 'depth'?)"),
        (
            '{"scheme": ["deepnrom"]}',
            "scheme: unknown scheme 'deepnrom' (did you mean 'deepnorm'?)",
        ),
        ('{"model.depth": [1, "2"]}', "model.depth: expected a positive integer, got '2'"),
        ('{"model.heads": [3]}', "model.heads: 3 does not divide model.width 8; choose a divisor"),
        ('{"seed": []}', "axes: seed: expected a list of values, got []"),
        ('{"scheme": "rezero"}', "axes: scheme: expected a list of values, got 'rezero'"),
    ],
)
def test_an_axis_that_does_not_fit_names_file_field_and_value(
    tmp_path: Path, axes: str, words: str
) -> None:
    path = study(tmp_path, axes)
    assert message(str(path)) == f"{path}: {words}"


def test_a_study_file_that_raises_is_told_by_line(tmp_path: Path) -> None:
    path = study(tmp_path, '{"seed": [0]}', before="x = 1 / 0")
    assert message(str(path)) == f"{path}: line 3: ZeroDivisionError: division by zero"
    path.write_text("STUDY = (")
    assert message(str(path)).startswith(f"{path}: line 1: SyntaxError")
    path.write_text("x = 1")
    assert message(str(path)).startswith(f"{path}: STUDY: missing")
    path.write_text(
        "from harness.sweep import Study\nSTUDY = Study(base='none.toml', axes={'seed': [0]})"
    )
    assert "none.toml: no such file" in message(str(path))


def test_values_are_spelled_as_rows_hold_them() -> None:
    assert [spelling(v) for v in ("rezero", 1e-3, 64, {"b": 1, "a": 2.0}, (0.9, 0.98))] == [
        "rezero",
        "0.001",
        "64",
        '{"a":2.0,"b":1}',
        "[0.9,0.98]",
    ]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "STUDY = Study(base=3, axes={'seed': [0]})",
            "base: expected a file's name or a table, got 3",
        ),
        ("STUDY = Study(base={}, axes=['seed'])", "axes: expected a table of lists by config path"),
        ("STUDY = Study(base={}, axes={3: [0]})", "axes: expected a table of lists by config path"),
        (
            "STUDY = Study(base={}, axes={'seed': [0]})\nFIGURES = [print]",
            "FIGURES: expected functions of harness.analysis.figures",
        ),
        ("raise SystemExit(5)", "line 2: SystemExit: 5"),
        (
            "STUDY = Study(base={}, axes={'scheme_options.beta': [True], 'scheme_options': [{}]})",
            "axes: scheme_options holds scheme_options.beta; keep one of the two",
        ),
    ],
)
def test_a_wrong_declaration_is_one_line(tmp_path: Path, code: str, words: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(f"from harness.sweep import Study\n{code}\n")
    assert message(str(path)) == f"{path}: {words}"


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ('["optim.lr"]', "tune: expected a table of lists by config path"),
        ("{3: [1]}", "tune: expected a table of lists by config path"),
        ('{"optim.lr": [1e-3]}', "tune: seeds: missing; name seeds that are not reported"),
        ('{"seeds": [9]}', "tune: no path; name one and its values, as optim.lr"),
        (
            '{"model.depth": [1], "seeds": [9]}',
            "tune: model.depth: is an axis already; keep one of the two",
        ),
        ('{"seed": [7], "seeds": [9]}', "tune: seed: is an axis already; keep one of the two"),
        ('{"optim.lr": [1e-3], "seeds": [9, 1]}', "tune: seeds: 1 is reported; tune on others"),
        ('{"optim.lr": [1e-3], "seeds": [1.0]}', "tune: seeds: 1 is reported; tune on others"),
        (
            '{"optim.lr": "1e-3", "seeds": [9]}',
            "tune: optim.lr: expected a list of values, got '1e-3'",
        ),
        ('{"optim.lr": [], "seeds": [9]}', "tune: optim.lr: expected a list of values, got []"),
        ('{"optim.lr": [1e-3], "seeds": 9}', "tune: seeds: expected a list of values, got 9"),
        (
            '{"optim.lr": [1e-3], "seeds": ["nine"]}',
            "tune: seeds: expected integers from 0 on, got 'nine'",
        ),
        (
            '{"optim.lr": [1e-3], "seeds": [[9]]}',
            "tune: seeds: expected integers from 0 on, got [9]",
        ),
        (
            '{"optim.weight_dekay": [0.1], "seeds": [9]}',
            "optim: unknown field 'weight_dekay' (did you mean 'weight_decay'?)",
        ),
        (
            '{"optim.lr": [1e-3, "fast"], "seeds": [9]}',
            "optim.lr: expected a positive number, got 'fast'",
        ),
        (
            '{"optim.betas": [[0.9, 0.98], [0.9]], "seeds": [9]}',
            "optim.betas: expected a list of two numbers, got [0.9]",
        ),
        (
            '{"scheme_options": [{}], "seeds": [9]}',
            "tune: scheme_options: is a table; name each path that it holds",
        ),
    ],
)
def test_a_tuning_that_does_not_fit_names_file_field_and_value(
    tmp_path: Path, tune: str, words: str
) -> None:
    path = study(tmp_path, '{"model.depth": [1], "seed": [0, 1]}', tune=tune)
    assert message(str(path)) == f"{path}: {words}"


def test_an_axis_cannot_hold_what_is_tuned(tmp_path: Path) -> None:
    tune = '{"scheme_options.beta": [True], "seeds": [9]}'
    path = study(tmp_path, '{"scheme_options": [{}, {"beta": False}], "seed": [0]}', tune=tune)
    words = "tune: scheme_options holds scheme_options.beta; keep one of the two"
    assert message(str(path)) == f"{path}: {words}"


def test_a_tuning_seed_cannot_be_reported_by_the_command_line_either(tmp_path: Path) -> None:
    for axes in ('{"seed": [0]}', '{"model.depth": [1]}'):
        path = study(tmp_path, axes, tune='{"optim.lr": [1e-3], "seeds": [8, 9]}')
        words = message(str(path), sets=["seed=1,9"])
        assert words == f"{path}: tune: seeds: 9 is reported; tune on others"


def test_a_decoder_as_deep_as_its_encoder_is_found_by_its_depth(tmp_path: Path) -> None:
    path = study(tmp_path, '{"model.depth": [1, 2], "model.decoder_depth": [1, 3], "seed": [0]}')
    path.write_text(path.read_text().replace('"decoder", "depth"', '"encoder_decoder", "depth"'))
    whole = load(str(path), only=["model.decoder_depth=1"])
    assert [c.values for c in whole.cells] == [(1, 1, 0), (1, 3, 0), (2, 1, 0), (2, 3, 0)]
    assert whole.chosen == {whole.cells[0].key, whole.cells[2].key}


def test_a_signal_while_a_study_loads_is_not_the_fault_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    assert run(tmp_path, "status", "./slow.py", code=143) == ("", "")
