# SPDX-License-Identifier: Apache-2.0
"""`join`: how an application becomes a rank of a job."""

from __future__ import annotations

import errno
import operator
import socket
from collections.abc import Callable
from pathlib import Path

from wire.control import CALL_SECONDS, ControlClient, RefusedError, find_socket
from wire.membership import Membership

from .bind import bind_port
from .control import HttpControl, refusal
from .errors import TransportError, UnsupportedError
from .session import Session
from .session_errors import WrongHostError
from .transport import Transport
from .udp import UdpTransport
from .worker import Worker

MakeTransport = Callable[[Membership, socket.socket], Transport]
"""Makes the transport of an epoch, which takes over the socket that is bound to the epoch's port."""


class UdpLink:
    """UDP ports of one address of this host, a new one for each epoch; see session.Link."""

    def __init__(self, ip: str, transport: MakeTransport = UdpTransport) -> None:
        self._ip = ip
        self._transport = transport
        self._bound: socket.socket | None = None

    def bind(self) -> int:
        """Bind a port; TransportError when the address is not this host's or no port is free."""
        bound = bind_port(self._ip)  # before the old one is closed: it would be the same
        self.close()
        self._bound = bound
        port: int = bound.getsockname()[1]
        return port

    def open(self, membership: Membership) -> Transport:
        """Return the transport of the port bound last; TransportError."""
        assert self._bound is not None
        bound, self._bound = self._bound, None
        try:
            return self._transport(membership, bound)
        except BaseException:
            bound.close()
            raise

    def close(self) -> None:
        """Give back the port that was not used. Idempotent."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None


def join(
    job: str,
    rank: int,
    *,
    net: str | None = None,
    timeout: float = 60.0,
    call_timeout: float = 30.0,
    address: Path | str | None = None,
    token: str | None = None,
    transport: MakeTransport = UdpTransport,
) -> Worker:
    """Become a rank of a job and return its worker once all ranks are there.

    job: the job's name at the controller of network `net` (the only one that runs, if None); or of the
    controller at `address`, a socket's path or an http:// URL with its `token`. rank: 0..n-1; it must be run
    on the host that the job was given for it. `timeout` seconds at most until all ranks have joined.
    `call_timeout`: seconds without any result after which a call raises StalledError, and that a call waits
    for a new epoch. `transport` makes the transport of each epoch. Use the worker as a context manager, or
    `close` it: it then leaves the job.

    Raises UnsupportedError (the rank is no number), NoSuchJobError, BeyondRankError, WrongHostError,
    RankTakenError, JobDrainingError, RendezvousTimeoutError, SessionEndedError, TransportError, and
    wire.control's UnreachableControllerError and RefusedError.
    """
    try:
        rank = operator.index(rank)
    except TypeError:
        raise UnsupportedError(
            f"rank {rank!r} is no whole number: pass an int, as int(sys.argv[1])"
        ) from None
    where = find_socket(net) if address is None else address

    def connect(patience: float, seconds: float = CALL_SECONDS) -> ControlClient:
        return ControlClient(where, token, seconds, patience)

    control = HttpControl(connect, job, rank)
    try:
        session = Session(control, UdpLink(control.ip, transport), call_timeout)
        return session.rendezvous(timeout)
    except TransportError as error:
        control.close()
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EADDRNOTAVAIL:
            raise WrongHostError(job, rank, control.host(rank), control.ip, str(cause.strerror)) from None
        raise
    except RefusedError as error:
        control.close()
        raise refusal(error, job, rank) from None
    except BaseException:
        control.close()
        raise
