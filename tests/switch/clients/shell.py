# SPDX-License-Identifier: Apache-2.0
"""Drives a switch with p4runtime-shell's own shell, whose client is a global: a process of its own.

ADDRESS P4INFO PROGRAM P4INFO PROGRAM: the fixtures forward and groups.
"""

import sys
from typing import Any

import p4runtime_sh.shell as sh


def entry(table: str, field: str, value: str, action: str, **params: str) -> Any:
    made = sh.TableEntry(table)(action=action)
    made.match[field] = value
    for name, param in params.items():
        made.action[name] = param
    return made


def forward() -> None:
    made = entry("ingress.l2", "hdr.ethernet.dst", "00:00:00:00:00:05", "ingress.forward", port="4")
    made.insert()
    made.read(lambda e: print("entry", e.match["hdr.ethernet.dst"].exact.value.hex()))
    made.action["port"] = "6"
    made.modify()
    group = sh.MulticastGroupEntry(3)
    group.add(1, 1).add(2, 2)
    group.insert()
    sh.MulticastGroupEntry(3).read(
        lambda g: print("group", [(r.egress_port, r.instance) for r in g.replicas])
    )
    entry("ingress.l2", "hdr.ethernet.dst", "00:00:00:00:00:09", "ingress.to_controller", reason="2").insert()
    sh.PacketOut(b"payload", egress_port="3").send()
    packets = sh.PacketIn()
    print("ready", flush=True)
    for packet in packets.sniff(timeout=5):
        print("packet", packet.packet.payload[:6].hex(), [m.value.hex() for m in packet.packet.metadata])
    counter = sh.CounterEntry("ingress.port_counter")
    counter.index = 2
    counter.read(lambda c: print("counter", c.packet_count))


def groups() -> None:
    for number in (1, 2):
        member = sh.ActionProfileMember("ingress.hops")(member_id=number, action="ingress.forward")
        member.action["port"] = str(number)
        member.insert()
    group = sh.ActionProfileGroup("ingress.hops")(group_id=1)
    group.add(1, 1).add(2, 2)
    group.insert()
    group.read(lambda g: print("members", [(m.member_id, m.weight) for m in g.members]))
    route = sh.TableEntry("ingress.route")
    route.match["hdr.ethernet.dst"] = "00:00:00:00:00:00/8"
    route.group_id = 1
    route.insert()
    route.delete()
    group.delete()
    for number in (1, 2):
        sh.ActionProfileMember("ingress.hops")(member_id=number, action="ingress.forward").delete()
    shot = sh.TableEntry("ingress.route")
    shot.match["hdr.ethernet.dst"] = "00:00:00:00:00:00/8"
    action = sh.Action("ingress.forward")
    action["port"] = "7"
    shot.oneshot.add(action, weight=2)
    shot.insert()
    shot.read(lambda e: print("one-shot", [a.weight for a in e.oneshot.actions]))


if __name__ == "__main__":
    address = sys.argv[1]
    for at, work in ((2, forward), (4, groups)):
        config = sh.FwdPipeConfig(*sys.argv[at : at + 2])
        sh.setup(device_id=7, grpc_addr=address, election_id=(0, 1), config=config, verbose=False)
        work()
        sh.teardown()
