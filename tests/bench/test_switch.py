# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench switch`: what it counts, and that it does not call refusals a rate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bench import names, pipeline, switch, veth, work
from bench.errors import RefusedError, WrongSumError
from bench.load import Exchange, Load
from controller.cli import app
from controller.program.verdicts import JobVerdicts
from p4src.forms import form
from topologies import record as records
from topologies.targets import Bmv2Target
from wire.verdicts import Verdict

SHORT = 0.001
LIMIT_S = 120
OURS = names.PREFIX
CYCLE = switch.BATCHES * switch.COLUMNS["embedded"].window
RATE = {
    *("packets_per_s", "packets", "answers", "seconds", "window", "resent", "sender_idle", "switch_cpus"),
    *("packets_per_cpu_s", "turns"),
}


def measure(column: str, what: work.Work) -> switch.Rate:
    shares: list[float] = []
    with switch.opened(column, what) as measured:
        (rate,) = switch.measure([measured], SHORT, [shares.append])
    assert shares == sorted(shares)
    assert shares[-1] >= 1
    return rate


WORKS = [work.Forwarding(), work.Aggregation(64, 1), work.Aggregation(64, 4), work.Aggregation(256, 3)]


@pytest.mark.parametrize("what", WORKS, ids=lambda w: f"{w.name}-{w.ports}")
def test_the_embedded_switch_takes_every_packet(what: work.Work) -> None:
    rate = measure("embedded", what)
    assert rate.column == "embedded"
    assert rate.packets % (what.ports * CYCLE) == 0
    assert rate.packets > 0
    assert rate.answers == rate.packets
    assert (rate.resent, rate.sender_idle) == (0, None)
    assert rate.packets_per_s == rate.packets / rate.seconds
    assert rate.turns == pytest.approx([rate.packets_per_s])


def test_replays_are_no_contributions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without new chunk numbers everything after the first cycle is answered from the slots.
    monkeypatch.setattr(switch, "advance", lambda frames, chunks: None)
    with pytest.raises(RefusedError, match=r"embedded: of \d+ contributions .* this is no rate of sums"):
        measure("embedded", work.Aggregation(64, 2))


class Wrong(Load):
    def __init__(self, members) -> None:
        super().__init__(members)
        self.wanted = self.wanted.copy()
        self.wanted[0, 0, 0] += 1


def test_wrong_sums_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "Load", Wrong)
    with pytest.raises(WrongSumError, match=r"the answer to chunk \d+ has other values"):
        measure("embedded", work.Aggregation(64, 2))


@pytest.mark.root
@pytest.mark.parametrize("column", [name for name, column in switch.COLUMNS.items() if column.over_veth])
@pytest.mark.parametrize("what", [work.Forwarding(), work.Aggregation(64, 2)], ids=lambda w: w.name)
def test_switches_on_veth_answer_everything(column: str, what: work.Work) -> None:
    if column in switch.missing():
        pytest.skip(switch.missing()[column])
    rate = measure(column, what)
    assert rate.answers == rate.packets > 0
    assert rate.packets % what.ports == 0
    assert rate.window == switch.COLUMNS[column].window
    assert rate.sender_idle is not None
    assert 0 <= rate.sender_idle <= 1
    assert not [name for name in records.names() if name.startswith(OURS)]


@pytest.mark.root
def test_wrong_sums_are_found_over_veth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "Load", Wrong)
    with pytest.raises(WrongSumError, match=r"embedded_single_packets: the answer to chunk 0 has other"):
        measure("embedded_single_packets", work.Aggregation(64, 2))


def counted(*workers: dict[Verdict, int], others: dict[Verdict, int] | None = None) -> JobVerdicts:
    return JobVerdicts(
        {bit: {v: (n, 0) for v, n in counts.items()} for bit, counts in enumerate(workers)},
        {v: (n, 0) for v, n in (others or {}).items()},
    )


GOOD = ({Verdict.ABSORBED: 7, Verdict.COMPLETED: 3}, {Verdict.ABSORBED: 3, Verdict.COMPLETED: 7})


def test_counters_that_show_every_sum_pass() -> None:
    work.check("x", counted(*GOOD), 2, 10, 0)
    repeated = ({**GOOD[0], Verdict.DUPLICATE: 1, Verdict.REPLAYED: 1}, GOOD[1])
    work.check("x", counted(*repeated), 2, 10, 2)


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
        work.check("x", verdicts, 2, 10, 1)


