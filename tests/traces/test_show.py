# SPDX-License-Identifier: Apache-2.0
"""`trace show`: verdicts by the rules of docs/protocol.md, by hand here, and how packets are told."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from switch.device import SwitchDevice
from tests.traces import made
from tests.traces.made import START, enhanced, frames, interface, option, payloads, put, section
from tests.traces.worlds import captured_run
from traces import members
from traces.cli import app
from traces.errors import FilterError, TraceFileError
from traces.names import MEMBERSHIPS

W = 4
JOB = 3


def epoch(number: int, ports: tuple[int, int], began: int, *, g0: int = 0, window: int = W) -> members.Epoch:
    place = members.SwitchPlace("s1", made.SWITCH)
    seats = tuple(
        members.Member(rank, f"h{rank + 1}", f"10.0.0.{rank + 1}", port, rank, "s1", f"h{rank + 1}-s1")
        for rank, port in enumerate(ports)
    )
    return members.Epoch(JOB, "one", number, window, 1, 64, 2, g0, 0, (place,), seats, began)


class Capture:
    """Two links of one switch; packets are a microsecond apart."""

    def __init__(self) -> None:
        self.files = {1: [section(), self.head(1)], 2: [section(), self.head(2)]}
        self.now = START

    def head(self, host: int) -> bytes:
        name = option(3, f"link end s1-h{host}".encode())
        return interface(option(9, b"\x09"), name)

    def put(self, host: int, frame: bytes) -> None:
        self.now += 1000
        self.files[host].append(enhanced(frame, self.now))

    def up(
        self, host: int, chunk: int, *, port: int = 0, window: int = W, on: int = 0, **changed: int
    ) -> None:
        packet = payloads(chunk=chunk, window=window)
        ends = {"host": f"10.0.0.{host}", "port": port or 5000 + host}
        self.put(on or host, frames(packet, job=JOB, **ends, **changed)[0])  # type: ignore[arg-type]

    def down(self, host: int, chunk: int, *, port: int = 0, **changed: int) -> None:
        packet = payloads(chunk=chunk, window=W, up=False)
        ends = {"host": f"10.0.0.{host}", "port": port or 5000 + host}
        self.put(host, frames(packet, up=False, job=JOB, **ends, **changed)[0])  # type: ignore[arg-type]

    def write(self, folder: Path, epochs: list[members.Epoch] | None = None) -> Path:
        for host, parts in self.files.items():
            put(folder, b"".join(parts), f"s1-h{host}.pcapng")
        if epochs is None:
            epochs = [epoch(7, (5001, 5002), START)]
        if epochs:
            members.write(folder / MEMBERSHIPS, epochs)
        return folder


def shown(*words: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["show", "--json", *map(str, words)])
    assert done.exit_code == 0, done.exception
    return [json.loads(line) for line in done.stdout.splitlines()]


def verdicts(*words: object) -> list[str]:
    told = shown(*words)
    return [each["verdict"] + (f": {each['reason']}" if each["reason"] else "") for each in told]


def test_the_life_of_a_slot(tmp_path: Path) -> None:
    c = Capture()
    c.up(1, 0)
    c.up(1, 0)
    c.up(2, 0)
    c.down(1, 0)
    c.up(2, 0)
    c.down(2, 0)
    c.down(2, 0)
    c.up(1, 4)  # the other version
    c.up(1, 8)  # takes the slot over
    c.up(2, 0)
    assert verdicts(c.write(tmp_path)) == [
        *("absorbed", "duplicate", "completed", "result", "replayed", "result", "result again"),
        *("absorbed", "absorbed", "stale"),
    ]
    again = [each["again"] for each in shown(tmp_path)]
    assert again == [False, True, False, False, True, False, False, False, False, True]


def test_what_is_refused_and_why(tmp_path: Path) -> None:
    c = Capture()
    c.up(1, 0, udp_checksum=5)
    c.up(1, 0, port=6000)
    c.up(2, 0, on=1)
    c.put(1, frames(payloads(chunk=5, window=9), job=JOB)[0])  # slot 5 of a pool of 4
    c.put(1, frames(payloads(elements=256), job=JOB)[0])
    c.up(1, 0, ip_checksum=1)
    c.down(1, 0, udp_checksum=5)
    c.up(1, 0)
    assert verdicts(c.write(tmp_path)) == [
        *("refused: UDP checksum", "refused: not admitted", "refused: not admitted"),
        *("refused: slot beyond the pool", "refused: size of another network", "refused: ip checksum"),
        *("refused: UDP checksum", "absorbed"),
    ]
    assert len(shown(tmp_path, "--only", "refused")) == 7
    assert len(shown(tmp_path, "--only", "malformed,absorbed")) == 2


def test_the_packets_of_an_epoch_that_is_over(tmp_path: Path) -> None:
    c = Capture()
    c.up(1, 0)
    began = c.now + 500
    c.up(1, 0)
    c.up(1, 0, port=5003)
    c.up(2, 0, port=5004)
    epochs = [epoch(7, (5001, 5002), START), epoch(8, (5003, 5004), began)]
    assert verdicts(c.write(tmp_path, epochs)) == [
        "absorbed",
        "refused: old epoch's port",
        "absorbed",
        "completed",
    ]


def test_where_it_cannot_know_it_says_so(tmp_path: Path) -> None:
    c = Capture()
    c.up(1, 0)
    c.up(2, 0)
    c.up(2, 0)  # a result must have followed: something was lost behind the capture
    c.up(1, 4 * W)  # nothing of the slot's life before
    c.up(1, 4 * W + 1)
    c.down(1, 4 * W + 1)
    c.up(1, 4 * W + 1)
    c.up(1, 6 * W)  # now its life is known
    told = ["absorbed", "completed", "?", "absorbed", "?", "result", "replayed", "absorbed"]
    assert verdicts(c.write(tmp_path)) == told
    half = tmp_path / "half"
    half.mkdir()
    c.write(half)
    (half / "s1-h2.pcapng").unlink()
    assert verdicts(half) == ["?", "?", "?", "result", "replayed", "?"]
    (half / MEMBERSHIPS).unlink()
    assert verdicts(half) == ["?", "?", "?", "result", "?", "?"]


def test_fields_and_filters(tmp_path: Path) -> None:
    c = Capture()
    for chunk in range(6):
        c.up(1, chunk)
        c.up(2, chunk)
        c.down(1, chunk)
    folder = c.write(tmp_path)
    every = shown(folder)
    assert len(every) == 18
    first = every[0]
    wanted = payloads(chunk=0, window=W)
    assert first == {
        "file": "s1-h1.pcapng",
        "number": 1,
        "time": START + 1000,
        "link": "h1-s1",
        "end": "s1-h1",
        "direction": None,
        "kind": "contribution",
        "length": 308,
        "src": "10.0.0.1:5001",
        "dst": f"10.0.255.1:{0xBE03}",
        "job": 3,
        "job_name": "one",
        "worker": "h1",
        "rank": 0,
        "msg_type": 1,
        "flag": 0,
        "tensor": 5,
        "chunk": 0,
        "slot": 0,
        "version": 0,
        "e0": -3,
        "e1": -128,
        "elements": 64,
        "values": wanted["values"][0, :4].tolist(),
        "udp_checksum": "right",
        "verdict": "absorbed",
        "reason": None,
        "again": False,
    }
    for words, count in (
        (("--job", "one"), 18),
        (("--job", 4), 0),
        (("--slot", 1), 6),
        (("--slot", "0-1"), 12),
        (("--chunk", "4-5"), 6),
        (("--worker", "h1"), 12),
        (("--worker", "1"), 6),
        (("--worker", "10.0.0.2"), 6),
        (("--link", "h1-s1"), 12),
        (("--link", "s1-h2"), 6),
        (("--only", "results"), 6),
        (("--only", "contributions", "--chunk", 2), 2),
        (("--only", "other"), 0),
    ):
        assert len(shown(folder, *words)) == count, words


def test_lines_and_csv_say_the_same(tmp_path: Path) -> None:
    c = Capture()
    c.up(1, 5)
    c.put(2, made.one(ip_version_ihl=0x46, udp_src=7))
    folder = c.write(tmp_path)
    text = CliRunner().invoke(app, ["show", str(folder)]).stdout.splitlines()
    assert text[0].split()[:3] == ["packet", "seconds", "end"]
    values = " ".join(map(str, payloads(chunk=5, window=W)["values"][0, :4]))
    wanted = f"1 0.000000000 s1-h1 ? one h1 contribution 5 5 1.1 -3,-128 absorbed {values} …"
    assert " ".join(text[1].split()) == wanted
    rows = list(csv.DictReader(io.StringIO(CliRunner().invoke(app, ["show", "--csv", str(folder)]).stdout)))
    told = shown(folder)
    assert [row["values"].split() for row in rows] == [list(map(str, each["values"])) for each in told]
    for name in ("number", "time", "link", "chunk", "worker", "verdict"):
        assert [row[name] for row in rows] == [str(each[name]) for each in told]


def test_packets_that_pass_to_another_switch(tmp_path: Path) -> None:
    name = option(3, b"link end s2-h1")
    data = section() + interface(option(9, b"\x09"), name) + enhanced(frames(payloads(), job=JOB)[0], START)
    put(tmp_path, data, "s2-h1.pcapng")
    members.write(tmp_path / MEMBERSHIPS, [epoch(7, (5001, 5002), START)])
    assert verdicts(tmp_path) == ["passing"]


def test_ports_that_are_a_jobs_by_chance(tmp_path: Path) -> None:
    c = Capture()
    c.put(1, frames(payloads(), host="10.0.0.1")[0].replace(bytes([10, 0, 255, 1]), bytes([10, 0, 0, 2])))
    assert shown(c.write(tmp_path)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name captures, or a link to --follow"),
        (("x", "--json", "--csv"), "give one of them"),
        (("x", "--format", "roce"), "there are p4reduce and switchml"),
        (("--slot", "x"), "--slot x: is no number"),
        (("--chunk", "7-3"), "--chunk 7-3: the second number is less"),
        (("--job", "nobody"), "the captures know one"),
        (("--only", "bad"), "--only bad: there are contributions, results"),
    ],
)
def test_bad_words_are_told(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    folder = Capture().write(tmp_path)
    named = [str(folder) if index == 0 and word == "x" else word for index, word in enumerate(words)]
    files = [str(folder)] if words and words[0].startswith("--") else []
    done = CliRunner().invoke(app, ["show", *files, *named])
    assert isinstance(done.exception, FilterError)
    assert message in str(done.exception)


def test_what_was_readable_is_shown_before_the_error(tmp_path: Path) -> None:
    path = put(tmp_path, made.pcap(frames(payloads(3)))[:-10])
    done = CliRunner().invoke(app, ["show", str(path)])
    assert len(done.stdout.splitlines()) == 3
    assert isinstance(done.exception, TraceFileError)
    assert "packet 3" in str(done.exception)


def test_a_pipe_that_ends_early_is_no_error(tmp_path: Path) -> None:
    path = put(tmp_path, made.pcap(frames(payloads(3000))))
    command = f"{sys.executable} -m controller trace show {path} | head -n 2"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


@pytest.mark.parametrize("target", ["embedded", "bmv2"])
def test_golden_captures(target: str) -> None:
    folder = Path(__file__).parent / "fixtures" / target
    told = shown(folder)
    assert {each["worker"] for each in told} == {"h1", "h2"}
    assert all(each["job_name"] == "two" for each in told)
    assert {each["direction"] for each in told if each["kind"] == "contribution"} == {"in"}
    assert {each["direction"] for each in told if each["kind"] == "result"} == {"out"}
    # Each chunk is absorbed once and completed once in its epoch, of 2 workers; sums are of first values.
    first = [each for each in told if each["verdict"] in ("absorbed", "completed")]
    epochs = members.load([folder])
    assert len(epochs) == 2
    ports = {member.udp_port: e.epoch for e in epochs for member in e.members}
    by_chunk: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for each in first:
        by_chunk.setdefault((ports[int(each["src"].split(":")[1])], each["chunk"]), []).append(each)
    results = {
        (ports[int(each["dst"].split(":")[1])], each["chunk"]): each
        for each in told
        if each["kind"] == "result"
    }
    assert set(results) <= set(by_chunk)
    for key, result in results.items():
        if result["udp_checksum"] == "right":
            one, other = (np.array(each["values"], np.int32) for each in by_chunk[key])
            assert (one + other).tolist() == result["values"]
            assert result["e0"] == max(each["e0"] for each in by_chunk[key])


def test_the_other_ends_of_links_change_no_verdict(device: SwitchDevice, tmp_path: Path) -> None:
    capture = captured_run(device, seed=5, loss=0.1)
    ends = sorted({each.end for each in capture.packets})
    at_switch = [end for end in ends if end.startswith("s")]
    alone = shown(capture.write(tmp_path / "switches", ends=at_switch))
    every = shown(capture.write(tmp_path / "both"))
    assert [each for each in every if each["end"] in at_switch] == alone
    # What a host's end sees, counted by hand: what it sent before, what it got before.
    seen: Counter[tuple[Any, ...]] = Counter()
    for each in every:
        if each["end"] not in at_switch:
            which = (each["end"], each["kind"], each["src"], each["dst"], each["chunk"])
            verdict = (
                "passing" if each["kind"] == "contribution" else "result again" if seen[which] else "result"
            )
            again = each["kind"] == "contribution" and seen[which] > 0
            assert (each["verdict"], each["again"]) == (verdict, again)
            seen[which] += 1
    assert len(seen) > 0
    # Alone, it is the end to judge at.
    hosts = shown(capture.write(tmp_path / "hosts", ends=[end for end in ends if end not in at_switch]))
    assert {"absorbed", "completed"} <= {each["verdict"] for each in hosts}
    # Without memberships the directions tell.
    blind = shown(capture.write(tmp_path / "blind", memberships=False))
    assert [each["again"] for each in blind] == [each["again"] for each in every]


def test_a_leaf_and_its_parent(tmp_path: Path) -> None:
    places = (members.SwitchPlace("s1", "10.0.255.1"), members.SwitchPlace("s2", "10.0.255.2", "s1"))
    seats = (
        members.Member(0, "h1", "10.0.0.1", 5001, 0, "s2", "h1-s2"),
        members.Member(1, "h2", "10.0.0.2", 5002, 0, "s1", "h2-s1"),
        members.Member(-1, "s2", "10.0.255.2", 6001, 1, "s1", "s1-s2"),
    )
    told = members.Epoch(JOB, "one", 7, W, 1, 64, 2, 0, 0, places, seats, START)
    files: dict[str, bytes] = {}
    now = START

    def put_on(end: str, up: bool, host: str, port: int, switch: str) -> None:
        nonlocal now
        now += 1000
        made_frames = frames(payloads(up=up), up=up, job=JOB, host=host, port=port)[0]
        at = 30 if up else 26
        frame = made_frames[:at] + bytes(map(int, switch.split("."))) + made_frames[at + 4 :]
        # Another address in the pseudo-header: the UDP checksum is left out, as it may be.
        frame = made.ip_sum(frame[:40] + b"\0\0" + frame[42:])
        head = section() + interface(option(9, b"\x09"), option(3, f"link end {end}".encode()))
        files[end] = files.get(end, head) + enhanced(frame, now)

    leaf, root = "10.0.255.2", "10.0.255.1"
    put_on("s2-h1", True, "10.0.0.1", 5001, leaf)  # alone at the leaf: all that it waits for
    put_on("s1-s2", True, leaf, 6001, root)
    put_on("s2-h1", True, "10.0.0.1", 5001, leaf)  # no result yet
    put_on("s1-s2", True, leaf, 6001, root)
    put_on("s1-h2", True, "10.0.0.2", 5002, root)
    put_on("s1-s2", False, leaf, 6001, root)
    put_on("s1-h2", False, "10.0.0.2", 5002, root)
    put_on("s2-h1", False, "10.0.0.1", 5001, leaf)
    for end, data in files.items():
        put(tmp_path, data, f"{end}.pcapng")
    members.write(tmp_path / MEMBERSHIPS, [told])
    assert verdicts(tmp_path) == [
        *("completed", "absorbed", "partial again", "duplicate", "completed", "result", "result", "result"),
    ]
    assert [each["worker"] for each in shown(tmp_path)] == ["h1", "s2", "h1", "s2", "h2", "s2", "h2", "h1"]
