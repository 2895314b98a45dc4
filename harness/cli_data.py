"""The commands on parallel corpora: what there is, how it is made, and whether a file is sound."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli_schemes import JsonOption
from harness.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from harness.data.corpora.hub import Source
    from harness.data.corpora.tables import Corpus

app = typer.Typer(
    help="Parallel corpora: list, build, check.", no_args_is_help=True, rich_markup_mode=None
)


def _home(path: Path | None) -> Path | None:
    """A path that no shell has seen, as from the environment, may begin with ~."""
    from harness.data.files import expanded

    return path and expanded(path)


DataOption = Annotated[
    Path,
    typer.Option("--data", envvar="HARNESS_DATA", callback=_home, help="folder of corpora"),
]
CorpusName = Annotated[str, typer.Argument(metavar="NAME")]
DATA = Path("data")
HELP_BUILDERS = {"help-de-en": "german_english", "help-multi": "multilingual"}


@app.command("list")
def list_(as_json: JsonOption = False, data: DataOption = DATA) -> None:
    """List the corpora that can be built, and those that are there."""
    from harness.analysis.report import text
    from harness.data.corpora import listing

    rows = listing.rows(data)
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    wrong = any(row["error"] for row in rows)
    head = [name for name in rows[0] if name != "error" or wrong]
    typer.echo(text(head, [[_cell(row[name]) for name in head] for row in rows]), nl=False)


@app.command()
def build(
    name: CorpusName,
    from_: Annotated[
        Path | None,
        typer.Option("--from", callback=_home, help="root or .deb files of LibreOffice's help"),
    ] = None,
    hub: Annotated[
        str | None, typer.Option("--hub", metavar="DATASET", help="on the hub, or a path")
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="of the dataset")] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="of the dataset")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAME=THEIRS,...", help="two or more")
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            "--splits",
            metavar="SPLIT=THEIRS,...",
            help="or files of the dataset; train=train,valid=validation,test=test",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace another content")] = False,
    data: DataOption = DATA,
) -> None:
    """Make the file of a corpus from LibreOffice's help, or from a dataset on the hub."""
    from harness.data.corpora import listing, tables

    source = _source(name, hub, config, revision, columns, splits)
    path = listing.place(name, data)  # before work is spent
    corpus, origin = _built(name, from_, source)
    sha = tables.digest(corpus.columns, corpus.splits)
    if path.exists() and _sha(path) == sha:
        typer.echo(f"{path}: is there already, with the same content")
    elif path.exists() and not force:
        raise ConfigError(f"{path}: is there with another content; replace it with --force")
    else:
        tables.write(path, corpus.columns, corpus.splits)
        typer.echo(f"{path}: from {origin}")
    _print_counts(corpus)
    typer.echo(f"sha        {corpus.sha}")
    if listing.known_sha(name) not in ("", sha):
        typer.echo(
            f"{name}: this version of the help makes another corpus than {listing.HELP_VERSION}: "
            "rows of it are not comparable with those of that one"
        )


@app.command()
def check(
    name: CorpusName,
    config: Annotated[
        Path | None, typer.Option("--config", help="say what its filters leave, too")
    ] = None,
    data: DataOption = DATA,
) -> None:
    """Read a corpus wholly and say what is in it. NAME may be a path."""
    from harness.analysis.report import text
    from harness.data.corpora import listing, tables
    from harness.data.translation.languages import tokenizers

    path = listing.locate(name, data)
    corpus = tables.read(path)
    typer.echo(path)
    _print_counts(corpus)
    typer.echo(f"BLEU by    {tokenizers(corpus.columns)}")
    typer.echo(f"lost       {listing.lost_share(corpus):.4%} of characters (U+FFFD, controls)")
    known = listing.known_sha(listing.named(path))
    verdict = (
        ""
        if not known
        else " (as known)"
        if known.startswith(corpus.sha)
        else " (not the known one)"
    )
    typer.echo(f"sha        {corpus.sha}{verdict}")
    head = ["words", *(f"{share} %" for share in listing.PERCENTILES), "texts"]
    lengths = listing.lengths(corpus)
    typer.echo(
        text(head, [[column, *map(str, found)] for column, found in lengths.items()]), nl=False
    )
    if config:
        _print_task(config, path)


