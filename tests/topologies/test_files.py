# SPDX-License-Identifier: Apache-2.0
"""Topologies from files: what they mean, and that everything wrong is told with its line."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from topologies.builders import describe
from topologies.errors import SpecError
from topologies.files import load
from topologies.spec import End, NetworkSpec, Way

EXAMPLE = Path(__file__).parents[2] / "docs/examples/two-sites.yaml"


def loaded(folder: Path, text: str, name: str = "net.yaml") -> NetworkSpec:
    path = folder / name
    path.write_text(text)
    return load(path)


def test_the_example() -> None:
    spec = describe(str(EXAMPLE))
    assert spec.topology == "two-sites"
    assert [(k.a, k.b) for k in spec.links] == [
        (End("h1", 0), End("s1", 1)),
        (End("h2", 0), End("s1", 2)),
        (End("h3", 0), End("s2", 1)),
        (End("h4", 0), End("s2", 2)),
        (End("s1", 3), End("s2", 3)),
    ]
    assert spec.links[3].forth == spec.links[3].back == Way(1000.0)
    assert spec.links[4].forth == Way(200.0, loss=0.01)
    assert spec.links[4].back == Way(50.0, loss=0.01, queue_bytes=65536)
    with pytest.raises(SpecError, match=r"--hosts: .*two-sites.yaml tells this itself"):
        describe(str(EXAMPLE), hosts=3)


def test_what_a_file_may_fix(tmp_path: Path) -> None:
    spec = loaded(
        tmp_path,
        """
hosts:
  a: {ip: 10.0.7.9, mac: 02:11:22:33:44:55}
  b:
switches: {x: {id: 7}, y: }
links:
  - [b, x]
  - ends: [x:1, y:5]
    delay: 1500us
    duplicate: 2%
    corrupt: 0.5%
  - [a:0, x:4]
