"""Schemes by name, options by signature, and the text of every refusal."""

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.fields import Typed
from harness.schemes import (
    FAMILIES,
    Learned,
    Place,
    Scheme,
    StackFacts,
    Wiring,
    all_schemes,
    find,
    registry,
    scheme,
)

AT = Place("self", "decoder", 1, 0, 4)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Scheme]]:
    """Schemes that a test declares are gone after it."""
    copy = dict(all_schemes())
    monkeypatch.setattr(registry, "REGISTRY", copy)
    yield copy


@pytest.fixture
def knobs(own_registry: dict[str, Scheme]) -> Scheme:
    @scheme("arXiv:0000.00000 section 1")
    def knobs(
        at: Place,
        *,
        switch: bool = True,
        size: int = 3,
        share: float = 0.5,
        kind: Literal["a", "b"] = "a",
    ) -> Wiring:
        """x + share F(x)

        Further lines are no part of the equation.
        """
        return Wiring(branch=share)

    return find("knobs")


def refusal(one: Scheme, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        one.check(options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_declared_scheme_is_found_under_its_functions_name(knobs: Scheme) -> None:
    assert all_schemes()["knobs"] is knobs
    assert knobs.source == "arXiv:0000.00000 section 1"
    assert knobs.equation == "x + share F(x)"
    assert knobs.revision == 1
    assert knobs.options == {"switch": True, "size": 3, "share": 0.5, "kind": "a"}
    assert knobs.wire(AT, {"share": 0.25}).branch == 0.25


def test_the_built_in_schemes_have_the_options_of_their_signatures() -> None:
    assert find("post_norm").options == {}
    assert find("pre_norm").options == {}
    assert find("rezero").options == {"final_norm": False}
    assert find("b2t").options == {"init": "xavier"}
    assert find("deepnorm").options == {
        "alpha": True,
        "beta": True,
        "norm_lr": "published",
        "encoder_constant": "paper",
    }


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("deepnrom", "(did you mean 'deepnorm'?)"),
        ("prenorm", "(did you mean 'pre_norm'?)"),
        ("zzz", "(known: "),
    ],
)
def test_an_unknown_scheme_is_answered_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name)
    assert str(caught.value).startswith(f"scheme: unknown scheme '{name}' {hint}")


def test_a_far_miss_is_answered_with_every_name() -> None:
    with pytest.raises(ConfigError) as caught:
        find("zzz")
    listed = str(caught.value).partition("(known: ")[2].rstrip(")").split(", ")
    assert listed == sorted(all_schemes())


def test_an_unknown_option_is_answered_with_the_nearest_option() -> None:
    assert refusal(find("deepnorm"), alhpa=False) == (
        "scheme_options: deepnorm has no option 'alhpa' (did you mean 'alpha'?)"
    )
    assert refusal(find("deepnorm"), zzz=1) == (
        "scheme_options: deepnorm has no option 'zzz' "
        "(known: alpha, beta, encoder_constant, norm_lr)"
    )
    assert refusal(find("post_norm"), alpha=True) == (
        "scheme_options: post_norm has no option 'alpha' (it has no options)"
    )


def test_the_place_is_no_option() -> None:
    assert refusal(find("deepnorm"), at=1).startswith(
        "scheme_options: deepnorm has no option 'at' "
    )


def test_an_option_of_the_wrong_type_is_refused_by_name_value_and_remedy(knobs: Scheme) -> None:
    assert refusal(find("deepnorm"), beta="maybe") == (
        "scheme_options.beta: expected true or false, got 'maybe'"
    )
    assert refusal(find("deepnorm"), beta=0) == "scheme_options.beta: expected true or false, got 0"
    assert refusal(find("deepnorm"), beta=Typed("True")) == (
        "scheme_options.beta: expected true or false, got 'True'"
    )
    assert refusal(find("b2t"), init="normal") == (
        "scheme_options.init: expected one of xavier, released, got 'normal'"
    )
    assert refusal(knobs, size=2.5) == "scheme_options.size: expected an integer, got 2.5"
    assert refusal(knobs, size=True) == "scheme_options.size: expected an integer, got True"
    assert refusal(knobs, share="much") == "scheme_options.share: expected a number, got 'much'"
    assert refusal(knobs, share=None) == "scheme_options.share: expected a number, got None"
    assert refusal(knobs, kind=["a"]) == "scheme_options.kind: expected one of a, b, got ['a']"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Typed("nan"), Typed("inf")])
@pytest.mark.parametrize(("name", "words"), [("size", "an integer"), ("share", "a number")])
def test_an_option_is_a_finite_number(knobs: Scheme, name: str, words: str, value: object) -> None:
    text = refusal(knobs, **{name: value})
    assert text == f"scheme_options.{name}: expected {words}, got {value!r}"


