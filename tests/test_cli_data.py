"""`harness data`: what the commands print, refuse, and leave behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from harness.cli import app
from harness.data import files
from harness.data.corpora import listing, tables
from harness.errors import ConfigError
from tests import parallel
from tests.data.corpora.help_pages import write_pages

ROOT = Path(__file__).parents[1]
PAGES = {  # of all three splits
    "page0.html": ("Öffnet den Dialog.", "Opens the dialog."),
    "page47.html": ("Löscht die Zeile darunter.", "Deletes the row below."),
    "page44.html": ("Speichert das Dokument sofort.", "Saves the document immediately."),
}


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, words)])


def said(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.exception
    return result.stdout


def refusal(*words: object) -> str:
    result = call(*words)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def harness(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "data", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment
    )


@pytest.fixture
def help_folder(tmp_path: Path) -> Path:
    for language, side in (("de", 0), ("en-US", 1)):
        pages = {page: f'<p id="par_1">{pair[side]}</p>' for page, pair in PAGES.items()}
        write_pages(tmp_path / "help", language, pages)
    return tmp_path / "help"


def test_build_writes_a_file_that_list_and_check_know(help_folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    out = said("build", "help-de-en", "--from", help_folder, "--data", data)
    path = data / "deu-eng.tsv.gz"
    sha = tables.read(path).sha
    assert out.splitlines() == [
        f"{path}: from LibreOffice's help in {help_folder}",
        "pairs      train 1, valid 1, test 1",
        "left out   none",
        f"sha        {sha}",
        "help-de-en: this version of the help makes another corpus than 4:7.4.7-1+deb12u14: rows "
        "of it are not comparable with those of that one",
    ]
    (row,) = (r for r in json.loads(said("list", "--json", "--data", data)) if r["present"])
    assert (row["name"], row["where"], row["train"]) == ("help-de-en", str(path), 1)
    assert said("check", "help-de-en", "--data", data).splitlines() == [
        str(path),
        "pairs      train 1, valid 1, test 1",
        "left out   none",
        "BLEU by    src 13a (no language code), tgt 13a (no language code)",
        "lost       0.0000% of characters (U+FFFD, controls)",
        f"sha        {sha} (not the known one)",
        "words  5 %  50 %  95 %  100 %  texts",
        "src      3     4     4      4      3",
        "tgt      3     4     4      4      3",
    ]


def test_a_corpus_of_the_known_hash_is_said_to_be_it(
    help_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said("build", "help-de-en", "--from", help_folder, "--data", tmp_path)
    rows = tables.read(tmp_path / "deu-eng.tsv.gz")
    known = listing.KNOWN["help-de-en"]._replace(sha=tables.digest(rows.columns, rows.splits))
    monkeypatch.setitem(listing.KNOWN, "help-de-en", known)
    assert "(as known)" in said("check", "help-de-en", "--data", tmp_path)
    out = said("build", "help-de-en", "--from", help_folder, "--data", tmp_path)
    assert "not comparable" not in out


def test_a_file_is_replaced_only_by_the_same_content_or_by_force(
    help_folder: Path, tmp_path: Path
) -> None:
    words = ("build", "help-de-en", "--from", help_folder, "--data", tmp_path)
    said(*words)
    path = tmp_path / "deu-eng.tsv.gz"
    built = path.read_bytes()
    assert f"{path}: is there already, with the same content" in said(*words)
    for other in (b"split\ta\tb\n", built[:-4]):
        path.write_bytes(other)
        line = f"{path}: is there with another content; replace it with --force"
        assert refusal(*words) == line
        assert path.read_bytes() == other
        said(*words, "--force")
        assert path.read_bytes() == built


def test_an_unpacked_file_is_known_for_the_same_content(help_folder: Path, tmp_path: Path) -> None:
    words = ("build", "help-de-en", "--from", help_folder, "--data", tmp_path)
    said(*words)
    packed = tmp_path / "deu-eng.tsv.gz"
    (tmp_path / "deu-eng.tsv").write_bytes(files.unpacked(packed))
    packed.unlink()
    assert "deu-eng.tsv: is there already, with the same content" in said(*words)
    assert not packed.exists()


def test_a_corpus_of_ones_own_is_built_from_local_files(tmp_path: Path) -> None:
    source = tmp_path / "mine.jsonl"
    rows = [{"translation": {"de": f"wort {i}", "en": f"word {i}"}} for i in range(4)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = "train=train[:2],valid=train[2:3],test=train[3:]"
    columns = "en=translation.en,de=translation.de"
    words = ("build", "mine", "--hub", source, "--columns", columns, "--splits", splits)
    out = said(*words, "--data", tmp_path)
    assert out.startswith(f"{tmp_path / 'mine.tsv.gz'}: from {source}\npairs      train 2, valid 1")
    assert tables.read(tmp_path / "mine.tsv.gz").splits["test"] == [("word 3", "wort 3")]


def test_a_corpus_of_ones_own_is_built_from_files_of_sentences(tmp_path: Path) -> None:
    (tmp_path / "all.de").write_text("".join(f"wort {i}\n" for i in range(20)))
    (tmp_path / "all.en").write_text("".join(f"word &amp; {i}\n" for i in range(20)))
    words = ("build", "mine", "--pairs", f"{tmp_path}/all.de,{tmp_path}/all.en", "--data", tmp_path)
    out = said(*words, "--hold-out", "test=4,valid=3").splitlines()
    path = tmp_path / "mine.tsv.gz"
    assert out == [
        f"{path}: from {tmp_path}/all.de, {tmp_path}/all.en",
        "pairs      train 13, valid 3, test 4",
        "left out   none",
        "markup     20 lines with entities, the first is line 2: '&amp;'",
        f"sha        {tables.read(path).sha}",
    ]
    checked = said("check", "mine", "--data", tmp_path).splitlines()
    assert checked[3:5] == [out[3], "BLEU by    de 13a, en 13a"]
    for side in ("all.de", "all.en"):
        lines = (tmp_path / side).read_text().splitlines(keepends=True)
        (tmp_path / side).write_text("".join(reversed(lines)))
    assert "another content" in refusal(*words, "--hold-out", "test=4,valid=3")
    held = tables.read(path).splits
    said(*words, "--hold-out", "test=4,valid=3", "--force")
    again = tables.read(path).splits
    assert (again["test"], again["valid"]) == (held["test"], held["valid"])
    assert again["train"] == held["train"][::-1]


def test_a_corpus_of_ones_own_is_built_from_a_translation_memory(tmp_path: Path) -> None:
    units = "".join(
        f'<tu><tuv xml:lang="th"><seg>ก{i}</seg></tuv>'
        f'<tuv xml:lang="de"><seg>k {i}</seg></tuv></tu>'
        for i in range(5)
    )
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{units}</body></tmx>")
    words = ("build", "mine", "--tmx", tmp_path / "a.tmx", "--data", tmp_path)
    out = said(*words, "--hold-out", "valid=1", "--columns", "src=de,th=th")
    assert "train 4, valid 1, test 0" in out
    assert tables.read(tmp_path / "mine.tsv.gz").columns == ("src", "th")


def test_pairs_of_a_dataset_are_held_out_too(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    rows = "".join(f"wort {i},word {i}\n" for i in range(9))
    (tmp_path / "set" / "train.csv").write_text(f"de,en\n{rows}")
    words = ("build", "mine", "--hub", tmp_path / "set", "--columns", "de=de,en=en")
    out = said(*words, "--hold-out", "valid=2,test=3", "--data", tmp_path)
    assert "train 4, valid 2, test 3" in out


def test_list_shows_a_broken_file_with_its_error_and_all_known_corpora(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("split\ta\tb\ntrain\tx\n")
    lines = said("list", "--data", tmp_path).splitlines()
    assert lines[0].split() == [
        *("name", "present", "where", "train", "valid", "test", "licence", "builds", "error"),
    ]
    assert [line.split()[:2] for line in lines[1:]] == [
        *([name, "no"] for name in listing.KNOWN),
        ["bad", "yes"],
    ]
    assert "bad.tsv: line 2: expected 3 cells, got 2" in lines[-1]
    assert "error" not in said("list", "--data", tmp_path / "nowhere").splitlines()[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["build", "help-de-em"],
            "unknown corpus 'help-de-em' (did you mean 'help-de-en'?); for one of your own add "
            "--hub",
        ),
        (
            ["build", "wmt17", "--from", "x"],
            "wmt17: --from is for LibreOffice's help; leave it out",
        ),
        (
            ["build", "wmt17", "--revision", "x"],
            "--config, --revision, --columns and --splits: of which dataset? add --hub",
        ),
        (
            ["build", "deu-eng", "--hub", "x", "--columns", "a=a,b=b"],
            "deu-eng: is the name of another corpus; choose your own for --hub",
        ),
        (
            ["build", "../x", "--hub", "x", "--columns", "a=a,b=b"],
            "'../x': not a name for a file; use letters, digits, '-' and '_'",
        ),
        (
            ["build", "mine", "--hub", "x"],
            "mine: --hub needs a dataset and --columns, as de=translation.de,...",
        ),
        (
            ["build", "mine", "--hub", "x", "--columns", "a=a"],
            "--columns: two or more are needed, none of them named 'split'",
        ),
        (
            ["build", "mine", "--pairs", "a.de,a.en", "--tmx", "a.tmx"],
            "--pairs and --tmx: a corpus has one source; keep one of them",
        ),
        (
            ["build", "mine", "--pairs", "a.de,a.en", "--columns", "a=a,b=b"],
            "--columns: the endings of the files name them; rename the files",
        ),
        (
            ["build", "mine", "--tmx", "a.tmx", "--splits", "train=train"],
            "--config, --revision and --splits: are for --hub, not for --tmx",
        ),
        (
            ["build", "multi30k", "--hold-out", "test=9"],
            "--hold-out: of which pairs? add --hub, --pairs or --tmx",
        ),
        *(
            (
                ["build", "mine", "--pairs", "a.de,a.en", "--hold-out", text],
                f"--hold-out {text}: expected test=N,valid=N or one of them; N is a whole number",
            )
            for text in ("test", "test=0", "test=1,000", "dev=9", "test=1,test=2", "train=9", "")
        ),
        (
            ["build", "help-de-en", "--pairs", "a.de,a.en"],
            "help-de-en: is the name of another corpus; choose your own for --pairs",
        ),
        (["check", "nowhere.tsv"], "nowhere.tsv: cannot be read (No such file or directory)"),
    ],
)
def test_wrong_input_is_refused_in_one_line(tmp_path: Path, words: list[str], line: str) -> None:
    assert refusal(*words, "--data", tmp_path).startswith(line)


def test_a_folder_without_help_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    line = refusal("build", "help-de-en", "--from", tmp_path, "--data", tmp_path / "data")
    assert line.startswith(f"{tmp_path}: no LibreOffice help in en-US, de; name with --from")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "environment", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}]
)
def test_without_the_internet_build_says_so_at_once_and_writes_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    start = time.monotonic()
    environment |= {"HF_HOME": str(tmp_path / "hf"), "no_proxy": "127.0.0.1"}
    done = harness("build", "multi30k", "--data", str(tmp_path / "data"), **environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "multi30k: needs the internet (the Hugging Face hub could not be reached); build it where "
        "there is a connection and copy the file, or name local files with --hub\n"
    )
    assert not (tmp_path / "data").exists()
    assert time.monotonic() - start < 20  # of a busy machine; it takes one


def test_check_of_a_broken_file_exits_with_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("split\ta\tb\ntrain\tx\ty\n")
    done = harness("check", "bad", HARNESS_DATA=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{tmp_path / 'bad.tsv'}: no line of split 'valid'; train and valid both need some\n"
    )


def test_a_tilde_in_the_environment_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    parallel.write(tmp_path)
    for words, variable in ((["--data=~"], "elsewhere"), ([], "~")):
        monkeypatch.setenv("HARNESS_DATA", variable)
        assert said("check", "toy", *words).startswith(str(tmp_path / "toy.tsv"))
    monkeypatch.setenv("HARNESS_DATA", "~nobody-here")
    assert refusal("list").startswith("~nobody-here: ")


def test_a_full_disk_leaves_no_part_of_a_file(
    help_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = call("build", "help-de-en", "--from", help_folder, "--data", tmp_path / "data")
    assert isinstance(result.exception, OSError)
    assert list((tmp_path / "data").iterdir()) == []


STUDY = """\
\"\"\"Is it said what filters leave out?\"\"\"
from harness.sweep import Study

