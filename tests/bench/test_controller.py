# SPDX-License-Identifier: Apache-2.0
"""bench controller on a few jobs: all are added, begin, and are there again after kill -9."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from controller.cli import app
from topologies.targets import EmbeddedTarget


def test_every_figure_is_there_and_no_job_is_lost() -> None:
    arguments = ["bench", "controller", "--jobs", "3", "--workers", "2", "--switch", "embedded", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    tree = json.loads(result.stdout)
    [figures] = tree["targets"]
    assert (figures["jobs"], figures["workers"], figures["slots"]) == (3, 2, EmbeddedTarget.default_window)
    assert len(figures["adds"]) == len(figures["begins"]) == 3
    assert figures["adds_per_s"] == 3 / sum(figures["adds"])
    assert figures["restart"] > 0
    assert figures["rss_mb"] > 10
