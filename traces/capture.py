# SPDX-License-Identifier: Apache-2.0
"""Packets off an interface, as pcapng blocks (capture.c): one each as a cable would have carried it."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from switch import build
from wire import native
from wire.constants import JOB_PORT_BASE

from .errors import CaptureError
from .names import Namespace

SOURCE = Path(__file__).with_name("capture.c")
SNAPLEN = 262144
"""Told in the file; whole packets are recorded."""
ROOM = 8 << 20
"""Bytes of blocks that one `take` may give: 32 of the largest super-packets, cut up, and more."""
BUFFER_BYTES = 32 << 20
"""Of the kernel for one interface, while nobody takes; the kernel doubles it, for what it needs beside."""
_ETH_P_ALL = 3
_SOL_PACKET, _AUXDATA, _VNET_HDR, _STATISTICS = 263, 8, 15, 6
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 35, 33, 26
_CLONE_NEWNET = 0x40000000
_MOST_JOBS = 60
"""That fit a filter's 8-bit jumps."""


class _Tally(ctypes.Structure):
    _fields_ = (("packets", ctypes.c_uint64), ("uncut", ctypes.c_uint64), ("left", ctypes.c_uint64))


@cache
def _library() -> ctypes.CDLL:
    c: ctypes.CDLL = native.load(
        build.library("capture", "the recorder of packets", [SOURCE, build.RUNTIME / "io_super.c"])
    )
    pointer = ctypes.c_void_p
    c.capture_bytes.restype = ctypes.c_uint64
    c.capture_take.argtypes = [
        ctypes.c_int,
        pointer,
        pointer,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.POINTER(_Tally),
    ]
    return c


class Workspace:
    """Memory for taking packets; one serves any number of taps, one at a time. Compiles C: BuildError."""

    def __init__(self) -> None:
        self.library = _library()
        self.batch = np.zeros(self.library.capture_bytes(), np.uint8)
        self.blocks = np.zeros(ROOM, np.uint8)


def _packet_socket() -> socket.socket:
    # Without a protocol until everything is set, or it would see other interfaces' packets.
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)


def _socket_inside(namespace: Namespace) -> socket.socket:
    """Return a packet socket that sees a namespace's interfaces; FileNotFoundError once that is gone."""

    def enter() -> socket.socket:
        of = os.open(f"/proc/{namespace.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(of).st_ino != namespace.inode:
                raise FileNotFoundError(errno.ENOENT, "another process has its number")
            if ctypes.CDLL(None, use_errno=True).setns(of, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(of)
        return _packet_socket()

    # A socket stays in the namespace that it was made in; the thread that went there ends at once.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter).result()


class Tap:
    """Sees all packets of an interface, both ways; close it.

    `jobs` are the numbers of those whose packets are wanted, None for all packets; `namespace` is the
    interface's, None for ours. Raises CaptureError.
    """

    def __init__(
        self,
        interface: str,
        jobs: Collection[int] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        namespace: Namespace | None = None,
    ) -> None:
        self.interface = interface
        self.was_down = False
        """Whether it is down, or ever was: then `take` alone tells that it is gone."""
        self._tally = _Tally()
        self._dropped = 0
        if jobs is not None and len(jobs) > _MOST_JOBS:
            raise CaptureError(interface, f"{len(jobs)} jobs are too many to filter by: record all")
        try:
            self._socket = _packet_socket() if namespace is None else _socket_inside(namespace)
        except PermissionError:
            raise CaptureError(
                interface, "seeing its packets needs root: run the command with sudo"
            ) from None
        except (FileNotFoundError, ProcessLookupError):
            raise CaptureError(interface, "its packets cannot be seen: its host has ended") from None
        try:
            self._set_up(jobs, buffer_bytes)
        except OSError as error:
            self.close()
            why = "there is no such interface" if error.errno == errno.ENODEV else str(error.strerror)
            raise CaptureError(interface, f"its packets cannot be seen: {why}") from error
        except BaseException:
            self.close()
            raise

    def _set_up(self, jobs: Collection[int] | None, buffer_bytes: int) -> None:
        s = self._socket
        for option in (_AUXDATA, _VNET_HDR):
            s.setsockopt(_SOL_PACKET, option, 1)
        s.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        try:
            s.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:  # in a user namespace, where the ordinary option stops at net.core.rmem_max
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        if jobs is not None:
            program = job_filter(jobs)
            code = b"".join(struct.pack("HBBI", *step) for step in program)
            memory = ctypes.create_string_buffer(code)
            s.setsockopt(
                socket.SOL_SOCKET,
                _SO_ATTACH_FILTER,
                struct.pack("HL", len(program), ctypes.addressof(memory)),
            )
        s.bind((self.interface, _ETH_P_ALL))
        self.was_down = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ENETDOWN

    def fileno(self) -> int:
        """Return the socket's number, to wait for packets."""
        return self._socket.fileno()

    def take(self, space: Workspace) -> memoryview:
        """Return the packets that are there as blocks of interface 0, empty if none; valid till the next.

        An interface that is down has none, and may be up again. Raises CaptureError where it has gone, which
        a poll does not tell of one that `was_down`.
        """
        used = ctypes.c_uint64()
        got = space.library.capture_take(
            self.fileno(),
            space.batch.ctypes.data,
            space.blocks.ctypes.data,
            len(space.blocks),
            ctypes.byref(used),
            ctypes.byref(self._tally),
        )
        if got == -errno.ENETDOWN:
            self.was_down = True
        elif got < 0:
            raise CaptureError(self.interface, f"it can be seen no longer: {os.strerror(-got)}")
        if self.was_down and not used.value and not self._socket.getsockname()[0]:
            raise CaptureError(self.interface, "it is gone: its network has ended, or somebody deleted it")
        return space.blocks.data[: used.value]

    @property
    def packets(self) -> int:
        """Packets taken."""
        return int(self._tally.packets)

    @property
    def uncut(self) -> int:
        """Super-packets that could not be cut up and were taken as they are."""
        return int(self._tally.uncut)

    def dropped(self) -> int:
        """Return the packets (or super-packets) that the kernel or we had no room for, so far."""
        told = self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8)
        self._dropped += struct.unpack("II", told)[1]  # the kernel counts from the last time it was asked
        return self._dropped + int(self._tally.left)

    def close(self) -> None:
        """See no more. Idempotent."""
        self._socket.close()


def job_filter(jobs: Collection[int]) -> list[tuple[int, int, int, int]]:
    """Return classic BPF, (code, jt, jf, k) each, that passes UDP over IPv4 of these jobs' ports."""
    load_half, load_byte, load_relative, header, equal, ret = 0x28, 0x30, 0x48, 0xB1, 0x15, 0x06
    ports = [JOB_PORT_BASE + job for job in sorted(jobs)]
    tests = 2 * len(ports)
    program = [
        (load_half, 0, 0, 12),
        (equal, 0, tests + 5, 0x0800),
        (load_byte, 0, 0, 23),
        (equal, 0, tests + 3, 17),
        (header, 0, 0, 14),
    ]
    for at in (14, 16):
        program.append((load_relative, 0, 0, at))
        program += [(equal, 0, 0, port) for port in ports]
    none, every = len(program), len(program) + 1
    program += [(ret, 0, 0, 0), (ret, 0, 0, SNAPLEN)]
    return [
        (code, every - at - 1, jf, k)
        if code == equal and at > 4
        else (code, jt, none - at - 1, k)
        if code == equal
        else (code, jt, jf, k)
        for at, (code, jt, jf, k) in enumerate(program)
    ]