def test_loads_of_a_program_are_timed() -> None:
    lines: list[str] = []
    times = pipeline.load_times(form(64, work.SLOTS), lines.append)
    here = {"bmv2"} if Bmv2Target().available() else set()
    assert times.keys() == {"embedded_cold", "embedded_cached"} | here
    assert min(times.values()) > 0
    assert len(lines) == len(times)


def test_without_root_the_command_measures_in_process_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(veth, "missing", lambda: "there is no root")
    monkeypatch.setattr(Bmv2Target, "missing", lambda self: "there is none")
    monkeypatch.setattr(pipeline, "load_times", lambda form, say: {"embedded_cold": 1.5})
    arguments = ["bench", "switch", "--workers", "2", "--seconds", "0.01"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "embedded, veth, super-packets was not measured: there is no root" in done.stdout
    assert "bmv2, veth was not measured: there is none" in done.stdout
    assert "SetForwardingPipelineConfig of p4reduce_256x1024: embedded, cold 1.50 s" in done.stdout
    assert "bottleneck" not in done.stdout
    assert "packets a second, sums of 2 workers" in done.stdout
    assert "multiple" not in done.stdout, "there is nothing that it could be a multiple of"
    arguments += ["--elements", "64", "--json"]
    tree = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert tree.keys() == {"workers", "rows", "pipeline", "absent"}
    assert tree["workers"] == 2
    assert tree["pipeline"] == {"program": "p4reduce_64x1024", "seconds": {"embedded_cold": 1.5}}
    assert tree["absent"].keys() == switch.COLUMNS.keys() - {"embedded"}
    assert tree["rows"].keys() == {"aggregation_64"}
    row = tree["rows"]["aggregation_64"]
    assert row.keys() == {"ports", "frame_bytes", "targets", "ratios"}
    assert (row["ports"], row["frame_bytes"], row["ratios"]) == (2, 308, {})
    assert row["targets"].keys() == {"embedded"}
    assert row["targets"]["embedded"].keys() == RATE


def test_ratios_are_the_medians_of_those_of_rounds() -> None:
    # In the second round the machine was slow for all, in the third for bmv2 alone.
    turns = {"embedded": (600.0, 300.0, 600.0), "bmv2": (40.0, 20.0, 10.0)}
    rates = {name: switch.Rate(name, 9, 9, 2.0, 16, turns=each) for name, each in turns.items()}
    assert switch.ratios(rates) == {"embedded": 15.0}
    assert switch.ratios({"embedded": rates["embedded"]}) == {}


def test_all_have_turns_in_every_round() -> None:
    shares: list[float] = []
    with ExitStack() as stack:
        both = [stack.enter_context(switch.opened("embedded", work.Aggregation(64, 2))) for _ in range(2)]
        rates = switch.measure(both, 2.5 * switch.TURN_S, [shares.append, shares.append])
    assert [len(rate.turns) for rate in rates] == [3, 3]
    assert shares == [1 / 3, 1 / 3, 2 / 3, 2 / 3, 1.0, 1.0]


def test_rates_for_a_second_of_a_processor() -> None:
    assert switch.Rate("x", 600, 600, 2.0, 16, switch_cpus=0.5).packets_per_cpu_s == 600.0
    assert switch.Rate("x", 600, 600, 2.0, 16, switch_cpus=0.0).packets_per_cpu_s is None


@pytest.mark.root
def test_a_signal_ends_it_and_nothing_is_left() -> None:
    command = [sys.executable, "-c", "from controller.cli import main; main()", "bench", "switch"]
    # Long enough that it cannot end by itself first.
    child = subprocess.Popen(
        [*command, "--elements", "64", "--seconds", "1000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TERM": "dumb"},
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (running := [n for n in records.names() if n.startswith(OURS)]):
            assert child.poll() is None, child.communicate()[1]
            assert time.monotonic() < deadline, f"no switch was started in {LIMIT_S} s"
            time.sleep(0.1)
        interfaces = records.load(running[0]).root_interfaces()
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
        child.communicate(timeout=LIMIT_S)
    assert child.returncode == 128 + signal.SIGTERM
    assert not [name for name in records.names() if name.startswith(OURS)]
    assert not [name for name in interfaces if Path("/sys/class/net", name).exists()]


def test_the_streams_of_an_exchange_cross() -> None:
    exchange = Exchange(4, 64)
    frames = exchange.frames(8, 1)[0]
    assert np.array_equal(frames["payload"]["values"], exchange.values)
    assert np.array_equal(exchange.wanted[0], exchange.values[1])
    assert np.array_equal(frames["eth_src"][0], frames["eth_dst"][1])
    assert frames["payload"]["chunk"].tolist() == [[8, 9, 10, 11]] * 2
