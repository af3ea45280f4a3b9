# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from ipaddress import ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import SpecError
from topologies.spec import End, LinkSpec, NetworkSpec, SwitchSpec, Way, host_address, mac_of, star


@given(st.integers(1, 64))
def test_a_star_has_one_link_for_each_host_and_distinct_on_link_addresses(hosts: int) -> None:
    spec = star(hosts)
    (switch,) = spec.switches
    assert [(link.a.node, link.b) for link in spec.links] == [
        (host.name, End("s1", port)) for port, host in enumerate(spec.hosts, 1)
    ]
    addresses = [ip_interface(f"{host.ip}/{host.prefix_len}") for host in spec.hosts]
    assert len({*addresses, ip_interface(f"{switch.ip}/16")}) == hosts + 1
    assert {address.network for address in addresses} == {ip_interface(f"{switch.ip}/16").network}
    texts = [*(host.mac for host in spec.hosts), switch.mac]
    macs = {bytes.fromhex(text.replace(":", "")) for text in texts}
    assert len(macs) == hosts + 1
    # Locally administered, unicast (IEEE 802, 8.2).
    assert all(len(mac) == 6 and mac[0] & 3 == 2 for mac in macs)


@pytest.mark.parametrize("hosts", [-1, 0, 65])
def test_a_star_needs_1_to_64_hosts(hosts: int) -> None:
    with pytest.raises(SpecError, match="1 to 64 hosts"):
        star(hosts)


def test_addresses() -> None:
    assert host_address(3, 7) == "10.0.3.7"
    assert mac_of(0, "10.0.3.7") == "02:00:0a:00:03:07"
    with pytest.raises(SpecError, match="racks are"):
        host_address(255, 1)


def changed(**changes: object) -> NetworkSpec:
    return replace(star(2), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": (*star(2).hosts, star(1).hosts[0])}, "name is used twice"),
        ({"hosts": (star(2).hosts[0], replace(star(2).hosts[1], ip="10.0.255.1"))}, "address is used twice"),
        ({"hosts": (star(2).hosts[0], replace(star(2).hosts[1], name="toolong"))}, "at most four"),
        ({"links": star(2).links[:1]}, "h2: the host has no link"),
        ({"links": (*star(2).links, LinkSpec(End("h3", 0), End("s1", 3)))}, "h3: .* no such node"),
        ({"links": (star(2).links[0], LinkSpec(End("h2", 0), End("s1", 1)))}, "used twice"),
        ({"links": (star(2).links[0], LinkSpec(End("h2", 1), End("s1", 2)))}, "h2: a host has port 0"),
        ({"links": (star(2).links[0], LinkSpec(End("h2", 0), End("s1", 510)))}, "ports are 1..509"),
        ({"links": (star(2).links[0], LinkSpec(End("h2", 0), End("s1", 2), Way(0)))}, "10kbit to 1tbit"),
        (
            {"hosts": (star(2).hosts[0], replace(star(2).hosts[1], mac="02:01:0a:00:ff:01"))},
            "MAC address is used twice",
        ),
        (
            {"switches": (*star(2).switches, SwitchSpec("s2", 2, "10.0.255.2", "02:01:0a:00:ff:02"))},
            "s2: no links lead from s1 to it",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        changed(**changes)
