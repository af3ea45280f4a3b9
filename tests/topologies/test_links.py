# SPDX-License-Identifier: Apache-2.0
"""What links do: who does it, what tc is told, how it is written; nothing here needs a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.terminal import CommandError
from topologies import link_cli, links, quantities, shaping
from topologies.builders import describe
from topologies.errors import NetworkError, SpecError
from topologies.record import NetRecord, new_record, update, with_link
from topologies.spec import End, LinkSpec, Way

SHARES = st.floats(0, 1)
WAYS = st.builds(
    Way,
    rate_mbit=st.none() | st.floats(0.1, 1e5),
    delay_ms=st.floats(0, 1e4),
    loss=SHARES,
    duplicate=SHARES,
    corrupt=SHARES,
)


def record_of(qdiscs: tuple[str, ...], target: str = "embedded", super_packets: bool = True) -> NetRecord:
    spec = describe("racks", hosts=2)
    return new_record(
        "n", spec, target=target, elements=64, slots=1, qdiscs=qdiscs, super_packets=super_packets
    )


# ---- who does it
@given(way=WAYS, netem=st.booleans(), super_packets=st.booleans())
def test_kernel_and_switch_share_a_way_between_them(way: Way, netem: bool, super_packets: bool) -> None:
    record = record_of(("htb", "tbf", "netem") if netem else ("htb", "tbf"), super_packets=super_packets)
    kernel, switch = links.by_kernel(record, way), links.by_switch(record, way)
    assert kernel.rate_mbit == way.rate_mbit
    assert switch.rate_mbit is None
    for field in ("delay_ms", "loss", "duplicate", "corrupt"):
        parts = [getattr(kernel, field), getattr(switch, field)]
        assert sorted(parts) == [0.0, getattr(way, field)]
    # Among super-packets netem would take many packets at once.
    by_netem = any((kernel.loss, kernel.duplicate, kernel.corrupt))
    assert by_netem == (netem and not super_packets and any((way.loss, way.duplicate, way.corrupt)))
    assert kernel.delay_ms == (way.delay_ms if netem else 0.0)


@pytest.mark.parametrize(
    ("way", "qdiscs", "message"),
    [
        (Way(delay_ms=1.0), ("htb", "tbf"), "a delay needs a kernel with netem"),
        (Way(1.0), ("netem",), "a rate needs a kernel with tbf or htb"),
        (Way(1.0, 1.0, loss=0.5), ("tbf", "netem"), None),
        (Way(loss=0.5), (), None),
    ],
)
def test_what_nobody_can_do_is_refused(way: Way, qdiscs: tuple[str, ...], message: str | None) -> None:
    record = record_of(qdiscs, target="bmv2", super_packets=False)
    changed = replace(record.links[0], back=way)
    if message is None:
        links.check(record, [changed])
        return
    with pytest.raises(NetworkError, match=f"h1-s1: {message}"):
        links.check(record, [changed])


class Control:
    """Takes what a controller would be asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, path: str, body: dict[str, Any]) -> None:
        assert method == "PUT"
        self.asked.append((path, body))


def test_the_switch_faults_a_link_both_ways_where_it_ends() -> None:
    record = record_of(("htb", "tbf"))
    control: Any = Control()
    host = replace(links.find(record, "h3-s2"), forth=Way(loss=0.1), back=Way(duplicate=0.2))
    core = replace(links.find(record, "s2-s3"), forth=Way(loss=0.3), back=Way(corrupt=0.4))
    links.set_faults(control, record, host)
    links.set_faults(control, record, core)
    found = [
        (
            path.split("/")[3],
            body["port"],
            body["direction"],
            body["drop"],
            body["duplicate"],
            body["corrupt"],
        )
        for path, body in control.asked
    ]
    assert found == [
        ("s2", 1, "in", 0.1, 0.0, 0.0),  # what h3 sends comes in there
        ("s2", 1, "out", 0.0, 0.2, 0.0),
        ("s3", 2, "in", 0.3, 0.0, 0.0),  # what s2 sends comes in at s3
        ("s2", 3, "in", 0.0, 0.0, 0.4),
    ]
    assert len({body["seed"] for _, body in control.asked}) == 4


