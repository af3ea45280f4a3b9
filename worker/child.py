# SPDX-License-Identifier: Apache-2.0
"""A rank as a child process: it tells its UDP port on stdout, and is told its membership on stdin.

Lines of JSON both ways. What a rank says: {"port": …} first, then whatever its task reports, {"error": …}
when it fails.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

from wire.errors import P4ReduceError
from wire.membership import Membership

from .bind import bind_port

MEMBERSHIP_LIMIT_S = 120.0
"""How long a rank waits to be told its membership: the slowest rank has to start in that time."""


class NoMembershipError(P4ReduceError):
    """The parent ended, or did not admit this rank in time."""


def say(**fields: Any) -> None:
    """Report one line to the parent."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def join(own_ip: str) -> tuple[Membership, socket.socket]:
    """Bind a UDP port, report it, and wait for the membership that goes with it.

    Raises TransportError (the address is not this host's), NoMembershipError, MembershipError.
    """
    sock = bind_port(own_ip)
    say(port=sock.getsockname()[1])
    if not select.select([sys.stdin], [], [], MEMBERSHIP_LIMIT_S)[0]:
        raise NoMembershipError(
            f"no membership came in {MEMBERSHIP_LIMIT_S:g} s: did another rank not start?"
        )
    line = sys.stdin.readline()
    if not line:
        raise NoMembershipError("the process that started this rank has ended")
    return Membership.from_json(line), sock


def main(task: Callable[[], None]) -> None:
    """Run a rank's task; an error of ours becomes one line to the parent and exit code 1."""
    try:
        task()
    except P4ReduceError as error:
        say(error=str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)  # nobody listens any more