@pytest.mark.parametrize(
    ("name", "value"), [("switch", "false"), ("size", "4"), ("size", "4.0"), ("share", "0.25")]
)
def test_a_files_text_is_no_number_and_no_truth_value(knobs: Scheme, name: str, value: str) -> None:
    # design.md section 3: a TOML integer field takes 64 and 64.0, not "64"
    assert refusal(knobs, **{name: value}).endswith(f", got {value!r}")


def test_a_command_lines_text_is_read_as_the_options_type(knobs: Scheme) -> None:
    typed = {
        "switch": Typed("false"),
        "size": Typed("064"),
        "share": Typed("1e-1"),
        "kind": Typed("b"),
    }
    checked = knobs.check(typed)
    assert checked == {"kind": "b", "share": 0.1, "size": 64, "switch": False}
    assert [type(checked[name]) for name in ("share", "size", "switch")] == [float, int, bool]
    assert find("deepnorm").check({"beta": Typed("true"), "alpha": Typed("false")}) == {
        "alpha": False
    }


def test_equal_spellings_of_an_option_are_one_value(knobs: Scheme) -> None:
    for spelling in (64, 64.0, Typed("64"), Typed("64.0"), Typed("064")):
        checked = knobs.check({"size": spelling})
        assert checked == {"size": 64}
        assert type(checked["size"]) is int
    assert type(knobs.check({"share": 2})["share"]) is float


def test_options_at_their_defaults_are_left_out_and_the_rest_is_sorted(knobs: Scheme) -> None:
    given = {"switch": False, "size": 3.0, "share": 0.25, "kind": "a"}
    assert list(knobs.check(given).items()) == [("share", 0.25), ("switch", False)]
    assert find("deepnorm").check({"alpha": True, "beta": True}) == {}


def test_two_schemes_cannot_share_a_name(own_registry: dict[str, Scheme]) -> None:
    before = own_registry["deepnorm"]
    with pytest.raises(
        ConfigError, match=r"^scheme 'deepnorm' is defined already; choose another name$"
    ):

        @scheme("arXiv:0000.00000 section 1")
        def deepnorm(at: Place) -> Wiring:
            """x + F(x)"""
            return Wiring()

    assert own_registry["deepnorm"] is before


def rejected(function: Callable[..., object], **words: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        scheme("none", **words)(function)  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"families": ("decodr",)}, "families: unknown family 'decodr' (did you mean 'decoder'?)"),
        ({"families": "decoder"}, "families: expected a tuple of names, got 'decoder'"),
        ({"families": ()}, "families: expected a tuple of names, got ()"),
        ({"status": "papers"}, "status: unknown status 'papers' (did you mean 'paper'?)"),
        ({"final_norm": "no"}, "final_norm: expected True or False, got 'no'"),
        ({"dense": 1}, "dense: expected True or False, got 1"),
        ({"revision": 0}, "revision: expected an integer from 1 on, got 0"),
        ({"revision": "2"}, "revision: expected an integer from 1 on, got '2'"),
        ({"embedding_gain": 0.5}, "embedding_gain: expected a function of a Place, got 0.5"),
    ],
)
def test_a_wrong_word_of_a_declaration_is_refused_by_name(
    own_registry: dict[str, Scheme], words: dict[str, Any], text: str
) -> None:
    def private(at: Place) -> Wiring:
        return Wiring()

    assert rejected(private, **words) == f"scheme 'private': {text}"
    assert "private" not in own_registry


def test_a_list_of_families_is_a_tuple(own_registry: dict[str, Scheme]) -> None:
    @scheme("none", families=["decoder"])  # type: ignore[arg-type]
    def listed(at: Place) -> Wiring:
        return Wiring()

    assert find("listed").families == ("decoder",)


def test_an_option_that_is_not_keyword_only_is_refused_with_the_scheme() -> None:
    def plain(at: Place, beta: bool = True) -> Wiring:
        return Wiring()

    words = "scheme 'plain': beta: not keyword-only, so no option; put a bare * before it"
    assert rejected(plain) == words


def test_a_decorator_without_its_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'^scheme: source: expected text, .*; write @scheme\("'):

        @scheme  # type: ignore[arg-type]
        def bare(at: Place) -> Wiring:
            return Wiring()


def test_numpys_numbers_are_options_as_plain_ones_are(knobs: Scheme) -> None:
    given = {"size": np.int64(4), "share": np.float64(0.25)}
    checked = knobs.check(given)
    assert checked == {"size": 4, "share": 0.25}
    assert [type(value) for value in checked.values()] == [float, int]


