# SPDX-License-Identifier: Apache-2.0
"""Many packets a system call over a UDP socket: sendmmsg, recvmmsg, UDP_SEGMENT and UDP_GRO.

1. A burst is sent where it lies: each message is a run of packets that the kernel cuts up (UDP_SEGMENT,
   Linux 4.18), or one packet where it cannot (a device without checksum offload, before Linux 6.11).
2. Received messages may be runs as well (UDP_GRO, Linux 5.0); all packets of a network have one size.
3. What the network answers to a packet (ICMP: refused, unreachable) is a lost packet, not an error: the
   engine's time-out speaks when it lasts. Anybody may have made that answer up: none of them ends a job, and
   what they say of the path's MTU is not believed (IP_PMTUDISC_INTERFACE, ip(7)).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import select
import socket
import time

import numpy as np
from numpy.typing import NDArray

from wire.membership import Membership
from wire.packet import Packets, payload_dtype

from .errors import TransportError
from .transport import AT_ONCE, Socket

UDP_SEGMENT, UDP_GRO = 103, 104
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
IP_MTU_DISCOVER, IP_PMTUDISC_INTERFACE = 10, 4
BUFFER_BYTES = 8 << 20
"""Socket buffers wanted: results of a large window come in one burst."""
LARGEST_DATAGRAM = 65507
MOST_SEGMENTS = 64
"""UDP_MAX_SEGMENTS of the older kernels."""
MESSAGES = 128
"""Messages a system call."""
RECEIVE_STRIDE = 1 << 16
SEND_WAIT = 1.0
"""Seconds to wait for room in a full send buffer; then the rest of the burst counts as lost."""

_PASSING = {
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
    errno.ENOBUFS,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.ENONET,
    errno.EMSGSIZE,
    errno.EPERM,  # a firewall or tc dropped it
}
MOST_TOO_LONG = 20
"""Refusals in a row of a packet as too long for the link: no forged ICMP answers come as quickly."""
_NO_SEGMENTATION = {errno.EIO, errno.EINVAL, errno.EOPNOTSUPP}


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("length", ctypes.c_size_t))


class _MsgHdr(ctypes.Structure):
    """struct msghdr of Linux; pointers as numbers, so that numpy can fill them."""

    _fields_ = (
        ("name", ctypes.c_size_t),
        ("name_length", ctypes.c_uint),
        ("iov", ctypes.c_size_t),
        ("iov_count", ctypes.c_size_t),
        ("control", ctypes.c_size_t),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _MMsgHdr(ctypes.Structure):
    _fields_ = (("header", _MsgHdr), ("length", ctypes.c_uint))


class _Messages:
    """Preallocated headers of a batched call, one buffer a message, in numpy arrays that the kernel reads."""

    def __init__(self) -> None:
        self._iovecs = np.zeros(MESSAGES, np.dtype(_IoVec))
        self._headers = np.zeros(MESSAGES, np.dtype(_MMsgHdr))
        self._headers["header"]["iov"] = (
            self._iovecs.ctypes.data + np.arange(MESSAGES) * self._iovecs.itemsize
        )
        self._headers["header"]["iov_count"] = 1
        self.at, self.runs_at = self._headers.ctypes.data, self._iovecs.ctypes.data
        self.address = ctypes.c_void_p(self.at)
        self.bases: NDArray[np.uint64] = self._iovecs["base"]
        self.lengths: NDArray[np.uint64] = self._iovecs["length"]
        self.received: NDArray[np.uint32] = self._headers["length"]


class UdpTransport:
    """The default transport. Takes over `sock`, bound by `bind_port`, and connects it to the job's port.

    Raises TransportError when the socket cannot be set up or a packet is larger than the link's MTU.
    """

    def __init__(self, membership: Membership, sock: socket.socket) -> None:
        self._membership, self._socket = membership, sock
        self._dtype = payload_dtype(membership.elements)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._out, self._in = _Messages(), _Messages()
        self._buffer = np.zeros((MESSAGES, RECEIVE_STRIDE), np.uint8)
        self._in.bases[:] = self._buffer.ctypes.data + np.arange(MESSAGES) * RECEIVE_STRIDE
        self._in.lengths[:] = RECEIVE_STRIDE
        self.native = Socket(
            *(self._out.at, self._in.at, self._out.runs_at, self._in.runs_at),
            *(AT_ONCE, min(MOST_SEGMENTS, LARGEST_DATAGRAM // self._dtype.itemsize)),
            *(sock.fileno(), -1),
        )
        try:
            sock.setblocking(False)
            self._set_buffer(SO_RCVBUFFORCE, socket.SO_RCVBUF)
            self._set_buffer(SO_SNDBUFFORCE, socket.SO_SNDBUF)
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_INTERFACE)
            sock.connect((membership.switch_ip, membership.port))
        except OSError as error:
            raise TransportError(
                f"cannot reach switch {membership.switch_ip}:{membership.port} from {membership.own_ip}: "
                f"{error.strerror}. Check this host's address and routes."
            ) from error
        try:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, self._dtype.itemsize)
        except OSError:
            self.native.segments = 1
        with contextlib.suppress(OSError):  # an older kernel: one packet a message
            sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        self._poll_in, self._poll_out = select.poll(), select.poll()
        self._poll_in.register(sock, select.POLLIN)
        self._poll_out.register(sock, select.POLLOUT)
        while self._receive_now():
            pass  # what came before connect() may be anybody's; no result is due yet

    def _set_buffer(self, forced: int, ordinary: int) -> None:
        try:  # needs CAP_NET_ADMIN; the ordinary option stops at net.core.rmem_max or wmem_max
            self._socket.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except OSError:
            self._socket.setsockopt(socket.SOL_SOCKET, ordinary, BUFFER_BYTES)

    def _without_segmentation(self) -> None:
        self.native.segments = 1
        self._socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)

    def send(self, packets: Packets) -> None:
        """Send payloads; waits at most SEND_WAIT for room. See Transport."""
        packets = np.ascontiguousarray(packets)
        size, done, refusals, too_long = self._dtype.itemsize, 0, 0, 0
        deadline = time.monotonic() + SEND_WAIT
        while done < len(packets):
            run = self.native.segments
            todo = min(-(-(len(packets) - done) // run), MESSAGES)
            starts = range(done, done + todo * run, run)
            first = packets.ctypes.data
            self._out.bases[:todo] = [first + start * size for start in starts]
            self._out.lengths[:todo] = [min(run, len(packets) - start) * size for start in starts]
            sent = self._call("sendmmsg", self._out, todo)
            if sent >= 0:
                done = min(len(packets), done + sent * run)
                too_long = 0
                continue
            code = -sent
            if code in (errno.EAGAIN, errno.EINTR):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._poll_out.poll(math.ceil(1000 * left))
            elif code in _NO_SEGMENTATION and run > 1:
                self._without_segmentation()
            elif code == errno.EMSGSIZE and too_long < MOST_TOO_LONG:
                too_long += 1  # the answer to an earlier packet, and maybe forged
            elif code == errno.EMSGSIZE:
                raise TransportError(
                    f"a packet of {size} bytes and its headers exceeds the MTU towards "
                    f"{self._membership.switch_ip}: set the link's MTU to at least {size + 28}"
                )
            elif code not in _PASSING:
                raise TransportError(
                    f"cannot send from {self._membership.own_ip}:{self._membership.own_port}: "
                    f"{os.strerror(code)}"
                )
            else:
                refusals += 1  # the first may be the answer to an earlier packet
                if refusals == 3:
                    return

    def receive(self, timeout: float) -> Packets:
        """Return the payloads that came, waiting at most `timeout` seconds for a first one. See Transport."""
        count = self._receive_now()
        if not count and timeout > 0:
            self._poll_in.poll(math.ceil(1000 * timeout))
            count = self._receive_now()
        size = self._dtype.itemsize
        lengths = self._in.received[:count].tolist()
        runs = [row[: length - length % size] for row, length in zip(self._buffer, lengths, strict=False)]
        if count == 1:
            return runs[0].view(self._dtype)
        raw = np.concatenate(runs) if runs else self._buffer[0, :0]
        return raw.view(self._dtype)

    def _receive_now(self) -> int:
        for _ in range(3):  # an ICMP answer to a packet sent before is reported once, then the queue is read
            count = self._call("recvmmsg", self._in, MESSAGES)
            if count >= 0:
                return count
            if -count == errno.EAGAIN:
                return 0
            if -count not in _PASSING and -count != errno.EINTR:
                raise TransportError(
                    f"cannot receive at {self._membership.own_ip}:{self._membership.own_port}: "
                    f"{os.strerror(-count)}"
                )
        return 0

    def _call(self, name: str, messages: _Messages, count: int) -> int:
        """Return the messages done, or minus errno."""
        function = getattr(self._libc, name)
        arguments = [self._socket.fileno(), messages.address, count, socket.MSG_DONTWAIT]
        if name == "recvmmsg":
            arguments.append(None)
        done: int = function(*arguments)
        return done if done >= 0 else -ctypes.get_errno()

    def close(self) -> None:
        """Close the socket; see Transport."""
        self._socket.close()
