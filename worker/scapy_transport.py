# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
"""The transport to read and to teach with: whole frames on a raw interface, built and taken apart by Scapy.

Slow (a Python call a field) and needs root. Importing this module imports Scapy, which takes seconds.
"""

from __future__ import annotations

import socket
import time

import numpy as np
from scapy.config import conf
from scapy.error import Scapy_Exception
from scapy.layers.inet import IP, UDP, in4_pseudoheader
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.utils import checksum

from wire.constants import TTL
from wire.membership import Membership
from wire.packet import Packets, payload_dtype
from wire.scapy_layers import Agg

from .errors import TransportError


def layers(payload: np.void) -> Agg:
    """Return one payload as the Scapy layer that shows its fields."""
    kind, place = int(payload["kind"]), int(payload["place"])
    return Agg(
        msg_type=kind >> 4,
        flag=kind >> 3 & 1,
        size=kind & 7,
        tensor=int(payload["tensor"]),
        chunk=int(payload["chunk"]),
        version=place >> 15,
        slot=place & 0x7FFF,
        e0=int(payload["e0"]),
        e1=int(payload["e1"]),
        values=payload["values"].tolist(),
    )


class ScapyTransport:
    """Sends and sniffs on `interface`; keeps `sock` (see `bind_port`) bound, so that the port is taken.

    Raises TransportError when the interface cannot be opened.
    """

    native = None

    def __init__(self, membership: Membership, interface: str, sock: socket.socket) -> None:
        self._membership, self._bound = membership, sock
        self._dtype = payload_dtype(membership.elements)
        m = membership
        # The kernel reads a copy of every result into this socket: no ICMP "port unreachable", nothing kept.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        self._head = Ether(src=m.own_mac, dst=m.switch_mac) / IP(
            src=m.own_ip, dst=m.switch_ip, ttl=TTL, id=0, flags="DF"
        )
        try:
            self._socket = conf.L2socket(iface=interface)
        except (OSError, Scapy_Exception, ValueError) as error:
            raise TransportError(
                f"cannot open interface {interface} for raw packets: {error}. Run as root, inside the host."
            ) from error

    def frame(self, payload: np.void) -> Packet:
        """Return the whole frame that carries one payload; Scapy fills in lengths and checksums."""
        m = self._membership
        return self._head / UDP(sport=m.own_port, dport=m.port) / layers(payload)

    def send(self, packets: Packets) -> None:
        """Send payloads one by one; see Transport."""
        for payload in packets:
            self._socket.send(self.frame(payload))

    def receive(self, timeout: float) -> Packets:
        """Return the results that arrive until the interface is silent; see Transport."""
        deadline = time.monotonic() + timeout
        payloads: list[bytes] = []
        while True:
            left = 0.0 if payloads else max(0.0, deadline - time.monotonic())
            if not self._socket.select([self._socket], left):
                break
            packet = self._socket.recv()
            if packet is not None and self._is_mine(packet):
                data, size = bytes(packet[UDP].payload), self._dtype.itemsize
                payloads += [data[at : at + size] for at in range(0, len(data), size)]
            if len(payloads) >= self._membership.window:
                break
        return np.frombuffer(b"".join(payloads), self._dtype)

    def _is_mine(self, packet: Packet) -> bool:
        """Say whether a packet is a result for this worker with right checksums, as the kernel would.

        Or several results in one: a super-packet, whose checksum the sender left to the kernel.
        """
        m = self._membership
        if UDP not in packet or packet[IP].src != m.switch_ip:
            return False
        if (packet[UDP].sport, packet[UDP].dport) != (m.port, m.own_port):
            return False
        length = len(packet[UDP].payload)
        if not length or length % self._dtype.itemsize:
            return False
        received = packet[IP].chksum, packet[UDP].chksum
        again = packet.copy()
        del again[IP].chksum, again[UDP].chksum
        again = Ether(bytes(again))
        right = {0, int(again[UDP].chksum)}
        if length > self._dtype.itemsize:
            right = {0xFFFF - checksum(in4_pseudoheader(socket.IPPROTO_UDP, packet[IP], packet[UDP].len))}
        return received[0] == again[IP].chksum and received[1] in right

    def close(self) -> None:
        """Close both sockets; see Transport."""
        self._socket.close()
        self._bound.close()
