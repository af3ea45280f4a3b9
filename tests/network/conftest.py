# SPDX-License-Identifier: Apache-2.0
"""Stars that the tests of a module share, one a target: what differs between tests is the jobs on them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.net import Net
from topologies import jobs, manager
from topologies.spec import star
from topologies.targets import Target

HOSTS = 4
ELEMENTS = 64


@pytest.fixture(scope="module")
def net(target: Target) -> Iterator[Net]:
    """A star of four hosts, named as no other."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    with pytest.MonkeyPatch.context() as patch:
        # What runs in the hosts is part of these tests, which are not installed.
        folder = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]).strip(":"))
        with manager.network(star(HOSTS), name=name, target=target.name, elements=ELEMENTS) as record:
            with jobs.control_of(record) as control:
                yield Net(record, control)
