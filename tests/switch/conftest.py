# SPDX-License-Identifier: Apache-2.0
"""A switch served over gRPC for a whole module, and a client that finds it freshly set up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.switch.p4rt import Controller, Served


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
