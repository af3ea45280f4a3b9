# SPDX-License-Identifier: Apache-2.0
"""Action profile members, groups and one-shot sets over P4Runtime."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4

from tests.switch.p4rt import (
    DELETE,
    INSERT,
    MODIFY,
    Controller,
    Served,
    eventually,
    octets,
    p4info,
    program,
    read_table,
    table,
    update,
)


@pytest.fixture
def client(served: Served) -> Iterator[Controller]:
    client = Controller(served.address)
    client.info = p4info("groups")
    client.set_pipeline(p4info=client.info, json=program("groups"))
    yield client
    client.close()


def member(client: Controller, number: int, action: p4.TableAction, profile: str = "hops") -> Any:
    entry = p4.ActionProfileMember(
        action_profile_id=client.id("action_profiles", profile), member_id=number, action=action.action
    )
    return {"action_profile_member": entry}


def group(
    client: Controller, number: int, members: list[tuple[int, int]], watch: int = 0, **rest: Any
) -> Any:
    entry = p4.ActionProfileGroup(
        action_profile_id=client.id("action_profiles", "hops"), group_id=number, **rest
    )
    for member_id, weight in members:
        entry.members.add(member_id=member_id, weight=weight, watch_port=octets(watch) if watch else b"")
    return {"action_profile_group": entry}


def route(client: Controller, **action: Any) -> p4.TableEntry:
    """The route of all addresses."""
    return client.entry("route", {}, p4.TableAction(**action))


def one_shot(client: Controller, ports: list[tuple[int, int]], watch: int = 0) -> p4.ActionProfileActionSet:
    actions = p4.ActionProfileActionSet()
    for port, weight in ports:
        one = actions.action_profile_actions.add(weight=weight, watch_port=octets(watch) if watch else b"")
        one.action.CopyFrom(client.action("forward", port).action)
    return actions


def frame(flow: int) -> bytes:
    return bytes(14) + (flow << 32).to_bytes(8, "big")


def hashed(flow: int) -> int:
    return zlib.crc32((flow << 32).to_bytes(8, "big"))


def out(served: Served, flow: int) -> int:
    ((port, _),) = served.receive(1, frame(flow))
    return port


def forwards(client: Controller, ports: range) -> list[p4.Update]:
    """Member n forwards to port n."""
    return [update(INSERT, **member(client, n, client.action("forward", n))) for n in ports]


# ---- members and groups


def test_groups_forward_by_hash_and_weight(served: Served, client: Controller) -> None:
    client.write(*forwards(client, range(1, 4)))
    client.write(update(INSERT, **group(client, 7, [(1, 1), (2, 3), (3, 2)], max_size=6)))
    client.write(table(INSERT, route(client, action_profile_group_id=7)))
    # the first copies were made with the members, the others with the group, by member
    order = [1, 2, 3, 2, 2, 3]
    assert [out(served, flow) for flow in range(100)] == [order[hashed(flow) % 6] for flow in range(100)]
    client.write(update(MODIFY, **group(client, 7, [(3, 1), (1, 1)], max_size=6)))
    assert [out(served, flow) for flow in range(40)] == [[1, 3][hashed(flow) % 2] for flow in range(40)]
    client.write(update(MODIFY, **member(client, 3, client.action("reach", 9, 5))))
    assert {out(served, flow) for flow in range(40)} == {1, 9}
    client.write(table(MODIFY, route(client, action_profile_member_id=2)))
    assert {out(served, flow) for flow in range(10)} == {2}
    client.write(update(DELETE, **group(client, 7, [])))
    client.write(*[update(DELETE, **member(client, n, p4.TableAction())) for n in (1, 3)])


def test_modified_members_change_all_their_copies(served: Served, client: Controller) -> None:
    client.write(*forwards(client, range(1, 3)))
    client.write(update(INSERT, **group(client, 1, [(1, 4), (2, 1)])))
    client.write(table(INSERT, route(client, action_profile_group_id=1)))
    client.write(update(MODIFY, **member(client, 1, client.action("forward", 8))))
    assert Counter(out(served, flow) for flow in range(50)).keys() == {2, 8}


def test_they_are_read_as_they_were_written(client: Controller) -> None:
    members = [member(client, n, client.action("reach", n, 77)) for n in (1, 2)]
    other = member(client, 1, client.action("mark", 3), "rewrites")
    groups = [group(client, n, [(2, 2), (1, 1)], watch=4, max_size=5) for n in (1, 2)]
    client.write(*[update(INSERT, **entity) for entity in (*members, other, *groups)])

    def read(**wanted: Any) -> list[p4.Entity]:
        return client.read(p4.Entity(**wanted))

    everything = read(action_profile_member=p4.ActionProfileMember())
    assert [entity.action_profile_member for entity in everything] == [
        entity["action_profile_member"] for entity in (other, *members)
    ]
    hops = client.id("action_profiles", "hops")
    wanted = p4.ActionProfileMember(action_profile_id=hops, member_id=2)
    assert read(action_profile_member=wanted) == [p4.Entity(**members[1])]
    assert read(action_profile_group=p4.ActionProfileGroup()) == [p4.Entity(**entity) for entity in groups]
    wanted = p4.ActionProfileGroup(action_profile_id=hops, group_id=1)
    assert read(action_profile_group=wanted) == [p4.Entity(**groups[0])]
    for action in ({"action_profile_group_id": 2}, {"action_profile_member_id": 1}):
        entry = route(client, **action)
        client.write(table(INSERT, entry))
        assert read_table(client, "route") == [entry]
        client.write(table(DELETE, entry))


def test_what_is_in_use_stays(client: Controller) -> None:
    client.write(*forwards(client, range(1, 3)))
    client.write(update(INSERT, **group(client, 1, [(1, 2)])))
    client.write(table(INSERT, route(client, action_profile_group_id=1)))
    prefix = {1: ("lpm", 1 << 40, 8)}
    client.write(table(INSERT, client.entry("route", prefix, p4.TableAction(action_profile_member_id=2))))
    refused = client.refused(
        update(DELETE, **member(client, 1, p4.TableAction())),
        update(DELETE, **member(client, 2, p4.TableAction())),
        update(DELETE, **group(client, 1, [])),
    )
    assert [code for code, _ in refused] == ["FAILED_PRECONDITION"] * 3


@pytest.mark.parametrize("weights", [[0, 1], [1, -1], [7], [4, 3]])
def test_wrong_weights(client: Controller, weights: list[int]) -> None:
    client.write(*forwards(client, range(1, 3)))
    wrong = group(client, 1, list(enumerate(weights, start=1)), max_size=6)
    ((code, _),) = client.refused(update(INSERT, **wrong))
    assert code == ("INVALID_ARGUMENT" if min(weights) < 1 else "RESOURCE_EXHAUSTED")
    assert client.read(p4.Entity(action_profile_group=p4.ActionProfileGroup())) == []
    actions = one_shot(client, list(enumerate(weights, start=1)))
    client.write(*[update(DELETE, **member(client, n, p4.TableAction())) for n in (1, 2)])
    ((code, _),) = client.refused(table(INSERT, route(client, action_profile_action_set=actions)))
    assert code == "INVALID_ARGUMENT"
    assert read_table(client, "route") == []


def test_refusals(client: Controller) -> None:
    client.write(*forwards(client, range(1, 3)), update(INSERT, **group(client, 1, [(1, 1)], max_size=4)))
    profile = client.id("action_profiles", "rewrites")
    plain = p4.ActionProfileGroup(action_profile_id=profile, group_id=1)
    of_group = p4.TableAction(action_profile_group_id=1)
    cases: list[tuple[str, p4.Update]] = [
        ("ALREADY_EXISTS", update(INSERT, **member(client, 1, client.action("drop")))),
        ("NOT_FOUND", update(MODIFY, **member(client, 9, client.action("drop")))),
        ("NOT_FOUND", update(DELETE, **member(client, 9, p4.TableAction()))),
        ("INVALID_ARGUMENT", update(INSERT, **member(client, 0, client.action("drop")))),
        ("INVALID_ARGUMENT", update(INSERT, **member(client, 9, client.action("mark", 1)))),
        ("INVALID_ARGUMENT", update(INSERT, **member(client, 9, client.action("forward")))),
        ("INVALID_ARGUMENT", update(INSERT, action_profile_member=p4.ActionProfileMember(member_id=1))),
        ("ALREADY_EXISTS", update(INSERT, **group(client, 1, []))),
        ("NOT_FOUND", update(MODIFY, **group(client, 9, []))),
        ("NOT_FOUND", update(INSERT, **group(client, 2, [(9, 1)]))),
        ("INVALID_ARGUMENT", update(INSERT, **group(client, 2, [(1, 1), (1, 1)]))),
        ("INVALID_ARGUMENT", update(INSERT, **group(client, 2, [], max_size=7))),
        ("INVALID_ARGUMENT", update(MODIFY, **group(client, 1, [], max_size=5))),
        ("INVALID_ARGUMENT", update(INSERT, action_profile_group=plain)),
        ("NOT_FOUND", table(INSERT, route(client, action_profile_group_id=9))),
        ("NOT_FOUND", table(INSERT, route(client, action_profile_member_id=9))),
        ("INVALID_ARGUMENT", table(INSERT, client.entry("route", {}, client.action("drop")))),
        (
            "INVALID_ARGUMENT",
            table(INSERT, route(client, action_profile_action_set=one_shot(client, [(1, 1)]))),
        ),
        (
            "INVALID_ARGUMENT",
            table(INSERT, client.entry("by_port", {1: ("exact", 1)}, of_group)),
        ),
        ("INVALID_ARGUMENT", table(MODIFY, client.entry("route", is_default_action=True))),
    ]  # fmt: skip
    assert [code for code, _ in client.refused(*[case for _, case in cases])] == [code for code, _ in cases]
    for n in range(8):
        client.write(update(INSERT, **member(client, n + 1, client.action("mark", n), "rewrites")))
    full = update(INSERT, **member(client, 9, client.action("mark", 1), "rewrites"))
    assert client.refused(full)[0][0] == "RESOURCE_EXHAUSTED"


# ---- one-shot sets


def test_one_shot_sets(served: Served, client: Controller) -> None:
    entry = route(client, action_profile_action_set=one_shot(client, [(1, 1), (2, 2), (1, 1)]))
    client.write(table(INSERT, entry))
    order = [1, 2, 2, 1]
    assert [out(served, flow) for flow in range(60)] == [order[hashed(flow) % 4] for flow in range(60)]
    assert read_table(client, "route") == [entry]
    changed = route(client, action_profile_action_set=one_shot(client, [(5, 6)]))
    client.write(table(MODIFY, changed))
    assert {out(served, flow) for flow in range(20)} == {5}
    assert client.refused(*forwards(client, range(1, 2)))[0][0] == "INVALID_ARGUMENT"
    assert client.refused(table(INSERT, entry))[0][0] == "ALREADY_EXISTS"
    client.write(table(DELETE, changed))
    # nothing is left of them: the other way to program the selector is open again
    client.write(*forwards(client, range(1, 2)))


def test_reconcile_keeps_them(served: Served, client: Controller) -> None:
    client.write(*forwards(client, range(1, 4)))
    client.write(update(INSERT, **group(client, 7, [(1, 1), (3, 2)])))
    client.write(table(INSERT, route(client, action_profile_group_id=7)))
    before = [out(served, flow) for flow in range(30)]
    client.set_pipeline("RECONCILE_AND_COMMIT", p4info=client.info, json=program("groups"))
    assert [out(served, flow) for flow in range(30)] == before
    client.set_pipeline(p4info=client.info, json=program("groups"))
    assert client.read(p4.Entity(action_profile_member=p4.ActionProfileMember())) == []


# ---- watch ports


@pytest.mark.parametrize("shot", [True, False])
def test_members_rest_while_their_port_is_down(served: Served, client: Controller, shot: bool) -> None:
    if shot:
        actions = one_shot(client, [(1, 1), (2, 1)], watch=1)
        actions.action_profile_actions[1].watch_port = b"\x02"
        entry = route(client, action_profile_action_set=actions)
    else:
        client.write(*forwards(client, range(1, 3)))
        watching = group(client, 1, [(1, 1), (2, 1)], watch=1)
        watching["action_profile_group"].members[1].watch_port = b"\x02"
        client.write(update(INSERT, **watching))
        entry = route(client, action_profile_group_id=1)
    client.write(table(INSERT, entry))

    def ports() -> set[int]:
        return {out(served, flow) for flow in range(20)}

    assert ports() == {1, 2}
    try:
        served.dataplane.set_port(2, up=False)
        eventually(lambda: ports() == {1}, "port 2 is left out")
        served.dataplane.set_port(1, up=False)
        eventually(lambda: ports() == {0}, "no member is left")
        assert read_table(client, "route") == [entry]
    finally:
        for port in (1, 2):
            served.dataplane.set_port(port, up=True)
    eventually(lambda: ports() == {1, 2}, "both are back")


def test_a_profile_without_a_name_is_in_the_json_alone(client: Controller) -> None:
    """As p4c writes `implementation = action_profile(16)`, and simple_switch_grpc loads it."""
    info = p4info("groups")
    route = next(t for t in info.tables if t.preamble.alias == "route")
    profile = route.implementation_id
    route.ClearField("implementation_id")
    kept = [p for p in info.action_profiles if p.preamble.id != profile]
    del info.action_profiles[:]
    info.action_profiles.extend(kept)
    client.info = info
    client.set_pipeline(p4info=info, json=program("groups"))
    action = client.action("forward", 1)
    ((code, message),) = client.refused(table(INSERT, client.entry("route", {}, action)))
    assert code == "INVALID_ARGUMENT"
    assert "@name" in message


def test_of_a_parameter_without_use_the_json_may_know_nothing(client: Controller) -> None:
    """As p4c writes P4_14's actions: simple_switch_grpc loads it, and refuses entries with the action."""
    info = p4info("groups")
    forward = next(a for a in info.actions if a.preamble.alias == "forward")
    forward.params.add(id=2, name="unused", bitwidth=8)
    client.info = info
    client.set_pipeline(p4info=info, json=program("groups"))
    ((code, message),) = client.refused(update(INSERT, **member(client, 1, client.action("forward", 1, 2))))
    assert (code, "1 arguments" in message) == ("INVALID_ARGUMENT", True)
