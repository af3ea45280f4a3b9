# SPDX-License-Identifier: Apache-2.0
"""The switch as a process: ports, P4Runtime server and device from the command line to the last signal."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from switch.delay import DIRECTIONS, Delay
from switch.device import SwitchDevice
from switch.device_log import TRACE, DeviceLog
from switch.errors import LoadError, SwitchError
from switch.options import Options, parse
from switch.p4runtime.server import P4RuntimeServer
from switch.p4runtime.service import P4RuntimeService
from switch.ports import Ports, io_library
from switch.stats_socket import StatsSocket
from wire.stopping import Stop

log = logging.getLogger("switch")

LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RunningSwitch:
    """A switch that forwards on its interfaces and serves P4Runtime while the `with` block lasts."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ports: Ports | None = None
        self._service: P4RuntimeService | None = None
        self._server: P4RuntimeServer | None = None
        self._log: DeviceLog | None = None
        self._stats: StatsSocket | None = None

    @property
    def grpc_port(self) -> int:
        """The TCP port that P4Runtime is served on."""
        return self._server.port if self._server is not None else 0

    def __enter__(self) -> RunningSwitch:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server, then the ports and the device. Idempotent."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._stats is not None:
            self._stats.stop()
            self._stats = None
        if self._log is not None:
            self._log.stop()
            self._log = None
        if self._ports is not None:
            self._report(self._ports)
            self._ports.close()
            self._ports = None

    def _start(self) -> None:
        options = self._options
        self._log = DeviceLog(trace=log.isEnabledFor(TRACE))
        ports = self._ports = Ports(io_library(), options.cpu_port, join=options.super_packets)
        for number, interface in options.interfaces:
            ports.add(number, interface, options.pcap)
        for delay in options.delays:
            ports.set_delay(delay)
        service = self._service = P4RuntimeService(options.device_id, self._load, ports)
        if options.stats_socket is not None:
            self._stats = StatsSocket(options.stats_socket, self._collect, self._change)
        server = self._server = P4RuntimeServer(service, options.grpc_address)
        ports.start()
        if options.program is not None:
            try:
                ports.attach(self._load(read_program(options)))
            except LoadError as error:
                raise error.of(options.program) from error
        server.start()

    def _load(self, json: bytes) -> SwitchDevice:
        options = self._options
        device = SwitchDevice.load(
            json, cpu_port=options.cpu_port, drop_port=options.drop_port, trace=log.isEnabledFor(TRACE)
        )
        if self._log is not None:
            self._log.add(device)
        return device

    def _collect(self) -> dict[str, Any]:
        """What the stats socket tells."""
        ports = self._ports
        assert ports is not None  # it ends after the socket
        program = ports.program_stats()
        return {
            "device_id": self._options.device_id,
            "ports": {
                number: {
                    "interface": ports.interface(number),
                    **asdict(stats),
                    **{f"delay_{way}": ports.delay(number, way) for way in DIRECTIONS},
                }
                for number, stats in ports.stats().items()
            },
            "packet_in_lost": self._packet_in_lost(ports),
            "program": asdict(program) if program is not None else None,
        }

    def _change(self, request: dict[str, Any]) -> None:
        """Do what the stats socket is asked to."""
        assert self._ports is not None
        self._ports.set_delay(Delay.from_request(request))

    def _packet_in_lost(self, ports: Ports) -> int:
        """Of the frames for the controller, those that came too fast for us, or that no primary took."""
        return ports.packet_in_lost() + (self._service.packet_in_lost if self._service is not None else 0)

    def _report(self, ports: Ports) -> None:
        for number, stats in ports.stats().items():
            log.info("port %d: %s", number, stats)
        if lost := self._packet_in_lost(ports):
            log.warning("%d packets to the controller were lost", lost)


def read_program(options: Options) -> bytes:
    """Return the bmv2 JSON that the command line names; SwitchError if it cannot be read."""
    try:
        return options.program.read_bytes().lstrip() if options.program else b""
    except OSError as error:
        raise SwitchError(f"cannot read {options.program}: {error.strerror}") from error


class _Ended(BaseException):
    """A signal before the switch was ready."""


def main(arguments: Sequence[str]) -> int:
    """Run a switch until SIGTERM, SIGINT or SIGHUP; return the exit code. Errors are one line on standard
    error."""
    with Stop() as stop:
        return _run_until(stop, arguments)


def _run_until(stop: Stop, arguments: Sequence[str]) -> int:
    ready = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.set(number) and not ready:  # the program may be compiled just now, which takes its time
            end_children(os.getpid())
            raise _Ended

    try:
        options = parse(arguments)
        set_up_logging(options)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, on_signal)
        with RunningSwitch(options) as switch:
            ready = True
            with contextlib.suppress(OSError):  # who started it does not listen, or its disk is full
                print(_ready_line(options, switch.grpc_port), flush=True)
            # No limit: the switch runs until it is told to end.
            stop.wait()
    except _Ended:
        pass
    except SwitchError as error:
        print(f"switch: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def run(arguments: Sequence[str]) -> None:
    """Run main as a whole process. A compiler run that is under way does not hold up the end."""
    code = main(arguments)
    end_children(os.getpid())
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            if stream is not None:  # None where it was closed at the start
                stream.flush()
    os._exit(code)


def end_children(parent: int) -> None:
    """End the processes below one: a compiler that works for a push that nobody waits for any more."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread or the child has ended by itself
            for child in map(int, children.read_text().split()):
                end_children(child)
                os.kill(child, signal.SIGTERM)


class _ToldOnce(logging.Handler):
    """Says once that the log cannot be written, and lets the switch go on."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Called by `emit` where a line could not be written."""
        if not self._told:
            self._told = True
            with contextlib.suppress(OSError):
                print(f"switch: warning: the log cannot be written: {sys.exc_info()[1]}", file=sys.stderr)


class _LogFile(_ToldOnce, logging.FileHandler):
    pass


class _LogStream(_ToldOnce, logging.StreamHandler):  # type: ignore[type-arg]
    pass


def set_up_logging(options: Options) -> None:
    """Send the log where the command line says; without either, warnings and a trace go to standard error.

    Raises:
        SwitchError: the file cannot be written.
    """
    handler: logging.Handler
    level = LEVELS[options.log_level]
    if options.log_file is not None:
        try:
            handler = _LogFile(options.log_file)
        except OSError as error:
            raise SwitchError(f"cannot write the log {options.log_file}: {error.strerror}") from error
    elif options.log_console:
        handler = _LogStream(sys.stdout)
    else:
        handler = _LogStream(sys.stderr)
        if options.log_level != "trace":
            level = max(level, logging.WARNING)
    logging.addLevelName(TRACE, "TRACE")
    logging.basicConfig(level=level, format=LOG_FORMAT, handlers=[handler], force=True)


def _ready_line(options: Options, port: int) -> str:
    host = options.grpc_address.rpartition(":")[0]
    ports = ", ".join(f"{number}@{name}" for number, name in options.interfaces) or "none"
    return f"switch: device {options.device_id} is ready: P4Runtime on {host}:{port}, ports {ports}"
