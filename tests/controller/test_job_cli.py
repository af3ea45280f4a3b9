# SPDX-License-Identifier: Apache-2.0
"""The commands on a controller that serves: output, JSON, failures, completion."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from controller import cli, job_cli, look_cli, switch_cli, terminal, top
from tests.controller.office import TOKEN, Member, Office
from tests.controller.served import Served
from tests.worker.jobs import begin
from wire import constants
from wire.constants import TOKEN_VARIABLE
from wire.control import ControlError, RefusedError
from wire.errors import P4ReduceError

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served(1)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def office(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setattr(constants, "RUN_ROOT", tmp_path)
    with Office(tmp_path, served) as made:
        yield made
        for name in list(made.controller.jobs):
            made.run(made.controller.remove(name))


def run(app: Any, *args: str) -> str:
    """Run a command that succeeds; return what it printed."""
    done = CliRunner().invoke(app, args)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def job(*args: str) -> str:
    return run(job_cli.app, *args)


def as_json(*args: str, app: Any = job_cli.app) -> Any:
    return json.loads(run(app, *args, "--json"))


def test_a_job_s_life(office: Office) -> None:
    assert "there is no job; add one with: " in job("list")
    told = job("add", "a", "--workers", "h1, h2", "--slots", "8", "--rate", "200mbit", "--tenant", "alice")
    assert told == (
        "job a: absent -> waiting; slots 0 to 7 of s1 (1024 -> 1016 free), workers h1, h2, rate 200 Mbit/s\n"
    )
    assert "0 of 2" in job("list")
    assert "lead 2, rate 200 Mbit/s" in job("show", "a")
    assert job("resize", "a", "--slots", "32", "--rate", "1gbit") == (
        "job a: slots 8 -> 32; rate 200 Mbit/s -> 1 Gbit/s, with its next epoch\n"
    )
    assert (
        job("resize", "a", "--workers", "h1,h3") == "job a: workers h1, h2 -> h1, h3, with its next epoch\n"
    )
    assert job("resize", "a", "--slots", "32") == "job a: nothing changes, it is so already\n"
    assert job("resize", "a", "--rate", "none") == "job a: rate 1 Gbit/s -> none\n"
    assert "W 8, 32 with its next epoch" in job("show", "a")
    assert job("quota", "alice", "40") == "tenant alice: quota of slots none -> 40, 32 in use\n"
    assert [row.split("│")[1:-1] for row in job("tenants").splitlines() if "alice" in row] == [
        [" alice  ", " 40    ", " 32           "]
    ]
    assert job("quota", "alice", "none") == "tenant alice: quota of slots 40 -> none, 32 in use\n"
    assert job("rm", "a") == "job a: waiting -> removed, 8 slots are free again\n"
    lines = [line.split() for line in job("events", "a").splitlines()]
    kinds = [line[2] for line in lines]
    times = [datetime.fromtimestamp(event["time"]) for event in as_json("events", "a")]
    assert [" ".join(line[:2]) for line in lines] == [f"{when:%Y-%m-%d %H:%M:%S}" for when in times]
    assert kinds[0] == "added"
    assert kinds[-1] == "removed"
    assert all("a: " in line for line in job("events", "a").splitlines())


def test_json(office: Office) -> None:
    added = as_json("add", "a", "--workers", "h1,h2", "--slots", "8", "--lead", "3")
    assert added["before"] is None
    told = added["after"]
    assert (told["name"], told["status"], told["slots"], told["lead"], told["rate_bps"]) == (
        "a",
        "waiting",
        8,
        3,
        None,
    )
    assert [(r["rank"], r["host"], r["ip"], r["joined"]) for r in told["ranks"]] == [
        (0, "h1", "10.0.0.1", False),
        (1, "h2", "10.0.0.2", False),
    ]
    assert as_json("show", "a") == told
    assert as_json("list") == [told]
    changed = as_json("resize", "a", "--slots", "16")
    assert changed == {"before": told, "after": told | {"wanted_slots": 16}}
    quota = as_json("quota", "bob", "5")
    assert quota == {
        "before": {"name": "bob", "quota": None, "used": 0},
        "after": {"name": "bob", "quota": 5, "used": 0},
    }
    assert {tenant["name"] for tenant in as_json("tenants")} == {"bob", "default"}
    events = as_json("events", "a")
    assert [set(event) for event in events] == [{"id", "time", "job", "kind", "text"}] * len(events)
    assert as_json("rm", "a")["after"] is None
    assert as_json("list") == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["add", "A", "--workers", "h1"], "name: a name has 1 to 31"),
        (["add", "a", "--workers", "h1,,h2"], "--workers h1,,h2: is not a list like h1,h2"),
        (["add", "a", "--workers", ""], "--workers '': is not a list like h1,h2"),
        (["add", "a", "--workers", "h1", "--switches", ""], "--switches '': is not a list like s1,s2"),
        (["resize", "b", "--workers", ""], "--workers '': is not a list like h1,h2"),
        (["add", "a", "--workers", "h1", "--rate", "fast"], "rate fast: a rate is a number and a unit of tc"),
        (["add", "a", "--workers", "h1", "--rate", "-1mbit"], "rate -1mbit: a rate is"),
        (["add", "a", "--workers", "h1", "--rate", "1bit"], "rate_bps: "),
        (["add", "a", "--workers", "h1", "--slots", "5000"], "cannot have 5000 slots"),
        (["show", "b"], "there is no job b"),
        (["events", "b"], "there is no job b, nor any other; add it"),
        (["resize", "b", "--slots", "1"], "there is no job b"),
        (["resize", "b"], "say what is to change"),
        (["drain", "b"], "there is no job b, nor any other; add it with: p4reduce job add b --workers"),
        (["rm", "b"], "there is no job b"),
        (["quota", "t", "many"], "SLOTS many: give a number of up to nine digits, or none"),
        (["quota", "t", "9" * 5000], "give a number of up to nine digits, or none"),
        (["show", "b/slots"], "'b/slots' is no name"),
        (["rm", "c/../b"], "'c/../b' is no name"),
        (["rm", ""], "'' is no name"),
        (["add", "a", "--workers", "h1", "--rate", "9" * 400 + "mbit"], "a rate is a number"),
        (["list", "--url", "http://[::1"], "--url http://[::1: is not http://HOST:PORT"),
        (["list", "--net", "other"], "there is no network other; these run: t; or start it with: "),
        (["list", "--url", "localhost:80"], "--url localhost:80: is not http://HOST:PORT"),
        (["list", "--url", "http://127.0.0.1:1", "--net", "t"], "--url and --net: give one of them"),
    ],
)
def test_bad_input_is_one_error(office: Office, args: list[str], words: str) -> None:
    with pytest.raises(P4ReduceError) as raised:
        job(*args)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert office.controller.jobs == {}


def test_a_failure_has_no_traceback() -> None:
    program = [sys.executable, "-c", "from controller.cli import main; main()"]
    done = subprocess.run(
        [*program, "job", "list", "--url", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no controller answers at http://127.0.0.1:1 ")
    assert done.stderr.count("\n") == 1


def test_rates() -> None:
    """tc(8), UNITS: bit and bps (bytes) with SI and IEC prefixes, a bare number is bit/s."""
    for text, bps in {
        "200mbit": 200 * 10**6,
        "1gbit": 10**9,
        "500kbit": 500_000,
        "1.5Mbit": 1_500_000,
        "9600": 9600,
        "25mbps": 200 * 10**6,
        "1kibit": 1024,
        "2mibps": 2 * 8 * 2**20,
    }.items():
        assert terminal.bits_per_second(text) == bps
    assert [terminal.rate_words(bps) for bps in (None, 999, 10**6, 1_500_000, 10**9)] == [
        "none",
        "999 bit/s",
        "1 Mbit/s",
        "1.5 Mbit/s",
        "1 Gbit/s",
    ]


def test_remote(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    how = r"controller's token: export P4REDUCE_TOKEN=\$\(sudo cat /run/p4reduce/NAME/controller.token\)"
    with pytest.raises(ControlError, match=f"this address needs the {how}"):
        job("list", "--url", office.url)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN[:-1])
    with pytest.raises(ControlError, match=f"this is not the {how}"):
        job("list", "--url", office.url)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    job("add", "a", "--workers", "h1", "--url", office.url)
    assert [told["name"] for told in as_json("list", "--url", office.url + "/")] == ["a"]


def leave(office: Office, members: list[Member]) -> None:
    with office.client() as client:
        for member in members:
            client.call("DELETE", f"/v1/sessions/{member.sid}")


def test_drain_waits_and_says_for_whom(office: Office) -> None:
    members = office.add("a", [7201, 7202], slots=8)
    with pytest.raises(job_cli.DrainTimeoutError) as raised:
        job("drain", "a", "--timeout", "0.4")
    assert (
        "job a has not ended in 0.4 s: it waits for rank 0 on h1, rank 1 on h2; it goes on draining"
        in str(raised.value)
    )
    leave(office, members[:1])
    later = threading.Timer(1.0, leave, [office, members[1:]])
    later.start()
    told = job("drain", "a").splitlines()
    later.join()
    assert told[0] == "job a: draining, waits for rank 1 on h2"
    assert told[-1] == "job a: draining -> ended, 8 slots are free again"
    assert as_json("list") == []


def test_drain_names_who_is_behind(office: Office) -> None:
    members = office.add("a", [7203, 7204, 7205], slots=8)
    with office.client() as client:
        # Ranks 0 and 2 are in an all-reduce that rank 1 has not begun.
        for rank in (0, 2):
            begin(members[rank].worker.engine, np.ones(3, np.int32))
        for member in members:
            member.tell(client)
        assert job_cli._late(client.call("GET", "/v1/jobs/a")) == "rank 1 on h2"


def test_drain_tells_the_slots_that_the_job_had_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        """A controller by whose word the job gets more slots on the way, and ends."""

        slots = iter([8, 8, 16])

        def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
            if method == "POST":
                return {}
            for slots in self.slots:
                return {"status": "draining", "slots": slots, "created": 1.0, "ranks": []}
            raise RefusedError("here", 404, "NoSuchJobError", "there is no job a")

    monkeypatch.setattr(job_cli, "reach", lambda *_, **__: nullcontext(Told()))
    assert job("drain", "a").splitlines()[-1] == "job a: draining -> ended, 16 slots are free again"


def test_a_job_of_the_same_name_is_not_waited_for(office: Office) -> None:
    job("add", "a", "--workers", "h1")
    told = as_json("drain", "a")
    assert (told["before"]["status"], told["after"]) == ("waiting", None)


def test_events_follow(office: Office) -> None:
    job("add", "a", "--workers", "h1", "--slots", "8")
    said: list[str] = []
    enough = threading.Event()

    def echo(text: str, **_: object) -> None:
        said.append(text)
        if "removed" in text:
            enough.set()
            raise SystemExit  # as Ctrl-C would

    follower = threading.Thread(target=lambda: _follow(echo))
    follower.start()
    with office.client() as client:
        client.call("PATCH", "/v1/jobs/a", {"rate_bps": 10**6})
        client.call("DELETE", "/v1/jobs/a")
    assert enough.wait(LIMIT_S)
    follower.join(LIMIT_S)
    events = [json.loads(line) for line in said]
    assert [event["kind"] for event in events] == ["added", "changed", "removed"]
    ids = [event["id"] for event in events]
    assert ids == sorted(set(ids))


def _follow(echo: Any) -> None:
    with terminal.reach("t", None) as client:
        try:
            for event in job_cli.following(client, client.call("GET", "/v1/events", job="a"), "a"):
                echo(json.dumps(event))
        except SystemExit:
            return


def test_slots_and_explain(office: Office) -> None:
    members = office.add("a", [7211, 7212], slots=8)
    assert run(look_cli.app, "slots", "a") == "job a: no slot is in use in its present epoch\n"
    engine = members[0].worker.engine
    begin(engine, np.ones(3, np.int32))
    members[0].worker.transport.send(engine.poll(0.0))
    lines = run(look_cli.app, "slots", "a").splitlines()
    assert lines[0] == "job a: 2 slot versions in use (two a slot), 0 complete, 2 wait for contributions"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    epoch = str(members[0].worker.membership.epoch)
    assert [row[:6] for row in cells] == [["0", "0", epoch, "0", "0", "1"], ["1", "0", epoch, "1", "0", "1"]]
    told = as_json("slots", "a", app=look_cli.app)
    assert [(slot["chunk"], slot["seen"], slot["missing"]) for slot in told] == [(0, [0], [1]), (1, [0], [1])]
    text = run(look_cli.app, "explain", "a")
    assert "worker 1 on h2 has not contributed to chunk 0 for " in text
    assert "worker 1 on h2" in as_json("explain", "a", app=look_cli.app)["text"]


def test_net_switch(office: Office) -> None:
    office.add("a", [7221, 7222], slots=8, rate_bps=5_000_000)
    assert "in line" in run(switch_cli.app, "list")
    told = run(switch_cli.app, "show")
    assert "1024 slots, 1016 free, the largest run 1016" in told
    assert [row.split("│")[1:-1] for row in told.splitlines() if row.startswith("│ a")] == [
        [" a   ", " 8     ", " 0     ", " 7    "]
    ]
    entries = run(switch_cli.app, "entries", "s1").splitlines()
    members = entries.index("SwitchIngress.handle.aggregation.admission.members: 2")
    assert "udp_src=7221" in "".join(entries[members + 1 : members + 3])
    assert "rates: 1" in entries
    assert entries[-1].endswith("-> 5 Mbit/s")
    office.served.process([(2, bytes(60))])
    assert "not ipv4" in run(switch_cli.app, "counters")
    assert set(as_json("counters", app=switch_cli.app)["ports"]) == {"1", "2", "3", "4", "5"}
    assert as_json("list", app=switch_cli.app) == [as_json("show", "s1", app=switch_cli.app)]
    with pytest.raises(ControlError, match="there is no switch s7; there is s1"):
        run(switch_cli.app, "show", "s7")


def test_top_prints_once_into_a_pipe(office: Office) -> None:
    office.add("a", [7231, 7232], slots=8)
    told = run(top.app)
    assert "jobs of network t" in told
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.splitlines() if "│" in line]
    assert [row[4:8] for row in rows[:2]] == [["0 h1", "0", "0", "0"], ["1 h2", "0", "0", "0"]]
    assert rows[0][:2] == ["a", "running"]
    assert rows[2][:5] == ["s1", "in line", "1024", "1016", "1016"]


def completions(monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What bash would offer for the last word of a line."""
    words = line.split(" ")
    monkeypatch.setenv("_P4REDUCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    done = CliRunner().invoke(cli.app, [], prog_name="p4reduce")
    return done.output.split()


def test_completion(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    job("add", "alpha", "--workers", "h1")
    job("add", "beta", "--workers", "h1", "--tenant", "carol")

    def offers(line: str) -> list[str]:
        return completions(monkeypatch, line)

    assert offers("p4reduce jo") == ["job"]
    assert offers("p4reduce job ev") == ["events"]
    assert offers("p4reduce job show ") == ["alpha", "beta"]
    assert offers("p4reduce job rm --net t b") == ["beta"]
    assert offers("p4reduce slots a") == ["alpha"]
    assert offers("p4reduce explain a") == ["alpha"]
    assert offers("p4reduce job list --net ") == ["t"]
    assert offers("p4reduce job add c --workers h1,h") == ["h1,h2", "h1,h3", "h1,h4", "h1,h5"]
    assert offers("p4reduce net exec h") == ["h1", "h2", "h3", "h4", "h5"]
    assert offers("p4reduce net switch show ") == ["s1"]
    assert offers("p4reduce job quota ") == ["carol", "default"]
    assert offers("p4reduce job show --net none ") == []
    assert offers("p4reduce job show --url http://127.0.0.1:1 ") == []


def test_completion_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(cli.app, ["--show-completion", "bash"], prog_name="p4reduce")
    assert done.exit_code == 0
    assert "_P4REDUCE_COMPLETE=complete_bash" in done.output
    assert "complete -o default -F _p4reduce_completion p4reduce" in done.output
