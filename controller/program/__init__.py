# SPDX-License-Identifier: Apache-2.0
"""The program's controls, each as a class of the same name: what can be installed in it, and read from it."""

from __future__ import annotations

from controller.p4info import P4Info
from controller.program.admission import Admission
from controller.program.arp import Arp
from controller.program.faults import Faults
from controller.program.peek import Peek
from controller.program.ports import Addresses, Ports
from controller.program.rates import Rates
from controller.program.receivers import Receivers
from controller.program.refusals import Refusals
from controller.program.routing import Routing
from controller.program.sources import Sources
from controller.program.verdicts import Verdicts


class Program:
    """All controls of the program by the names of its P4Info. Making entities needs no switch."""

    def __init__(self, p4info: P4Info) -> None:
        """Raises P4InfoError if this is not the P4Info of our program."""
        self.ports = Ports(p4info)
        self.addresses = Addresses(p4info)
        self.arp = Arp(p4info)
        self.sources = Sources(p4info)
        self.routing = Routing(p4info)
        self.admission = Admission(p4info)
        self.rates = Rates(p4info)
        self.receivers = Receivers(p4info)
        self.ingress_faults = Faults(p4info, "SwitchIngress.receive.faults")
        self.egress_faults = Faults(p4info, "SwitchEgress.faults")
        self.verdicts = Verdicts(p4info)
        self.peek = Peek(p4info)
        self.refusals = Refusals(p4info)


__all__ = ["Program"]
