# SPDX-License-Identifier: Apache-2.0
"""Send packets over a veth pair and say what arrived: `mnexec -n python -m topologies.probe` of `net doctor`.

Prints {"packet": bool, "super_packets": bool} as JSON: whether a datagram came through to a packet socket,
and whether three segments in one send came as one super-packet. Needs a network namespace of its own.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys

from topologies.spec import MTU

SOL_PACKET, PACKET_VNET_HDR = 263, 15
ETH_P_IP = 0x0800
SOL_UDP, UDP_SEGMENT = 17, 103
SEGMENT_BYTES = 1000
LIMIT_S = 2.0
_VNET_BYTES, _BEFORE_PAYLOAD = 10, 14 + 20 + 8
"""struct virtio_net_hdr (virtio spec 1.2, 5.1.6); Ethernet, IPv4 and UDP headers."""
_SET_UP = (
    "ip link add probe0 type veth peer name probe1",
    f"ip link set probe0 mtu {MTU} up",
    f"ip link set probe1 mtu {MTU} up",
    "ip address add 192.0.2.1/24 dev probe0",
    "ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev probe0",
)


def _received(packets: socket.socket, size: int) -> bool:
    """Say whether a UDP payload of that many bytes comes, whole; what comes otherwise is passed over."""
    while True:
        try:
            data = packets.recv(1 << 16)
        except TimeoutError:
            return False
        frame = data[_VNET_BYTES:]
        if len(frame) == _BEFORE_PAYLOAD + size and frame[23] == socket.IPPROTO_UDP:
            return True


def main() -> int:
    """Do it; 1 when the pair cannot be made."""
    for line in _SET_UP:
        done = subprocess.run(line.split(), capture_output=True, text=True, timeout=10, check=False)
        if done.returncode != 0:
            print(done.stderr.strip(), file=sys.stderr)
            return 1
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP)) as packets,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        packets.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        packets.bind(("probe1", ETH_P_IP))
        packets.settimeout(LIMIT_S)
        sender.sendto(b"p" * SEGMENT_BYTES, ("192.0.2.2", 9))
        single = _received(packets, SEGMENT_BYTES)
        whole = b"s" * 3 * SEGMENT_BYTES
        segments = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", SEGMENT_BYTES))]
        try:
            sender.sendmsg([whole], segments, 0, ("192.0.2.2", 9))
            many = _received(packets, len(whole))
        except OSError:
            many = False
    print(json.dumps({"packet": single, "super_packets": many}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
