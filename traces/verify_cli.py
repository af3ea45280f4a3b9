# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace verify`: whether a capture obeys the contract."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import typer

from wire.errors import P4ReduceError

from .terminal import FilesArgument, until_closed
from .verify import verify
from .verify_findings import Findings, Rule

VIOLATED, UNREADABLE = 1, 2
"""Exit codes; 0 is of a capture that conforms."""


def trace_verify(
    files: FilesArgument,
    first: Annotated[int, typer.Option(min=0, help="Violations to show, the first ones.")] = 20,
    duplicates: Annotated[
        bool,
        typer.Option(
            "--duplicates",
            help="The fault table duplicated packets, and no memberships say so: allow more results.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check captures against the contract. Exit code: 0 conforms, 1 violations, 2 could not be read."""
    findings, error = Findings(), None
    try:
        verify(files, duplicates=duplicates, findings=findings)
    except P4ReduceError as caught:
        error = caught
    with until_closed():
        if as_json:
            told = findings.as_json(first) | {"error": None if error is None else str(error)}
            typer.echo(json.dumps(told, indent=1))
        elif error is None or findings.checked["packets"]:
            _print(findings, first, duplicates)
    if error is not None:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(UNREADABLE)
    raise typer.Exit(VIOLATED if findings.total else 0)


def _print(findings: Findings, first: int, duplicates: bool) -> None:
    for note in findings.notes:
        typer.echo(f"note: {note}")
    shown = findings.violations[:first]
    for violation in shown:
        typer.echo(str(violation))
    if findings.total > len(shown):
        typer.echo(f"… and {findings.total - len(shown)} more (--first {findings.total})")
    _print_counts("checked", findings.checked)
    _print_counts("not looked at", findings.ignored)
    _print_counts("could not be checked", findings.unchecked)
    if findings.by_rule[Rule.COUNT.value] and not duplicates:
        typer.echo(
            "results may be more where a fault table duplicated packets that no memberships tell of: "
            "then say --duplicates"
        )
    packets = findings.checked["packets"]
    if findings.total:
        told = ", ".join(f"{rule} {many}" for rule, many in findings.by_rule.most_common())
        typer.echo(f"{findings.total} violations in {packets} packets: {told}")
    elif not findings.checked["contributions"] and not findings.checked["results"]:
        typer.echo(f"nothing to check: none of {packets} packets is a member's contribution or result")
    else:
        typer.echo(f"no violation in {packets} packets")


def _print_counts(what: str, counts: Counter[str]) -> None:
    told = [f"{name} {many}" for name, many in sorted(counts.items()) if many and name != "packets"]
    if told:
        typer.echo(f"{what}: {'; '.join(told)}")
