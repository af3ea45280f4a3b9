# SPDX-License-Identifier: Apache-2.0
"""`p4reduce net draw` and `net doctor`: a network as a picture, and what this machine lacks for one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from controller.terminal import CommandError, JsonOption, NetOption, print_json
from topologies import record as records
from topologies.record import NetRecord
from wire.errors import P4ReduceError

MAX_SECONDS = 60.0


def net_draw(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An .svg or .png; default: NETWORK.svg.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long loads are counted.")] = 1.0,
    net: NetOption = None,
) -> None:
    """Draw a network with its links' loads and its jobs' trees."""
    from topologies import draw

    if not 0 < seconds <= MAX_SECONDS:
        raise CommandError(f"--seconds {seconds:g}", f"more than 0 and at most {MAX_SECONDS:g}")
    record = records.load_default(net)
    path = Path(f"{record.name}.svg") if out is None else out
    draw.check_place(path)  # before the loads are counted
    jobs = _jobs(record)
    draw.draw(record, draw.plan(record, jobs), draw.loads(record, seconds), path)
    parts = (
        (len(record.switches), "switch", "switches"),
        (len(record.hosts), "host", "hosts"),
        (len(jobs), "job", "jobs"),
    )
    typer.echo(f"{path}: {', '.join(_count(*part) for part in parts)}")


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _jobs(record: NetRecord) -> list[dict[str, Any]]:
    """Return the jobs as the controller tells of them; none, with a word, where it does not answer."""
    from topologies.jobs import control_of

    try:
        with control_of(record) as control:
            return list(control.call("GET", "/v1/jobs"))
    except P4ReduceError as error:
        typer.echo(f"drawn without jobs: {error}", err=True)
        return []


def net_doctor(as_json: JsonOption = False) -> None:
    """Say what of this machine a network needs, whether it is there, and how to get what is not."""
    from topologies import doctor

    findings = doctor.examine(say=None if as_json else typer.echo)
    if as_json:
        print_json([finding.told() for finding in findings])
    failed = [finding for finding in findings if finding.state == doctor.BAD]
    if not as_json:
        warned = sum(finding.state == doctor.LACKS for finding in findings)
        told = f"{_count(len(failed), 'problem', 'problems')}, {_count(warned, 'warning', 'warnings')}"
        typer.echo(told + (" (networks run all the same)" if warned and not failed else ""))
    if failed:
        raise typer.Exit(1)
