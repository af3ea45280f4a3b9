# SPDX-License-Identifier: Apache-2.0
"""What every switch of a network needs before there are jobs: the program, ports, addresses, ARP, routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.entities import insert
from controller.errors import ControllerError
from controller.fabric import Dead, Fabric
from controller.jobs import JobController, SwitchSite, WorkerSeat
from controller.p4info import Entity, P4Info
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.faults import sessions
from controller.routes import routes
from p4src.forms import form

if TYPE_CHECKING:  # topologies imports us
    from controller.epochs import EpochStore
    from topologies.record import NetRecord


class SetupError(ControllerError):
    """A network record that cannot be set up; `what` is the part at fault."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what


def connect(record: NetRecord, switch: str, *, primary: bool = True) -> SwitchClient:
    """Return a client of a switch of a running network; close it. Raises as SwitchClient, or SetupError."""
    wanted = record.switch(switch)
    if wanted.grpc is None:
        raise SetupError(switch, "the record has no P4Runtime address: is the network still starting?")
    return SwitchClient(wanted.name, wanted.device_id, wanted.grpc, primary=primary)


def prepare(record: NetRecord) -> None:
    """Load the program into every switch of a network and install what does not depend on jobs.

    Raises SetupError, FormError (no program for the record's numbers), P4InfoError, SwitchClientError.
    """
    chosen = form(record.elements, record.slots)
    p4info = P4Info.from_file(chosen.p4info_path)
    try:
        program = chosen.json_path.read_bytes()
    except OSError as error:
        raise SetupError(str(chosen.json_path), f"cannot be read: {error}; `make p4` writes it") from error
    for switch in record.switches:
        with connect(record, switch.name) as client:
            client.push_pipeline(p4info, program)
            insert(client, network_entities(record, switch.name, Program(p4info)))


def network_entities(
    record: NetRecord,
    name: str,
    program: Program,
    dead: Dead = Dead(),  # noqa: B008 (it is frozen)
) -> list[Entity]:
    """Return what a switch holds without jobs: ports, addresses, neighbors, sources, routes, sessions.

    Only the routes depend on what is dead: they go round it.
    """
    switch = record.switch(name)
    hosts = {host.name: host for host in record.hosts}
    entities = [program.addresses.own(switch.ip)]
    for port, end in record.peers(name).items():
        if end.node in hosts:
            host = hosts[end.node]
            entities += [program.ports.host(port), program.sources.permit(port, host.mac, host.ip)]
        else:
            entities.append(program.ports.switch(port))
    macs = {host.name: host.mac for host in record.hosts} | {s.name: s.mac for s in record.switches}
    ips = {host.name: host.ip for host in record.hosts} | {s.name: s.ip for s in record.switches}
    entities += [program.arp.neighbor(ip, macs[node]) for node, ip in ips.items()]
    entities += routes(Fabric(record, dead), record, name, program)
    return entities + sessions(sorted(switch.ports))


def job_controller(record: NetRecord, client: SwitchClient, epochs: EpochStore) -> JobController:
    """Return the controller of the jobs on the switch that `client` is connected to."""
    switch = record.switch(client.name)
    return JobController(client, SwitchSite(switch.ip, switch.mac, record.elements, record.slots), epochs)


def seat(record: NetRecord, host: str, udp_port: int) -> WorkerSeat:
    """Return the seat of a worker on a host that hangs on one switch, with the UDP port that it bound."""
    wanted = record.host(host)
    ends = list(record.peers(host).values())
    if len(ends) != 1:
        raise SetupError(host, f"the host has {len(ends)} links, a worker's has one")
    return WorkerSeat(host, wanted.ip, wanted.mac, ends[0].port, udp_port)
