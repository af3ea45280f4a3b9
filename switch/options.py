# SPDX-License-Identifier: Apache-2.0
"""simple_switch_grpc's command line, as far as the embedded switch has a use for it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from switch.delay import Delay, DelayError
from switch.errors import SwitchError

LOG_LEVELS = ("trace", "debug", "info", "warn", "error", "off")
DEFAULT_ADDRESS = "0.0.0.0:9559"
DEFAULT_DROP_PORT = 511
MAX_DEVICE_ID = (1 << 64) - 1
"""A P4Runtime device id is a uint64."""
MAX_PORT = (1 << 9) - 1
MAX_TCP_PORT = (1 << 16) - 1
MAX_NUMBER = (1 << 32) - 1


class UsageError(SwitchError):
    """A command line that does not say what to do; `usage` is the help text's first line."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; see --help")


@dataclass(frozen=True)
class Options:
    """What a switch process is told."""

    interfaces: tuple[tuple[int, str], ...]
    """(port number, interface) each."""
    device_id: int
    program: Path | None
    pcap: Path | None
    log_console: bool
    log_file: Path | None
    log_level: str
    stats_socket: Path | None
    delays: tuple[Delay, ...]
    grpc_address: str
    cpu_port: int | None
    drop_port: int
    super_packets: bool
    """Whether packets of one flow leave together, see switch/runtime/io_super.h."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(arguments: Sequence[str]) -> Options:
    """Read a command line (without the program's name).

    Raises:
        UsageError: an unknown or wrong argument.
        SystemExit: after --help, as argparse does.
    """
    general, target = _parsers()
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    given = general.parse_args(words[:cut])
    more = target.parse_args(words[cut + 1 :])
    if given.program is None and not given.no_p4:
        raise UsageError("name the bmv2 JSON to run, or give --no-p4 and push a program over P4Runtime")
    if given.program is not None and given.no_p4:
        raise UsageError(f"both {given.program} and --no-p4 are given: leave one out")
    for delay in given.delay:
        if delay.port not in [port for port, _ in given.interface]:
            raise UsageError(f"--delay: port {delay.port} has no interface; give it one with -i")
    if given.log_console and given.log_file:
        raise UsageError("--log-console and --log-file exclude each other")
    if given.pcap is not None and not given.pcap.is_dir():
        raise UsageError(f"--pcap {given.pcap}: there is no such directory; make it first")
    numbers = [port for port, _ in given.interface]
    names = [name for _, name in given.interface]
    for repeated in [
        *{n for n in numbers if numbers.count(n) > 1},
        *{n for n in names if names.count(n) > 1},
    ]:
        raise UsageError(f"-i: {repeated} is given twice; a port has one interface, an interface one port")
    for number, option in ((more.cpu_port, "--cpu-port"), (more.drop_port, "--drop-port")):
        if number in numbers:
            raise UsageError(f"{option} {number} is also the port of an interface; choose another number")
    if more.cpu_port == more.drop_port:
        raise UsageError(f"--cpu-port and --drop-port are both {more.cpu_port}; choose two numbers")
    return Options(
        interfaces=tuple(given.interface),
        device_id=given.device_id,
        program=given.program,
        pcap=given.pcap,
        log_console=given.log_console,
        log_file=given.log_file,
        log_level=given.log_level,
        stats_socket=given.stats_socket,
        delays=tuple(given.delay),
        grpc_address=more.grpc_server_addr,
        cpu_port=more.cpu_port,
        drop_port=more.drop_port,
        super_packets=not given.no_super_packets,
    )


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    target = _Parser(prog="", add_help=False, usage=argparse.SUPPRESS, allow_abbrev=False)
    target.add_argument(
        "--grpc-server-addr",
        metavar="HOST:PORT",
        type=_address,
        default=DEFAULT_ADDRESS,
        help=f"default {DEFAULT_ADDRESS}",
    )
    target.add_argument("--cpu-port", metavar="N", type=_cpu_port, help="port of PacketIn and PacketOut")
    target.add_argument(
        "--drop-port",
        metavar="N",
        type=_port,
        default=DEFAULT_DROP_PORT,
        help=f"egress_spec of a dropped packet (default {DEFAULT_DROP_PORT})",
    )
    general = _Parser(
        prog="python -m switch",
        usage="%(prog)s [-i PORT@INTERFACE ...] [options] (--no-p4 | PROGRAM.json) [-- TARGET OPTIONS]",
        description="The embedded v1model switch: simple_switch_grpc's command line, driven over P4Runtime.",
        epilog="target options, after --:\n" + target.format_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    general.add_argument("program", metavar="PROGRAM.json", nargs="?", type=Path, help="bmv2 JSON of p4c")
    general.add_argument("--no-p4", action="store_true", help="start without a program")
    general.add_argument(
        "-i", "--interface", metavar="PORT@INTERFACE", action="append", default=[], type=_interface
    )
    general.add_argument(
        "--device-id", metavar="N", type=_device_id, default=0, help="P4Runtime's (default 0)"
    )
    general.add_argument(
        "--pcap", metavar="DIR", type=Path, help="write INTERFACE_in.pcap and _out.pcap there"
    )
    general.add_argument(
        "--no-super-packets",
        action="store_true",
        help="send every packet by itself, also where Linux would take many of a flow at once",
    )
    general.add_argument("--log-console", action="store_true", help="log to the standard output")
    general.add_argument("--log-file", metavar="FILE", type=Path, help="log to a file")
    general.add_argument("--log-flush", action="store_true", help="each line is written at once in any case")
    general.add_argument(
        "-L", "--log-level", choices=LOG_LEVELS, default="info", metavar="LEVEL",
        help="default info; trace tells what happens to each packet, and makes the switch slower",
    )  # fmt: skip
    general.add_argument(
        "--stats-socket",
        metavar="FILE",
        type=Path,
        help="Unix socket that tells what each port received, sent and lost, and sets delays: see p4reduce "
        "switch stats and delay",
    )
    general.add_argument(
        "--delay",
        metavar="PORT:DIRECTION:SECONDS",
        action="append",
        default=[],
        type=_delay,
        help="hold back each packet that comes in (in) or leaves (out) by a port, as a long link would",
    )
    return general, target


def _number(word: str, most: int) -> int:
    if not (word.isascii() and word.isdigit()):
        raise argparse.ArgumentTypeError(f"{word!r:.40} is not a number")
    if len(word) > len(str(most)) or int(word) > most:
        raise argparse.ArgumentTypeError(f"it is beyond {most}")
    return int(word)


def _device_id(word: str) -> int:
    return _number(word, MAX_DEVICE_ID)


def _port(word: str) -> int:
    number = _number(word, MAX_NUMBER)
    if number > MAX_PORT:
        raise argparse.ArgumentTypeError(f"port {number} is beyond {MAX_PORT}, v1model's ports have 9 bits")
    return number


def _cpu_port(word: str) -> int:
    if _port(word) == 0:
        raise argparse.ArgumentTypeError("the CPU port cannot be 0")
    return int(word)


def _interface(word: str) -> tuple[int, str]:
    number, at, name = word.partition("@")
    if not at or not name:
        raise argparse.ArgumentTypeError(f"{word!r} is not PORT@INTERFACE, such as 1@eth1")
    return _port(number), name


def _delay(words: str) -> Delay:
    try:
        return Delay.from_words(words)
    except DelayError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _address(word: str) -> str:
    host, _, port = word.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed) or not (port.isascii() and port.isdigit()):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not HOST:PORT, such as {DEFAULT_ADDRESS} or [::1]:9559"
        )
    # gRPC would take such a number modulo 65536
    if _number(port, MAX_NUMBER) > MAX_TCP_PORT:
        raise argparse.ArgumentTypeError(f"TCP port {port} is beyond {MAX_TCP_PORT}")
    return word
