# SPDX-License-Identifier: Apache-2.0
"""docs/hierarchy.md: its commands are run one after the other, and print what the page shows."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.controller import test_jobs_page
from tests.controller.office import Office
from tests.controller.served import Served
from topologies.builders import leaf_spine
from wire import constants

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hierarchy.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "RUN_ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["p4reduce"])
    blocks: list[str] = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    spec = leaf_spine(2, 2, 2)
    with ExitStack() as stack:
        served = [Served(switch.device_id) for switch in spec.switches]
        for each in served:
            stack.callback(each.close)
        office = stack.enter_context(Office(tmp_path, *served, name="racks", spec=spec, slots=16384))
        for line, shown in (command for block in blocks for command in test_jobs_page.commands(block)):
            if not line.startswith(test_jobs_page.ELSEWHERE):
                printed = test_jobs_page.run(line, office)
                assert test_jobs_page.matches(printed, shown), f"$ {line}\n{printed}"
