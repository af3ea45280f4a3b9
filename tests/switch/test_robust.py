# SPDX-License-Identifier: Apache-2.0
"""What must not break the switch: clients that vanish, pushes under traffic, full disks, bad P4Info."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4

from switch.device import SwitchDevice
from switch.errors import BuildError
from switch.p4runtime.arbitration import MAX_CLIENTS
from switch.p4runtime.service import MAX_READS
from tests.switch.p4rt import (
    INSERT,
    Controller,
    Served,
    ethernet,
    p4info,
    program,
    read_table,
    table,
)
from tests.switch.programs import Builder

CLIENT = """
import sys
from tests.switch.p4rt import Controller
client = Controller(sys.argv[1], 9)
print(client.arbitrate().status.code, flush=True)
client.receive()
"""


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture
def client(served: Served) -> Iterator[Controller]:
    client = Controller(served.address, 1)
    client.arbitrate()
    client.set_pipeline()
    yield client
    client.close()


def works(served: Served, client: Controller, mac: int) -> bool:
    """Whether writes, reads and packets still do."""
    before = len(read_table(client, "l2"))
    client.write(table(INSERT, client.entry("l2", {1: ("exact", mac)}, client.action("forward", 4))))
    return len(read_table(client, "l2")) == before + 1 and served.receive(1, ethernet(mac)) == [
        (4, ethernet(mac))
    ]


def test_a_primary_that_is_killed(served: Served, client: Controller) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, served.address], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert client.receive().arbitration.status.code == 6
        process.kill()
    assert client.receive().arbitration.status.code == 0
    assert works(served, client, 1)


def test_readers_that_go_away_in_mid_stream(served: Served, client: Controller) -> None:
    keys: list[dict[int, Any]] = [{1: ("exact", n), 2: ("exact", n)} for n in range(1024)]
    client.write(*[table(INSERT, client.entry("flows", key, client.action("police"))) for key in keys])
    everything = p4.ReadRequest(device_id=client.device_id)
    for _ in range(20):
        everything.entities.add().table_entry.table_id = client.id("tables", "flows")
    for _ in range(10):
        call = client.stub.Read(everything, timeout=30)
        next(call)
        call.cancel()
    assert works(served, client, 1)


def test_readers_that_do_not_take_their_answers(served: Served, client: Controller) -> None:
    everything = p4.ReadRequest(device_id=client.device_id)
    for _ in range(400):
        everything.entities.add().counter_entry.SetInParent()
    idle = Controller(served.address)
    calls = [idle.stub.Read(everything, timeout=60) for _ in range(MAX_READS + 20)]
    until(lambda: sum(map(_is_refused, calls)) >= 20, "what is too much is not refused")
    key: dict[int, Any] = {1: ("exact", 1), 2: ("exact", 1)}
    client.write(table(INSERT, client.entry("flows", key, client.action("police"))))
    for call in calls:
        call.cancel()
    until(
        lambda: not _is_refused(client.stub.Read(everything, timeout=60), first=True), "the reads do not end"
    )
    assert works(served, client, 2)
    idle.close()


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def _is_refused(call: Any, *, first: bool = False) -> bool:
    """Whether there were too many, as known by now, or with the `first` answer."""
    if first:
        with contextlib.suppress(grpc.RpcError):
            next(call)
    return not call.is_active() and call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_as_many_clients_as_there_may_be(served: Served, client: Controller) -> None:
    others = [Controller(served.address, n) for n in range(2, MAX_CLIENTS + 1)]
    try:
        for number, other in enumerate(others, start=2):
            assert other.arbitrate().status.code == 0, number
        one_more = Controller(served.address, 1000)
        with pytest.raises(grpc.RpcError) as caught:
            one_more.arbitrate()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        one_more.close()
        assert works(served, others[-1], 1)
    finally:
        for other in others:
            other.close()


def test_pushes_and_writes_under_traffic(served: Served, client: Controller) -> None:
    stop = threading.Event()
    sent = []

    def traffic() -> None:
        while not stop.wait(0.001):  # else Python's lock would hardly be given to the server
            served.receive(1, ethernet(5))
            sent.append(1)

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        for n in range(12):
            action = ("VERIFY_AND_COMMIT", "RECONCILE_AND_COMMIT", "VERIFY")[n % 3]
            if n % 2 and action != "RECONCILE_AND_COMMIT":
                client.set_pipeline(action, p4info=p4info("groups"), json=program("groups"))
            client.set_pipeline("VERIFY_AND_COMMIT" if n % 2 else action)
            if action == "VERIFY_AND_COMMIT" or n % 2:
                client.write(
                    table(INSERT, client.entry("l2", {1: ("exact", 5)}, client.action("forward", 4)))
                )
    finally:
        stop.set()
        thread.join(30)
    assert len(sent) > 12
    assert set(served.out) <= {(4, ethernet(5)), (0, ethernet(5))}
    assert (4, ethernet(5)) in served.out


# ---- the compiler and its cache


def unseen() -> str:
    """A program that no cache holds."""
    b = Builder()
    b.state("start", [])
    b.root["program"] = f"unseen_{random.getrandbits(64):x}"
    return b.json


def test_a_push_without_a_compiler(
    served: Served, client: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(grpc.RpcError) as caught:
        client.set_pipeline(json=unseen().encode())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "apt install gcc" in caught.value.details()
    assert works(served, client, 1)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder on a disk of 64 KB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        yield tmp_path
    finally:
        # lazily: a library that was loaded stays mapped
        subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.root
@pytest.mark.parametrize("filled", [False, True])
def test_a_full_disk(small_disk: Path, filled: bool) -> None:
    text = unseen()
    if filled:
        with pytest.raises(OSError, match="No space"):
            (small_disk / "filled").write_bytes(bytes(1 << 20))
    with pytest.raises(BuildError, match=f"{small_disk}") as caught:
        SwitchDevice.load(text)
    assert "space" in str(caught.value)
    left = [path for path in (small_disk / "p4reduce").iterdir() if path.suffix in (".so", ".tmp")]
    assert left == []
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    with SwitchDevice.load(text) as device:
        assert device.process([(1, b"x")]) == [(0, b"x")]


@pytest.mark.root
def test_a_full_disk_does_not_matter_to_what_is_compiled(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    text, cache = unseen(), small_disk / "p4reduce"
    SwitchDevice.load(text).close()
    (kept,) = cache.glob("*.pickle")
    kept.unlink()
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filled").write_bytes(bytes(1 << 27))
    with SwitchDevice.load(text) as device:
        assert device.process([(1, b"x")]) == [(0, b"x")]
    assert not [path for path in cache.iterdir() if path.suffix in (".pickle", ".part")]


@pytest.mark.root
def test_a_full_disk_leaves_the_pipeline(served: Served, client: Controller, small_disk: Path) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.set_pipeline(json=unseen().encode())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert works(served, client, 1)


# ---- P4Info


def damage(message: Any, r: random.Random) -> None:
    """Clear, repeat or change something somewhere below a message."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = r.choice(fields)
    repeated = field.label == field.LABEL_REPEATED
    if repeated and field.message_type and field.message_type.GetOptions().map_entry:
        del value[r.choice(list(value))]
    elif repeated and field.message_type:
        one = r.choice(list(value))
        kind = r.randrange(6)
        if kind == 0:
            value.remove(one)
        elif kind == 1:
            value.add().CopyFrom(one)
        else:
            damage(one, r)
    elif repeated:
        value.append(r.getrandbits(31)) if field.type != field.TYPE_STRING else value.append("x")
    elif field.message_type:
        message.ClearField(field.name) if r.random() < 0.2 else damage(value, r)
    elif field.type == field.TYPE_STRING:
        setattr(message, field.name, r.choice(["", "x", value + "x"]))
    elif field.type == field.TYPE_BOOL:
        setattr(message, field.name, not value)
    elif field.type == field.TYPE_BYTES:
        setattr(message, field.name, value + b"x")
    elif field.type == field.TYPE_ENUM:
        setattr(message, field.name, r.choice(field.enum_type.values).number)
    else:
        setattr(message, field.name, r.choice([0, 1, value + 1, r.getrandbits(31)]))


@pytest.mark.parametrize("name", ["forward", "groups", "notify"])
def test_damaged_p4info(served: Served, client: Controller, name: str) -> None:
    r = random.Random(name)
    taken = 0
    for case in range(120):
        info = p4info(name)
        for _ in range(r.choice((1, 1, 3))):
            damage(info, r)
        code, details = "OK", ""
        try:
            client.set_pipeline(p4info=info, json=program(name))
        except grpc.RpcError as error:
            code, details = error.code().name, error.details()
        assert code in ("OK", "INVALID_ARGUMENT", "UNIMPLEMENTED"), (case, details)
        assert "is not what p4c makes" not in details, (case, details)
        if code != "OK":
            continue
        taken += 1
        client.read(p4.Entity(table_entry=p4.TableEntry()))
    assert 0 < taken < 120
    client.set_pipeline()
    assert works(served, client, 1)
