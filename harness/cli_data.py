"""The commands on parallel corpora: what there is, how it is made, and whether a file is sound."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli_schemes import JsonOption
from harness.errors import ConfigError

if TYPE_CHECKING:
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
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            "--pairs", metavar="[SPLIT=]FILE,FILE", help="a sentence a line: train.de,train.en"
        ),
    ] = None,
    tmx: Annotated[
        Path | None,
        typer.Option("--tmx", metavar="FILE", callback=_home, help="a translation memory"),
    ] = None,
    hold_out: Annotated[
        str | None,
        typer.Option("--hold-out", metavar="SPLIT=N,...", help="test=1000,valid=1000 of train"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace another content")] = False,
    data: DataOption = DATA,
) -> None:
    """Make the file of a corpus: from LibreOffice's help, from a dataset on the hub, or from files
    of your own."""
    from harness.data.corpora import building, listing, tables

    wanted = building.Wanted(
        *(name, from_, hub, config, revision, columns, splits, pairs or (), tmx, hold_out)
    )
    builder = building.builder(wanted)
    path = listing.place(name, data)  # before work is spent
    corpus, origin = builder()
    sha = tables.digest(corpus.columns, corpus.splits)
    if path.exists() and _sha(path) == sha:
        typer.echo(f"{path}: is there already, with the same content")
    elif path.exists() and not force:
        raise ConfigError(f"{path}: is there with another content; replace it with --force")
    else:
        tables.write(path, corpus.columns, corpus.splits)
        typer.echo(f"{path}: from {origin}")
    _print_counts(corpus, path)
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
    _print_counts(corpus, path)
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
    task = load_parallel(options, path.parent, read.train.length, read.train.held_out)
    typer.echo(f"task       {', '.join(f'{split} {n}' for split, n in task.sizes.items())}")
    typer.echo(f"left out   {task.filtered or 'none'}\npieces     {task.vocabularies[0]}")
    for test in task.tests:
        typer.echo(
            f"BLEU       {test.source}>{test.target}: {test.copied:.2f} for the source copied, "
            f"{test.nearest:.2f} for the translation of the nearest training source"
        )


def _sha(path: Path) -> str:
    """SHA-256 of a file that is there, empty where it is broken."""
    import hashlib

    from harness.data.files import unpacked

    try:
        return hashlib.sha256(unpacked(path)).hexdigest()
    except ConfigError:
        return ""


def _print_counts(corpus: "Corpus", path: Path) -> None:
    from harness.data.corpora import markup
    from harness.data.corpora.listing import pairs as counted

    pairs = ", ".join(f"{split} {count}" for split, count in counted(corpus).items())
    left_out = ", ".join(f"{reason} {count}" for reason, count in corpus.left_out.items())
    typer.echo(f"pairs      {pairs}\nleft out   {left_out or 'none'}")
    for note in markup.notes(path):
        typer.echo(f"markup     {note}")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
