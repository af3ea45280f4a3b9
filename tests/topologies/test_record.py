# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies import record as records
from topologies.errors import RecordError
from topologies.identity import Process
from topologies.record import NetRecord, new_record, with_host, with_switch
from topologies.spec import End, LinkSpec, star


def make(root: Path, name: str = "star", hosts: int = 3) -> NetRecord:
    return new_record(name, star(hosts), target="embedded", elements=64, slots=1024, root=root)


@given(hosts=st.integers(1, 64), rate=st.none() | st.floats(0.1, 1e5), pcap=st.none() | st.text())
def test_a_record_survives_its_text(hosts: int, rate: float | None, pcap: str | None) -> None:
    spec = star(hosts, rate)
    record = new_record("n", spec, target="bmv2", elements=256, slots=16384, pcap=pcap)
    record = with_host(record, "h1", process=Process(7, 8), netns=9)
    record = with_switch(record, "s1", process=Process(10, 11), grpc="127.0.0.1:12")
    record = replace(record, controller=Process(12, 13), lease=2.5, given_up=("switch s1",))
    assert NetRecord.from_json(record.to_json()) == record


def test_interfaces_fit_the_kernel_and_belong_to_one_network(tmp_path: Path) -> None:
    spec = star(1)
    long = replace(
        spec,
        hosts=(replace(spec.hosts[0], name="h9999"),),
        switches=(replace(spec.switches[0], name="s9999"),),
        links=(LinkSpec(End("h9999", 0), End("s9999", 509)),),
    )
    record = new_record("long", long, target="embedded", elements=64, slots=1, root=tmp_path)
    (interface,) = record.root_interfaces()
    # IFNAMSIZ is 16 with the NUL.
    assert len(interface) == 15
    assert make(tmp_path, "a").token != make(tmp_path, "b").token


def test_a_prefix_in_use_is_not_taken(tmp_path: Path) -> None:
    first = new_record("n", star(1), target="bmv2", elements=64, slots=1, interfaces=tmp_path)
    (tmp_path / first.root_interfaces()[0]).touch()
    second = new_record("n", star(1), target="bmv2", elements=64, slots=1, interfaces=tmp_path)
    assert second.token != first.token


def test_a_name_is_claimed_once_and_found_again(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.claim()
    assert record.directory.stat().st_mode & 0o777 == 0o700
    assert records.load("star", tmp_path) == record
    with pytest.raises(RecordError, match=r"already up.*--name"):
        make(tmp_path).claim()
    assert [path.name for path in tmp_path.iterdir()] == ["star"]


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"file/star cannot be written \(File exists\): make room there"):
        make(tmp_path / "file").claim()
    with pytest.raises(RecordError, match=r"star cannot be written \(No such file or directory\)"):
        make(tmp_path).save()
    make(tmp_path).claim()
    (tmp_path / "star/.net.lock").mkdir()
    with pytest.raises(RecordError, match=r"star cannot be written \(Is a directory\)"):
        records.update("star", lambda record: record, tmp_path)


def test_an_interrupted_claim_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: NetRecord) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(NetRecord, "to_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path).claim()
    assert not list(tmp_path.iterdir())


def test_the_default_is_the_only_network(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="p4reduce net up star"):
        records.load_default(root=tmp_path)
    make(tmp_path, "one").claim()
    assert records.load_default(root=tmp_path).name == "one"
    make(tmp_path, "two").claim()
    with pytest.raises(RecordError, match=r"one, two.*--net NAME"):
        records.load_default(root=tmp_path)
    assert records.load_default("two", tmp_path).name == "two"
    with pytest.raises(RecordError, match="these run: one, two"):
        records.load("three", tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 0}', "[]", '{"version": 1}'])
def test_a_foreign_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/net.json").write_text(text)
    with pytest.raises(RecordError, match="cannot be read"):
        records.load("odd", tmp_path)


def test_a_record_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd/net.json").mkdir(parents=True)
    (error,) = records.load_all(tmp_path)[1]
    assert str(error) == f"{tmp_path}/odd/net.json cannot be read: Is a directory"
    text = make(tmp_path).to_json().replace('"ports": {', '"ports": [], "log": {')
    (tmp_path / "odd/net.json").rmdir()
    (tmp_path / "odd/net.json").write_text(text)
    with pytest.raises(RecordError, match=r"odd/net\.json cannot be read \('list' object has no"):
        records.load("odd", tmp_path)


@pytest.mark.parametrize("name", ["", "../x", "A", "a" * 32, "a b", "-x"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="no name for a network"):
        make(tmp_path, name)


def test_peers_and_look_ups(tmp_path: Path) -> None:
    record = make(tmp_path)
    assert record.peers("s1") == {1: End("h1", 0), 2: End("h2", 0), 3: End("h3", 0)}
    assert record.peers("h2") == {0: End("s1", 2)}
    with pytest.raises(RecordError, match="no host h9; it has h1, h2, h3"):
        record.host("h9")
    with pytest.raises(RecordError, match="no switch s9; it has s1"):
        record.switch("s9")


def test_a_process_is_its_pid_and_start() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        process = Process.of(child.pid)
        assert process.alive()
        assert not replace(process, start=process.start + 1).alive()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # Ended, not yet reaped.
        assert not process.alive()
    with pytest.raises(ProcessLookupError):
        Process.of(child.pid)


def test_a_record_tells_who_died(tmp_path: Path) -> None:
    record = make(tmp_path, hosts=2)
    assert (record.dead(), record.restarting()) == ([], [])
    record = replace(with_host(record, "h1", process=record.owner), state="up")
    # Its daemon starts the first two again, until it gives up.
    assert record.restarting() == ["its controller", "switch s1"]
    assert record.dead() == ["host h2"]
    given_up = replace(record, given_up=("switch s1",))
    assert (given_up.restarting(), given_up.dead()) == (["its controller"], ["switch s1", "host h2"])
    crashed = replace(record, owner=replace(record.owner, start=0))
    assert crashed.restarting() == []
    assert crashed.dead() == ["its daemon", "its controller", "switch s1", "host h2"]


def test_one_bad_folder_hides_no_other_network(tmp_path: Path) -> None:
    make(tmp_path, "good").claim()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "net.json").write_text("{")
    found, unreadable = records.load_all(tmp_path)
    assert [record.name for record in found] == ["good"]
    (error,) = unreadable
    assert error.name == "broken"
    assert records.names(tmp_path) == ["broken", "good"]
    with pytest.raises(RecordError, match="other is in the way and is no network's record: remove it"):
        make(tmp_path, "other").claim()
