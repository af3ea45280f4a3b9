# SPDX-License-Identifier: Apache-2.0
"""Whether this kernel passes UDP super-packets (UDP_SEGMENT) through packet sockets: Linux 6.2 and later."""

from __future__ import annotations

import select
import socket
import struct
import time

UDP_SEGMENT = 103
SOL_PACKET, PACKET_VNET_HDR = 263, 15
ETH_P_IP = 0x0800
GSO_UDP_L4 = 5
"""virtio_net_hdr's gso_type."""
WAIT_S = 0.5
_SEGMENT = 32
_HEADERS = 10 + 14 + 20
"""virtio_net_hdr, Ethernet and IPv4 before the UDP header."""


def udp_missing() -> str | None:
    """Send one to ourselves over the loopback interface; None if a packet socket sees it whole, else why.

    None, too, for who may not open packet sockets: no port will be opened either, and that is told.
    """
    try:
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as packets,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        ):
            packets.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            packets.bind(("lo", ETH_P_IP))
            udp.bind(("127.0.0.1", 0))
            udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, _SEGMENT)
            udp.sendto(bytes(2 * _SEGMENT), udp.getsockname())
            return _seen(packets, udp.getsockname()[1])
    except PermissionError:
        return None
    except OSError as error:
        return f"the loopback interface carried none when asked ({error.strerror})"


def _seen(packets: socket.socket, port: int) -> str | None:
    deadline = time.monotonic() + WAIT_S
    while (left := deadline - time.monotonic()) > 0 and select.select([packets], [], [], left)[0]:
        frame = packets.recv(1 << 16)
        ports = struct.pack("!HH", port, port)
        if frame[_HEADERS : _HEADERS + 4] == ports and frame[1] & 0x7F == GSO_UDP_L4:
            return None
    return "this kernel gives packet sockets no UDP super-packets (Linux 6.2 and later do)"
