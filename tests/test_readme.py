"""Every command in the README runs, and every number in it is what the rows give."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.analysis import evidence, laws, report, statistics
from tests import parallel
from tests.commands import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
LONG = ("harness run norm_placement",)  # begun by readers with time; rehearsed here
STUDIES = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place to work in, with the committed results and the README's own study files."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("depth_text", "depth_reverse", "norm_placement", "grad_init", "depth_sweep"):
        shutil.copytree(ROOT / "results" / name, folder / "results" / name)
    for name, code in STUDIES:
        (folder / name).write_text(code)
    (folder / "data").mkdir()
    parallel.write(folder / "data", "pairs")
    return folder


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("harness ")])
def test_the_command_runs(command: str, folder: Path) -> None:
    run(folder, *shlex.split(command)[1:], *["--dry-run"] * (command in LONG))


def test_the_other_commands_are_targets_of_the_makefile_that_ci_runs() -> None:
    others = [c for c in COMMANDS if not c.startswith("harness ")]
    assert others == ["make study", "make test"]
    script = (ROOT / ".ci/run").read_text()
    assert all(command in script for command in others)


def test_the_scheme_table_is_the_catalogue() -> None:
    rows = report.catalogue()
    head = list(rows[0])
    table = report.FORMATS["md"](head, [[str(row[name]) for name in head] for row in rows])
    assert table in README, f"put this table into the README:\n{table}"


@pytest.mark.parametrize(
    "words", ["depth_text", "depth_reverse", "depth_sweep --metric bleu --metric source_gain"]
)
def test_a_results_table_is_what_the_committed_rows_give(words: str, folder: Path) -> None:
    table, _ = run(folder, "table", *words.split(), "--format", "md")
    assert table in README, f"put this table into the README:\n{table}"


SPOKEN = {"deepnorm": "DeepNorm", "rezero": "ReZero"}


def test_what_is_told_of_translation_is_what_the_committed_rows_give() -> None:
    words = " ".join(README.split())
    swept, long = evidence("depth_sweep").runs, evidence("translation_long").runs
    bleu = swept.groupby(["scheme", "model.depth"])["metric_bleu"].mean()
    gaining = "BLEU {:.1f}, {:.1f}, {:.1f} and {:.1f}, {:.1f}, {:.1f}."
    assert gaining.format(*bleu["rezero"], *bleu["dlcl"]) in words
    first, longer = swept.iloc[0], long.iloc[0]
    for sentence in (
        f"copying the source has {first['metric_bleu_copy']:.1f}, the translation of the most "
        f"similar training sentence {first['metric_bleu_nearest']:.1f}.",
        f"Best without reading: {first['baseline_loss']:.2f} nats; a bigram table: "
        f"{first['reference_loss']:.2f}.",
        f"the most similar training sentence has {longer['metric_bleu_nearest']:.1f}, copying "
        f"{longer['metric_bleu_copy']:.1f}",
        *(
            f"{SPOKEN[row['scheme']]} has BLEU {row['metric_bleu']:.1f}, loss "
            f"{row['final_loss']:.2f} and source gain {row['metric_source_gain']:.2f}"
            for _, row in long.iterrows()
        ),
    ):
        assert sentence in words, sentence


@pytest.mark.parametrize("study", ["depth_reverse", "norm_placement"])
def test_the_points_at_an_edge_are_as_many_as_the_committed_rows_have(study: str) -> None:
    table = evidence(study)
    found = statistics.edges(table, statistics.points(table)).any(axis=1)
    words = f"{found.sum()} of {len(found)} tuned points of {study} stand at an edge of the grid"
    assert words in " ".join(README.split())


def test_what_is_told_of_many_languages_is_what_the_committed_rows_give() -> None:
    runs = evidence("many_languages").runs
    points = runs.groupby(["scheme", "model.depth"])
    gain = points[["metric_source_gain_low", "metric_source_gain_high"]].mean()
    loss = points[["metric_loss_low", "metric_loss_high"]].mean()
    for scheme, better in {"rezero": True, "pre_norm": False, "deepnorm": False}.items():
        read, lost = (means.loc[(scheme, 12)] - means.loc[(scheme, 3)] for means in (gain, loss))
        assert ((read > 0) == better).all() and ((lost < 0) == better).all()
    low, high = (gain.loc["rezero"][name] for name in gain)
    words = " ".join(README.split())
    fallen = loss.loc[("rezero", 3)] - loss.loc[("rezero", 12)]
    falls = "loss falls by {:.3f} in low-resource directions and by {:.3f} in the others"
    assert falls.format(*fallen) in words
    assert (
        f"from {low[3]:.3f} to {low[12]:.3f} in low-resource directions and from {high[3]:.3f} to "
        f"{high[12]:.3f} in the others" in words
    )
    assert runs.groupby(["scheme", "model.depth"])["metric_bleu"].mean().max() < 2
    assert f"the nearest training sentence's is {runs['metric_bleu_nearest'].mean():.1f}" in words


def test_the_laws_are_what_the_committed_rows_give() -> None:
    table = evidence("grad_init")
    frame = laws.first_block(table)
    shown = report.FORMATS["md"](list(frame.columns), frame.to_numpy().tolist())
    assert shown in README, f"put this table into the README:\n{shown}"
    frame = laws.extrapolated(table)
    shown = report.FORMATS["md"](list(frame.columns), frame.to_numpy().tolist())
    assert shown in README, f"put this table into the README:\n{shown}"
    runs = table.runs[table.runs["scheme"] == "post_norm"]
    squares = runs["branch_mean_square_ratio_cross"].mean()
    words = " ".join(README.split())
    assert f"Measured s^2 is {squares:.3f}: a factor of {(1 + squares) ** -0.5:.3f}." in words


def test_what_is_told_of_the_stacks_without_a_law_is_what_the_committed_rows_give() -> None:
    fallen, grown, errors = [], [], []
    for part in laws.parts(evidence("grad_init"), "grad_norm_first_{}_init"):
        if part.title == "decoder of a pair":
            continue
        runs = part.panel.runs[part.panel.runs["scheme"] == "post_norm"]
        logs = np.log(runs[part.column]).groupby(runs["depth"])
        means, spreads = logs.mean(), logs.std()
        fallen.append(np.exp(means[200] - means[6]))
        grown.append(spreads[200] / spreads[6])
        mean = pd.DataFrame({"seed": 0, "depth": [*means.index], "mean": [*np.exp(means)]})
        errors.append(laws.held_out(mean, "mean"))
    assert len(fallen) == 4
    geometric, unchanged = ([e[law] for e in errors] for law in ("geometric", "unchanged"))
    words = " ".join(README.split())
    for sentence in (
        f"with an error of at most {max(geometric):.2f}, and no change with "
        f"{min(unchanged):.2f} to {max(unchanged):.2f}.",
        f"fall to between {min(fallen):.2f} and {max(fallen):.2f} of themselves, and their scatter "
        f"grows by factors of {min(grown):.1f} to {max(grown):.1f}.",
    ):
        assert sentence in words, sentence


def test_the_exponents_near_a_half_are_those_of_single_stacks() -> None:
    words = " ".join(README.split())
    parts = laws.parts(evidence("grad_init"), "grad_norm_last_{}_down")
    for part in parts:
        runs = part.panel.runs
        law = laws.power(runs[runs["scheme"] == "pre_norm"], part.column)
        assert f"{law} ({part.title})" in words, f"{law} ({part.title})"
        assert (law.low < -0.5 < law.high) == part.title.endswith("-only")
    assert len(parts) == 5


def test_at_step_0_rezeros_first_block_has_the_gradient_of_its_coefficients_alone() -> None:
    runs = evidence("grad_init").runs.query("scheme == 'rezero'")
    kind = ["model.family", "model.cross_attention", "seed"]
    for stack in ("encoder", "decoder"):
        column = f"grad_norm_first_{stack}"
        assert (runs[f"{column}_matrices"].dropna() == 0).all()
        assert (runs.groupby(kind)[f"{column}_init"].nunique() <= 1).all()  # of all depths
    assert (runs["grad_norm_first_decoder_init"].dropna() > 0).all()


def test_what_is_told_of_the_bigram_table_is_what_the_committed_rows_give() -> None:
    runs = evidence("depth_text").runs
    first, lowest = runs.iloc[0], runs.loc[runs["best_loss"].idxmin()]
    assert (runs["best_loss"] > runs["reference_loss"]).all()
    assert (
        f"A unigram table has {first['baseline_loss']:.3f} on the same tokens, a bigram table "
        f"{first['reference_loss']:.3f}. No run beats the bigram table: the lowest, of "
        f"{SPOKEN[lowest['scheme']]} at {lowest['model.depth']} layers, ends at "
        f"{lowest['final_loss']:.3f}." in " ".join(README.split())
    )


@pytest.mark.parametrize(
    ("scheme", "pattern", "words"),
    [
        ("pre_norm", "grad_norm_last_{}_down", "exponent {} for Pre-Norm"),
        ("post_norm", "grad_norm_last_{}_down", "{} for Post-Norm"),
        ("deepnorm", "grad_norm_first_{}_matrices", "own matrices have exponent {}"),
    ],
)
def test_an_exponent_is_what_the_committed_rows_give(scheme: str, pattern: str, words: str) -> None:
    parts = laws.parts(evidence("grad_init"), pattern)
    (runs, column) = next((p.panel.runs, p.column) for p in parts if p.title == "decoder-only")
    law = laws.power(pd.DataFrame(runs[runs["scheme"] == scheme]), column)
    assert words.format(law) in README, words.format(law)


def test_a_scheme_published_as_the_guide_says_is_known_to_every_command(tmp_path: Path) -> None:
    (told,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    points = tomllib.loads(told)["project"]["entry-points"]["harness.schemes"]
    (module,) = points.values()
    package = tmp_path / module.partition(".")[0]
    package.mkdir()
    (tmp_path / f"{module.replace('.', '/')}.py").write_text(dict(STUDIES)["mine.py"])
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("[harness.schemes]\n" + "\n".join(lines))
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for words in (
        "schemes",
        "show halved --decoders 2",
        "run smoke --only seed=0 --set scheme=halved",
    ):
        command = [sys.executable, "-m", "harness", *words.split()]
        done = subprocess.run(command, env=path, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "halved" in done.stdout + done.stderr or words.startswith("run")


def test_links_to_files_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_share_of_idle_blocks_follows_the_rate_as_the_tuning_shows() -> None:
    tuning = evidence("norm_placement").tuning
    assert tuning is not None
    idle = 12 * tuning.runs.groupby("optim.lr")["metric_idle_blocks"].mean()
    words = f"mean over all schemes is {idle[3e-4]:.1f} of 12 at 3e-4 and {idle[1e-2]:.1f} at 1e-2"
    assert words in " ".join(README.split())
