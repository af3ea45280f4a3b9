# SPDX-License-Identifier: Apache-2.0
"""Action selectors, digests and idle timeouts beside simple_switch_grpc, where it is installed.

It runs as a process on veth pairs, and is compared with the embedded switch in this process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4

from tests.switch.p4rt import (
    DELETE,
    DEVICE_ID,
    INSERT,
    MODIFY,
    Controller,
    Served,
    p4info,
    program,
    table,
    update,
)
from tests.switch.test_notify import frame as flat_frame
from tests.switch.test_p4runtime_notify import digest, source
from tests.switch.test_p4runtime_profiles import frame, group, member, one_shot, route
from tests.switch.veth import Link
from topologies.targets import Bmv2Target, SwitchProcess

PORTS = range(6)

pytestmark = pytest.mark.root


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture
def links() -> Iterator[list[Link]]:
    links = [Link() for _ in PORTS]
    yield links
    for link in links:
        link.close()


@pytest.fixture
def bmv2(links: list[Link], tmp_path: Path) -> Iterator[str]:
    """The address of a simple_switch_grpc on the links."""
    target = Bmv2Target()
    if missing := target.missing():
        pytest.skip(missing)
    process = SwitchProcess(
        target,
        name="s1",
        device_id=DEVICE_ID,
        ports={port: link.port for port, link in enumerate(links)},
        log=tmp_path / "bmv2.log",
        directory=tmp_path,
    )
    try:
        process.wait_ready()
        yield process.grpc
    finally:
        process.stop()


def connect(addresses: list[str], name: str, info: Any = None) -> list[Controller]:
    clients = []
    for address in addresses:
        client = Controller(address, 1)
        client.info = info or p4info(name)
        client.arbitrate()
        client.set_pipeline(p4info=client.info, json=program(name))
        clients.append(client)
    return clients


def where(links: list[Link], data: bytes, port: int) -> bool:
    """Whether a frame that enters on port 1 leaves, as it is, on this port."""
    links[1].send(data)
    return links[port].receive() == data


def test_selectors(served: Served, bmv2: str, links: list[Link]) -> None:
    clients = connect([served.address, bmv2], "groups")
    client = clients[0]
    r = random.Random(3)
    members = range(6)

    def write(*updates: p4.Update) -> None:
        for one in clients:
            one.write(*updates)

    def compare() -> None:
        for _ in range(12):
            data = frame(r.getrandbits(32))
            ((port, left),) = served.receive(1, data)
            assert left == data
            assert where(links, data, port), port

    def drawn() -> list[tuple[int, int]]:
        return [(number + 1, r.randint(1, 2)) for number in r.sample(members, r.randint(1, 3))]

    write(*[update(INSERT, **member(client, n + 1, client.action("forward", n))) for n in members])
    write(*[update(INSERT, **group(client, n, drawn(), max_size=6)) for n in (1, 2)])
    write(table(INSERT, route(client, action_profile_group_id=1)))
    for step in range(12):
        compare()
        if step % 4 == 3:
            write(table(MODIFY, route(client, action_profile_group_id=r.choice((1, 2)))))
        elif step % 4 == 2:
            number = r.choice(members) + 1
            write(update(MODIFY, **member(client, number, client.action("forward", r.choice(members)))))
        else:
            write(update(MODIFY, **group(client, r.choice((1, 2)), drawn())))
    write(table(DELETE, route(client, action_profile_group_id=1)))
    write(*[update(DELETE, **group(client, n, [])) for n in (1, 2)])
    write(*[update(DELETE, **member(client, n + 1, p4.TableAction())) for n in members])
    for kind in (INSERT, MODIFY, MODIFY):
        ports = [(port, r.randint(1, 2)) for port in r.sample(members, 3)]
        write(table(kind, route(client, action_profile_action_set=one_shot(client, ports))))
        compare()
    for one in clients:
        one.close()


def test_what_the_controller_is_told(served: Served, bmv2: str, links: list[Link]) -> None:
    info = p4info("notify")
    for learned in info.type_info.structs["seen_t"].members:
        learned.type_spec.bitstring.bit.bitwidth = 1  # simple_switch_grpc sends no bools
    ours, theirs = connect([served.address, bmv2], "notify", info)
    entry = source(ours, 5, 10**9, controller_metadata=5)
    for client in (ours, theirs):
        config = digest(client, max_list_size=2, max_timeout_ns=10**12, ack_timeout_ns=10**12)
        client.write(update(INSERT, **config))
    for src in (1, 2, 1, 3, 2, 2**48 - 1):
        data = flat_frame(src=src)
        assert where(links, data, served.receive(1, data)[0][0])
    for client in (ours, theirs):
        client.write(table(INSERT, entry))
    for kind in ("digest", "digest", "idle_timeout_notification"):
        told = [getattr(client.receive(), kind) for client in (ours, theirs)]
        for message in told:
            assert message.timestamp
            message.timestamp = 0
        assert told[0] == told[1]
    for client in (ours, theirs):
        client.close()
