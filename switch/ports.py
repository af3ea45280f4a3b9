# SPDX-License-Identifier: Apache-2.0
"""The ports of a switch process: a thread in C (runtime/io*.c) between AF_PACKET sockets and the device."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from switch import build, super_packets
from switch.delay import DIRECTIONS, Delay, DelayError, Direction
from switch.device import SwitchDevice
from switch.errors import DeviceError, SwitchError
from switch.p4runtime.errors import RpcError, exhausted, precondition
from switch.values import Stats

log = logging.getLogger("switch.ports")

IO_SOURCES = ("io.c", "io_thread.c", "io_port.c", "io_queue.c", "io_line.c", "io_super.c")
WAIT_MS = 1000
"""The reader of events looks up at least this often."""
JOIN_S = 5.0

_TIMEOUT, _PACKET_IN, _DOWN, _UP, _GONE, _CAPTURE_LOST, _STOPPED = range(7)


class PortError(SwitchError):
    """An interface that cannot be a port."""

    def __init__(self, interface: str, why: str) -> None:
        self.interface = interface
        super().__init__(f"cannot open interface {interface}: {why}")


@dataclass(frozen=True)
class PortStats:
    """Packets and bytes of one port, and what it lost: see io_stats in runtime/io.h."""

    rx_packets: int
    rx_bytes: int
    rx_dropped: int
    rx_errors: int
    tx_packets: int
    tx_bytes: int
    tx_dropped: int
    tx_errors: int
    rx_supers: int
    tx_supers: int
    rx_wholes: int


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in PortStats.__dataclass_fields__]


class _Event(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("port", ctypes.c_uint32),
        ("len", ctypes.c_uint32),
        ("error", ctypes.c_int32),
    ]


MAX_FRAME = 65536


def io_library() -> Path:
    """Compile runtime/io*.c, once; BuildError where cc fails."""
    return build.library("io", "port I/O", [build.RUNTIME / name for name in IO_SOURCES])


class Ports:
    """A Dataplane on network interfaces. Add ports, start, attach devices; close ends all of it."""

    def __init__(self, library: Path, cpu_port: int | None, *, join: bool = True) -> None:
        """Prepare without ports. `library` is what io_library gives.

        Super-packets that come are cut up in any case; without `join` every frame leaves alone.

        Raises:
            SwitchError: out of memory or file descriptors.
        """
        self._c = _declare(ctypes.CDLL(str(library)))
        self._cpu_port = cpu_port
        protocols = _joined_protocols() if join else 0
        self._io: int | None = self._c.io_new(-1 if cpu_port is None else cpu_port, protocols)
        if not self._io:
            raise SwitchError("cannot set up packet I/O: out of memory or file descriptors")
        self._names: dict[int, str] = {}
        self._delays: dict[tuple[int, Direction], float] = {}
        self._lock = threading.Lock()
        """Guards the device against attach and close at once."""
        self._device: SwitchDevice | None = None
        self._receiver: Callable[[bytes], None] = lambda frame: None
        self._port_receiver: Callable[[int, bool], None] = lambda port, up: None
        self._reader: threading.Thread | None = None

    def add(self, number: int, interface: str, pcap: Path | None = None) -> None:
        """Bind an interface to a port number, capturing into `pcap` if given (bmv2's file names).

        Raises:
            PortError: there is no such interface, no right to open it, or the capture cannot be written.
        """
        paths = [os.fsencode(pcap / f"{interface}_{way}.pcap") if pcap else None for way in ("in", "out")]
        status = self._c.io_add_port(self._io, number, os.fsencode(interface), *paths)
        if status:
            raise PortError(interface, _why(-status, pcap))
        self._names[number] = interface

    def start(self) -> None:
        """Start the thread; without a device packets are dropped."""
        status = self._c.io_start(self._io)
        if status:
            raise SwitchError(f"cannot start packet I/O: {os.strerror(-status)}")
        reader = threading.Thread(target=self._read_events, name="ports", daemon=True)
        try:
            reader.start()
        except RuntimeError as error:
            raise SwitchError(f"{error}: raise the limits on memory and processes, see ulimit -a") from error
        self._reader = reader

    def attach(self, device: SwitchDevice) -> None:
        """Forward with this device from the next batch on and close the former one."""
        with self._lock:
            if self._io is None:
                raise DeviceError("the switch is stopping")
            self._swap(device)
            former, self._device = self._device, device
        if former is not None:
            former.close()

    def inject(self, frame: bytes) -> None:
        """Let a frame enter on the CPU port.

        Raises:
            RpcError: FAILED_PRECONDITION without a CPU port, RESOURCE_EXHAUSTED while too many wait.
        """
        if self._cpu_port is None:
            raise precondition("PacketOut: the switch was started without a CPU port (--cpu-port)")
        with self._lock:
            status = self._c.io_inject(self._io, frame, len(frame)) if self._io else -errno.ENXIO
        if status:
            raise _inject_error(-status)

    def on_packet_in(self, receiver: Callable[[bytes], None]) -> None:
        """Give every frame that leaves on the CPU port to this function, from one thread."""
        self._receiver = receiver

    def on_port(self, receiver: Callable[[int, bool], None]) -> None:
        """Tell this function of each port that goes down (False) or comes up again, from one thread."""
        self._port_receiver = receiver

    def stats(self) -> dict[int, PortStats]:
        """What each port counted, by number."""
        found = {}
        with self._lock:
            for number in self._names if self._io else ():
                raw = _Stats()
                self._c.io_port_stats(self._io, number, ctypes.byref(raw))
                found[number] = PortStats(*(getattr(raw, name) for name in PortStats.__dataclass_fields__))
        return found

    def set_delay(self, delay: Delay) -> None:
        """Hold back what passes a port from now on, see switch.delay.

        Raises:
            DelayError: there is no such port.
        """
        with self._lock:
            if self._io is None or delay.port not in self._names:
                have = f"; there is {', '.join(map(str, self._names))}" if self._names else ", nor any other"
                raise DelayError(f"there is no port {delay.port}{have}")
            self._c.io_set_delay(
                self._io, delay.port, DIRECTIONS.index(delay.direction), round(delay.seconds * 1e9)
            )
            self._delays[delay.port, delay.direction] = delay.seconds

    def delay(self, number: int, direction: Direction) -> float:
        """The seconds for which a port holds back what passes it."""
        return self._delays.get((number, direction), 0.0)

    def interface(self, number: int) -> str:
        """The interface of a port."""
        return self._names[number]

    def program_stats(self) -> Stats | None:
        """What the device counted, None while there is none."""
        with self._lock:
            return self._device.stats() if self._device is not None else None

    def packet_in_lost(self) -> int:
        """Frames for the controller that were lost because they were not taken in time."""
        with self._lock:
            return int(self._c.io_packet_in_lost(self._io)) if self._io else 0

    def close(self) -> None:
        """End the thread, flush captures, close the device. Idempotent."""
        with self._lock:
            if self._io is None:
                return
            self._c.io_stop(self._io)
        if self._reader is not None:
            self._reader.join(JOIN_S)
        with self._lock:
            self._c.io_free(self._io)
            self._io = None
            if self._device is not None:
                self._device.close()
                self._device = None

    def _swap(self, device: SwitchDevice) -> None:
        status = self._c.io_attach(self._io, device.c_process, device.c_alike, device.c_handle)
        if status:
            raise DeviceError(f"the running batch does not end: {os.strerror(-status)}")

    def _read_events(self) -> None:
        event = _Event()
        buffer = ctypes.create_string_buffer(MAX_FRAME)
        while True:
            self._c.io_wait(self._io, WAIT_MS, ctypes.byref(event), buffer, MAX_FRAME)
            if event.kind == _STOPPED:
                return
            if event.kind == _PACKET_IN:
                self._receiver(ctypes.string_at(buffer, event.len))
            elif event.kind != _TIMEOUT:
                self._log_event(event)
                if event.kind in (_DOWN, _UP, _GONE):
                    self._port_receiver(event.port, event.kind == _UP)

    def _log_event(self, event: _Event) -> None:
        where = f"port {event.port} ({self._names.get(event.port)})"
        why = f": {os.strerror(event.error)}" if event.error else ""
        if event.kind == _DOWN:
            log.warning("%s is down%s", where, why)
        elif event.kind == _UP:
            log.info("%s is up again", where)
        elif event.kind == _GONE:
            log.warning("%s has vanished; an interface of this name will be the port again", where)
        elif event.kind == _CAPTURE_LOST:
            log.error("%s: the capture ends here, it cannot be written%s", where, why)


_JOIN_TCP, _JOIN_UDP = 1, 2


def _joined_protocols() -> int:
    """What may leave in super-packets (io_join), with a warning where UDP's cannot."""
    why = super_packets.udp_missing()
    if why is None:
        return _JOIN_TCP | _JOIN_UDP
    log.warning(
        "UDP packets go one by one: %s. Super-packets of hosts are lost: switch them off at the other end of "
        "each link, ethtool -K INTERFACE tx-udp-segmentation off",
        why,
    )
    return _JOIN_TCP


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    signatures: dict[str, tuple[object, list[object]]] = {
        "io_new": (pointer, [ctypes.c_int64, ctypes.c_uint]),
        "io_free": (None, [pointer]),
        "io_add_port": (ctypes.c_int, [pointer, number, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p]),
        "io_start": (ctypes.c_int, [pointer]),
        "io_stop": (None, [pointer]),
        "io_attach": (ctypes.c_int, [pointer] * 4),
        "io_inject": (ctypes.c_int, [pointer, ctypes.c_char_p, number]),
        "io_wait": (None, [pointer, ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t]),
        "io_packet_in_lost": (ctypes.c_uint64, [pointer]),
        "io_set_delay": (ctypes.c_int, [pointer, number, number, ctypes.c_int64]),
        "io_port_stats": (ctypes.c_int, [pointer, number, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _why(number: int, pcap: Path | None) -> str:
    if number == errno.ENODEV:
        return "there is no interface of this name; see: ip link"
    if number == errno.EPERM:
        return "raw sockets need root or CAP_NET_RAW: run with sudo"
    if pcap is not None and number in (errno.EACCES, errno.ENOENT, errno.ENOSPC, errno.EROFS):
        return f"the capture in {pcap} cannot be written: {os.strerror(number)}"
    return os.strerror(number)


def _inject_error(number: int) -> RpcError:
    if number == errno.ENOBUFS:
        return exhausted("PacketOut: too many packets wait to enter; send them more slowly")
    return precondition(f"PacketOut: {os.strerror(number)}")
