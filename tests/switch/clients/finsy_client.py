# SPDX-License-Identifier: Apache-2.0
"""Drives a switch with finsy, in an environment of its own: it wants another protobuf than this project.

ADDRESS P4INFO PROGRAM P4INFO PROGRAM: the fixtures forward and notify.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import finsy as fy


async def first(messages: AsyncIterator[Any]) -> Any:
    """The first of them; those who cause it hear that somebody listens."""
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    print("ready", flush=True)
    return await waiting


async def forward(switch: fy.Switch) -> None:
    entry = fy.P4TableEntry("l2", match=fy.Match(dst=5), action=fy.Action("forward", port=4))
    learn = fy.P4TableEntry("l2", match=fy.Match(dst=9), action=fy.Action("to_controller", reason=2))
    await switch.write([+entry, +learn, +fy.P4MulticastGroupEntry(3, replicas=[1, (2, 7)])])
    async for found in switch.read(fy.P4TableEntry("l2")):
        print("entry", found.match, found.action.args)
    async for found in switch.read(fy.P4MulticastGroupEntry()):
        print("group", len(found.replicas))
    await switch.write(fy.P4PacketOut(b"payload", egress_port=3, pad=0))
    packet = await first(switch.read_packets())
    print("packet", packet.payload[:6].hex(), packet.metadata)
    async for found in switch.read(fy.P4CounterEntry("port_counter", index=2)):
        print("counter", found.packet_count)
    await switch.delete_all()
    print("left", [found async for found in switch.read(fy.P4TableEntry("l2"))])


async def notify(switch: fy.Switch) -> None:
    await switch.write([+fy.P4DigestEntry("learn_t", max_list_size=1, ack_timeout_ns=1)])
    known = fy.P4TableEntry("sources", match=fy.Match(src=5), action=fy.Action("known"), idle_timeout_ns=1000)
    digest = await first(switch.read_digests("learn_t"))
    print("digest", digest.data[0]["address"])
    await switch.write([+known])
    told = await first(switch.read_idle_timeouts())
    print("idle", told[0].match)
    await switch.delete([known])


async def main(address: str, *files: str) -> None:
    for at, work in ((0, forward), (2, notify)):
        info, program = map(Path, files[at : at + 2])
        options = fy.SwitchOptions(p4info=info, p4blob=program, device_id=7)
        async with fy.Switch("s1", address, options) as switch:
            await work(switch)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 40))
