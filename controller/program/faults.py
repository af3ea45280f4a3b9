# SPDX-License-Identifier: Apache-2.0
"""Control Faults (p4src/faults.p4), once at ingress and once at egress: losses, duplicates, corruption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.entities import Switch, clone_session, delete, put, read_counters
from controller.errors import FieldError
from controller.p4info import Entity, P4Info
from wire.constants import SESSION_INGRESS_DUPLICATE
from wire.verdicts import Verdict, port_counter

FAULTS = (Verdict.FAULT_DROPPED, Verdict.FAULT_DUPLICATED, Verdict.FAULT_CORRUPTED)


def threshold(share: float, name: str) -> int:
    """Return the 32-bit threshold of a share 0..1 of the packets; 0 is never. FieldError outside."""
    if not 0 <= share <= 1:
        raise FieldError(name, share, "is a share of the packets, 0 to 1")
    return round(share * 0xFFFFFFFF)


@dataclass(frozen=True)
class Shares:
    """What happens to a port's packets in one direction, as shares 0..1, decided by the seed."""

    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    seed: int = 1

    @property
    def any(self) -> bool:
        """Whether anything happens at all."""
        return bool(self.drop or self.duplicate or self.corrupt)


class Faults:
    """Table `shares` and counter `injected` of one direction; `path` is the control's instance."""

    def __init__(self, p4info: P4Info, path: str) -> None:
        self.path = path
        self._table = p4info.table(f"{path}.shares").name
        self._injected = p4info.counter(f"{path}.injected").name
        self._p4info = p4info

    def shares(self, port: int, shares: Shares) -> Entity:
        """Return a port's entry; FieldError for a share outside 0..1 or a seed outside 32 bits."""
        args = {
            "seed_": shares.seed,
            "drop": threshold(shares.drop, "drop"),
            "duplicate": threshold(shares.duplicate, "duplicate"),
            "corrupt": threshold(shares.corrupt, "corrupt"),
        }
        return self._p4info.entry(self._table, {"port": port}, "inject", args)

    def set(self, switch: Switch, port: int, shares: Shares) -> None:
        """Install a port's shares in place of what it had; all 0 removes them. Raises as Switch.write."""
        entity = self.shares(port, shares)
        key = self._p4info.key(self._table, {"port": port})
        if shares.any:
            put(switch, entity, key)
        else:
            delete(switch, [key])

    def injected(self, switch: Switch, ports: Iterable[int]) -> dict[int, dict[Verdict, tuple[int, int]]]:
        """Return (packets, bytes) faulted by port and kind; zeros are left out."""
        return read_ports(switch, self._injected, ports, FAULTS)


def sessions(ports: Sequence[int]) -> list[Entity]:
    """Return the clone sessions that duplicates need: one for ingress, one for each egress port.

    The copy at ingress is recirculated and never sent, so any port of the switch serves.
    """
    if not ports:
        return []
    ingress = clone_session(SESSION_INGRESS_DUPLICATE, ports[0])
    return [ingress, *(clone_session(port + 1, port) for port in ports)]


def read_ports(
    switch: Switch, counter: str, ports: Iterable[int], verdicts: Sequence[Verdict]
) -> dict[int, dict[Verdict, tuple[int, int]]]:
    """Return (packets, bytes) of a counter array that counts per port and verdict; zeros are left out."""
    cells = {port_counter(port, verdict): (port, verdict) for port in ports for verdict in verdicts}
    found: dict[int, dict[Verdict, tuple[int, int]]] = {}
    for index, value in read_counters(switch, counter, list(cells)).items():
        port, verdict = cells[index]
        found.setdefault(port, {})[verdict] = value
    return found
