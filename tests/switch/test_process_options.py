# SPDX-License-Identifier: Apache-2.0
"""The command line of the switch process, and what it says when it cannot start."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from switch.device_log import TRACE
from switch.options import LOG_LEVELS, Options, UsageError, parse
from switch.process import set_up_logging


def test_simple_switch_grpcs_command_line(tmp_path: Path) -> None:
    words = (
        f"-i 1@eth1 --interface 2@s1-eth2 -i3@x --no-p4 --device-id 4 --pcap {tmp_path} --log-file l -L warn"
        " --stats-socket /run/s"
    )
    target = "-- --grpc-server-addr 127.0.0.1:50051 --cpu-port 510 --drop-port 509"
    assert parse([*words.split(), *target.split()]) == Options(
        interfaces=((1, "eth1"), (2, "s1-eth2"), (3, "x")),
        device_id=4,
        program=None,
        pcap=tmp_path,
        log_console=False,
        log_file=Path("l"),
        log_level="warn",
        stats_socket=Path("/run/s"),
        delays=(),
        grpc_address="127.0.0.1:50051",
        cpu_port=510,
        drop_port=509,
        super_packets=True,
    )
    assert parse(["x.json", "--no-super-packets"]) == Options(
        (), 0, Path("x.json"), None, False, None, "info", None, (), "0.0.0.0:9559", None, 511, False
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "name the bmv2 JSON"),
        ("a.json --no-p4", "leave one out"),
        ("--no-p4 -i eth1", "PORT@INTERFACE"),
        ("--no-p4 -i x@eth1", "not a number"),
        ("--no-p4 -i 1@a -i 1@b", "1 is given twice"),
        ("--no-p4 -i 1@a -i 2@a", "a is given twice"),
        ("--no-p4 -i 510@a -- --cpu-port 510", "port of an interface"),
        ("--no-p4 -- --cpu-port 0", "cannot be 0"),
        ("--no-p4 -- --cpu-port 511", "both 511"),
        ("--no-p4 --pcap /nonexistent", "no such directory"),
        ("--no-p4 --log-console --log-file x", "exclude each other"),
        ("--no-p4 --log-level loud", "loud"),
        ("--no-p4 --cpu-port 5", "--cpu-port"),
        ("--no-p4 -- --unknown", "--unknown"),
        ("--no-p4 -i 512@a", "--interface: port 512 is beyond 511"),
        ("--no-p4 -i-1@a", "'-1' is not a number"),
        ("--no-p4 -i 1@", "PORT@INTERFACE"),
        ("--no-p4 -- --cpu-port 512", "--cpu-port: port 512 is beyond 511"),
        ("--no-p4 -- --drop-port 512", "--drop-port: port 512 is beyond 511"),
        ("--no-p4 -- --drop-port 0x1ff", "--drop-port: '0x1ff' is not a number"),
        ("--no-p4 --device-id 18446744073709551616", "--device-id: it is beyond 18446744073709551615"),
        ("--no-p4 -i 1@a --delay 2:out:1", "--delay: port 2 has no interface"),
        ("--no-p4 -i 1@a --delay 1:out", "--delay: '1:out' is not PORT:DIRECTION:SECONDS"),
        ("--no-p4 -i 1@a --delay 1:up:1", "'up' is neither in nor out"),
        ("--no-p4 -i 1@a --delay 1:out:11", "a delay of 11.0 s cannot be: it is 0 to 10 s"),
        ("--no-p4 -i 1@a --delay 1:out:nan", "a delay of nan s cannot be"),
        ("--no-p4 --device-id -1", "--device-id"),
        ("--no-p4 --device-id ²", "--device-id: '²' is not a number"),
        ("--no-p4 --device-id " + "9" * 5000, "--device-id: it is beyond"),
        (
            "--no-p4 -- --grpc-server-addr 127.0.0.1:65536",
            "--grpc-server-addr: TCP port 65536 is beyond 65535",
        ),
        (
            "--no-p4 -- --grpc-server-addr 127.0.0.1:99999",
            "--grpc-server-addr: TCP port 99999 is beyond 65535",
        ),
        ("--no-p4 -- --grpc-server-addr 127.0.0.1", "--grpc-server-addr: '127.0.0.1' is not HOST:PORT"),
        ("--no-p4 -- --grpc-server-addr 127.0.0.1:", "is not HOST:PORT"),
        ("--no-p4 -- --grpc-server-addr :9559", "is not HOST:PORT"),
        ("--no-p4 -- --grpc-server-addr ::1:9559", "is not HOST:PORT"),
        ("--no-p4 -- --grpc-server-addr localhost:http", "is not HOST:PORT"),
    ],
)
def test_wrong_command_lines(words: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(words.split())


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:65535", "[::1]:9559", "0.0.0.0:1"])
def test_addresses(address: str) -> None:
    assert parse(["--no-p4", "--", "--grpc-server-addr", address]).grpc_address == address


def test_the_largest_numbers() -> None:
    words = f"--no-p4 --device-id {2**64 - 1} -i 511@a -i 0@b -- --cpu-port 510 --drop-port 509"
    options = parse(words.split())
    assert options.device_id == 2**64 - 1
    assert options.interfaces == ((511, "a"), (0, "b"))


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.handlers.clear()
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


SAID = {"trace": 5, "debug": 4, "info": 3, "warn": 2, "error": 1, "off": 0}


@pytest.mark.parametrize("level", LOG_LEVELS)
@pytest.mark.parametrize("where", ["file", "console", "neither"])
def test_where_the_log_goes_and_what_is_in_it(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str], tmp_path: Path, level: str, where: str
) -> None:
    path = tmp_path / "log"
    words = {"file": ["--log-file", str(path)], "console": ["--log-console"], "neither": []}[where]
    set_up_logging(parse(["--no-p4", "-L", level, *words]))
    for number in (TRACE, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("switch.x").log(number, "line of %d", number)
    out, err = capsys.readouterr()
    said = {"file": path.read_text() if where == "file" else "", "console": out, "neither": err}.pop(where)
    names = ["ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
    # without a place for the log, only what somebody must know, or what was asked for by name
    wanted = min(SAID[level], 2) if where == "neither" and level != "trace" else SAID[level]
    assert [line.split()[2] for line in said.splitlines()] == names[:wanted][::-1]
    assert all(line.split()[3] == "switch.x:" for line in said.splitlines())
    assert (out if where != "console" else "") + (err if where != "neither" else "") == ""


def test_a_log_on_a_full_disk_is_told_once(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(parse(["--no-p4", "--log-file", "/dev/full"]))
    for _ in range(2):
        logging.getLogger("switch.x").warning("a line")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("switch: warning: the log cannot be written: [Errno 28]")
    with pytest.raises(OSError, match="No space"):
        root_logger.handlers[0].close()


def start(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "switch", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--no-p4 --colour", "--colour"),
        ("--no-p4 -i 1@nosuchif0", "nosuchif0"),
        ("--no-p4 -i 1@no\udcff", "no interface of this name"),
        (f"--no-p4 --stats-socket /tmp/{'x' * 103}", "at most 107 bytes"),
        ("nosuch.json -- --grpc-server-addr 127.0.0.1:0", "cannot read nosuch.json"),
        ("README.md -- --grpc-server-addr 127.0.0.1:0", "cannot load README.md: the JSON: not valid JSON"),
        ("--no-p4 -- --grpc-server-addr 198.51.100.1:1", "cannot serve gRPC on 198.51.100.1:1"),
        ("--no-p4 --log-file /nonexistent/log", "cannot write the log"),
    ],
)
def test_one_line_says_what_is_wrong(words: str, why: str) -> None:
    done = start(*words.split())
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("switch: error: ")
    assert why in line


def start_with(limits: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Of util-linux, under limits or without rights that root has."""
    return subprocess.run(
        [*limits.split(), sys.executable, "-m", "switch", *words, "--", "--grpc-server-addr", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )


@pytest.mark.root
def test_without_the_right_to_open_interfaces() -> None:
    done = start_with("setpriv --bounding-set -net_raw --inh-caps -net_raw", "--no-p4", "-i", "1@lo")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("raw sockets need root or CAP_NET_RAW: run with sudo")


def test_a_busy_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = start("--no-p4", "--", "--grpc-server-addr", address)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"cannot serve gRPC on {address}" in line


def test_help_tells_both_groups_of_options() -> None:
    done = start("--help")
    assert done.returncode == 0
    for word in ("--device-id", "--pcap", "--cpu-port", "--grpc-server-addr"):
        assert word in done.stdout
