# SPDX-License-Identifier: Apache-2.0
"""What is serialized by hand is what protobuf makes of the same."""

from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2 as p4

from switch.p4runtime import packed

INDEX = st.integers(0, 2**31 - 1)
COUNT = st.sampled_from([0, 1, 127, 128, 2**63 - 1]) | st.integers(0, 2**63 - 1)


@given(st.integers(1, 2**32 - 1), st.lists(st.tuples(INDEX, COUNT, COUNT), max_size=5))
def test_counters(array_id: int, values: list[tuple[int, int, int]]) -> None:
    response = p4.ReadResponse()
    for index, octets, packets in values:
        counter = response.entities.add().counter_entry
        counter.counter_id, counter.index.index = array_id, index
        counter.data.byte_count, counter.data.packet_count = octets, packets
    data = [(i, packed.numeric(1, octets) + packed.numeric(2, packets)) for i, octets, packets in values]
    assert b"".join(packed.cells("counter_entry", array_id, data)) == response.SerializeToString()


@given(st.integers(1, 2**32 - 1), st.lists(st.tuples(INDEX, st.binary(min_size=1, max_size=300)), max_size=5))
def test_registers(array_id: int, values: list[tuple[int, bytes]]) -> None:
    response = p4.ReadResponse()
    for index, value in values:
        register = response.entities.add().register_entry
        register.register_id, register.index.index, register.data.bitstring = array_id, index, value
    cells = packed.cells("register_entry", array_id, [(i, packed.block(1, v)) for i, v in values])
    assert b"".join(cells) == response.SerializeToString()
    assert b"".join(map(packed.element, response.entities)) == response.SerializeToString()


def test_a_count_of_64_bits_is_sent_as_it_is() -> None:
    data = packed.numeric(1, 2**64 - 1)
    (counter,) = p4.ReadResponse.FromString(b"".join(packed.cells("counter_entry", 1, [(0, data)]))).entities
    assert counter.counter_entry.data.byte_count == -1  # the same bits as int64
