# SPDX-License-Identifier: Apache-2.0
"""Capture files of every kind, cut off, damaged and foreign; other programs read them beside us."""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces import made
from tests.traces.made import START, enhanced, frames, interface, old, option, payloads, put, section, simple
from traces import files, members
from traces.decoder import NativeDecoder
from traces.errors import MembersError, PayloadError, TraceFileError
from traces.names import MEMBERSHIPS
from traces.reference import NumpyDecoder
from traces.structs import RECORD, Found
from traces.table import Category, Direction, Problem, Source, Table, UdpChecksum, concat

SENT = payloads(5)
FRAMES = frames(SENT)


def table(path: Path, **options: object) -> Table:
    return concat(list(files.read(path, **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("ns", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_classic_captures_of_all_kinds(tmp_path: Path, order: str, ns: bool, packed: bool) -> None:
    data = made.pcap(FRAMES, order=order, ns=ns)
    path = put(tmp_path, gzip.compress(data) if packed else data)
    found = table(path, values=True)
    assert found.number.tolist() == [1, 2, 3, 4, 5]
    stamps = START + 1000 * np.arange(5)
    assert found.time.tolist() == (stamps if ns else stamps // 1000 * 1000).tolist()
    assert (found.category == Category.CONTRIBUTION).all()
    assert (found.udp_checksum == UdpChecksum.RIGHT).all()
    assert (found.job == 3).all()
    assert (found.tensor == 5).all()
    assert (found.e0 == -3).all()
    assert (found.e1 == -128).all()
    assert found.chunk.tolist() == list(range(5))
    assert (found.src_port == 5001).all()
    assert (found.length == 308).all()
    np.testing.assert_array_equal(found.values(np.arange(5)), SENT["values"])
    np.testing.assert_array_equal(found.values(np.array([3, 1])), SENT["values"][[3, 1]])


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_pcapng_with_all_it_may_have(tmp_path: Path, order: str) -> None:
    f = FRAMES
    nanoseconds = option(9, b"\x09", order)
    binary = option(9, b"\x94", order)  # ticks of 2^-20 s
    shifted = option(14, struct.pack(order + "q", 1_600_000_000), order)
    flags = option(2, struct.pack(order + "I", 2), order) + option(0, b"", order)
    named = option(2, b"eth7", order)
    data = b"".join(
        [
            section(order),
            interface(nanoseconds, named, order=order),
            interface(binary, shifted, order=order),
            made.block(0x0BAD, b"whatever", order),
            enhanced(f[0], START, option(1, b"a comment", order), flags, order=order),
            enhanced(f[1], 3 << 19, order=order, on=1),
            simple(f[2], order),
            section("<"),
            interface(order="<"),
            old(f[3], START // 1000, "<"),
            enhanced(f[4][:100], START // 1000, length=308),
        ]
    )
    found = table(put(tmp_path, data), values=True)
    assert found.number.tolist() == [1, 2, 3, 4, 5]
    assert found.time.tolist() == [
        START,
        1_600_000_001_500_000_000,
        0,
        START // 1000 * 1000,
        START // 1000 * 1000,
    ]
    assert found.direction.tolist() == [Direction.DOWN, 0, 0, 0, 0]
    assert found.captured.tolist() == [308, 308, 308, 308, 100]
    assert found.elements.tolist() == [64, 64, 64, 64, 0]
    assert found.udp_checksum.tolist() == [0, 0, 0, 0, UdpChecksum.UNCHECKED]
    assert (found.category == Category.CONTRIBUTION).all()
    assert found.chunk.tolist() == list(range(5))
    assert found.sources[found.file[0]].end == "eth7"
    with pytest.raises(PayloadError, match="row 4"):
        found.values(np.array([0, 4]))


def test_the_snapped_and_the_foreign(tmp_path: Path) -> None:
    found = table(put(tmp_path, made.pcap(FRAMES, snaplen=52)))
    assert (found.category == Category.CONTRIBUTION).all()
    assert (found.udp_checksum == UdpChecksum.UNCHECKED).all()
    assert (found.elements == 0).all()
    found = table(put(tmp_path, made.pcap(FRAMES, snaplen=50)))
    assert (found.problem == Problem.SNAPPED).all()
    tagged = [f[:12] + b"\x81\x00\x00\x07" + f[12:] for f in FRAMES]
    arp = b"\xff" * 6 + b"\x02" * 6 + b"\x08\x06" + bytes(46)
    found = table(put(tmp_path, made.pcap([*tagged, arp, b"", b"\x00" * 13])))
    assert (found.category == Category.OTHER).all()
    assert (found.job == -1).all()


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (made.one(udp_dst=0xBE01, udp_src=0xBE02), Problem.TWO_JOB_PORTS),
        (made.ip_sum(made.one(ip_version_ihl=0x46)), Problem.NONE),  # the ports are elsewhere: no job's
        (made.ip_sum(made.one(ip_fragment=0x2000)), Problem.FRAGMENT),
        (made.one(ip_checksum=1), Problem.IP_CHECKSUM),
        (made.one()[:-4], Problem.LENGTH),
        (made.one() + b"\0", Problem.LENGTH),
        (made.one(udp_length=273), Problem.LENGTH),
        (made.ip_sum(made.one(ip_length=293)), Problem.LENGTH),
        (made.one()[:42] + b"\x12" + made.one()[43:], Problem.SIZE),
        (frames(payloads(up=False))[0], Problem.TYPE),
        (frames(payloads(), up=False)[0], Problem.TYPE),
        (made.ip_sum(made.one(ip_length=294 + 266)) + made.one()[42:], Problem.SUPER_PACKET),
    ],
)
def test_what_breaks_the_format_is_malformed(tmp_path: Path, frame: bytes, problem: Problem) -> None:
    found = table(put(tmp_path, made.pcap([frame])))
    assert found.problem.tolist() == [problem]
    assert found.category.tolist() == [Category.MALFORMED if problem else Category.OTHER]
    assert found.elements.tolist() == [0]


def test_options_of_ip_are_malformed(tmp_path: Path) -> None:
    frame = made.one(ip_version_ihl=0x46)
    frame = frame[:34] + b"\x01\x01\x01\x00" + frame[34:]
    found = table(put(tmp_path, made.pcap([frame])))
    assert found.problem.tolist() == [Problem.IP_OPTIONS]
    assert found.job.tolist() == [3]


def test_udp_checksums(tmp_path: Path) -> None:
    right = int.from_bytes(made.one()[40:42], "big")
    total = 0xFFFF & ~right
    words = struct.unpack("!137H", made.one()[34:40] + b"\0\0" + made.one()[42:])
    for word in words:  # what is left of the sum without UDP is the pseudo-header's
        total -= word
    pseudo = total % 0xFFFF
    wanted = {right: UdpChecksum.RIGHT, right ^ 1: UdpChecksum.WRONG, 0: UdpChecksum.ABSENT}
    wanted[pseudo] = UdpChecksum.UNFINISHED
    packets = [made.one()[:40] + struct.pack("!H", field) + made.one()[42:] for field in wanted]
    found = table(put(tmp_path, made.pcap(packets)))
    assert found.udp_checksum.tolist() == list(wanted.values())
    assert (found.category == Category.CONTRIBUTION).all()


def test_results_and_equal_payloads(tmp_path: Path) -> None:
    a, b = payloads(up=False), payloads(up=False, seed=1)
    packets = [*frames(a, up=False), *frames(a, up=False, host="10.0.0.2"), *frames(b, up=False)]
    a["e0"] += 1
    found = table(put(tmp_path, made.pcap([*packets, *frames(a, up=False)])))
    assert (found.category == Category.RESULT).all()
    digests = found.digest.tolist()
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_switchml_is_never_guessed(tmp_path: Path) -> None:
    # Its packet index is as the host stores it, little-endian; its slots have 14 bits.
    head = bytes([0x03, 9]) + struct.pack("<I", 77) + struct.pack("!H", 0xC005) + bytes([5, 0x80])
    packet = made.one(udp_dst=0xBEE7, udp_checksum=0)
    other = frames(payloads(elements=256))[0]
    long = frames(payloads(elements=256))[0]
    theirs = long[:36] + struct.pack("!H", 0xBEE7) + long[38:40] + b"\0\0" + head + long[52:]
    path = put(tmp_path, made.pcap([packet, other, theirs]))
    assert table(path).job.tolist() == [0xE7, 3, 0xE7]
    found = table(path, format="switchml", values=True)
    assert found.job.tolist() == [7, -1, 7]
    assert found.category.tolist() == [Category.CONTRIBUTION, Category.OTHER, Category.CONTRIBUTION]
    assert (found.tensor[2], found.chunk[2], found.version[2], found.slot[2]) == (9, 77, 1, 5)
    assert (found.e0[2], found.e1[2], found.elements[2]) == (5, -128, 256)
    np.testing.assert_array_equal(found.values(np.array([2])), payloads(elements=256)["values"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.pcap: is empty; captures are pcap or pcapng"),
        (b"PK\x03\x04zip", "is no capture"),
        (b"\xd4\xc3\xb2\xa1\x02", "cut off in its header"),
        (made.pcap(FRAMES)[:-1], "packet 5 .at byte 1320.: it breaks off in the middle"),
        (made.pcap(FRAMES)[:1325], "packet 5"),
        (made.pcap(FRAMES, link=113), "no packet is on Ethernet .link type 113.; record on one interface"),
        (made.pcap(FRAMES[:2]) + struct.pack("<4I", 0, 0, 1 << 30, 1), "packet 3 .* more than 262144 bytes"),
        (section() + interface() + enhanced(FRAMES[0], 0, on=1), "packet 1 .* interface is not described"),
        (section() + interface() + struct.pack("<III", 6, 13, 0), "no multiple of 4, or under 12"),
        (section() + interface() + struct.pack("<IIII", 9, 16, 0, 12), "two lengths differ"),
        (section() + struct.pack("<III", 9, 1 << 30, 0), "more than 16777216 bytes"),
        (section()[:8] + b"what" + section()[12:], "no byte order"),
        (section() + interface()[:-2], "breaks off"),
        (gzip.compress(made.pcap(FRAMES))[:-300], "breaks off|gzip"),
    ],
)
def test_damage_is_told_in_one_error(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        list(files.read(put(tmp_path, data)))


def test_what_was_readable_comes_first(tmp_path: Path) -> None:
    reader = files.read(put(tmp_path, made.pcap(FRAMES)[:-1]), part=400)
    read = [number for _ in range(4) for number in next(reader).number.tolist()]
    with pytest.raises(TraceFileError, match="packet 5") as caught:
        next(reader)
    assert read == [1, 2, 3, 4]
    assert (caught.value.number, caught.value.offset) == (5, 24 + 4 * 324)


def test_small_parts_give_the_same(tmp_path: Path) -> None:
    path = put(tmp_path, made.pcap(FRAMES))
    for part in (1, 7, 324, 1000):
        found = concat(list(files.read(path, values=True, part=part)))
        assert found.number.tolist() == [1, 2, 3, 4, 5]
        np.testing.assert_array_equal(found.values(np.arange(5)), SENT["values"])


def test_what_was_read_is_told_in_bytes_of_the_files(tmp_path: Path) -> None:
    data = made.pcap(FRAMES * 300)
    paths = [
        put(tmp_path, data, "a.pcap"),
        put(tmp_path, gzip.compress(data), "b.pcap.gz"),
        put(tmp_path, section() + interface() + enhanced(FRAMES[0], 10), "c.pcapng"),
    ]
    for path in paths:
        told: list[int] = []
        assert len(concat(list(files.read(path, part=1000, told=told.append))))
        assert sum(told) == path.stat().st_size
        assert min(told) >= 0
    both: list[int] = []
    for _ in files.merged(paths, told=both.append):
        pass
    assert sum(both) == sum(path.stat().st_size for path in paths)
    assert len(both) >= 3


def test_merged_by_time_keeping_each_files_order(tmp_path: Path) -> None:
    a = put(
        tmp_path,
        section() + interface() + b"".join(enhanced(FRAMES[0], t) for t in (10, 30, 20, 50)),
        "s1-h1.pcapng",
    )
    b = put(
        tmp_path,
        section() + interface() + b"".join(enhanced(FRAMES[1], t) for t in (15, 25, 60)),
        "s1-h2.pcapng",
    )
    c = put(tmp_path, section() + interface() + enhanced(FRAMES[1], 40)[:-4], "c.pcapng")
    rows = []

    def take() -> None:
        for each in files.merged([a, b, c], values=True):
            rows.extend([(each.sources[f].end, t // 1000) for f, t in zip(each.file, each.time, strict=True)])
            assert each.values(np.arange(len(each))).shape == (len(each), 64)

    with pytest.raises(TraceFileError, match=r"c\.pcapng, packet 1"):
        take()
    one, two = "s1-h1", "s1-h2"
    assert rows == [(one, 10), (two, 15), (two, 25), (one, 30), (one, 20), (one, 50), (two, 60)]


def test_names_tell_ends_and_directions(tmp_path: Path) -> None:
    data = made.pcap(FRAMES)
    for name, end, node, link, direction in (
        ("s1-h1.pcap", "s1-h1", "s1", "h1-s1", 0),
        ("s2-s1-3.000012.pcap", "s2-s1-3", "s2", "s1-s2-3", 0),
        ("pb702-s1-2_in.pcap", "pb702-s1-2", "", "pb702-s1-2", Direction.UP),
        ("pb702-s1-2_out.1.pcap", "pb702-s1-2", "", "pb702-s1-2", Direction.DOWN),
        ("some capture.pcap", "some capture", "", "some capture", 0),
    ):
        found = table(put(tmp_path, data, name))
        assert found.sources == (Source(tmp_path / name, end, node, link, Direction(direction)),)
        assert (found.direction == direction).all()


def test_folders_stand_for_their_captures(tmp_path: Path) -> None:
    for name in ("b.pcapng", "a.pcap", "c.pcap.gz", "notes.txt"):
        put(tmp_path, b"", name)
    assert [path.name for path in files.expand([tmp_path])] == ["a.pcap", "b.pcapng", "c.pcap.gz"]
    (tmp_path / "d").mkdir()
    with pytest.raises(TraceFileError, match="holds no captures"):
        files.expand([tmp_path / "d"])


# ---- hostile files
_WHOLE = [
    made.pcap(FRAMES[:3]),
    section()
    + interface()
    + enhanced(FRAMES[0], 1, option(2, b"\1\0\0\0"))
    + simple(FRAMES[1])
    + old(FRAMES[2], 3),
]


@pytest.fixture(scope="module")
def decoders() -> tuple[NativeDecoder, NumpyDecoder]:
    return NativeDecoder(), NumpyDecoder()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.sampled_from([0, 1]),
    changes=st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 1100),
    packed=st.booleans(),
)
def test_any_bytes_give_packets_or_one_error(
    tmp_path: Path, which: int, changes: list[tuple[int, int]], cut: int, packed: bool
) -> None:
    data = bytearray(_WHOLE[which])
    for at, value in changes:
        data[at % len(data)] = value
    kept = bytes(data[: len(data) - cut])
    path = put(tmp_path, gzip.compress(kept, 1) if packed else kept)
    count = 0
    try:
        for each in files.read(path, values=True):
            count += len(each)
            rows = np.flatnonzero(each.elements == 64)
            assert each.values(rows).shape == ((len(rows), 64) if len(rows) else (0, 0))
    except TraceFileError as error:
        told = str(error)
    else:
        told = str(path)
    assert str(path) in told
    assert count <= len(kept) // 16


def same(a: Found, b: Found) -> None:
    assert (a.state, a.at, a.damage) == (b.state, b.at, b.damage)
    np.testing.assert_array_equal(a.records, b.records)


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 255)), max_size=6),
    big=st.booleans(),
    room=st.integers(1, 4),
    captured=st.integers(0, 308),
    format_=st.sampled_from([0, 1]),
)
def test_c_and_numpy_agree_on_any_bytes(
    decoders: tuple[NativeDecoder, NumpyDecoder],
    changes: list[tuple[int, int]],
    big: bool,
    room: int,
    captured: int,
    format_: int,
) -> None:
    c, reference = decoders
    interfaces = files._Reader(Path("x"), False, 0, c)._interfaces
    for start, whole in ((24, _WHOLE[0]), (48, _WHOLE[1])):
        data = bytearray(whole)
        for at, value in changes:
            data[at % len(data)] = value
        raw = np.frombuffer(bytes(data), np.uint8)
        same(c.scan_pcap(raw, start, big, 1000, room), reference.scan_pcap(raw, start, big, 1000, room))
        same(
            c.scan_pcapng(raw, start, big, interfaces, room),
            reference.scan_pcapng(raw, start, big, interfaces, room),
        )
        records = np.zeros(2, RECORD)
        records["at"], records["captured"], records["length"] = 40, captured, 308
        both = [d.decode(raw, records, np.array([True]), format_) for d in decoders]
        np.testing.assert_array_equal(both[0], both[1])


# ---- other programs
def test_scapy_reads_the_same(tmp_path: Path) -> None:
    scapy = pytest.importorskip("scapy.utils")
    from scapy.layers.l2 import Ether

    from wire.scapy_layers import Agg

    mixed = [*FRAMES, *frames(payloads(3, 256, up=False, chunk=9), up=False, job=200), made.one()[:-3]]
    path = tmp_path / "scapy.pcapng"
    with scapy.PcapNgWriter(str(path)) as writer:
        for index, each in enumerate(mixed):
            packet = Ether(each)
            packet.time = 1_700_000_000 + index / 2**10
            writer.write(packet)
    found = table(path, values=True)
    read = list(scapy.rdpcap(str(path)))
    assert len(found) == len(read) == 9
    for row, theirs in enumerate(read):
        if not theirs.haslayer(Agg):
            assert found.category[row] == Category.MALFORMED
            continue
        agg = theirs[Agg]
        assert found.time[row] == round(float(theirs.time) * 10**6) * 1000
        for name in ("msg_type", "flag", "size", "tensor", "chunk", "version", "slot", "e0", "e1"):
            assert getattr(found, name)[row] == getattr(agg, name), name
        assert found.values(np.array([row]))[0].tolist() == agg.values


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_reads_the_same(tmp_path: Path) -> None:
    packets = [*FRAMES, made.one(udp_checksum=77), made.one(ip_checksum=3), b"\0" * 60]
    path = put(tmp_path, made.pcap(packets, ns=True))
    converted = tmp_path / "t.pcapng"
    subprocess.run(["tshark", "-r", path, "-w", converted], check=True, capture_output=True, timeout=60)
    names = ["frame.number", "frame.time_epoch", "udp.srcport", "udp.dstport", "udp.checksum.status"]
    argv = ["tshark", "-r", str(converted), "-T", "fields", "-o", "udp.check_checksum:TRUE"]
    argv += [word for name in names for word in ("-e", name)]
    told = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
    found = table(converted)
    assert len(found) == len(packets)
    for row, line in enumerate(told.splitlines()):
        number, stamp, src, dst, status = line.split("\t")
        seconds, _, rest = stamp.partition(".")
        assert (found.number[row], found.time[row]) == (int(number), int(seconds) * 10**9 + int(rest))
        if src:
            assert (found.src_port[row], found.dst_port[row]) == (int(src), int(dst))
        if found.category[row] == Category.CONTRIBUTION:
            assert (found.udp_checksum[row] == UdpChecksum.RIGHT) == (status == "1")


# ---- memberships
def test_memberships_are_read_as_they_were_written(tmp_path: Path) -> None:
    place = members.SwitchPlace("s1", "10.0.255.1")
    member = members.Member(0, "h1", "10.0.0.1", 5001, 0, "s1", "h1-s1")
    epoch = members.Epoch(3, "one", 7, 8, 2, 64, 1, 1 << 40, 0, (place,), (member,), 5, None)
    path = tmp_path / MEMBERSHIPS
    members.write(path, [epoch])
    assert members.load([tmp_path / "s1-h1.pcapng", tmp_path]) == [epoch]
    assert members.load([tmp_path / "d" / "x.pcap"]) == []
    good = path.read_text()
    for was, now, message in (
        ('"window": 8', '"window": 0', "epoch 7 of job one: window cannot be so"),
        ('"udp_port": 5001', '"udp_port": "x"', "Member: udp_port is 'x'"),
        ('"10.0.0.1"', '"h1"', "'h1' is no IPv4 address"),
        ('"version": 1', '"version": 2', "has version 2, where 1 is understood"),
        ('"epochs"', '"epoch"', "has no list of epochs"),
        ('"job": 3', '"job": 3, "more": 1', "more is no field of Epoch"),
        ('"duplicates": false', '"duplicates": 1', "Epoch: duplicates is 1"),
        ('"up_mbit": null', '"up_mbit": "fast"', "Member: up_mbit is 'fast'"),
        ("{", "", "is not JSON"),
    ):
        path.write_text(good.replace(was, now, 1))
        with pytest.raises(MembersError, match=message):
            members.load([tmp_path])
