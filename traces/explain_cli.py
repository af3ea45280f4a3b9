# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace explain`: what limited a recorded run."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer

from wire.hints import command

from .errors import FilterError
from .explain import Explanation, explain
from .files import FORMATS
from .terminal import FilesArgument, FormatOption, until_closed


def trace_explain(
    files: FilesArgument,
    format_: FormatOption = "p4reduce",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what limited each job: stragglers, loss, windows, links, the switch, other jobs, idle times."""
    if format_ not in FORMATS:
        raise FilterError(f"--format {format_}", f"there are {' and '.join(FORMATS)}")
    found = explain(files, format_)
    names = shlex.join(str(file) for file in files)
    with until_closed():
        if as_json:
            told = [each.as_json() | {"show": f"trace show {names} {each.show}"} for each in found.findings]
            typer.echo(json.dumps({"findings": told, "notes": found.notes}, indent=1))
        else:
            _print(found, names)
    if found.failure is not None:
        raise found.failure


def _print(found: Explanation, names: str) -> None:
    for note in found.notes:
        typer.echo(f"note: {note}")
    for finding in found.findings:
        name = found.names.get(finding.job)
        told = f"job {finding.job} ({name})" if name else f"job {finding.job}"
        typer.echo(f"{finding.kind}: {told}: {finding.text}")
        typer.echo(f"    {command(f'trace show {names} {finding.show}')}")
    if not found.findings and found.failure is None:
        typer.echo("nothing to explain: no job's packets are in these captures")
