# SPDX-License-Identifier: Apache-2.0
"""Bring a network up and take it down: what `p4reduce net up`, `net down` and `train` call."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from p4src.compile import out_of_date
from topologies import links, preflight, processes, rootless
from topologies import record as records
from topologies.errors import NetworkError, RecordError, SpecError
from topologies.record import CONTROLLER_LOG, NetRecord
from topologies.spec import NetworkSpec
from topologies.targets import choose
from traces.names import captures
from wire.addresses import listening, parse_address
from wire.constants import ELEMENT_CHOICES, RUN_ROOT
from wire.native import cache_folder

BUILD_LIMIT_S = 120.0
DOWN_LIMIT_S = 30.0
SELF_TEST_LIMIT_S = 10.0
CONTROLLER_LIMIT_S = 60.0
_ASK_EVERY_S = 0.05

Say = Callable[[str], None]


def _quiet(line: str) -> None:
    return None


def up(
    spec: NetworkSpec,
    *,
    name: str,
    target: str | None = None,
    elements: int = 256,
    pcap: Path | None = None,
    super_packets: bool = True,
    listen: str | None = None,
    lease: float | None = None,
    root: Path = RUN_ROOT,
    say: Say = _quiet,
) -> NetRecord:
    """Bring a network up with its controller, verify it with a packet; return its record.

    `elements` are the values of one packet (64 or 256), `pcap` a folder for one capture per link, `say` gets
    a line about each step. Without `super_packets` every packet travels alone and whole, as always with bmv2.
    `listen` is HOST:PORT where the controller serves on TCP too, to who has the token in the network's folder
    (wire.constants.TOKEN). `lease` is the controller's: seconds after which a silent worker is lost. Whatever
    fails, nothing is left running: a subclass of P4ReduceError says what and where the logs are.
    """
    if elements not in ELEMENT_CHOICES:
        choices = " or ".join(map(str, ELEMENT_CHOICES))
        raise SpecError(f"--elements {elements}", f"a packet carries {choices} elements")
    address = parse_address("--listen", listen) if listen is not None else None
    chosen = choose(target)
    preflight.check(preflight.memory_mb(len(spec.switches), len(spec.hosts), chosen.memory_mb), root)
    if pcap is not None:
        pcap = pcap.absolute()
        try:
            pcap.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"--pcap {pcap}", f"the folder cannot be made: {error.strerror}") from None
        old = captures(pcap)
        if old:
            raise SpecError(
                f"--pcap {pcap}",
                f"it holds captures already ({old[0].name}{f' and {len(old) - 1} more' if old[1:] else ''}): "
                "remove them, or name another folder",
            )
    clear_crashed(name, root, say)
    record = records.new_record(
        name,
        spec,
        target=chosen.name,
        elements=elements,
        slots=chosen.default_slots,
        window=chosen.default_window,
        replicas=chosen.replicas,
        pcap=None if pcap is None else str(pcap),
        super_packets=super_packets and chosen.super_packets,
        listen=listen,
        lease=lease,
        qdiscs=preflight.qdiscs(),
        root=root,
    )
    links.check(record, record.links)
    if address is not None and name not in records.names(root):  # else the error is that it is up already
        listening(*address).close()  # its controller would find out when all is built
    record.claim()
    try:
        say(f"building {_count(spec)}, switch target {chosen.name}")
        _start_daemon(record)
        say(f"loading the P4 program ({record.elements} elements, {record.slots} slots)")
        if out_of_date():
            say("the sources p4src/*.p4 have changed since: recompile them with make p4 (it needs p4c)")
        _wait_controller(record)
        record = records.load(name, root)
        self_test(record)
        _set_faults(record)
        for line in links.described(record, record.links):
            say(line)
    except BaseException as error:
        failed = isinstance(error, Exception)  # else somebody stopped it: there is nothing to look for
        with _undisturbed():
            kept = _remove(records.load(name, root), failed)
        if failed:
            say(f"the logs of the failed network are kept in {kept}")
        else:
            say(f"interrupted: what was started of network {name} is stopped again")
        raise
    return record


@contextmanager
def network(spec: NetworkSpec, **options: Any) -> Iterator[NetRecord]:
    """Run the body with a network that is up, and take it down afterwards; `options` are those of up()."""
    record = up(spec, **options)
    try:
        yield record
    finally:
        with _undisturbed():
            down(record)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Run the body without an ear for Ctrl-C: who presses it twice must not stop the clean-up half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def down(record: NetRecord, *, keep_logs: bool = False) -> Path | None:
    """Take a network down, running or crashed, by what its record names and nothing else.

    Returns the folder of its logs where they are to be kept.
    """
    if os.geteuid() != 0:
        raise RecordError(record.name, "taking a network down needs root: run the command with sudo")
    logs = _remove(record, keep_logs)
    return logs if keep_logs else None


def clear_crashed(name: str, root: Path = RUN_ROOT, say: Say = _quiet) -> None:
    """Remove what a crashed network of that name left; one whose daemon lives is not touched."""
    if name not in records.names(root):
        return
    record = records.load(name, root)
    if not record.owner.alive():
        say(f"removing what the crashed network {name} left")
        _remove(record, False)


def self_test(record: NetRecord) -> None:
    """Ping from the first host to the last, alone to its switch; NetworkError when none is answered."""
    first, last = record.hosts[0], record.hosts[-1]
    to_name, to_ip = (
        (last.name, last.ip) if last != first else (record.switches[0].name, record.switches[0].ip)
    )
    deadline = time.monotonic() + SELF_TEST_LIMIT_S
    while True:
        with processes.host_popen(
            record,
            first.name,
            ["ping", "-n", "-c", "1", "-W", "1", to_ip],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as ping:
            output = ping.communicate()[0]
        if ping.returncode == 0:
            return
        if time.monotonic() > deadline:
            last_line = (output.strip().splitlines() or ["no output"])[-1]
            raise NetworkError(
                record.name,
                f"the self-test failed: no ping from {first.name} ({first.ip}) to {to_name} ({to_ip}) was "
                f"answered in {SELF_TEST_LIMIT_S:g} s ({last_line}); look into the switch's log",
            )


def _wait_controller(record: NetRecord) -> None:
    """Wait until the network's controller has every switch in line; NetworkError with the end of its log."""
    from wire.control import SOCKET, ControlClient, ControlError

    log, socket = record.directory / CONTROLLER_LOG, record.directory / SOCKET
    deadline = time.monotonic() + CONTROLLER_LIMIT_S
    waiting = f"there is no {socket}"
    with ControlClient(socket) as control:
        while True:
            if socket.exists():
                try:
                    switches = control.call("GET", "/v1/network")["switches"]
                    late = [switch["name"] for switch in switches if not switch["in_line"]]
                    if not late:
                        return
                    waiting = f"it has not brought {', '.join(late)} in line"
                except ControlError as error:
                    waiting = str(error)
            died = records.load(record.name, record.root).dead()
            if died or time.monotonic() > deadline:
                why = f"{', '.join(died)} died" if died else f"waited {CONTROLLER_LIMIT_S:g} s: {waiting}"
                raise NetworkError(
                    record.name, f"its controller is not ready: {why}; {processes.log_tail(log)}"
                )
            time.sleep(_ASK_EVERY_S)


