# SPDX-License-Identifier: Apache-2.0
"""A switch served over gRPC for a whole module, a client that finds it freshly set up, and quick compiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switch import build
from tests.switch.p4rt import Controller, Served

FLAGS: tuple[str, ...] = build.FLAGS
QUICK_FLAGS = (*(flag for flag in FLAGS if flag != "-O3"), "-O1", "-g0")
"""For hundreds of small programs; slow tests, processes and networks compile as users do."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    build.FLAGS = FLAGS if item.get_closest_marker("slow") else QUICK_FLAGS


def pytest_runtest_teardown() -> None:
    build.FLAGS = FLAGS


@pytest.fixture(scope="module")
def shared_switch() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture
def served(shared_switch: Served) -> Served:
    return shared_switch


@pytest.fixture
def client(served: Served) -> Iterator[Controller]:
    client = Controller(served.address)
    client.set_pipeline()
    yield client
    client.close()
