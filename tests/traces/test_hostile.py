# SPDX-License-Identifier: Apache-2.0
"""What people give the trace commands by mistake, and what others make them read: clear answers, bounded."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tests.traces import made
from traces import files, members, page, verify_infer
from traces.cli import app
from traces.errors import CaptureError, FilterError, MembersError, PlotError, TraceFileError
from traces.names import MEMBERSHIPS
from traces.recorder import RingFile

GOLDEN = Path(__file__).with_name("fixtures") / "embedded"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_filters_that_explain_prints_can_be_pasted(tmp_path: Path) -> None:
    path = made.put(tmp_path, (GOLDEN / "s1-h1.pcapng").read_bytes(), "s1-h1.pcapng")
    told = run("explain", path).output
    lines = [line.split("trace show ")[1].split() for line in told.splitlines() if "trace show " in line]
    assert {words[4] for words in lines if "--worker" in words} == {"10.0.0.1:34029", "10.0.0.1:44425"}
    for words in lines:
        shown = run("show", *words)
        assert shown.exit_code == 0
        assert len(shown.output.splitlines()) > 1


@pytest.mark.parametrize(
    "worker", ["a.b.c.d", "300.1.1.1", "10.0.0.1:x", "10.0.0.1:5-4", "10.0.0.1:5-6", "10.0.0.1:65536"]
)
def test_addresses_that_are_none(worker: str) -> None:
    assert isinstance(run("show", GOLDEN, "--worker", worker).exception, FilterError)


@pytest.mark.parametrize(
    "words",
    [("--chunk", "9" * 5000), ("--slot", "0-" + "9" * 30), ("--job", "9" * 5000), ("--job", "256")],
)
def test_numbers_beyond_all_bounds(words: tuple[str, ...]) -> None:
    assert isinstance(run("show", GOLDEN, *words).exception, FilterError)
    for command in ("chunk", "slot"):
        assert isinstance(run(command, "two", "9" * 5000, GOLDEN).exception, FilterError)
    chunks = ("--chunk", "0-" + "9" * 19, "--html", os.devnull)
    assert isinstance(run("plot", GOLDEN, *chunks).exception, FilterError)


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (("--link", "h9-s1"), "no such link is in these captures; there is h1-s1, h2-s1"),
        (("--link", "h1-s1,s1"), "--link s1: no such link"),
        (("--worker", "h9"), "no such worker is in these captures; there is h1, h2"),
        (("--worker", "h1,2"), "--worker 2: no such worker"),
    ],
)
def test_what_is_not_there_is_an_error_that_tells_what_is(words: tuple[str, ...], there: str) -> None:
    told = run("show", GOLDEN, *words)
    assert isinstance(told.exception, FilterError)
    assert there in str(told.exception)


def test_a_worker_without_memberships_is_an_address(tmp_path: Path) -> None:
    path = made.put(tmp_path, (GOLDEN / "s1-h1.pcapng").read_bytes(), "s1-h1.pcapng")
    assert "--worker h1: " in str(run("show", path, "--worker", "h1").exception)
    assert run("show", path, "--worker", "10.0.0.1").stdout


@pytest.mark.parametrize(
    "words", [("--chunk", "999"), ("--link", "s1-h1", "--worker", "1", "--chunk", "999")]
)
def test_nothing_found_is_said(words: tuple[str, ...]) -> None:
    told = run("show", GOLDEN, *words)
    assert told.exit_code == 0
    assert told.stdout == ""
    assert "no such packet is in these captures; links: h1-s1, h2-s1; workers: h1, h2" in told.stderr


def test_a_file_that_is_given_twice_counts_once() -> None:
    once, twice = run("show", GOLDEN), run("show", GOLDEN, GOLDEN / "s1-h1.pcapng", GOLDEN)
    assert twice.output == once.output
    again = [GOLDEN / "s1-h2.pcapng", GOLDEN]
    assert [path.name for path in files.expand(again)] == ["s1-h2.pcapng", "s1-h1.pcapng"]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pcap")
    for path in (tmp_path, tmp_path / "pipe.pcap"):
        with pytest.raises(TraceFileError, match=r"pipe\.pcap: is no file"):
            files.expand([path])


def test_a_path_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    gone, page_ = tmp_path / "gone.pcap", tmp_path / "page.html"
    for words in (
        ("show", GOLDEN),
        ("explain", GOLDEN),
        ("slot", "two", 1),
        ("plot", "--html", page_, GOLDEN),
    ):
        told = run(*words, gone)
        assert isinstance(told.exception, TraceFileError), words
        assert "gone.pcap: cannot be read: No such file or directory" in str(told.exception)
        assert told.output == ""
    assert run("verify", GOLDEN, gone).exit_code == 2
    assert not page_.exists()


def test_two_networks_are_not_taken_for_one(tmp_path: Path) -> None:
    def recorded(folder: str, at: int, job: int = 3, name: str = "s1-h1.pcap") -> Path:
        """Ten packets, one each µs from `at` µs on."""
        (tmp_path / folder).mkdir(exist_ok=True)
        packets = made.frames(made.payloads(10), job=job)
        return made.put(tmp_path / folder, made.pcap(packets, start=made.START + at * 1000), name)

    one = recorded("one", 0)
    apart = [recorded("later", 20), recorded("job", 5, job=4), recorded("link", 5, name="s1-h2.pcap")]
    apart += [recorded("other", 5, name="eth0.pcap"), recorded("one", 5, name="s1-h1.1.pcap")]
    assert sum(len(table) for table in files.merged([one, *apart])) == 60
    mixed = recorded("mixed", 5)
    # In what order packets of one time come is the files'.
    for order, number in (([one, mixed], 7), ([mixed, one], 6)):
        with pytest.raises(TraceFileError, match="at the same end of a link; these are two networks") as told:
            list(files.merged(order))
        assert (told.value.path, told.value.number) == (one, number)
    assert run("verify", one, mixed).exit_code == 2
    assert isinstance(run("show", one.parent, mixed.parent).exception, TraceFileError)


def test_memberships_of_several_folders_are_of_one_network(tmp_path: Path) -> None:
    told = json.loads((GOLDEN / MEMBERSHIPS).read_text())
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    epoch = told["epochs"][0]
    epoch |= {"ended": 1 << 60, "duplicates": True}
    (tmp_path / "a" / MEMBERSHIPS).write_text(json.dumps(told))
    epoch |= {"ended": None, "duplicates": False}
    (tmp_path / "b" / MEMBERSHIPS).write_text(json.dumps(told))
    both = members.load([tmp_path / "a", tmp_path / "b"])
    assert len(both) == len(told["epochs"])
    assert (both[0].ended, both[0].duplicates) == (1 << 60, True)
    epoch["members"][1]["udp_port"] += 1
    (tmp_path / "c" / MEMBERSHIPS).write_text(json.dumps(told))
    with pytest.raises(MembersError, match=r"other members than in another folder; these are two networks"):
        members.load([tmp_path / "a", tmp_path / "c"])


def test_a_folder_is_no_capture_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "old.pcap").mkdir()
    made.put(tmp_path, (GOLDEN / "s1-h1.pcapng").read_bytes(), "s1-h1.pcapng")
    assert [path.name for path in files.expand([tmp_path])] == ["s1-h1.pcapng"]


def test_a_page_is_not_written_over_a_capture(tmp_path: Path) -> None:
    path = made.put(tmp_path, (GOLDEN / "s1-h1.pcapng").read_bytes(), "s1-h1.pcapng")
    told = run("plot", path, "--html", path)
    assert isinstance(told.exception, PlotError)
    assert "a page's name ends in .html or .htm" in str(told.exception)
    assert path.read_bytes() == (GOLDEN / "s1-h1.pcapng").read_bytes()
    (tmp_path / "x.html").mkdir()
    for out, why in (
        (tmp_path / "x.html", "it is a folder"),
        (tmp_path / "no" / "x.html", "there is no folder"),
    ):
        with pytest.raises(PlotError, match=why):
            page.check(out)


def test_of_nothing_readable_no_picture_is_drawn_over_an_older_one(tmp_path: Path) -> None:
    path = made.put(tmp_path, (GOLDEN / "s1-h1.pcapng").read_bytes()[:100], "s1-h1.pcapng")
    out = made.put(tmp_path, b"an older page", "page.html")
    told = run("plot", path, "--html", out)
    assert isinstance(told.exception, TraceFileError)
    assert out.read_bytes() == b"an older page"
    pytest.importorskip("matplotlib")
    told = run("plot", path, "--out", tmp_path / "pictures")
    assert isinstance(told.exception, TraceFileError)
    assert not (tmp_path / "pictures").exists()


def test_a_network_is_of_use_to_what_is_followed_alone() -> None:
    told = run("show", GOLDEN, "--net", "star")
    assert isinstance(told.exception, FilterError)
    assert "--net star: goes with --follow" in str(told.exception)


def test_what_breaks_off_is_explained_and_followed_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    whole = (GOLDEN / "s1-h1.pcapng").read_bytes()
    path = made.put(tmp_path, whole[: len(whole) // 2], "s1-h1.pcapng")
    for words, expected in (
        (("explain", path), "contributions were sent again"),
        (("slot", 0, 1, path), "s1-h1.pcapng #"),
        (("chunk", 0, 1, path), "s1-h1.pcapng #"),
    ):
        told = run(*words)
        assert isinstance(told.exception, TraceFileError), words
        assert expected in told.output


def test_of_a_gzip_file_all_before_the_damage_is_read(tmp_path: Path) -> None:
    whole = gzip.compress(made.pcap([made.one()] * 50), 0)
    for data, message in ((whole[: len(whole) // 2], "breaks off"), (whole[:-5] + bytes(5), "gzip")):
        numbers: list[int] = []
        path = made.put(tmp_path, data, "a.pcap.gz")
        with pytest.raises(TraceFileError, match=message) as caught:
            numbers.extend(n for table in files.read(path) for n in table.number.tolist())
        assert len(numbers) > 20
        assert caught.value.number == len(numbers) + 1
    for data in (whole[:3], whole[:14]):
        with pytest.raises(TraceFileError, match="gzip"):
            list(files.read(made.put(tmp_path, data, "a.pcap.gz")))


def _unknown_switch(told: dict[str, Any]) -> None:
    told["members"][0]["switch"] = "s9"


def _unknown_leaf(told: dict[str, Any]) -> None:
    told["members"][0]["rank"] = -1


def _unknown_parent(told: dict[str, Any]) -> None:
    told["switches"][0]["parent"] = "s9"


def _one_bit_twice(told: dict[str, Any]) -> None:
    told["members"][1]["bit"] = told["members"][0]["bit"]


def _no_time(told: dict[str, Any]) -> None:
    told["began"] = 10**30


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        (_unknown_switch, "members"),
        (_unknown_leaf, "members"),
        (_unknown_parent, "switches"),
        (_one_bit_twice, "members"),
        (_no_time, "began"),
    ],
)
def test_memberships_that_contradict_themselves(
    tmp_path: Path, lie: Callable[[dict[str, Any]], None], what: str
) -> None:
    path = made.put(tmp_path, (GOLDEN / "s1-h1.pcapng").read_bytes(), "s1-h1.pcapng")
    told = json.loads((GOLDEN / MEMBERSHIPS).read_text())
    lie(told["epochs"][0])
    (tmp_path / MEMBERSHIPS).write_text(json.dumps(told))
    for command in ("show", "explain"):
        with pytest.raises(MembersError, match=f"{what} cannot be so"):
            raise run(command, path).exception or AssertionError


def test_memberships_that_are_too_deep(tmp_path: Path) -> None:
    path = made.put(tmp_path, (GOLDEN / "s1-h1.pcapng").read_bytes(), "s1-h1.pcapng")
    (tmp_path / MEMBERSHIPS).write_text("[" * 100_000)
    assert isinstance(run("show", path).exception, MembersError)


def forged(tmp_path: Path, many: int, job: int, addresses: int) -> Path:
    """Contributions from as many ports and addresses, at right checksums."""
    frame = np.frombuffer(made.one(job=job), np.uint8)
    frames = np.tile(frame, (many, 1))
    number = np.arange(many)
    frames[:, 28:30] = (number % addresses).astype(">u2").view(np.uint8).reshape(-1, 2)
    frames[:, 34:36] = (number // addresses + 1).astype(">u2").view(np.uint8).reshape(-1, 2)
    frames[:, 40:42] = 0
    return made.put(tmp_path, made.pcap([made.ip_sum(each.tobytes()) for each in frames]), "forged.pcap")


def test_forged_members_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = forged(tmp_path, 2000, 3, verify_infer.MOST_SENDERS + 1)
    assert (
        f"job 3: {verify_infer.MOST_SENDERS + 1} addresses send contributions" in run("verify", path).output
    )
    monkeypatch.setattr(verify_infer, "MOST_PORTS", 100)
    told = run("verify", forged(tmp_path, 1000, 3, 50), "--json")
    answer = json.loads(told.output)
    assert answer["unchecked"]["contributions from ports beyond the first ones"] == 900
    assert "over 100 ports" in answer["notes"][0]


def test_a_page_of_one_chunk_that_was_sent_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_PACKETS", 50)
    path, out = forged(tmp_path, 100, 3, 1), tmp_path / "page.html"
    assert run("plot", path, "--html", out).exit_code == 0
    assert '"shown":50,"seen":100' in out.read_text()


def test_a_full_disk_leaves_a_whole_file(tmp_path: Path) -> None:
    head = made.section() + made.interface()
    file = RingFile(tmp_path, "s1-h1", head, None, None)
    block = made.enhanced(made.one(), 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(head) + len(block) + 100, limits[1]))
    try:
        file.write(block)
        with pytest.raises(CaptureError, match=r"s1-h1\.pcapng: cannot be written: File too large"):
            file.write(block)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    file.close(block)
    assert [len(table) for table in files.read(tmp_path / "s1-h1.pcapng")] == [2]