def _print_task(config: Path, path: Path) -> None:
    """What a config's filters leave of a corpus, and the BLEU of not learning."""
    from harness.data.translation.options import Translation
    from harness.data.translation.task import load_parallel
    from harness.training.config import parse, read_toml

    read = parse(read_toml(config), str(config))
    if not isinstance(read.data, Translation):
        raise ConfigError(f"{config}: data.name: is no translation; name such a config")
    options = read.data.model_copy(update={"corpus": str(path.resolve())})
    task = load_parallel(options, path.parent, read.train.length)
    typer.echo(f"task       {', '.join(f'{split} {n}' for split, n in task.sizes.items())}")
    typer.echo(f"left out   {task.filtered or 'none'}\npieces     {task.vocabularies[0]}")
    for test in task.tests:
        typer.echo(
            f"BLEU       {test.source}>{test.target}: {test.copied:.2f} for the source copied, "
            f"{test.nearest:.2f} for the translation of the nearest training source"
        )


def _source(
    name: str,
    dataset: str | None,
    config: str | None,
    revision: str | None,
    columns: str | None,
    splits: str | None,
) -> "Source | None":
    """What to read from the hub; None for help. ConfigError for a name or options that do not go
    together."""
    from harness.data.corpora import hub, listing

    if dataset is None:
        if config or revision or columns or splits:
            raise ConfigError(
                "--config, --revision, --columns and --splits: of which dataset? add --hub"
            )
        if name not in HELP_BUILDERS and hub.preset(name) is None:
            hint = did_you_mean(name, listing.KNOWN)
            raise ConfigError(f"unknown corpus '{name}'{hint}; for one of your own add --hub")
        return hub.preset(name)
    taken = {*listing.KNOWN, *(known.file for known in listing.KNOWN.values())}
    if name in taken or hub.preset(name):
        raise ConfigError(f"{name}: is the name of another corpus; choose your own for --hub")
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ConfigError(f"'{name}': not a name for a file; use letters, digits, '-' and '_'")
    if not dataset or columns is None:
        raise ConfigError(f"{name}: --hub needs a dataset and --columns, as de=translation.de,...")
    named = hub.parsed("--columns", columns)
    if len(named) < 2 or "split" in named:
        raise ConfigError("--columns: two or more are needed, none of them named 'split'")
    theirs = hub.parsed("--splits", splits) if splits else hub.THEIRS
    return hub.Source(dataset, named, theirs, config, revision)


def _built(name: str, folder: Path | None, source: "Source | None") -> "tuple[Corpus, str]":
    if source is not None:
        from harness.data.corpora.hub import fetch

        if folder is not None:
            raise ConfigError(f"{name}: --from is for LibreOffice's help; leave it out")
        return fetch(name, source)
    from harness.data.corpora import help

    where = folder or Path("/")
    return getattr(help, HELP_BUILDERS[name])(where), f"LibreOffice's help in {where}"


def _sha(path: Path) -> str:
    """SHA-256 of a file that is there, empty where it is broken."""
    import hashlib

    from harness.data.files import unpacked

    try:
        return hashlib.sha256(unpacked(path)).hexdigest()
    except ConfigError:
        return ""


def _print_counts(corpus: "Corpus") -> None:
    from harness.data.corpora.listing import pairs as counted

    pairs = ", ".join(f"{split} {count}" for split, count in counted(corpus).items())
    left_out = ", ".join(f"{reason} {count}" for reason, count in corpus.left_out.items())
    typer.echo(f"pairs      {pairs}\nleft out   {left_out or 'none'}")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
