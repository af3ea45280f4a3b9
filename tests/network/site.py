# SPDX-License-Identifier: Apache-2.0
"""One switch with all that the program can hold, installed alike in a process and in the in-process device.

Ports 1 to 5 have hosts, 6 and 8 the switch s2 with host h6 behind it, 7 an interface and no entry. Job 7 sums
the hosts h1 to h4 here; of job 9 this switch is a leaf with h1 and h2, whose parent is s2.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from controller.entities import Switch, insert, multicast_group
from controller.epochs import EpochStore
from controller.jobs import JobController, SwitchSite
from controller.p4info import P4Info
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.admission import Pool, Sender, Uplink
from controller.program.faults import Shares
from controller.setup import network_entities, seat
from p4src.forms import form
from tests.switch.veth import Link
from topologies.record import NetRecord, new_record
from topologies.spec import (
    End,
    HostSpec,
    LinkSpec,
    NetworkSpec,
    SwitchSpec,
    host_address,
    mac_of,
    star,
    switch_address,
)
from topologies.targets import SwitchProcess, Target
from wire.constants import FEW_SLOTS, job_port

WORKERS, HOSTS, UPLINK, NO_PORT, SECOND = 4, 5, 6, 7, 8
PORTS = range(1, SECOND + 1)
JOB, LEAF_JOB = 7, 9
WINDOW = 4
EPOCH = 1000
LEAF_BASE, LEAF_GROUP, LEAF_RID = 100, 50, 500
OFFLOADS = ("rx", "tx", "sg", "tso", "gso", "gro", "tx-udp-segmentation")
LATE = HOSTS - 1
"""The worker that job 9 had in its last epoch; nobody has withdrawn its entry."""
LEAF_PORT = 6000
"""UDP port of this switch as a worker of s2."""


def udp_port(worker: int, job: int = JOB) -> int:
    """Return the UDP port of the worker on port worker + 1."""
    return 4000 + 100 * job + worker


def describe(elements: int) -> NetRecord:
    """Return the record of the network that the switch s1 belongs to; it is never built."""
    below = star(HOSTS)
    ip, behind = switch_address(2), host_address(1, 1)
    spec = NetworkSpec(
        "site",
        (*below.hosts, HostSpec("h6", behind, mac_of(0, behind))),
        (*below.switches, SwitchSpec("s2", 2, ip, mac_of(1, ip))),
        (
            *below.links,
            LinkSpec(End("s1", UPLINK), End("s2", 1)),
            LinkSpec(End("h6", 0), End("s2", 2)),
            LinkSpec(End("s1", SECOND), End("s2", 3)),
        ),
    )
    return new_record("site", spec, target="any", elements=elements, slots=FEW_SLOTS)


def install(switch: Switch, record: NetRecord, folder: Path) -> None:
    """Install the network, both jobs' entries; epochs as if it were always the same second."""
    program = Program(switch.p4info)
    insert(switch, network_entities(record, "s1", program))
    here = record.switch("s1")
    site = SwitchSite(here.ip, here.mac, record.elements, record.slots)
    folder.mkdir()
    jobs = JobController(switch, site, EpochStore(folder / "controller.db", clock=lambda: EPOCH))
    jobs.add_job(JOB, [seat(record, f"h{w + 1}", udp_port(w)) for w in range(WORKERS)], WINDOW)
    _install_leaf(switch, record, program)


def _install_leaf(switch: Switch, record: NetRecord, program: Program) -> None:
    here, parent = record.switch("s1"), record.switch("s2")
    port = job_port(LEAF_JOB)
    pool = Pool(LEAF_BASE, WINDOW, EPOCH, LEAF_GROUP)
    up = Uplink(UPLINK, here.mac, parent.mac, here.ip, parent.ip, LEAF_PORT, port)
    # The last copy has no receiver.
    insert(switch, [multicast_group(LEAF_GROUP, [(w + 1, LEAF_RID + w) for w in range(3)])])
    for w in range(2):
        host = record.host(f"h{w + 1}")
        receiver = program.receivers.receiver(
            LEAF_RID + w,
            src_mac=here.mac,
            dst_mac=host.mac,
            src_ip=here.ip,
            dst_ip=host.ip,
            src_port=port,
            dst_port=udp_port(w, LEAF_JOB),
        )
        sender = Sender(w + 1, host.ip, udp_port(w, LEAF_JOB), port)
        insert(switch, [receiver, program.admission.leaf_worker(sender, w, 2, pool, up)])
    insert(switch, [program.admission.parent(Sender(UPLINK, parent.ip, port, LEAF_PORT), 2, pool)])
    late = Sender(HOSTS, record.host(f"h{HOSTS}").ip, udp_port(LATE, LEAF_JOB), port)
    insert(switch, [program.admission.worker(late, LATE, 2, Pool(LEAF_BASE, WINDOW, EPOCH - 1, LEAF_GROUP))])


def set_faults(switch: Switch, shares: Shares) -> None:
    """Fault every port's packets both ways."""
    program = Program(switch.p4info)
    for port in range(1, UPLINK + 1):
        for faults in (program.ingress_faults, program.egress_faults):
            faults.set(switch, port, shares)


@contextmanager
def running(target: Target, elements: int, folder: Path) -> Iterator[tuple[SwitchClient, dict[int, Link]]]:
    """Run a switch process on veth pairs with the program loaded and nothing installed."""
    chosen = form(elements, FEW_SLOTS)
    with ExitStack() as stack:
        links = {}
        for port in PORTS:
            links[port] = link = Link()
            stack.callback(link.close)
            for name in (link.port, link.host):
                # One frame at a time, as it is on the wire: no super-packets of several.
                features = [word for feature in OFFLOADS for word in (feature, "off")]
                subprocess.run(["ethtool", "-K", name, *features], check=True, capture_output=True)
                # This machine must not answer ARP requests for an address that happens to be its own.
                Path(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore").write_text("8")
        process = SwitchProcess(
            target,
            name="s1",
            device_id=1,
            ports={port: link.port for port, link in links.items()},
            log=folder / "switch.log",
            directory=folder,
            # The links' raw sockets are to see each packet by itself.
            super_packets=False,
        )
        stack.callback(process.stop)
        process.wait_ready()
        client = stack.enter_context(SwitchClient("s1", 1, process.grpc))
        client.push_pipeline(P4Info.from_file(chosen.p4info_path), chosen.json_path.read_bytes())
        yield client, links