def test_what_a_function_gives_wrong_is_told_with_scheme_options_place_and_field(
    own_registry: dict[str, Scheme],
) -> None:
    @scheme("none", embedding_gain=lambda at: math.inf if at.depth == 7 else 1.0)
    def picky(at: Place, *, wrong: Literal["no", "field", "crash", "none"] = "no") -> Wiring:
        if at.layer < 3 or wrong == "no":
            return Wiring()
        if wrong == "crash":
            raise ZeroDivisionError("two\nlines")
        return Wiring(brnch=2) if wrong == "field" else None  # type: ignore[call-arg, return-value]

    rule, place = find("picky"), "encoder layer 3 of 3, self"
    assert rule.rehearse(3, 4, {}) == rule.rehearse(2, 2, {"wrong": "crash"}) == ""
    assert rule.rehearse(3, 4, {"wrong": "crash"}) == (
        f"scheme 'picky' with wrong='crash': {place}: ZeroDivisionError: two lines"
    )
    for wrong, words in (
        ("field", "Wiring: unknown field 'brnch' (did you mean 'branch'?)"),
        ("none", "expected a Wiring, got None; return one"),
    ):
        with pytest.raises(ConfigError) as refused:
            rule.rehearse(3, 4, {"wrong": wrong})
        assert str(refused.value) == f"scheme 'picky' with wrong={wrong!r}: {place}: {words}"
    with pytest.raises(ConfigError) as refused:
        rule.rehearse(0, 7, {})
    assert str(refused.value) == (
        "scheme 'picky': decoder layer 1 of 7, self: embedding_gain: expected a finite number, "
        "got inf"
    )


def test_the_same_lines_may_be_declared_twice(own_registry: dict[str, Scheme]) -> None:
    def declare() -> None:
        @scheme("arXiv:0000.00000 section 1")
        def private(at: Place) -> Wiring:
            """x + F(x)"""
            return Wiring()

    declare()
    declare()  # as when a study file is imported twice
    assert "private" in own_registry


def test_a_declared_final_norm_is_a_fact_of_the_stack(own_registry: dict[str, Scheme]) -> None:
    @scheme("arXiv:0000.00000 section 1", final_norm=True, revision=2)
    def private(at: Place) -> Wiring:
        """x + F(x)"""
        return Wiring()

    assert find("private").stack(AT, {}).final_norm
    assert find("private").revision == 2


def test_schemes_need_no_torch() -> None:
    code = (
        "import sys; from harness.schemes import all_schemes, Place;"
        "[s.wire(Place('ffn', 'encoder', 1, 2, 2), {}) for s in all_schemes().values()"
        " if 'encoder_decoder' in s.families];"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_option_without_an_annotation_is_refused_at_once() -> None:
    def bare(at: Place, *, strength=1.0) -> Wiring:  # type: ignore[no-untyped-def]
        return Wiring()

    with pytest.raises(ConfigError, match="scheme 'bare': strength: no annotation; say what it is"):
        scheme("none")(bare)


def test_an_option_without_a_default_is_refused_at_once() -> None:
    def bare(at: Place, *, strength: float) -> Wiring:
        return Wiring()

    with pytest.raises(ConfigError, match="scheme 'bare': strength: no default; give it one"):
        scheme("none")(bare)


def test_a_choice_among_numbers_can_be_typed() -> None:
    def chosen(at: Place, *, power: Literal[1, 2] = 1) -> Wiring:
        return Wiring()

    rule = Scheme("chosen", chosen, "none", StackFacts())
    assert rule.check({"power": Typed("2")}) == {"power": 2}
    with pytest.raises(ConfigError, match=r"scheme_options\.power: expected one of 1, 2, got '3'"):
        rule.check({"power": Typed("3")})


def test_a_scheme_is_refused_where_its_source_does_not_define_it() -> None:
    keel, pair = find("keel"), Place("self", "encoder", 1, 2, 2)
    text = (
        "scheme 'keel' is defined for encoder and decoder, not for 'encoder_decoder'; "
        "choose another family or scheme"
    )
    with pytest.raises(ConfigError) as caught:
        keel.wire(pair, {})
    assert str(caught.value) == text
    with pytest.raises(ConfigError, match="is defined for encoder_decoder, not for 'decoder'"):
        find("t_fixup").serve("decoder")
    for name in ("post_norm", "pre_norm", "admin", "dlcl"):
        for family in ("encoder", "decoder", "encoder_decoder"):
            find(name).serve(family)


def test_a_feed_forward_has_no_heads_to_scale(own_registry: dict[str, Scheme]) -> None:
    @scheme("arXiv:0000.00000 section 1")
    def headed(at: Place) -> Wiring:
        """x + F(x)"""
        return Wiring(inner_scale=Learned(1.0, per="head"))

    assert find("headed").wire(AT, {}).inner_scale == Learned(1.0, per="head")
    words = "scheme 'headed': decoder layer 1 of 4, ffn: a feed-forward sublayer has no heads"
    with pytest.raises(ConfigError, match=words):
        find("headed").wire(Place("ffn", "decoder", 1, 0, 4), {})


def test_facts_of_a_stack_are_declared_follow_depth_or_are_an_option(
    own_registry: dict[str, Scheme],
) -> None:
    @scheme("none", dense=True, embedding_gain=lambda at: 1 / at.depth)
    def private(at: Place, *, embedding_norm: bool = False) -> Wiring:
        """x + F(x)"""
        return Wiring()

    rule, first = find("private"), Place("self", "decoder", 1, 2, 5)
    assert rule.stack(first, {}) == StackFacts(dense=True, embedding_gain=0.2)
    assert rule.stack(first, {"embedding_norm": True}).embedding_norm
    assert rule.stack(Place("self", "encoder", 1, 2, 5), {}).embedding_gain == 0.5
    assert (rule.status, rule.init, rule.families) == ("own", "Xavier", FAMILIES)


def test_an_option_of_a_kind_that_no_config_can_hold_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"scheme 'wordy': word: annotated as .*; say what it is"):

        @scheme("none")
        def wordy(at: Place, *, word: str = "x") -> Wiring:
            return Wiring()


