# SPDX-License-Identifier: Apache-2.0
"""Meter `rates` of control Aggregation (p4src/admission.p4): how much a job may send to be summed.

A job's rate is that of the frames of all its workers together as they come in at one switch, from the
Ethernet header on, without FCS. What is over it is refused (OVER_RATE). The meter (RFC 2698) refuses at red
alone, so committed and peak rate are the same. One that is not configured is green for ever.
"""

from __future__ import annotations

from controller.entities import MODIFY, Switch, updates
from controller.errors import FieldError
from controller.p4info import Entity, P4Info
from wire.constants import JOBS, MAX_WORKERS

KBIT = 125
"""Bytes in 1,000 bits: rates are whole multiples, which both targets give back as they were."""
BURST_SECONDS = 0.05
"""What a job may send at once after a pause, as time at its rate: longer than a worker waits for results."""
SUPER_PACKET = 1 << 16
"""Bytes that a worker hands to the kernel at once, beyond that."""
MAX_RATE = 10**12
"""Bits a second."""
MAX_BURST = (1 << 32) - 1


class Rates:
    """A cell for each job."""

    METER = "SwitchIngress.handle.aggregation.rates"

    def __init__(self, p4info: P4Info) -> None:
        p4info.meter(self.METER)
        self._p4info = p4info

    def rate(self, job: int, rate_bps: int, workers: int) -> Entity:
        """Return the entity that, as MODIFY, holds a job of so many workers to a rate in bit/s.

        The rate is rounded to 1,000 bit/s. The burst is 50 ms at that rate and 64 KiB for each worker, so
        that a job at its rate is not cut when all its workers send a window at once. FieldError out of range.
        """
        if not 1000 <= rate_bps <= MAX_RATE:
            raise FieldError("rate", rate_bps, f"a job's rate is 1000..{MAX_RATE} bit/s")
        if not 1 <= workers <= MAX_WORKERS:
            raise FieldError("workers", workers, f"a job has 1..{MAX_WORKERS} workers on one switch")
        entity = self.unlimited(job)
        per_s = round(rate_bps / 1000) * KBIT
        burst = min(MAX_BURST, round(per_s * BURST_SECONDS) + workers * SUPER_PACKET)
        config = entity.meter_entry.config
        config.cir, config.cburst, config.pir, config.pburst = per_s, burst, per_s, burst
        return entity

    def unlimited(self, job: int) -> Entity:
        """Return the entity that, as MODIFY, lets a job send as much as it wants."""
        return self._p4info.rate(self.METER, job)

    def set(self, switch: Switch, job: int, rate_bps: int | None, workers: int) -> None:
        """Hold a job to a rate in bit/s, or (None) to none. Raises as `rate` and Switch.write."""
        entity = self.unlimited(job) if rate_bps is None else self.rate(job, rate_bps, workers)
        switch.write(updates(MODIFY, [entity]))

    def read(self, switch: Switch) -> dict[int, int]:
        """Return the rate of each job that has one, in bit/s. Raises as Switch.read."""
        found = {}
        for entity in switch.read([self._p4info.rate(self.METER, None)]):
            cell = entity.meter_entry
            if cell.HasField("config") and cell.index.index < JOBS:
                # Kept as bytes a microsecond, a rate may come back a byte less.
                found[int(cell.index.index)] = round(cell.config.pir / KBIT) * 1000
        return found
