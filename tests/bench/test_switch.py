# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench switch`: what it counts, and that it does not call refusals a rate."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bench import switch
from bench.errors import RefusedError, WrongSumError
from bench.load import Load
from controller.cli import app
from controller.program.verdicts import JobVerdicts
from topologies import record as records
from topologies.targets import Bmv2Target
from wire.verdicts import Verdict

SHORT = 0.001
CYCLE = switch.BATCHES * switch.WINDOW


def measure(elements: int, workers: int) -> switch.Rate:
    shares: list[float] = []
    with switch.embedded(elements, workers) as measured:
        (rate,) = switch.measure([measured], SHORT, [shares.append])
    assert shares == sorted(shares)
    assert shares[-1] >= 1
    return rate


@pytest.mark.parametrize(("elements", "workers"), [(64, 1), (64, 4), (256, 3)])
def test_the_embedded_switch_takes_every_contribution(elements: int, workers: int) -> None:
    rate = measure(elements, workers)
    assert rate.target == "embedded"
    assert rate.contributions % (workers * CYCLE) == 0
    assert rate.contributions > 0
    assert rate.results == rate.contributions
    assert rate.retransmissions == 0
    assert rate.contributions_per_s == rate.contributions / rate.seconds


def test_replays_are_no_contributions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without new chunk numbers everything after the first cycle is answered from the slots.
    monkeypatch.setattr(switch, "advance", lambda frames, chunks: None)
    with pytest.raises(RefusedError, match=r"embedded: of \d+ contributions .* this is no rate of sums"):
        measure(64, 2)


def test_wrong_sums_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Load):
        def __init__(self, members) -> None:
            super().__init__(members)
            self.sums[0, 0] += 1

    monkeypatch.setattr(switch, "Load", Wrong)
    with pytest.raises(WrongSumError, match="is not the workers' sum"):
        measure(64, 2)


def counted(*workers: dict[Verdict, int], others: dict[Verdict, int] | None = None) -> JobVerdicts:
    return JobVerdicts(
        {bit: {v: (n, 0) for v, n in counts.items()} for bit, counts in enumerate(workers)},
        {v: (n, 0) for v, n in (others or {}).items()},
    )


GOOD = ({Verdict.ABSORBED: 7, Verdict.COMPLETED: 3}, {Verdict.ABSORBED: 3, Verdict.COMPLETED: 7})


def test_counters_that_show_every_sum_pass() -> None:
    switch.check("x", counted(*GOOD), 2, 10, 0)
    repeated = ({**GOOD[0], Verdict.DUPLICATE: 1, Verdict.REPLAYED: 1}, GOOD[1])
    switch.check("x", counted(*repeated), 2, 10, 2)


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (counted(GOOD[0]), "7 absorbed and 3 completed"),
        (counted(*GOOD, others={Verdict.NOT_ADMITTED: 4}), "4 not_admitted"),
        (counted({**GOOD[0], Verdict.BAD_UDP_CHECKSUM: 2}, GOOD[1]), "2 bad_udp_checksum"),
        (counted({**GOOD[0], Verdict.REPLAYED: 2}, GOOD[1]), r"2 repeated \(1 sent again\)"),
    ],
    ids=["too few", "not admitted", "refused", "repeated"],
)
def test_counters_that_show_anything_else_are_an_error(verdicts: JobVerdicts, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        switch.check("x", verdicts, 2, 10, 1)


def test_without_bmv2_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "bmv2_missing", lambda: "there is none")
    arguments = ["bench", "switch", "--elements", "64", "--workers", "2", "--seconds", "0.01"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "bmv2 was not measured: there is none" in done.stdout
    assert "times bmv2's" not in done.stdout
    tree = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert tree.keys() == {"elements", "workers", "window", "targets", "absent", "ratio"}
    assert (tree["elements"], tree["workers"], tree["window"]) == (64, 2, 64)
    assert tree["targets"].keys() == {"embedded"}
    assert tree["targets"]["embedded"].keys() == {
        *("contributions_per_s", "results_per_s", "contributions", "results", "retransmissions", "seconds")
    }
    assert (tree["absent"], tree["ratio"]) == ({"bmv2": "there is none"}, None)


@pytest.mark.root
@pytest.mark.skipif(not Bmv2Target().available(), reason="bmv2 is not here")
def test_bmv2_is_measured_beside_it() -> None:
    arguments = ["bench", "switch", "--elements", "64", "--workers", "2", "--seconds", "0.01", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    tree = json.loads(done.stdout)
    bmv2 = tree["targets"]["bmv2"]
    assert bmv2["contributions"] == bmv2["results"] == 2 * 64 * switch.RUN
    assert tree["absent"] == {}
    embedded = tree["targets"]["embedded"]["contributions_per_s"]
    assert tree["ratio"] == embedded / bmv2["contributions_per_s"]
    assert switch.NETWORK not in records.names()
