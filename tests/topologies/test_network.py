# SPDX-License-Identifier: Apache-2.0
"""Which of the kernel's offloads a network leaves on; the captures of a switch that is started again."""

import pytest

from topologies.network import OFFLOADS, UNKNOWN_OFFLOADS, offloads_off


@pytest.mark.parametrize("release", ["4.19.0-27-amd64", "6.1.0", "6.18.44-x"])
def test_a_switch_without_super_packets_gets_packets_as_a_cable_carries_them(release: str) -> None:
    assert offloads_off(False, release) == OFFLOADS


@pytest.mark.parametrize(
    ("release", "takes_udp"),
    [
        ("6.2.0-39-generic", True),
        ("6.18.44-x", True),
        ("7.0", True),
        ("6.1.0-21-amd64", False),
        ("5.15", False),
    ],
)
def test_udp_super_packets_need_linux_6_2(release: str, takes_udp: bool) -> None:
    off = offloads_off(True, release)
    assert off[: len(UNKNOWN_OFFLOADS)] == UNKNOWN_OFFLOADS
    assert off[len(UNKNOWN_OFFLOADS) :] == (() if takes_udp else ("tx-udp-segmentation",))
