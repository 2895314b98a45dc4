"""The commands on schemes: the catalogue, one scheme's numbers, and whether it conforms."""

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import ConfigError

JsonOption = Annotated[bool, typer.Option("--json")]
SchemeName = Annotated[str, typer.Argument(metavar="SCHEME")]


def schemes(as_json: JsonOption = False) -> None:
    """List the catalogue of residual schemes."""
    from harness.analysis.report import catalogue, text

    rows = catalogue()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        head = list(rows[0])
        typer.echo(text(head, [[str(row[name]) for name in head] for row in rows]), nl=False)


def show(
    scheme: SchemeName,
    encoders: Annotated[int | None, typer.Option(min=1, help="encoder layers")] = None,
    decoders: Annotated[int | None, typer.Option(min=1, help="decoder layers")] = None,
    as_json: JsonOption = False,
    signature: Annotated[bool, typer.Option("--signature", help="measure over depth")] = False,
    results: Annotated[Path, typer.Option("--results", help="for its figure")] = Path("results"),
) -> None:
    """Print a scheme's numbers, layer by layer. Both stacks are a pair; one alone is one stack."""
    from harness.analysis import report
    from harness.schemes import find, twin

    sizes = (encoders or 0, decoders or 0) if encoders or decoders else report.usual_sizes(scheme)
    said = report.numbers(scheme, *sizes)
    if signature:
        from harness.signature import sign

        said["signature"] = sign(scheme, *sizes, results)
    if as_json:
        typer.echo(json.dumps(said if signature else said["sublayers"], indent=2))
    else:
        typer.echo(report.numbers_text(said), nl=False)
        typer.echo(report.described(scheme), err=True)
        if other := twin(find(scheme), {}, *sizes, max(sizes)):
            typer.echo(f"{scheme} is {other} at this depth: no number of the two differs", err=True)


def check(
    scheme: SchemeName,
    study: Annotated[
        str | None, typer.Option(metavar="STUDY", help="the study file that declares it")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=V", help="an option of the scheme")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a scheme keeps what every scheme promises; exit code 1 where it does not."""
    import torch

    from harness.fields import Typed
    from harness.sweep.study import load
    from harness.training.conformance import conform

    torch.set_num_threads(1)  # models this small gain nothing from more
    if study:
        load(study)  # declares its schemes
    options = {}
    for text in option or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--option {text}: expected name=v")
        options[name] = Typed(value)
    findings = []
    for finding in conform(scheme, options):
        findings.append(finding)
        if not as_json:
            kind = "warning" if finding.warning else "FAILED"
            verdict = f"{kind}: {finding.problem}" if finding.problem else "ok"
            typer.echo(f"{finding.family:16} {finding.check}: {verdict}")
    if as_json:
        typer.echo(json.dumps([each._asdict() for each in findings], indent=2))
    warnings, failed = (
        sum(bool(each.problem) and each.warning == kind for each in findings)
        for kind in (True, False)
    )
    more = f", {warnings} warned" if warnings else ""
    typer.echo(f"{scheme}: {len(findings)} checks, {failed} failed{more}", err=True)
    raise typer.Exit(1 if failed else 0)