""",
    )
    assert [(h.name, h.ip, h.mac) for h in spec.hosts] == [
        ("a", "10.0.7.9", "02:11:22:33:44:55"),
        ("b", "10.0.0.1", "02:00:0a:00:00:01"),
    ]
    assert [(s.name, s.device_id, s.ip) for s in spec.switches] == [
        ("x", 7, "10.0.255.7"),
        ("y", 1, "10.0.255.1"),
    ]
    # Port 1 of x is named by a later link.
    assert [(k.a.port, k.b.port) for k in spec.links] == [(0, 2), (1, 5), (0, 4)]
    assert spec.links[1].forth == Way(None, 1.5, duplicate=0.02, corrupt=0.005)


TUTORIAL: dict[str, Any] = {
    "hosts": {
        "h1": {
            "ip": "10.0.1.1/24",
            "mac": "08:00:00:00:01:11",
            "commands": ["route add default gw 10.0.1.10"],
        },
        "h2": {"ip": "192.168.2.2/31", "mac": "08:00:00:00:02:22"},
    },
    "switches": {"s1": {"runtime_json": "s1-runtime.json"}, "s2": {"cli_input": "s2.txt"}},
    "links": [["h1", "s1-p2"], ["s2-p1", "h2", "0", None], ["s1-p1", "s2-p4", 7, 0.5]],
}


@pytest.mark.parametrize("indent", [None, 4, "\t"])
def test_a_topology_json_of_the_tutorials(tmp_path: Path, indent: int | str | None) -> None:
    spec = loaded(tmp_path, json.dumps(TUTORIAL, indent=indent), "topology.json")
    # The second's address is not of our network: it gets one.
    assert [(h.ip, h.prefix_len, h.mac) for h in spec.hosts] == [
        ("10.0.1.1", 16, "08:00:00:00:01:11"),
        ("10.0.0.1", 16, "08:00:00:00:02:22"),
    ]
    assert [(k.a, k.b) for k in spec.links] == [
        (End("h1", 0), End("s1", 2)),
        (End("s2", 1), End("h2", 0)),
        (End("s1", 1), End("s2", 4)),
    ]
    assert spec.links[1].forth == Way()
    assert spec.links[2].forth == spec.links[2].back == Way(0.5, 7.0)


HEAD = "hosts: [h1, h2]\nswitches: [s1, s2]\nlinks:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: a topology has hosts, switches and links"),
        ("[1", r"line 1: is no YAML: expected ',' or '\]'"),
        ("a: b: c", "line 1: is no YAML: mapping values are not allowed here"),
        ("[h1]", "line 1: a topology is a mapping, not a list"),
        (
            "hosts: [h1]\nlinks: []",
            "line 1: a topology has hosts, switches and links, and there are no switches",
        ),
        ("hosts: [h1]\nhost: 1", "line 2: a topology has no host: it has hosts, switches, links"),
        ("hosts: [h1]\nswitches: []\nlinks: []", "there are no switches: name one"),
        ("hosts: []\nswitches: [s1]\nlinks: []", "there are no hosts: name one"),
        ("hosts: [h1,\n  h1]\nswitches: [s1]\nlinks: []", "line 2: h1 is there twice in hosts"),
        ("hosts: [h1]\nswitches: [s1,\n H1]\nlinks: []", "line 3: H1: a node's name is a small letter"),
        ("hosts: [h1]\nswitches: [h1]\nlinks: []", "line 1: h1 is a switch already"),
        (
            "hosts: {h1: {ip: 10.0.0.1},\n h2: {ip: 10.0.0.1}}\nswitches: [s1]\nlinks: []",
            "line 2: h2 has the add",
        ),
        (
            "hosts: {h1: {ip: 10.0.255.1}}\nswitches: [s1]\nlinks: []",
            "line 1: the ip of h1 is 10.0.255.1: hosts",
        ),
        (
            "hosts: {h1: {ip: ten}}\nswitches: [s1]\nlinks: []",
            "line 1: the ip of h1 is 'ten', which is no IPv4",
        ),
        ("hosts: {h1: {mac: 01:00:00:00:00:00}}\nswitches: [s1]\nlinks: []", "expected six bytes"),
        ("hosts: {h1: {port: 1}}\nswitches: [s1]\nlinks: []", "line 1: host h1 has no port: it has ip, mac"),
        (
            "hosts: [h1]\nswitches: {s1: {id: 255}}\nlinks: []",
            "the id of s1 is '255': expected a number from 1",
        ),
        (
            "hosts: [h1]\nswitches: {s1: {id: 1},\n s2: {id: 1}}\nlinks: []",
            "line 3: s2 has the id 1, and so has s1",
        ),
        (HEAD + " - [h1, s1]", r"line 1: h2 has no link: add one to links, \[h2, s1\]"),
        (HEAD + " - h1", r"line 4: a link is \[h1, s1\] or a mapping .*, not 'h1'"),
        (HEAD + " - [h1, s1]\n - [h2, s2]", r"line 2: no links lead from s1 to s2: add one to links, \[s1"),
        ("hosts: 3\nswitches: [s1]\nlinks: []", "line 1: hosts are a list of names or a mapping, not '3'"),
        ("hosts: {h1: {ip: 10.0.0.1/99}}\nswitches: [s1]\nlinks: []", "is '10.0.0.1/99', which is no IPv4"),
        ("hosts: {h1: {mac: 00:00:00:00:00:00}}\nswitches: [s1]\nlinks: []", "expected six bytes"),
        ("hosts: [h1]\n\tx: \x07", r"line 2: is no YAML: the character U\+0007 may not be in it$"),
        ("[" * 2000, "is nested far too deep for a topology$"),
        ('hosts: ["a\\nb\\e[31m"]\nswitches: [s1]\nlinks: []', r"line 1: a\\nb\\x1b\[31m: a node's name"),
        ("hosts: [" + 5000 * "x" + "]\nswitches: [s1]\nlinks: []", r"line 1: x{200} … .{200}$"),
        (HEAD + " - {ends: [h1, s1], rate: }", "line 4: rate nothing: a rate is a number"),
        (HEAD + " - {ends: [h1, s1], rate: 1bit}", "line 4: h1-s1: a rate is 10kbit to 1tbit"),
        (HEAD + " - {ends: [h1, s1], rate: 999tbit}", "line 4: h1-s1: a rate is 10kbit to 1tbit"),
        (HEAD + " - {ends: [h1, s1], rate: 1gbit, queue: 2000mb}", "h1-s1: a queue holds 1024mb at most"),
        (HEAD + " - [h1]", "line 4: a link has two ends, .*; this has 1"),
        (HEAD + " - [h1, s3]", "line 4: a link ends at s3, which is neither"),
        (HEAD + " - [h1, s1-p1]", "line 4: 's1-p1' is no end of a link"),
        (HEAD + " - [h1, h2]", "line 4: h1 and h2 are hosts"),
        (HEAD + " - [s1, s1]", "line 4: .* both ends are at s1"),
        (HEAD + " - [h1:1, s1]", "line 4: h1 is a host: its one port is 0"),
        (HEAD + " - [h1, s1:510]", "line 4: a switch's ports are 1 to 509"),
        (HEAD + " - [h1, s1:3]\n - [h2, s1:3]", "line 5: port 3 of s1 is taken by the link of line 4"),
        (HEAD + " - [h1, s1]\n - [h1, s2]", "line 5: h1's one link is taken by the link of line 4"),
        (HEAD + " - {rate: 1gbit}", r"line 4: a link has ends: \[s1, s2\]"),
        (
            HEAD + " - {ends: [h1, s1], speed: 1}",
            "line 4: a link has no speed: it has ends, rate, delay, loss",
        ),
        (HEAD + " - {ends: [h1, s1], rate: fast}", "line 4: rate fast: a rate is a number and a unit"),
        (HEAD + " - {ends: [h1, s1],\n    delay: 5}", "line 5: delay 5: a delay is a number and us, ms or s"),
        (HEAD + " - {ends: [h1, s1], delay: 11s}", "line 4: h1-s1: a delay is 0 to 10 s"),
        (HEAD + " - {ends: [h1, s1], loss: 0.01}", "line 4: loss 0.01: a share of the packets is 0% to 100%"),
        (HEAD + " - {ends: [h1, s1], loss: 101%}", "line 4: loss 101%"),
        (HEAD + " - {ends: [h1, s1], queue: 64kb}", "a queue without a rate never fills"),
        (HEAD + " - {ends: [h1, s1], rate: 1mbit, queue: 1kb}", "a queue holds 9000 bytes at least"),
        (HEAD + " - {ends: [h1, s1], from: {s2: {rate: 1gbit}}}", "line 4: from has no s2: it has h1, s1"),
        (HEAD + " - {ends: [h1, s1], from: {s1: {ends: 1}}}", "line 4: from s1 has no ends: it has rate"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        loaded(tmp_path, text)
    assert caught.value.what.startswith(f"{tmp_path}/net.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": [["h1", "s1:1"]]}, "'s1:1' is no end of a link"),
        ({"links": [["h1", "s1-p1", "fast"]]}, "delay fast: a delay is a number"),
        ({"links": [["h1", "s1-p1", 0, 1, 2]]}, "this has 5 items"),
        ({"links": [["h1", "s1-p1", "."]]}, "delay .: a delay is a number"),
        ({"links": [["h1", "s1-p1", ""]]}, "delay nothing: a delay is a number"),
        ({"hosts": {"h1": {"ip": "10.0.0.1/abc"}}}, "'10.0.0.1/abc', which is no IPv4 address"),
        ({"links": [["h1", "s1-p1", 1, -5]]}, "rate -5: a rate is a number"),
        ({"topology": {}}, "a topology has no topology: it has hosts"),
    ],
)
def test_a_bad_topology_json_is_told(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        loaded(tmp_path, json.dumps({**TUTORIAL, **change}), "topology.json")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: cannot be read: No such file"):
        describe(str(tmp_path / "none.yaml"))
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="no text in UTF-8"):
        load(tmp_path / "odd.yaml")
    (tmp_path / "NET.YAML").write_text("hosts: [h1]\nswitches: [s1]\nlinks: [[h1, s1]]")
    assert describe(str(tmp_path / "NET.YAML")).topology == "net"
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SpecError, match=r"pipe\.yaml: is no file"):
        load(tmp_path / "pipe.yaml")
    (tmp_path / "big.yaml").write_bytes(b" " * (1 << 21))
    with pytest.raises(SpecError, match="more than 1048576 bytes"):
        load(tmp_path / "big.yaml")


WORDS = st.sampled_from(
    ["hosts", "switches", "links", "ends", "h1", "h2", "s1", "s1:1", "rate", "1gbit", "from", "ip"]
)
TREES = st.recursive(
    WORDS | st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)
PARTS = st.fixed_dictionaries({"hosts": TREES, "switches": TREES, "links": TREES})


@given(
    text=st.text(max_size=60) | (TREES | PARTS).map(yaml.safe_dump),
    name=st.sampled_from(["a.yaml", "a.json"]),
)
def test_no_text_leads_to_another_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    with suppress(SpecError):
        load(path)
