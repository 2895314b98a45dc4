"""What --set and --only make of a study: a selection of its cells, or a variant."""

from pathlib import Path

import pytest

from harness.sweep.plan import Plan
from tests.sweep.test_study import message, plan, study

AXES = '{"scheme": ["post_norm", "deepnorm"], "model.depth": [1, 2.0], "seed": [0, 1]}'


def selected(found: Plan) -> list[tuple[object, ...]]:
    return [cell.values for cell in found.selected]


@pytest.mark.parametrize("spelling", ["2", "2.0", "02"])
def test_set_to_values_of_an_axis_selects_cells_of_the_study(tmp_path: Path, spelling: str) -> None:
    whole = plan(tmp_path, AXES)
    part = plan(tmp_path, AXES, sets=[f"model.depth={spelling}"])
    assert (part.name, part.variation, part.selection) == ("mine", {}, "+model.depth=2")
    assert part.by_key.keys() == whole.by_key.keys()
    assert selected(part) == [c.values for c in whole.cells if c.values[1] == 2]


def test_set_to_all_values_of_an_axis_selects_everything(tmp_path: Path) -> None:
    part = plan(tmp_path, AXES, sets=["model.depth=2,1"], only=["seed=0,1"])
    assert (part.selection, part.selected) == ("", plan(tmp_path, AXES).cells)


def test_a_value_that_the_file_does_not_have_makes_a_variant(tmp_path: Path) -> None:
    whole = plan(tmp_path, AXES)
    found = plan(tmp_path, AXES, sets=["model.depth=2,3"])
    assert found.name == "mine+model.depth=2,3"
    assert found.variation == {"model.depth": ["2", "3"]}
    assert len(found.by_key.keys() & whole.by_key.keys()) == 4
    assert len(found.cells) == 8 and found.selected == found.cells


def test_a_variant_has_all_cells_whatever_is_selected_of_it(tmp_path: Path) -> None:
    whole = plan(tmp_path, AXES, sets=["optim.lr=0.1"])
    part = plan(tmp_path, AXES, sets=["optim.lr=0.1", "model.depth=1"], only=["seed=1"])
    assert part.name == whole.name == "mine+optim.lr=0.1"
    assert part.by_key.keys() == whole.by_key.keys()
    assert selected(part) == [("post_norm", 1, 1, 0.1), ("deepnorm", 1, 1, 0.1)]
    assert part.selection == "+model.depth=1+seed=1"


def test_an_option_of_the_selected_scheme_makes_a_variant_of_its_cells_alone(
    tmp_path: Path,
) -> None:
    beta = "scheme_options.beta=true,false"
    found = plan(tmp_path, AXES, sets=["scheme=deepnorm", beta])
    assert found.name == "mine+scheme_options.beta=True,False"
    assert {c.config.scheme for c in found.cells} == {"deepnorm"} and len(found.cells) == 8
    path = study(tmp_path, AXES)
    refused = message(str(path), sets=[beta])
    assert refused.endswith("scheme_options: post_norm has no option 'beta' (it has no options)")
    wrong = message(str(path), sets=["scheme=deepnorm", "scheme_options.bta=true"])
    assert wrong.endswith("deepnorm has no option 'bta' (did you mean 'beta'?)")
    for depth in ("1", "2"):  # the file spells one of them 2.0
        said = message(str(path), sets=[f"model.depth={depth}", "model.heads=3"])
        assert said.endswith("model.heads: 3 does not divide model.width 8; choose a divisor")


def test_nothing_selected_is_refused(tmp_path: Path) -> None:
    said = message(str(study(tmp_path, AXES)), sets=["seed=0"], only=["seed=1"])
    assert said == "mine: no cell has all of the selected values; leave one out"


def test_a_variant_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    seeds = f"seed={','.join(map(str, range(200)))}"
    found = plan(tmp_path, AXES, sets=[seeds], name="more-seeds")
    assert (found.name, found.study) == ("more-seeds", "mine")
    assert found.command.endswith(f"--set {seeds} --name more-seeds")


@pytest.mark.parametrize(
    ("sets", "name", "words"),
    [
        ([], "n", "--name n: nothing makes a variant of mine; add --set"),
        (["seed=0"], "n", "--name n: nothing makes a variant of mine; add --set"),
        (["seed=5"], "mine", "--name mine: is the name of a study; choose another"),
        (["seed=5"], "quick", "--name quick: is the name of a study; choose another"),
        (
            ["seed=5"],
            "a/b",
            "--name a/b: not a name for a folder; use letters, digits, '-' and '_', "
            "at most 80 bytes",
        ),
        (
            ["seed=5"],
            "..",
            "--name ..: not a name for a folder; use letters, digits, '-' and '_', "
            "at most 80 bytes",
        ),
        (
            ["seed=5"],
            "n" * 81,
            f"--name {'n' * 81}: not a name for a folder; use letters, digits, "
            "'-' and '_', at most 80 bytes",
        ),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    tmp_path: Path, sets: list[str], name: str, words: str
) -> None:
    assert message(str(study(tmp_path, AXES)), sets=sets, name=name) == words


def test_a_scheme_without_norms_is_one_cell_and_hides_no_value(tmp_path: Path) -> None:
    axes = '{"scheme": ["rezero", "post_norm"], "model.norm": ["layernorm", "rmsnorm"]}'
    whole = plan(tmp_path, axes)
    assert [c.values for c in whole.cells] == [
        ("rezero", "layernorm"),
        ("post_norm", "layernorm"),
        ("post_norm", "rmsnorm"),
    ]
    for words in ({"only": ["model.norm=rmsnorm"]}, {"sets": ["model.norm=rmsnorm"]}):
        assert selected(plan(tmp_path, axes, **words)) == [("post_norm", "rmsnorm")]
    kinds = plan(tmp_path, '{"scheme": ["rezero", "post_norm"]}', sets=["model.norm=rmsnorm"])
    assert kinds.name == "mine+model.norm=rmsnorm"  # not that of layernorm,rmsnorm
    assert [c.values for c in kinds.cells] == [("rezero", "layernorm"), ("post_norm", "rmsnorm")]
    paired = (
        '{"model.family": ["encoder", "encoder_decoder"], "model.cross_attention": [True, False]}'
    )
    base = plan(tmp_path, paired, only=["model.cross_attention=true"])
    assert selected(base) == [("encoder_decoder", True)]
