# SPDX-License-Identifier: Apache-2.0
"""Cells of counters as bytes: what protobuf itself would write and read."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2

from controller import cells

INDEXES = st.integers(0, 2**31 - 1)
COUNTS = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@given(st.integers(0, 2**32), st.integers(1, 2**32 - 1), st.lists(INDEXES, max_size=5))
def test_a_request_is_what_protobuf_reads(device: int, counter: int, indexes: list[int]) -> None:
    found = p4runtime_pb2.ReadRequest.FromString(cells.request(device, counter, indexes))
    assert found.device_id == device
    assert [entity.counter_entry.counter_id for entity in found.entities] == [counter] * len(indexes)
    assert [entity.counter_entry.index.index for entity in found.entities] == indexes
    assert all(entity.counter_entry.HasField("index") for entity in found.entities)


@given(st.dictionaries(INDEXES, COUNTS, max_size=5))
def test_an_answer_is_what_protobuf_wrote(counts: dict[int, tuple[int, int]]) -> None:
    response = p4runtime_pb2.ReadResponse()
    for index, (packets, octets) in counts.items():
        entry = response.entities.add().counter_entry
        entry.counter_id, entry.index.index = 7, index
        entry.data.packet_count, entry.data.byte_count = packets, octets
    response.entities.add().table_entry.table_id = 1  # not asked for: not told
    assert cells.counts(response.SerializeToString()) == counts


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        cells.counts(data)


def test_what_is_cut_is_refused() -> None:
    response = p4runtime_pb2.ReadResponse()
    response.entities.add().counter_entry.data.packet_count = 300
    data = response.SerializeToString()
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="too early"):
            cells.counts(data[:end])
