# SPDX-License-Identifier: Apache-2.0
import socket
from pathlib import Path

import pytest

from topologies.errors import TargetError
from topologies.targets import Bmv2Target, EmbeddedTarget, SwitchProcess, Target, choose, free_port


def script(folder: Path, text: str) -> Path:
    path = folder / "simple_switch_grpc"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def start(target: Target, folder: Path) -> SwitchProcess:
    return SwitchProcess(
        target, name="s1", device_id=1, ports={1: "a", 2: "b"}, log=folder / "s1.log", directory=folder
    )


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_the_name_counts_before_the_variable(only_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(only_here, "exit 0\n")
    monkeypatch.setenv("P4REDUCE_SWITCH", "bmv2")
    assert choose().name == "bmv2"
    monkeypatch.setenv("P4REDUCE_SWITCH", "tofino")
    assert choose("bmv2").name == "bmv2"
    with pytest.raises(TargetError, match="tofino; there is embedded and bmv2"):
        choose()


def test_an_absent_bmv2_says_where_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match="p4lang's package p4lang-bmv2"):
        choose("bmv2")


def test_both_targets_take_the_same_flags(only_here: Path) -> None:
    script(only_here, "exit 0\n")
    ports = {10: "x-s1-10", 2: "x-s1-2"}
    lines = [
        target.command(3, ports, "127.0.0.1:50051", only_here)[len(target.program()) :]
        for target in (EmbeddedTarget(), Bmv2Target())
    ]
    first = "--device-id 3 -i 2@x-s1-2 -i 10@x-s1-10 --no-p4"
    then = "-- --grpc-server-addr 127.0.0.1:50051 --cpu-port 510 --drop-port 511"
    assert [" ".join(line) for line in lines] == [
        f"{first} --stats-socket {only_here}/s3.stats {then}",  # bmv2 has none
        f"{first} {then}",
    ]
    alone = [
        target.command(3, ports, "127.0.0.1:50051", only_here, super_packets=False)
        for target in (EmbeddedTarget(), Bmv2Target())
    ]
    # bmv2 has no such flag and needs none.
    assert ["--no-super-packets" in line for line in alone] == [True, False]


def test_side_channels_of_bmv2_are_kept_apart_where_it_has_them(only_here: Path) -> None:
    script(only_here, "echo '  --thrift-port arg\n  --notifications-addr arg'\n")
    flags = Bmv2Target().extra_flags(only_here, 4)
    assert flags[0::2] == ["--thrift-port", "--notifications-addr"]
    assert 1024 <= int(flags[1]) < 65536
    assert flags[3] == f"ipc://{only_here}/notifications-4.ipc"


def test_a_switch_that_ends_shows_its_log(only_here: Path) -> None:
    script(only_here, 'case "$*" in *--help*) exit 0;; esac\necho "cannot open a"\nexit 3\n')
    switch = start(Bmv2Target(), only_here)
    with pytest.raises(TargetError, match=r"(?s)switch s1 ended with 3.*cannot open a"):
        switch.wait_ready()
    switch.stop()


def test_a_switch_that_never_serves_is_given_up_and_killed(only_here: Path) -> None:
    script(only_here, 'case "$*" in *--help*) exit 0;; esac\ntrap "" TERM\nwhile :; do sleep 0.1; done\n')
    switch = start(Bmv2Target(), only_here)
    with pytest.raises(
        TargetError, match=r"did not accept P4Runtime on 127.0.0.1:\d+ in 0.2 s; its log is empty"
    ):
        switch.wait_ready(0.2)
    assert switch.poll() is None
    switch.stop(0.2)
    assert switch.poll() == -9


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
