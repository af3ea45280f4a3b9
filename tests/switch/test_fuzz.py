# SPDX-License-Identifier: Apache-2.0
"""A short run of tests.switch.fuzz under AddressSanitizer and UBSan, in processes of their own."""

from __future__ import annotations

import pytest

from tests.switch.fuzz import run_one, sanitizer


@pytest.mark.skipif(sanitizer() is None, reason="the compiler has no AddressSanitizer")
@pytest.mark.parametrize("name", ["forward", "p4reduce-64"])
def test_random_packets(name: str) -> None:
    tried, report = run_one(name, 1, "2000", timeout=240)
    assert report == ""
    assert tried.packets == 2000
    assert tried.out > 100
    assert (tried.admitted > 500) == name.startswith("p4reduce")