def test_a_switch_starts_with_the_delays_of_its_links() -> None:
    record = record_of(("htb", "tbf"))
    slow = replace(links.find(record, "h3-s2"), forth=Way(delay_ms=1.0), back=Way(delay_ms=2.5))
    core = replace(links.find(record, "s2-s3"), forth=Way(delay_ms=30.0))
    record = with_link(with_link(record, slow), core)
    # What h3 sends waits where it comes in; what a switch sends waits where it leaves.
    assert links.delay_flags(record, "s2") == [
        *("--delay", "1:in:0.001"),
        *("--delay", "1:out:0.0025"),
        *("--delay", "3:out:0.03"),
    ]
    assert links.delay_flags(record, "s3") == []
    assert links.delay_flags(replace(record, qdiscs=("tbf", "netem")), "s2") == []


# ---- names
def test_links_are_found_by_their_ends() -> None:
    record = record_of(())
    assert links.find(record, "s1-s3") is links.find(record, "s3-s1") is links.find(record, "s3:1-s1:3")
    assert links.find(record, "h3-s2").b == End("s2", 1)
    twin = replace(links.find(record, "s1-s3"), a=End("s1", 4), b=End("s3", 3))
    record = replace(record, links=(*record.links, twin))
    with pytest.raises(NetworkError, match="s3-s1: there are several: say which of s1:3-s3:1, s1:4-s3:3"):
        links.find(record, "s3-s1")
    assert links.find(record, "s1:4-s3") == twin


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s1", "a link is named by its ends"),
        ("s1-s2-s3", "a link is named by its ends"),
        ("s1-s9", "there is no node s9 in network n"),
        ("s1-s2", "there is no such link in network n; s1 has h1-s1, h2-s1, s1-s3"),
        ("s1:1-s3", "there is no such link"),
    ],
)
def test_a_link_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        links.find(record_of(()), name)


# ---- what tc is told
BOTH = ("htb", "tbf", "netem")


def test_netem_waits_inside_of_the_shaper() -> None:
    way = Way(100.0, 20.0, loss=0.01, duplicate=0.002, corrupt=0.5)
    words = "delay 20ms loss 1% duplicate 0.2% corrupt 50%"
    # 20 ms of 100 Mbit/s, and the queue (50 ms of it and 128 KiB), in packets of 1500 bytes.
    limit = round((0.07 * 100e6 / 8 + 131072) / 1500)
    assert shaping.netem_words(way) == f"netem limit {limit} {words}"
    assert shaping.commands("x", way, switch_end=False, qdiscs=BOTH) == [
        f"tc qdisc add dev x root handle 1: tbf rate 100mbit burst 128kb limit {625_000 + 131_072}",
        f"tc qdisc add dev x parent 1:1 handle 10: netem limit {limit} {words}",
    ]
    at_switch = shaping.commands("x", way, switch_end=True, qdiscs=BOTH)
    for name in ("1:10", "1:20"):
        assert f"tc qdisc add dev x parent {name} netem limit {limit} {words}" in at_switch
    assert not any("bfifo" in line for line in at_switch)


def test_without_a_rate_netem_is_alone() -> None:
    for switch_end in (False, True):
        found = shaping.commands("x", Way(delay_ms=0.25), switch_end=switch_end, qdiscs=BOTH)
        assert found == ["tc qdisc add dev x root netem limit 100000 delay 0.25ms"]
        assert shaping.commands("x", Way(), switch_end=switch_end, qdiscs=BOTH) == []


def test_a_kernel_without_htb_lets_all_share_the_link_alike() -> None:
    found = shaping.commands("x", Way(8.0, queue_bytes=10_000), switch_end=True, qdiscs=("tbf",))
    assert found == ["tc qdisc add dev x root handle 1: tbf rate 8mbit burst 128kb limit 10000"]


@pytest.mark.root
def test_this_kernel_tells_what_it_has() -> None:
    found = shaping.present()
    assert set(found) <= set(shaping.QDISCS)
    assert not Path("/sys/class/net/probe0").exists()


