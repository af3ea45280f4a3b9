# SPDX-License-Identifier: Apache-2.0
"""The picture of a network: where its nodes are, which links a job takes, and that a file is written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from topologies import draw
from topologies.builders import TOPOLOGIES, describe
from topologies.draw import Load, cable
from topologies.errors import NetworkError
from topologies.record import NetRecord, new_record


def record_of(topology: str, **sizes: int) -> NetRecord:
    return new_record("n", describe(topology, **sizes), target="embedded", elements=64, slots=1)


JOB = {
    "name": "one",
    "tree": [
        {"switch": "s4", "parent": None, "hosts": ["h3"], "leaves": ["s1"]},
        {"switch": "s1", "parent": "s4", "hosts": ["h1"], "leaves": []},
    ],
}
"""On three leaves of one host and one spine, s4: the leaf s3 is left out, and h2 has no part in it."""


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_nodes_stand_apart_and_switches_above_what_they_carry(topology: str) -> None:
    record = record_of(topology)
    places = draw.plan(record).places
    assert len(set(places.values())) == len(places) == len(record.hosts) + len(record.switches)
    assert {places[host.name][1] for host in record.hosts} == {0.0}
    for link in record.links:
        if topology != "dumbbell" or link.a.node != "s1":
            assert places[link.a.node][1] < places[link.b.node][1]


def test_a_job_takes_the_links_of_its_tree() -> None:
    record = record_of("leaf-spine", leaves=3, spines=1, hosts=1)
    picture = draw.plan(record, [JOB])
    names = {frozenset(node for node, _ in each) for each in picture.jobs["one"]}
    assert names == {frozenset(pair) for pair in (("h1", "s1"), ("s1", "s4"), ("h3", "s3"), ("s3", "s4"))}
    assert picture.sums["one"] == {"s4": True, "s1": False}


def test_a_picture_has_every_node_load_and_job(tmp_path: Path) -> None:
    record = record_of("leaf-spine", leaves=3, spines=1, hosts=1)
    record = replace(record, links=(*record.links[:-1], replace(record.links[-1], down=True)))
    load = {cable(link): Load(2.5e6, 1.25e9) for link in record.links}
    out = tmp_path / "net.svg"
    pytest.importorskip("matplotlib")
    draw.draw(record, draw.plan(record, [JOB]), load, out)
    # Text is drawn as glyphs, and said in comments.
    said = re.findall(r"<!-- (.*?) -->", out.read_text())
    for text in ("h1", "10.0.2.1", "s4", "10.0.255.4", "job one", "down", "↑ 2.5 Mbit/s", "↓ 1.25 Gbit/s"):
        assert text in said
    assert said.count("■") == 1
    draw.draw(record, draw.plan(record), {}, tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_what_is_no_picture(tmp_path: Path) -> None:
    record = record_of("star", hosts=1)
    with pytest.raises(NetworkError, match=r"ends in \.svg or \.png"):
        draw.draw(record, draw.plan(record), {}, tmp_path / "net.pdf")
    for place, message in (("none/net.svg", "there is no folder .*/none$"), ("a.svg", "is a folder")):
        (tmp_path / "a.svg").mkdir(exist_ok=True)
        with pytest.raises(NetworkError, match=message):
            draw.check_place(tmp_path / place)
    pytest.importorskip("matplotlib")
    with pytest.raises(NetworkError, match="cannot be written: File name too long"):
        draw.draw(record, draw.plan(record), {}, tmp_path / f"{300 * 'x'}.svg")
