# SPDX-License-Identifier: Apache-2.0
"""runtime/io_super.c by ctypes."""

from __future__ import annotations

import ctypes

from switch.ports import io_library
from tests.switch.flows import total

TCPV4, TCPV6, UDP_L4, ECN = 1, 4, 5, 0x80
NEEDS_CSUM = 1
SLACK = 160
MOST, SEGMENTS = 65535, 64


class Sum(ctypes.Structure):
    """sw_sum."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("start", "end", "sum")]


class Cut(ctypes.Structure):
    _fields_ = [
        ("frame", ctypes.c_void_p),
        ("head", ctypes.c_uint8 * SLACK),
        *((name, ctypes.c_uint32) for name in ("len", "size", "next", "seq", "l3")),
        *((name, ctypes.c_uint32) for name in ("l4", "payload", "at", "index")),
        *((name, ctypes.c_uint8) for name in ("v6", "tcp")),
        *((name, ctypes.c_uint16) for name in ("id", "l3_sum", "l4_sum")),
        ("sum", Sum),
    ]


class Run(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("len", "headers", "size", "segments")),
        *((name, ctypes.c_uint8) for name in ("tcp", "push", "verified", "v6")),
        ("udp_rest", ctypes.c_uint16),
        ("sum", Sum),
    ]


class Header(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint8), ("gso_type", ctypes.c_uint8)] + [
        (name, ctypes.c_uint16) for name in ("hdr_len", "gso_size", "csum_start", "csum_offset")
    ]


def super_library() -> ctypes.CDLL:
    """runtime/io_super.c, its functions declared."""
    lib = ctypes.CDLL(str(io_library()))
    u8, u16, u32 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32
    lib.super_cut_begin.argtypes = [ctypes.POINTER(Cut), ctypes.c_char_p, u32, u8, u16]
    lib.super_cut_next.argtypes = [ctypes.POINTER(Cut), ctypes.POINTER(u32)]
    lib.super_cut_next.restype = ctypes.c_void_p
    lib.super_cut_skip.argtypes = [ctypes.POINTER(Cut), u32]
    lib.super_cut_skip.restype = None
    lib.super_complete.argtypes = [ctypes.c_char_p, u32, u32, u32]
    lib.super_complete.restype = None
    lib.super_run_begin.argtypes = [
        ctypes.POINTER(Run),
        ctypes.c_char_p,
        u32,
        ctypes.POINTER(Sum),
        u32,
        ctypes.c_int,
        ctypes.c_int,
    ]
    lib.super_run_begin.restype = None
    lib.super_run_join.argtypes = [
        *(ctypes.POINTER(Run), ctypes.c_char_p, ctypes.c_char_p, u32, ctypes.POINTER(Sum))
    ]
    lib.super_run_join.restype = u32
    lib.super_run_end.argtypes = [ctypes.POINTER(Run), ctypes.c_char_p, ctypes.POINTER(Header)]
    lib.super_run_end.restype = None
    return lib


def cut(lib: ctypes.CDLL, frame: bytes, kind: int, size: int) -> list[bytes] | None:
    """The segments; None for a frame that is refused."""
    state, room, length = Cut(), ctypes.create_string_buffer(frame, len(frame)), ctypes.c_uint32()
    if lib.super_cut_begin(ctypes.byref(state), room, len(frame), kind, size):
        return None
    assert state.payload <= SLACK
    start, found = ctypes.addressof(room), []
    while at := lib.super_cut_next(ctypes.byref(state), ctypes.byref(length)):
        assert start <= at
        assert at + length.value <= start + len(frame)
        found.append(ctypes.string_at(at, length.value))
        told = state.sum
        assert (told.start, told.end) in ((0, 0), (state.payload, length.value))
        assert told.end % 2 == told.start % 2
        assert told.sum == total(found[-1][told.start : told.end])
    return found
