# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace record`: what a network's links carry while a command runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from wire.control import ControlClient, find_socket
from wire.hints import command

from . import recorder
from .errors import CaptureError
from .names import LinkEnd, end_words, link_ends
from .terminal import NetOption

READY_SECONDS = 30.0
"""How long a recorder may take to see its first packet: it may have to compile."""
STOP_SECONDS = 15.0


class Ends(str, Enum):
    """Which ends of the links are recorded."""

    BOTH = "both"
    SWITCHES = "switches"
    HOSTS = "hosts"


def trace_record(
    argv: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- CMD...]", help="What runs meanwhile; without, until Ctrl-C."),
    ] = None,
    net: NetOption = None,
    links: Annotated[
        str | None, typer.Option(metavar="h1-s1,…", help="These links alone; default: all.")
    ] = None,
    ends: Annotated[
        Ends, typer.Option(help="Those at switches, at hosts, or both ends of each link.")
    ] = Ends.BOTH,
    job: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Packets of these jobs alone, by name or number.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder for the captures.")] = Path("trace"),
    ring_size: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="Begin a new file after so many MB.")
    ] = None,
    ring_files: Annotated[
        int | None, typer.Option(min=1, help="Keep so many files of each link end, the newest.")
    ] = None,
) -> None:
    """Record what the links of a running network carry, one pcapng an end. CMD's exit code is ours."""
    if ring_files is not None and ring_size is None:
        raise CaptureError("--ring-files", "say with --ring-size when a new file begins")
    if argv and shutil.which(argv[0]) is None:
        raise CaptureError(argv[0], "cannot be run: there is no such command")
    if os.geteuid() != 0:
        raise CaptureError("trace record", "seeing the links' packets needs root: run the command with sudo")
    socket = find_socket(net)
    with ControlClient(socket) as client:
        taken = chosen(link_ends(client.call("GET", "/v1/network")["links"]), links, ends)
        jobs = numbers(client.call("GET", "/v1/jobs"), job)
    recorder.prepare(out)
    words = ["--out", str(out), "--net", socket.parent.name, "--root", str(socket.parent.parent)]
    words += end_words(taken)
    words += [word for number in jobs or () for word in ("--job", str(number))]
    words += [] if ring_size is None else ["--ring-size", str(ring_size * 10**6)]
    words += [] if ring_files is None else ["--ring-files", str(ring_files)]
    raise typer.Exit(_run(words, argv or [], out))


def chosen(every: Sequence[LinkEnd], links: str | None, ends: Ends) -> list[LinkEnd]:
    """Return the link ends to record; CaptureError for an unknown link, or where none is left."""
    found = every
    if links is not None:
        names = {end.link for end in every}
        turned = {end.name: end.link for end in every}
        for name in links.split(","):
            if name not in names and name not in turned:
                have = ", ".join(sorted(names))
                raise CaptureError(name, f"there is no such link; there are {have}")  # --links or --follow
        wanted = {turned.get(name, name) for name in links.split(",")}
        found = [end for end in every if end.link in wanted]
    if ends is not Ends.BOTH:
        found = [end for end in found if (end.namespace is None) == (ends is Ends.SWITCHES)]
    if not found:
        raise CaptureError(f"--ends {ends.value}", "none of these links has such an end")
    return list(found)


def numbers(jobs: Sequence[Mapping[str, Any]], asked: str | None) -> list[int] | None:
    """Return the numbers of the jobs asked for, None for all; CaptureError for an unknown one."""
    if asked is None:
        return None
    by_name = {job["name"]: int(job["number"]) for job in jobs}
    found = []
    for name in asked.split(","):
        if name in by_name:
            found.append(by_name[name])
        elif name.isascii() and name.isdigit() and int(name) < 256:
            found.append(int(name))
        else:
            have = f"; there is {', '.join(sorted(by_name))}" if by_name else ", nor any other"
            raise CaptureError(
                f"--job {name}",
                f"there is no such job{have}; one that does not exist yet is named by its number",
            )
    return found


def _run(words: Sequence[str], argv: Sequence[str], out: Path) -> int:
    """Record while a command runs; return the exit code."""
    taker = subprocess.Popen(
        [sys.executable, "-m", "traces.recorder", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C ends the command first
    )
    try:
        assert taker.stdout is not None
        if not _line(taker):
            taker.wait(STOP_SECONDS)
            raise CaptureError("trace record", "the recorder could not begin, see above")
        typer.echo(f"recording into {out}{'' if argv else '; end with Ctrl-C'}", err=True)
        code, ended = _command(argv, taker)
        if taker.poll() is None:
            taker.send_signal(signal.SIGTERM)
        try:
            told, _ = taker.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise CaptureError("trace record", f"the recorder did not end in {STOP_SECONDS:g} s") from None
    finally:
        if taker.poll() is None:
            taker.terminate()  # it ends its files well
            try:
                taker.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                taker.kill()
                taker.wait()
    lost = _summary(told, out)
    if lost is None:
        typer.echo(f"error: the recorder died (exit code {taker.returncode}): {out} is not whole", err=True)
        return code or 1
    if ended:
        typer.echo(f"error: no link is left: {out} has what they carried until then", err=True)
        return code or 1
    return code or (1 if lost else 0)


def _line(taker: subprocess.Popen[str]) -> bool:
    """Wait for the recorder to say that it sees packets; False if it ended instead."""
    import select

    assert taker.stdout is not None
    if not select.select([taker.stdout], [], [], READY_SECONDS)[0]:
        raise CaptureError("trace record", f"waited {READY_SECONDS:g} s for the recorder to begin")
    return bool(taker.stdout.readline())


def _command(argv: Sequence[str], taker: subprocess.Popen[str]) -> tuple[int, bool]:
    """Run a command to its end, or wait for Ctrl-C; return its exit code, and if the recorder ended first."""
    if not argv:
        try:
            taker.wait()
        except KeyboardInterrupt:
            return 0, False
        return 0, True
    try:
        child = subprocess.Popen(argv)
    except OSError as error:
        raise CaptureError(argv[0], f"cannot be run: {error.strerror}") from error
    try:
        ended = False
        while True:
            try:
                code = child.wait(0.5)
                break
            except subprocess.TimeoutExpired:
                if not ended and taker.poll() is not None:
                    ended = True
                    typer.echo("error: the recorder has ended; the command goes on", err=True)
            except KeyboardInterrupt:
                continue  # the terminal sent it to the command, too, which decides
        return (code if code >= 0 else 128 - code), ended
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _summary(told: str, out: Path) -> bool | None:
    """Print what the recorder told at its end; return whether an end broke off, None if it told nothing."""
    lines = [line for line in told.splitlines() if line.startswith('{"ends"')]
    if not lines:
        return None
    ends = json.loads(lines[-1])["ends"]
    packets, dropped = sum(end["packets"] for end in ends), sum(end["dropped"] for end in ends)
    typer.echo(f"{packets} packets of {len(ends)} link ends are in {out}, {dropped} were dropped", err=True)
    for end in ends:
        if end["dropped"]:
            typer.echo(f"  {end['end']}: {end['dropped']} dropped: too many at once to be recorded", err=True)
        if end["uncut"]:
            typer.echo(f"  {end['end']}: {end['uncut']} super-packets could not be cut up", err=True)
    typer.echo(f"read them: {command(f'trace show {out}')}", err=True)
    return any(end["error"] for end in ends)
