"""Study files, plans, and what a command line does to them."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.sweep.plan import Plan, spelling
from harness.sweep.study import load
from harness.training.config import canonical
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


def plan(folder: Path, axes: str, **words: Any) -> Plan:
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
    assert found.selected == found.cells


def test_two_spellings_of_a_value_are_one_cell(tmp_path: Path) -> None:
    found = plan(tmp_path, '{"model.depth": [2, 2.0], "optim.lr": [1e-3, 0.001], "seed": [0]}')
    assert len(found.cells) == 1


def test_the_built_in_studies_load_and_quick_has_forty_cells() -> None:
    assert len(load("quick").cells) == 40
    assert len(load("smoke").cells) == 8


def test_set_elsewhere_makes_a_variant_with_a_name_of_its_own(tmp_path: Path) -> None:
    plain = plan(tmp_path, '{"seed": [0]}')
    variant = plan(tmp_path, '{"seed": [0]}', sets=["optim.lr=3e-4"])
    assert variant.name == "mine+optim.lr=0.0003"
    assert variant.axes == ("seed", "optim.lr")
    assert variant.cells[0].config.optim.lr == 3e-4
    assert variant.cells[0].key != plain.cells[0].key


@pytest.mark.parametrize(
    ("option", "number", "several"),
    [
        ("train.steps=1,000", "1000", "1, 000"),
        ("train.steps=1,500", "1500", "1, 500"),
        ("optim.clip=1,0", "1.0", "1, 0"),
        ("optim.lr=0,001", "0.001", "0, 001"),
        ("data.length_penalty=0,6", "0.6", "0, 6"),
        ("scheme_options.share=0,25", "0.25", "0, 25"),
    ],
)
def test_a_comma_that_may_be_within_a_number_is_refused(
    tmp_path: Path, option: str, number: str, several: str
) -> None:
    path, _, value = option.partition("=")
    said = message(str(study(tmp_path, '{"seed": [0]}')), [option])
    assert said == (
        f"--set {path}: '{value}': one number or several values? write one as {number}, several as "
        f"'{several}'"
    )


def test_whole_numbers_between_commas_are_several(tmp_path: Path) -> None:
    for values, axis in (("6,12", "model.depth"), ("1,0", "seed"), ("64,128", "train.steps")):
        found = plan(tmp_path, '{"seed": [0]}', sets=[f"{axis}={values}"])
        assert [str(c.config.at(axis)) for c in found.cells] == values.split(",")
    clip = plan(tmp_path, '{"seed": [0]}', sets=["optim.clip=1, 0"])
    assert [c.config.optim.clip for c in clip.cells] == [1, 0]


def test_a_value_in_quotes_may_hold_a_comma_and_the_command_that_is_named_holds_it(
    tmp_path: Path,
) -> None:
    sets = ["data.name=text", 'data.path="a,b.txt"']
    found = plan(tmp_path, '{"seed": [0]}', sets=sets)
    assert [c.config.at("data.path") for c in found.cells] == ["a,b.txt"]
    assert [word for word in shlex.split(found.command) if "=" in word] == sets


def test_only_chooses_cells_and_changes_no_identity(tmp_path: Path) -> None:
    axes = '{"scheme": ["post_norm", "rezero"], "model.depth": [1, 2], "seed": [0, 1]}'
    whole = plan(tmp_path, axes)
    part = plan(tmp_path, axes, only=["model.depth=2.0", "scheme=rezero"])
    assert [c.key for c in part.cells] == [c.key for c in whole.cells]
    expected = [c.key for c in whole.cells if c.values[:2] == ("rezero", 2)]
    assert [c.key for c in part.selected] == expected
    assert part.selection == "+scheme=rezero+model.depth=2"


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ("model.depht=2", "--only model.depht: not an axis of mine (did you mean 'model.depth'?)"),
        ("model.depth=7", "--only model.depth=7: no cell has it (cells have: 1, 2)"),
        ("model.depth", "--only model.depth: expected path=v or path=v,v"),
        ("model.depth=1,,2", "--only model.depth: '1,,2': an empty value; write v or v,v"),
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
        *(
            (
                f'{{"optim.lr": [1e-3, 3e-3], "seeds": [9], "extend": {given}}}',
                f"tune: extend: expected an integer from 0 on, got {given}",
            )
            for given in ("-1", "1.5", "'two'", "[2]", "True")
        ),
        *(
            (
                f'{{{given}, "seeds": [9], "extend": 1}}',
                "tune: extend: needs one tuned path with two or more positive numbers, got "
                f"{said}; leave it out",
            )
            for given, said in (
                ('"optim.lr": [1e-3]', "optim.lr=[0.001]"),
                ('"optim.lr": [1e-3, 1e-3]', "optim.lr=[0.001, 0.001]"),
                ('"optim.warmup_steps": [0, 50]', "optim.warmup_steps=[0, 50]"),
                ('"model.norm": ["layernorm", "rmsnorm"]', "model.norm=['layernorm', 'rmsnorm']"),
                (
                    '"optim.lr": [1e-3, 3e-3], "optim.eps": [1e-8, 1e-6]',
                    "optim.lr=[0.001, 0.003], optim.eps=[1e-08, 1e-06]",
                ),
            )
        ),
        (
            '{"train.held_out": ["valid"], "seeds": [9]}',
            "tune: train.held_out: differs between the runs that choose and the others; leave it "
            "out",
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
    assert whole.selected == (whole.cells[0], whole.cells[2])


def test_a_study_imports_its_neighbour_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path, modules = list(sys.path), set(sys.modules)
    for depth in (1, 2):
        (folder := tmp_path / str(depth)).mkdir()
        (folder / "neighbour").mkdir()
        (folder / "neighbour" / "__init__.py").write_text("from neighbour.depths import DEPTHS\n")
        (folder / "neighbour" / "depths.py").write_text(f"DEPTHS = [{depth}]\n")
        before = "from neighbour import DEPTHS"
        found = load(str(study(folder, '{"model.depth": DEPTHS, "seed": [0]}', before=before)))
        assert [cell.values for cell in found.cells] == [(depth, 0)]
    assert sys.path == path
    assert not {"neighbour", "neighbour.depths"} & (sys.modules.keys() - modules)


def test_a_study_that_fails_leaves_the_path_as_it_was(tmp_path: Path) -> None:
    path = list(sys.path)
    words = message(str(study(tmp_path, "{}", before="import no_such_neighbour")))
    assert words.endswith("line 3: ModuleNotFoundError: No module named 'no_such_neighbour'")
    assert sys.path == path


def test_a_table_merges_into_its_section(tmp_path: Path) -> None:
    found = plan(tmp_path, '{"model": [{"depth": 3}, {"width": 16, "ffn": 8}], "seed": [0]}')
    models = [cell.config.model for cell in found.cells]
    assert [(m.family, m.heads, m.depth, m.width, m.ffn) for m in models] == [
        ("decoder", 2, 3, 8, 16),
        ("decoder", 2, 1, 16, 8),
    ]
    assert spelling(found.cells[0].values[0]) == canonical(models[0].model_dump(mode="json"))


def test_a_table_of_options_merges_into_those_of_the_base(tmp_path: Path) -> None:
    path = study(tmp_path, '{"scheme_options": [{}, {"beta": False}], "seed": [0]}')
    path.write_text(path.read_text().replace('"seed": 0', '"scheme_options": {"alpha": False}'))
    whole = load(str(path))
    assert [cell.config.scheme_options for cell in whole.cells] == [
        {"alpha": False},
        {"alpha": False, "beta": False},
    ]
    typed = load(str(path), sets=['scheme_options={"beta": false},{}'])
    assert [cell.key for cell in typed.cells] == [cell.key for cell in reversed(whole.cells)]
    part = load(str(path), only=['scheme_options={"alpha": false}'])
    assert [cell.key for cell in part.selected] == [whole.cells[0].key]


def test_a_table_that_names_another_task_has_nothing_of_the_first(tmp_path: Path) -> None:
    axes = '{"data": [{"symbols": 8}, {"name": "reverse"}, {"name": "recall"}], "seed": [0]}'
    path = study(tmp_path, axes)
    path.write_text(path.read_text().replace('"reverse"}', '"reverse", "symbols": 7}', 1))
    tasks = [cell.config.data for cell in load(str(path)).cells]
    assert [(task.name, getattr(task, "symbols", None)) for task in tasks[:2]] == [
        ("reverse", 8),
        ("reverse", 7),
    ]
    assert tasks[2] == load(str(study(tmp_path, '{"data.name": ["recall"]}'))).cells[0].config.data


@pytest.mark.parametrize(
    ("numpys", "plain"),
    [
        ('{"model.depth": np.arange(2, 4), "seed": [0]}', '{"model.depth": [2, 3], "seed": [0]}'),
        ('{"model.depth": list(np.arange(2, 4)), "seed": (0,)}', '{"model.depth": [2, 3]}'),
        ('{"optim.lr": np.logspace(-3, -2, 2), "seed": [0]}', '{"optim.lr": [1e-3, 1e-2]}'),
        ('{"optim.betas": [np.array([0.5, 0.9])]}', '{"optim.betas": [[0.5, 0.9]]}'),
        ('{"scheme": np.array(["rezero"])}', '{"scheme": ["rezero"]}'),
        ('{"scheme_options.beta": np.array([False])}', '{"scheme_options.beta": [False]}'),
    ],
)
def test_numpys_values_are_plain_ones_with_the_same_runs(
    tmp_path: Path, numpys: str, plain: str
) -> None:
    found = load(str(study(tmp_path, numpys, before="import numpy as np")))
    expected = plan(tmp_path, plain)
    assert [cell.key for cell in found.cells] == [cell.key for cell in expected.cells]
    assert repr(found.cells[0].values[0]) == repr(expected.cells[0].values[0])


def test_numpys_numbers_may_stand_in_a_base_and_in_a_tuning(tmp_path: Path) -> None:
    tune = '{"optim.lr": np.array([1e-3, 1e-2]), "seeds": np.arange(8, 10)}'
    path = study(tmp_path, '{"seed": [0]}', before="import numpy as np", tune=tune)
    expected = load(str(path))
    path.write_text(
        path.read_text().replace('"width": 8', '"width": np.int64(8)').replace("np.arange", "range")
    )
    found = load(str(path))
    assert expected.tuning is not None and found.tuning is not None
    assert found.tuning.by_key.keys() == expected.tuning.by_key.keys()
    assert len(expected.tuning.cells) == 4


def test_a_signal_while_a_study_loads_is_not_the_fault_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    assert run(tmp_path, "status", "./slow.py", code=143) == ("", "")