# ---- changes
def test_commands_at_once_change_their_parts_of_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = replace(record_of(("htb", "tbf")), root=tmp_path, state="up")
    record.claim()
    monkeypatch.setattr(links, "apply", lambda *_: None)
    # Both have read the record before either changes it.
    link = record.links[0]
    link_cli.change(record, link, {"rate": "10mbit"}, None, None)
    found = link_cli.change(record, link, {"loss": "1%"}, link.a.node, None)
    assert (found.links[0].forth, found.links[0].back) == (Way(10.0, loss=0.01), Way(10.0))
    for wrong in ({"rate": "3"}, {"rate": "10mbit", "loss": "200"}):
        word, text = [*wrong.items()][-1]
        with pytest.raises(CommandError, match=f"^--{word} {text}: a (rate|share of the packets) is"):
            link_cli.change(record, link, wrong, None, None)
    found = link_cli.change(record, link, {"loss": "2"}, None, None)  # no % is needed in an option
    assert (found.links[0].forth.loss, found.links[0].back.loss) == (0.02, 0.02)
    states = []
    monkeypatch.setattr(links, "set_state", lambda _, link, down: states.append((link.name, down)))
    # It is up by its record; by hand it may have been taken down.
    link_cli.change(record, link, {}, None, False)
    assert states == [(link.name, False)]
    update("n", lambda found: replace(found, owner=replace(found.owner, start=0)), tmp_path)
    with pytest.raises(NetworkError, match=r"n: the network has crashed: .*net down --net n"):
        link_cli.change(record, link, {}, None, True)
    update("n", lambda found: replace(found, owner=record.owner, state="stopping"), tmp_path)
    with pytest.raises(NetworkError, match="n: the network is stopping"):
        link_cli.change(record, link, {}, None, True)


def test_the_command_line_goes_on_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mininet")
    from topologies import mininet_cli

    class Wrong(mininet_cli.Commands):
        def __init__(self) -> None:
            """Without a network."""

        def default(self, line: str) -> None:
            raise NetworkError("s1", line)

    assert Wrong().onecmd("odd") is None
    assert capfd.readouterr().err.strip().endswith("error: s1: odd")


# ---- how it is written
@pytest.mark.parametrize(
    ("word", "text", "value"),
    [
        ("rate", "1.5gbit", 1500.0),
        ("rate", "25mbps", 200.0),
        ("rate", "none", None),
        ("delay", "250us", 0.25),
        ("delay", "1.5s", 1500.0),
        ("delay", "0", 0.0),
        ("loss", "0.5%", 0.005),
        ("loss", "0.0", 0.0),
        ("loss", "100%", 1.0),
        ("queue", "64kb", 65536),
        ("queue", "20000b", 20000),
    ],
)
def test_words_of_a_link(word: str, text: str, value: float | None) -> None:
    field = quantities.WAY[word][0]
    assert getattr(quantities.with_word(Way(1.0), word, text), field) == value


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("rate", "fast"),
        ("rate", "-1mbit"),
        ("delay", "5"),
        ("delay", "0m"),
        ("delay", "-5ms"),
        ("delay", "5 m"),
        ("loss", "1"),
        ("loss", "101%"),
        ("loss", "nan%"),
        ("queue", "64"),
    ],
)
def test_bad_words_of_a_link(word: str, text: str) -> None:
    with pytest.raises(SpecError, match=f"{text}: a "):
        quantities.with_word(Way(), word, text)


def test_a_link_without_a_rate_has_no_queue() -> None:
    assert quantities.with_word(Way(1.0, queue_bytes=9000), "rate", "none") == Way()


def test_what_a_way_does_in_words() -> None:
    assert quantities.words(Way()) == "plain"
    way = Way(50.0, 5.0, loss=0.01, queue_bytes=65536)
    assert quantities.words(way) == "50 Mbit/s, 5 ms, loss 1 %, queue 65536 B"


# ---- in the record
@given(forth=WAYS, back=WAYS, down=st.booleans())
def test_a_record_keeps_what_links_do(forth: Way, back: Way, down: bool) -> None:
    record = record_of(BOTH)
    link = replace(record.links[1], forth=forth, back=back, down=down)
    changed = with_link(record, link)
    assert NetRecord.from_json(changed.to_json()) == changed
    assert changed.links == (record.links[0], link, *record.links[2:])
    rates = [way.rate_mbit for way in (forth, back) if way.rate_mbit is not None]
    assert link.rate_mbit == LinkSpec(link.a, link.b, forth, back).rate_mbit == min(rates, default=None)


def test_a_record_has_several_writers(tmp_path: Path) -> None:
    record = replace(record_of(()), root=tmp_path)
    record.claim()
    link = replace(record.links[0], down=True)
    update("n", lambda found: replace(found, state="up"), tmp_path)
    update("n", lambda found: with_link(found, link), tmp_path)
    found = update("n", lambda found: replace(found, given_up=("x",)), tmp_path)
    assert (found.state, found.links[0].down, found.given_up) == ("up", True, ("x",))
