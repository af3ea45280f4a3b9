# SPDX-License-Identifier: Apache-2.0
"""Memberships of a job at no switch."""

from __future__ import annotations

from wire.membership import Membership


def memberships(n: int, *, window: int, elements: int) -> list[Membership]:
    return [
        Membership(
            job=5,
            rank=rank,
            n=n,
            switch_ip="10.0.255.1",
            switch_mac="02:01:0a:00:ff:01",
            own_ip=f"10.0.0.{rank + 1}",
            own_mac=f"02:00:0a:00:00:{rank + 1:02x}",
            own_port=4000 + rank,
            window=window,
            lead=1,
            epoch=9,
            elements=elements,
        )
        for rank in range(n)
    ]
