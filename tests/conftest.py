# SPDX-License-Identifier: Apache-2.0
"""What every test may need: which of them can run here, and the switch targets that are present."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from topologies import preflight
from topologies.targets import Target, targets

settings.register_profile("p4reduce", deadline=None, max_examples=50, print_blob=True)
settings.load_profile("p4reduce")

TARGETS = targets()
ROOT = Path(__file__).parents[1]


def _network_problems() -> list[str]:
    """Say why no network can be built here ([] when one can)."""
    return preflight.root_problems() or preflight.tool_problems() or preflight.veth_problems()


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As of a job in a shell's background: what the tests start would not hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ByFile(LoadScopeScheduling):
    """Shares files out to the test processes; one of these gets all files that build networks.

    Those share names of interfaces, and the machine. (xdist's own groups do nothing with pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "networks" if "mark.root" in (ROOT / file).read_text() else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("root")]
    problems = _network_problems() if marked else []
    if problems:
        reason = "no network can be built here: " + " ".join(problems)
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    gc.freeze()  # what was imported stays: to look through it after each file would cost 20 s


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Have what a file left open complain now, at its last test, not at some later one of another file."""
    yield
    gc.collect()


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    """Return each switch target that is present; a test with it runs once for each."""
    chosen = TARGETS[request.param]
    missing = chosen.missing()
    if missing is not None:
        pytest.skip(missing)
    return chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say each reason to skip once (pytest's own list does so for each file and line)."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} test{'s' if count > 1 else ''}: {reason}")
