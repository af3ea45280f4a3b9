# SPDX-License-Identifier: Apache-2.0
"""One switch as the controller keeps it: connected, its program loaded, and holding what it should."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.epochs import EpochStore
from controller.errors import NotPrimaryError, P4InfoError, RpcFailedError, SwitchClientError, TimedOutError
from controller.fabric import Dead
from controller.jobs import Job, JobController, SwitchSite, delete_epoch, insert_epoch
from controller.p4info import Entity, P4Info, Update
from controller.p4runtime import SwitchClient, standby_election_id
from controller.program import Program
from controller.program.faults import Faults, Shares
from controller.program.refusals import Refusal
from controller.readback import Item, Key, difference, item, read_all
from controller.setup import SetupError, network_entities
from controller.tally import Tally
from p4src.forms import form
from topologies.record import NetRecord
from wire.constants import JOBS

log = logging.getLogger(__name__)


PortCell = tuple[str, int, str]
"""(what counts, port, verdict or kind)."""


@dataclass(frozen=True)
class Report:
    """What was found and done when a switch was brought in line."""

    lost_state: bool
    """Whether it had no program, or another one: then its registers are new too."""
    strays: int
    missing: int
    changed: int

    def __str__(self) -> str:
        """Say it in words."""
        loaded = "its program was loaded; " if self.lost_state else ""
        if not (self.strays or self.missing or self.changed):
            return f"{loaded}in line"
        return f"{loaded}{self.missing} entries added, {self.strays} removed, {self.changed} changed"


class SwitchLink:
    """A `Switch` whose connection is made again as often as needed. Its blocking calls are for threads.

    Who calls one that writes holds `lock`.
    """

    jobs: JobController
    """The books of its jobs: there once a controller has opened them."""

    def __init__(self, record: NetRecord, name: str) -> None:
        """Raises FormError and P4InfoError when there is no program for the network's numbers."""
        chosen = form(record.elements, record.slots)
        self.name = name
        self.record = record
        self.lock = asyncio.Lock()
        self.p4info = P4Info.from_file(chosen.p4info_path)
        self.program = Program(self.p4info)
        self.election_id = standby_election_id()
        self.reload = False
        """Whether its registers may hold epochs that nobody remembers: its program is loaded anew then."""
        self.in_line = False
        """Whether it holds what it should, as far as is known."""
        self.complaint: str | None = None
        """What was last said about its not being in line."""
        self.untouched: set[int] = set()
        """Job numbers whose workers' counters are known to be 0."""
        self.ports: Tally[PortCell] = Tally()
        """What its ports counted before it last lost its state, as far as it was asked for."""
        self._routed: Dead | None = None
        """What its routes go round, while nothing else that it should hold is in doubt."""
        self._json = chosen.json_path
        self._client: SwitchClient | None = None
        self._leftover: list[Job] = []  # epochs whose entries it may still hold

    def open_books(self, epochs: EpochStore) -> None:
        """Begin to keep the books of its jobs, none yet."""
        site = self.record.switch(self.name)
        elements, slots = self.record.elements, self.record.slots
        self.jobs = JobController(self, SwitchSite(site.ip, site.mac, elements, slots), epochs)

    # ---- connection
    def _reached(self) -> SwitchClient:
        if self._client is None:
            raise SwitchClientError(self.name, "it is not reached now; see p4reduce net status, and its log")
        return self._client

    def write(self, updates: Sequence[Update]) -> None:
        """See Switch; SwitchClientError too while it is not reached."""
        self._reached().write(updates)

    def read(self, entities: Sequence[Entity]) -> list[Entity]:
        """See Switch."""
        return self._reached().read(entities)

    def counts(self, counter: str, indexes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """See Switch."""
        return self._reached().counts(counter, indexes)

    def exchange(self, packet: Any, wanted: Callable[[Any], bool]) -> Any:
        """See Switch."""
        return self._reached().exchange(packet, wanted)

    @property
    def primary(self) -> bool:
        """Whether it takes us for its primary."""
        return self._client is not None and self._client.is_primary

    @property
    def away(self) -> bool:
        """Whether it may not carry what it should: it is not reached, or refuses what it should hold.

        Where another controller is its primary, that one sees to it.
        """
        client = self._client
        outranked = client is not None and client.standing.ended is None and not client.is_primary
        return self.complaint is not None and not outranked

    def connect(self) -> None:
        """Connect unless it is done and the switch answers; as a backup where another controller is primary.

        It may take ten seconds: the lock is not needed, and who waits for it must not wait for a switch that
        hangs. Raises SwitchClientError.
        """
        if self._client is not None and self._client.standing.ended is None:
            self.check_alive()
            return
        self.close()
        address = self.record.switch(self.name).grpc
        if address is None:
            raise SetupError(self.name, "the record has no P4Runtime address: is the network still starting?")
        self._client = SwitchClient(
            self.name,
            self.record.switch(self.name).device_id,
            address,
            standby=True,
            election_id=self.election_id,
        )

    def check_alive(self) -> None:
        """Leave a switch that answers nothing, and so end all calls that wait for it: raises TimedOutError.

        Needs no lock.
        """
        client = self._client
        if client is None:
            return
        try:
            client.check_alive()
        except TimedOutError:
            self.close()
            raise

    def close(self) -> None:
        """Leave the switch. Idempotent."""
        client, self._client = self._client, None
        self.distrust()
        if client is not None:
            client.close()

    def distrust(self) -> None:
        """Have the switch compared with what it should hold again."""
        self.in_line, self._routed = False, None

    def reroute(self) -> None:
        """Have its routes written anew: something else is dead than before."""
        self.in_line = False

    def refusals(self) -> list[Refusal]:
        """Return the refusals that it told of since the last call; notices a stream that has ended."""
        client = self._client
        news = client.wait_news(0) if client is not None else None
        if news is None:
            return []
        if not news.standing.primary:
            self.distrust()
        found: list[Refusal] = []
        for when, digests in news.digests:
            try:
                found += self.program.refusals.decode(when, digests)
            except P4InfoError as error:
                log.warning("switch %s: %s", self.name, error)
        return found

    # ---- state
    def reach(self) -> bool:
        """Say whether the switch, connected, has lost its state: no program, another one, or `reload`.

        Raises SwitchClientError (NotPrimaryError while another controller is primary), SetupError.
        """
        client = self._reached()
        if not client.is_primary:
            raise NotPrimaryError(self.name, client.standing.primary_id, "we wait as its backup")
        return self.reload or not self._runs_program(client)

    def bring_up(
        self,
        lost: bool,
        jobs: Sequence[Entity],
        rates: Mapping[int, tuple[int, int]],
        faults: Mapping[tuple[int, str], Shares],
        dead: Dead,
    ) -> Report:
        """Make the switch hold its program, its network's entries and these, and nothing else.

        `lost` is what `reach` said just now, `jobs` are entries of epochs, `rates` has (bit/s, workers) by
        job, `faults` is by port and direction (in, out). Nothing is routed to what is `dead`. What is right
        already is not touched: running jobs go on. Where only the routes are in doubt, only they are written.
        Raises SwitchClientError, SetupError.
        """
        client = self._reached()
        if self._routed is not None and not lost:
            before = network_entities(self.record, self.name, self.program, self._routed)
            held = {one.key: one for one in (item(self.p4info, entity) for entity in before)}
            return self._write(network_entities(self.record, self.name, self.program, dead), held, lost, dead)
        if lost:
            try:
                program = self._json.read_bytes()
            except OSError as error:
                raise SetupError(str(self._json), f"cannot be read: {error}; `make p4` writes it") from error
            client.push_pipeline(self.p4info, program)
            self.reload = False
            self.untouched = set(range(JOBS))
        wanted = network_entities(self.record, self.name, self.program, dead)
        wanted.append(self.program.refusals.subscription())
        wanted += jobs
        wanted += [self.program.rates.rate(job, bps, workers) for job, (bps, workers) in rates.items()]
        wanted += [self.faults(direction).shares(port, each) for (port, direction), each in faults.items()]
        return self._write(wanted, read_all(client), lost, dead)

    def _write(self, wanted: Sequence[Entity], held: Mapping[Key, Item], lost: bool, dead: Dead) -> Report:
        """Write what differs; where that fails nobody knows what is there."""
        self._routed = None
        found = difference(self.p4info, wanted, held)
        for batch in found.batches():
            self.write(batch)
        self.in_line, self._routed = True, dead
        return Report(lost, len(found.strays), len(found.missing), len(found.changed))

    def _runs_program(self, client: SwitchClient) -> bool:
        try:
            same: bool = client.p4info.message == self.p4info.message
            return same
        except RpcFailedError as error:
            if error.code == "FAILED_PRECONDITION":  # no program yet (P4Runtime spec 1.4, 10)
                return False
            raise

    def faults(self, direction: str) -> Faults:
        """Return the program's faults of a direction, in or out."""
        return self.program.ingress_faults if direction == "in" else self.program.egress_faults

    def settle(self) -> None:
        """Give back what epochs took whose entries were left on a switch that is in line again."""
        while self._leftover:
            self.jobs.give_back(self._leftover.pop())

    def leave_over(self, job: Job | None) -> None:
        """Keep what an epoch took until its entries are known to be gone."""
        if job is not None:
            self._leftover.append(job)

    def swap(self, old: Job | None, new: Job | None) -> None:
        """Delete an epoch's entries, then write another's. Raises SwitchClientError."""
        if old is not None:
            delete_epoch(self, old)
        if new is not None:
            self.untouched.discard(new.number)
            insert_epoch(self, new)
