# SPDX-License-Identifier: Apache-2.0
"""The command p4reduce as a user meets it: one line for an error, quick help, no traceback."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import cast

import pytest
import typer

from controller import cli
from topologies.cli import _troubles
from topologies.errors import SpecError
from topologies.identity import Process
from topologies.record import CONTROLLER, new_record
from topologies.spec import star

PROGRAM = [sys.executable, "-c", "from controller.cli import main; main()"]


def p4reduce(*args: str) -> tuple[int, str, str]:
    done = subprocess.run([*PROGRAM, *args], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["net", "up", "star", "--hosts", "65"], "error: --hosts 65: a star has 1 to 64 hosts"),
        (["net", "up", "star", "--rate", "3"], "error: --rate 3: a rate is 10kbit to 1tbit, or none"),
        (["net", "up", "racks", "--bottleneck-rate", "x"], "error: --bottleneck-rate x: a rate is a number"),
        (["train", "--loss", "100%"], "error: --loss 100%: a percentage of 0 or more and under 100"),
        (["train", "--loss", "2%", "--net", "none"], "error: there is no network none"),
        (["net", "up", "ring"], "error: ring: no such topology; there is star"),
        (["net", "up", "star", "--switch", "tofino"], "error: no such switch target: tofino"),
        (["net", "down", "--net", "none"], "error: there is no network none"),
        (["net", "down", "none"], "error: say which network by its option: p4reduce net down --net none"),
        (
            ["net", "exec", "h1", "--net", "none", "ls"],
            "error: net exec h1 --net: options go before the host",
        ),
        (["net", "exec", "--net", "none", "h1", "ls", "-l"], "error: there is no network none"),
        (["net", "exec", "--net", "none", "h1", "p4reduce", "--net", "x"], "error: there is no network none"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(args: list[str], message: str) -> None:
    code, out, err = p4reduce(*args)
    assert (code, out) == (1, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("streams", "code", "message"),
    [("<&-", 0, ""), (">&-", 0, ""), (">/dev/full", 1, "error: what is written: No space left on device\n")],
)
def test_streams_that_are_closed_or_full(streams: str, code: int, message: str) -> None:
    script = f'exec "$@" net status --json {streams}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (code, message)


def test_the_status_says_how_a_controller_that_was_given_up_is_resumed(tmp_path: Path) -> None:
    record = new_record(
        "n", star(1), target="embedded", elements=64, slots=9, root=tmp_path, interfaces=tmp_path
    )
    record = replace(record, state="up", owner=Process.of(os.getpid()))
    assert not any("controller --net" in line for line in _troubles(record))  # it is started again
    given_up = replace(record, given_up=(CONTROLLER,))
    assert any(
        line.endswith("running jobs go on, and are kept again by: p4reduce controller --net n")
        for line in _troubles(given_up)
    )


def test_the_status_of_a_network_that_is_none() -> None:
    code, out, err = p4reduce("net", "status", "--net", "nosuch")
    assert (code, out) == (1, "")
    assert "there is no network nosuch" in err


def test_an_unknown_command_is_a_usage_error() -> None:
    code, _, err = p4reduce("nonsense")
    assert code == 2
    assert "No such command" in err
    assert "Did you mean 'net'?" in p4reduce("nett", "up")[2]


def test_the_version_is_the_package_s() -> None:
    assert p4reduce("--version")[:2] == (0, f"p4reduce {version('p4reduce')}\n")


@pytest.mark.skipif(shutil.which("tc", path="/usr/sbin") is None, reason="there is no /usr/sbin/tc")
def test_commands_of_the_system_are_found_where_a_user_s_path_does_not_lead() -> None:
    environment = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(
        [*PROGRAM, "net", "doctor"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "root:" in done.stdout
    assert "tc is missing" not in done.stdout


def test_help_lists_the_rooms_and_loads_none() -> None:
    check = (
        "import sys\nfrom controller.cli import main\nsys.argv = ['p4reduce', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'topologies.cli', 'grpc', 'numpy', 'mininet', 'scapy', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert "Networks: up, status" in done.stdout


def test_a_room_without_a_command_line_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    group = cast(cli.Rooms, typer.main.get_command(cli.app))
    monkeypatch.setitem(cli.ROOMS, "train", ("training.no_such_module", ""))
    monkeypatch.setitem(cli.ROOMS, "net", ("topologies.cli", ""))
    commands = group.list_commands(None)
    assert "net" in commands
    assert "train" not in commands


def test_an_interrupt_is_130_and_an_error_has_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def fail() -> None:
        raise error

    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest's own handlers stay
    error = SpecError("x", "y")
    error.exit_code = 3
    for command, code in ((interrupt, 130), (fail, 3)):
        probe = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        probe.command()(command)
        monkeypatch.setattr(cli, "app", probe)
        monkeypatch.setattr(sys, "argv", ["p4reduce"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == code