def _set_faults(record: NetRecord) -> None:
    faulted = [link for link in record.links if links.faulted(record, link)]
    if faulted:
        from topologies.jobs import control_of

        with control_of(record) as control:
            for link in faulted:
                links.set_faults(control, record, link)


def _start_daemon(record: NetRecord) -> None:
    log = record.directory / "daemon.log"
    try:
        log.touch()
    except OSError as error:
        raise NetworkError(record.name, f"{log} cannot be written: {error.strerror}") from None
    reader, writer = os.pipe()
    try:
        with log.open("ab") as sink:
            subprocess.run(
                [sys.executable, "-m", "topologies.daemon", record.name, str(record.root), str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=record.directory,
                pass_fds=(writer,),
                timeout=BUILD_LIMIT_S,
                check=False,
            )
        os.close(writer)
        writer = -1
        import wire.control  # noqa: F401 - it takes half a second, while the daemon builds

        answer = _read_answer(reader, record.name)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if answer is None:
        tail = processes.log_tail(log)
        raise NetworkError(record.name, f"its daemon died while building it; {tail}")
    if "error" in answer:
        raise NetworkError(record.name, f"it could not be built: {answer['error']}")


def _read_answer(reader: int, name: str) -> dict[str, str] | None:
    """Wait for the daemon's one line; None when it ended without."""
    deadline = time.monotonic() + BUILD_LIMIT_S
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            raise NetworkError(name, f"its daemon was not done building it in {BUILD_LIMIT_S:g} s")
        part = os.read(reader, 4096)
        if not part:
            break
        data += part
    if not data:
        return None
    answer: dict[str, str] = json.loads(data)
    return answer


def _remove(record: NetRecord, keep_logs: bool) -> Path:
    """Stop the daemon, sweep, remove the record; return the folder of the logs where they are kept."""
    if record.owner.pid != os.getpid():
        processes.end([record.owner], DOWN_LIMIT_S)
        with suppress(RecordError):  # somebody else removed it
            # It may have started something again meanwhile.
            record = records.load(record.name, record.root)
    processes.sweep(record)
    # The name is free, or the record whole, at every moment: the folder goes by one rename.
    going = record.root / f".{record.name}.removed.{os.getpid()}"
    kept = kept_logs(record.name, record.root)
    try:
        record.directory.rename(going)
    except FileNotFoundError:
        return kept  # somebody else removed it
    if keep_logs:
        (going / "net.json").unlink(missing_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(going, kept, ignore=_special)
    shutil.rmtree(going, ignore_errors=True)
    return kept


def kept_logs(name: str, root: Path = RUN_ROOT) -> Path:
    """Return where the logs of a network of that name are that failed."""
    # An ordinary user's /run goes with the last network.
    return (cache_folder() if rootless.inside() else root) / f"{name}.failed"


def _special(folder: str, names: list[str]) -> list[str]:
    """Return what of a folder cannot be copied: sockets."""
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if not path.is_file() and not path.is_dir()]


def _count(spec: NetworkSpec) -> str:
    parts = ((len(spec.hosts), "host", "hosts"), (len(spec.switches), "switch", "switches"))
    return " and ".join(f"{number} {one if number == 1 else many}" for number, one, many in parts)
