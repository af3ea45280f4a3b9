# SPDX-License-Identifier: Apache-2.0
"""Switches to control: a fake one, and a server of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.p4info import P4Info
from controller.program import Program
from tests.controller.fakes import FakeServer, FakeSwitch, our_p4info


@pytest.fixture
def p4info() -> P4Info:
    return our_p4info()


@pytest.fixture
def program(p4info: P4Info) -> Program:
    return Program(p4info)


@pytest.fixture
def switch() -> FakeSwitch:
    return FakeSwitch()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    try:
        yield made
    finally:
        made.stop()
