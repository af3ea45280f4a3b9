# SPDX-License-Identifier: Apache-2.0
"""What tc is told for one end of a link, and which of its queueing disciplines this kernel has.

A rate is made by htb at a switch's end, where what switches send themselves goes first, and by tbf elsewhere;
delay and loss by netem, inside of the shaper: packets wait out their delay before they wait for the rate.
"""

from __future__ import annotations

import subprocess

from topologies.spec import MAX_QUEUE_BYTES, SWITCHES, Way

QDISCS = ("htb", "tbf", "netem")
"""What is made use of; a kernel may lack each."""
_PROBES = {
    # With the filter that it is used with.
    "htb": "tc qdisc add dev probe0 root handle 1: htb default 20 && tc class add dev probe0 parent 1: "
    "classid 1:10 htb rate 1mbit && tc filter add dev probe0 parent 1: protocol ip u32 match ip src "
    f"{SWITCHES} flowid 1:10",
    "tbf": "tc qdisc add dev probe0 root tbf rate 1mbit burst 10kb latency 10ms",
    "netem": "tc qdisc add dev probe0 root netem delay 1ms",
}
_PROBE_LIMIT_S = 20.0
_SHAPED_PACKETS = 1500
"""Bytes of a packet by which netem, which counts packets, is given room."""
_UNSHAPED_LIMIT = 100_000
"""Packets that a delay without a rate holds."""


def present() -> tuple[str, ...]:
    """Return which of QDISCS this kernel has, tried in a network namespace that goes away at once.

    OSError or subprocess.TimeoutExpired where mnexec cannot be run.
    """
    lines = ["ip link add probe0 type veth peer name probe1 || exit 1"]
    for name, probe in _PROBES.items():
        lines += [
            f"{{ {probe}; }} >/dev/null 2>&1 && echo {name}",
            "tc qdisc del dev probe0 root 2>/dev/null",
        ]
    done = subprocess.run(
        ["mnexec", "-n", "sh", "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=_PROBE_LIMIT_S,
        check=False,
    )
    return tuple(name for name in QDISCS if name in done.stdout.split())


def netem_words(way: Way) -> str:
    """Return netem's options for a way's delay, loss, duplicates and corruption; "" when it has none."""
    words = [f"delay {way.delay_ms:g}ms"] if way.delay_ms else []
    shares = (("loss", way.loss), ("duplicate", way.duplicate), ("corrupt", way.corrupt))
    words += [f"{what} {100 * share:g}%" for what, share in shares if share]
    if not words:
        return ""
    limit = _UNSHAPED_LIMIT
    if way.rate_mbit is not None:
        held = way.rate_mbit * 1e6 / 8 * way.delay_ms / 1000
        limit = max(100, round((held + queue_bytes(way)) / _SHAPED_PACKETS))
    return f"netem limit {limit} {' '.join(words)}"


def queue_bytes(way: Way) -> int:
    """Return how many bytes wait for a way's rate at most."""
    assert way.rate_mbit is not None
    if way.queue_bytes is not None:
        return way.queue_bytes
    return min(MAX_QUEUE_BYTES, round(way.rate_mbit * 1e6 / 8 * 0.05) + (128 << 10))


def commands(interface: str, way: Way, *, switch_end: bool, qdiscs: tuple[str, ...]) -> list[str]:
    """Return the commands that make an interface without a qdisc send as `way` says; [] for a plain one.

    What `way` has beyond the rate is left to netem: clear it where another does it. `qdiscs` are those that
    the kernel has.
    """
    netem = netem_words(way)
    if way.rate_mbit is None:
        return [f"tc qdisc add dev {interface} root {netem}"] if netem else []
    if switch_end and "htb" in qdiscs:
        return _switch_first(interface, way, netem)
    shaped = f"tbf rate {way.rate_mbit:.9g}mbit burst 128kb limit {queue_bytes(way)}"
    found = [f"tc qdisc add dev {interface} root handle 1: {shaped}"]
    return [*found, f"tc qdisc add dev {interface} parent 1:1 handle 10: {netem}"] if netem else found


def _switch_first(interface: str, way: Way, netem: str) -> list[str]:
    """Shape an interface so that what switches send themselves goes first.

    Else ordinary packets of another tenant to a worker's host would fill the queue that its results wait in.
    A switch takes no packet with a switch's address from a host, so nobody pushes in. The rest keeps a
    twentieth of the rate.
    """
    assert way.rate_mbit is not None
    rate_mbit = way.rate_mbit
    burst = f"ceil {rate_mbit:.9g}mbit burst 128kb cburst 128kb quantum 65536"
    add = f"tc class add dev {interface} parent"
    kinds = (10, 0, 0.95 * rate_mbit), (20, 1, 0.05 * rate_mbit)
    waits = netem or f"bfifo limit {queue_bytes(way)}"
    return [
        f"tc qdisc add dev {interface} root handle 1: htb default 20",
        f"{add} 1: classid 1:1 htb rate {rate_mbit:.9g}mbit {burst}",
        *(f"{add} 1:1 classid 1:{k} htb rate {rate:.9g}mbit {burst} prio {prio}" for k, prio, rate in kinds),
        *(f"tc qdisc add dev {interface} parent 1:{k} {waits}" for k, _, _ in kinds),
        f"tc filter add dev {interface} parent 1: protocol ip u32 match ip src {SWITCHES} flowid 1:10",
    ]
