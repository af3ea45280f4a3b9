# SPDX-License-Identifier: Apache-2.0
"""Stars that the tests of a module share, one a target: what differs between tests is the jobs on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network.net import Net, star_of_four
from topologies.targets import Target


@pytest.fixture(scope="module")
def net(target: Target) -> Iterator[Net]:
    """A star of four hosts, named as no other."""
    with star_of_four(target) as net:
        yield net
