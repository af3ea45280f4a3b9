# SPDX-License-Identifier: Apache-2.0
"""The process that keeps a network: `python -m topologies.daemon NAME ROOT FD`.

Mininet's hosts live as long as the process that made them, so each network has one of these, apart from
the command that asked for it. It takes over the record NAME in ROOT, builds the network, writes one JSON
line to the pipe FD (`{}` or `{"error": text}`), and keeps the network until SIGTERM: a controller or a switch
that ends is started again.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from topologies import record as records
from topologies.errors import RecordError
from topologies.identity import Process
from topologies.record import NetRecord
from topologies.supervise import Keeper
from topologies.targets import choose
from wire.stopping import Stop

log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_EVERY_S = 0.1


class _Stopped(BaseException):
    """A stop signal came while the network was being built."""


def serve(record: NetRecord, report: int) -> int:
    """Build the network, tell the pipe `report`, keep it until a stop signal; return the exit code."""
    with Stop() as stop:
        return _serve_until(stop, record, report)


def _serve_until(stop: Stop, record: NetRecord, report: int) -> int:
    # Here, as the command line must answer before Mininet (and its warnings) are loaded.
    from topologies.network import Network

    building = True

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set(number)
        if building:
            raise _Stopped

    for number in _STOP_SIGNALS:
        signal.signal(number, on_signal)
    network = Network(record, choose(record.target))
    try:
        network.build()
        building = False
        network.note(partial(replace, state="up"))
        _tell(report, {})
        keeper = Keeper(network.kept(), network.give_up)
        while not stop.wait(_LOOK_EVERY_S):
            try:
                keeper.look(time.monotonic())
            except (OSError, RecordError):  # the record could not be written: no reason to end the network
                log.exception("could not look after the network's processes")
    except _Stopped:
        _tell(report, {"error": "stopped while it was being built"})
    except (Exception, SystemExit) as error:
        # SystemExit: Mininet exits where it should raise.
        log.exception("the network could not be built")
        _tell(report, {"error": str(error) or type(error).__name__})
        return 1
    finally:
        building = False
        with suppress(OSError, RecordError):
            # So that no second controller takes over what is about to go.
            network.note(partial(replace, state="stopping"))
        network.stop()
    return 0


def _tell(report: int, message: dict[str, str]) -> None:
    try:
        os.write(report, json.dumps(message).encode())
        os.close(report)
    except OSError:
        # The command that asked has gone; its network is taken down by record.
        log.warning("nobody waits for: %s", message)


def main() -> int:
    """Leave the command that started us, take the record over and serve it."""
    name, root, report = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    # Twice apart: a child of nobody who waits, in a session without a terminal.
    if os.fork():
        os._exit(0)
    os.setsid()
    os.set_inheritable(report, False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        record = replace(records.load(name, root), owner=Process.of(os.getpid()))
        record.save()
    except RecordError as error:
        _tell(report, {"error": str(error)})
        return 1
    return serve(record, report)


if __name__ == "__main__":
    sys.exit(main())
