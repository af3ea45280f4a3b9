# SPDX-License-Identifier: Apache-2.0
"""A short run of tests.switch.fuzz under AddressSanitizer and UBSan, in processes of their own."""

from __future__ import annotations

import pytest

from tests.switch import fuzz
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


def test_an_interrupt_is_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seconds: float, names: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzz, "run_all", interrupted)
    monkeypatch.setattr(fuzz, "sanitizer", lambda: "there")
    assert fuzz.main(["60"]) == 130
    assert capsys.readouterr().err == "fuzz: interrupted\n"
