# SPDX-License-Identifier: Apache-2.0
"""A short run of tests.switch.fuzz under AddressSanitizer and UBSan, in processes of their own."""

from __future__ import annotations

import pytest

from tests.switch.fuzz import run_one, sanitizer


@pytest.mark.skipif(sanitizer() is None, reason="the compiler has no AddressSanitizer")
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("forward", 1),
        ("forward", 6),  # the first packet to leave has no bytes
        ("p4reduce-64", 1),
    ],
)
def test_random_packets(name: str, seed: int) -> None:
    tried, report = run_one(name, seed, "2000", timeout=240)
    assert report == ""
    assert tried.packets == 2000
    assert tried.out > 100
    assert (tried.admitted > 500) == name.startswith("p4reduce")
