# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench isolation`: what it compares, and a whole run of it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bench import isolation
from bench.isolation import ALONE, FLOODS, Beside
from controller.cli import app
from topologies import record as records
from topologies.targets import Target


def beside(flood: str, *seconds: float) -> Beside:
    return Beside(flood, seconds, 0, 90.0, 10_000.0, {"not_admitted": 1.0})


def test_a_flood_is_compared_with_the_median_time_alone() -> None:
    found = [beside(ALONE, 0.2, 0.9, 0.1), beside("held", 0.3, 0.21, 0.2)]
    assert isolation.ratios(found) == {ALONE: 1.0, "held": pytest.approx(1.05)}


def test_every_link_is_shaped_and_one_host_is_left_over() -> None:
    spec = isolation.network(3, 100.0)
    assert [host.name for host in spec.hosts] == ["h1", "h2", "h3", "h4"]
    assert {link.rate_mbit for link in spec.links} == {100.0}


def test_an_unknown_size_is_refused() -> None:
    done = CliRunner().invoke(app, ["bench", "isolation", "--size", "3 parsecs"])
    assert done.exit_code == 2
    assert "is no size like" in done.output


@pytest.mark.root
@pytest.mark.slow
def test_a_whole_run(target: Target) -> None:
    words = ["--switch", target.name, "--elements", "64", "--size", "16KiB", "--rounds", "1", "--rate", "1"]
    words += ["--link", "5"]  # slow enough for any switch
    done = CliRunner().invoke(app, ["bench", "isolation", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told["floods"]) == {ALONE, *FLOODS}
    for name, flood in FLOODS.items():
        found = told["floods"][name]
        assert found["verdicts"][flood.verdict.name.lower()] > 0.5
        assert len(found["seconds"]) == 5
    assert told["floods"][ALONE]["ratio"] == 1
    assert not [name for name in records.names() if name.startswith("bench-isolation")]