def plug_in(folder: Path, distribution: str, **modules: str) -> None:
    """A distribution in a folder, whose modules are all named as plug-ins."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    points = "".join(f"{name} = {name}\n" for name in modules)
    (info / "entry_points.txt").write_text(f"[harness.schemes]\n{points}")
    for name, code in modules.items():
        imports = "from harness.schemes import Place, Wiring, scheme\n"
        (folder / f"{name}.py").write_text(imports + code)


@pytest.fixture
def plugged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: dict[str, Scheme]
) -> Iterator[Path]:
    """A folder for distributions; what is imported from there is gone after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def load_plug_ins() -> None:
    importlib.invalidate_caches()
    registry._load_entry_points.__wrapped__()


def declared(name: str, words: str = "") -> str:
    return f"@scheme('none'{words})\ndef {name}(at: Place) -> Wiring:\n    return Wiring()\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('bye\\nbye')\n", "SystemExit: bye bye"),
        ("x = (\n", "SyntaxError: '(' was never closed"),
        (declared("deepnorm"), "scheme 'deepnorm' is defined already; choose another name"),
        (declared("y", ", families=('x',)"), "scheme 'y': families: unknown family 'x'"),
        (
            declared("deep").replace("return", "return 1 / (5 - at.layer) and"),
            "scheme 'deep': encoder layer 5 of 6, self: ZeroDivisionError: division by zero",
        ),
    ],
    ids=["import", "exit", "syntax", "name", "declaration", "wiring"],
)
def test_a_plug_in_that_fails_is_one_warning_and_the_rest_works(
    plugged: Path,
    caplog: pytest.LogCaptureFixture,
    own_registry: dict[str, Scheme],
    code: str,
    words: str,
) -> None:
    before = dict(own_registry)
    plug_in(plugged, "a-broken", broken_plug_in=declared("half") + code)
    plug_in(plugged, "b-whole", whole_plug_in=declared("whole"))
    load_plug_ins()
    assert own_registry.keys() - before.keys() == {"whole"}
    assert all(own_registry[name] is rule for name, rule in before.items())
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith(f"plug-in a-broken: broken_plug_in: {words}")
    assert text.endswith("; its schemes are left out: mend or uninstall it")
    assert "\n" not in text


def test_a_module_of_a_failed_plug_in_that_another_names_is_imported_anew(
    plugged: Path, own_registry: dict[str, Scheme]
) -> None:
    first = "import z_plug_in\nraise ValueError('no')\n"
    plug_in(plugged, "two", a_plug_in=first, z_plug_in=declared("whole"))
    load_plug_ins()
    assert "whole" in own_registry


def test_a_built_in_name_is_taken_also_where_nothing_is_loaded_yet() -> None:
    code = (
        "from harness.schemes import Place, Wiring, find, scheme\n"
        "def deepnorm(at: Place) -> Wiring: ...\n"
        "try:\n    scheme('none')(deepnorm)\n"
        "except Exception as error:\n    print(error, find('deepnorm').status, sep=', ')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words = "scheme 'deepnorm' is defined already; choose another name, paper\n"
    assert done.stdout == words


def test_a_broken_plug_in_is_one_line_on_stderr_of_a_command(plugged: Path) -> None:
    plug_in(plugged, "a-broken", broken_plug_in="import no_such_module\n")
    path = os.pathsep.join([str(plugged), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-m", "harness", "show", "post_norm", "--json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("plug-in a-broken: broken_plug_in: ModuleNotFoundError: ")