STUDY = Study(
    base="translation.toml",
    axes={"data.corpus": ["toy"], "data.pieces": [80], "data.beam": [1, 2], "seed": [0]},
)
FIGURES = []
"""


def test_run_says_once_for_a_corpus_what_its_filters_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "study.py").write_text(STUDY)
    path = parallel.write(tmp_path)
    places = [f"--{each}={tmp_path / each}" for each in ("state", "results")]
    words = ["run", str(tmp_path / "study.py"), "--dry-run", f"--data={tmp_path}", *places]
    whole = CliRunner().invoke(app, words)
    tokenizer = (
        "toy: BLEU into 'tgt' is by sacrebleu's tokenizer 13a, made for European languages; "
        "name its column by a language code, as de, zho, th or pt-BR\n"
    )
    assert whole.stderr == f"{tokenizer}2 of 2 cells would run\n"
    with path.open("a") as file:
        file.write(f"\ntrain\t{'Felder ' * 13}\tfields\ntest\t{'%' * 2000}\tfields\n")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert done.stderr == (
        "toy: left out 1 empty line, 1 train pairs of more than 12 words, "
        f"1 test pairs of more than 1024 tokens\n{tokenizer}2 of 2 cells would run\n"
    )


def test_check_says_what_the_filters_of_a_config_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = parallel.write(tmp_path, "deu-eng")
    with path.open("a") as file:
        file.write(f"train\t{'Felder ' * 13}\tfields\nvalid\tFelder\t{'%' * 50}\n")
    config = ROOT / "configs" / "translation.toml"
    out = said("check", "help-de-en", "--config", config, "--data", tmp_path).splitlines()
    assert "task       train 200, valid 30, test 24" in out
    left_out = "1 train pairs of more than 12 words, 1 valid pairs of more than 40 tokens"
    assert f"left out   {left_out}" in out
    assert out[-1].startswith("BLEU       src>tgt: ")
    tuned = tmp_path / "tuned.toml"
    tuned.write_text(config.read_text().replace("[train]", '[train]\nheld_out = "tuning"'))
    again = said("check", "help-de-en", "--config", tuned, "--data", tmp_path).splitlines()
    (line,) = [line for line in again if line not in out]
    assert line == "task       train 190, valid 10, test 24"
    other = ROOT / "configs" / "smoke.toml"
    message = refusal("check", "help-de-en", "--config", other, "--data", tmp_path)
    assert message == f"{other}: data.name: is no translation; name such a config"
