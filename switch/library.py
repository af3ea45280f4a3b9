# SPDX-License-Identifier: Apache-2.0
"""The shared object of one program, as ctypes sees it (runtime/control.h). Calls release the GIL."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

from switch.errors import BuildError

ABI = 1
LOG_LINE, LOG_LINES = 240, 256
TRACE_ROOM = 1 << 17
STATS = ("received", "sent", "too_long", "over_budget", "faults", "digests_lost")


class Replica(ctypes.Structure):
    """sw_replica."""

    _fields_ = (("port", c_uint32), ("rid", c_uint32))


class Result(ctypes.Structure):
    """sw_result."""

    _fields_ = (
        ("rows", c_void_p),
        ("rows_bytes", c_size_t),
        ("stride", c_size_t),
        ("in_rows", c_size_t),
        ("ports", POINTER(c_uint32)),
        ("lengths", POINTER(c_uint32)),
        ("data", c_void_p),
        ("n", c_size_t),
        ("room", c_size_t),
        ("bytes", c_size_t),
        ("bytes_room", c_size_t),
        ("longest", c_uint32),
        ("failed", c_uint32),
    )


class StatsC(ctypes.Structure):
    """sw_stats."""

    _fields_ = tuple((name, c_uint64) for name in STATS)


_U64S = POINTER(c_uint64)
_DOUBLES = POINTER(c_double)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "sw_new": (c_void_p, (c_uint32, c_uint64)),
    "sw_free": (None, (c_void_p,)),
    "sw_reset": (c_int, (c_void_p,)),
    "sw_set_time": (None, (c_void_p, c_uint64)),
    "sw_table_insert": (
        c_void_p,
        (c_void_p, c_uint32, c_uint64, _U64S, _U64S, _U64S, c_int64, c_uint32, _U64S, c_uint32),
    ),
    "sw_table_modify": (c_int, (c_void_p, c_uint32, c_void_p, c_uint32, _U64S, c_uint32)),
    "sw_table_delete": (None, (c_void_p, c_uint32, c_void_p)),
    "sw_table_default": (c_int, (c_void_p, c_uint32, c_int64, _U64S, c_uint32)),
    "sw_entry_counter": (None, (c_void_p, c_void_p, _U64S, _U64S, c_int)),
    "sw_entry_idle_us": (c_uint64, (c_void_p, c_void_p)),
    "sw_entry_meter": (c_int, (c_void_p, c_void_p, _DOUBLES, _U64S, c_int)),
    "sw_member_new": (c_void_p, (c_void_p, c_uint32, _U64S, c_uint32)),
    "sw_member_modify": (c_int, (c_void_p, c_void_p, c_uint32, _U64S, c_uint32)),
    "sw_member_delete": (None, (c_void_p, c_void_p)),
    "sw_choice_new": (c_void_p, (c_void_p,)),
    "sw_choice_set": (c_int, (c_void_p, c_void_p, POINTER(c_void_p), c_uint32)),
    "sw_choice_delete": (None, (c_void_p, c_void_p)),
    "sw_table_miss": (c_void_p, (c_void_p, c_uint32)),
    "sw_entry_colors": (None, (c_void_p, c_void_p, _U64S, c_int)),
    "sw_meter_colors": (None, (c_void_p, c_uint32, c_uint64, _U64S, c_int)),
    "sw_vset_set": (c_int, (c_void_p, c_uint32, _U64S, c_uint32)),
    "sw_counter_access": (None, (c_void_p, c_uint32, c_uint64, c_uint64, c_void_p, c_int)),
    "sw_meter_access": (c_int, (c_void_p, c_uint32, c_uint64, _DOUBLES, _U64S, c_int)),
    "sw_register_access": (None, (c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, c_void_p, c_int)),
    "sw_multicast_set": (c_int, (c_void_p, c_uint32, POINTER(Replica), c_uint32, c_int)),
    "sw_session_set": (c_int, (c_void_p, c_uint32, POINTER(Replica), c_uint32, c_uint32, c_int)),
    "sw_digest_take": (c_uint32, (c_void_p, POINTER(c_uint32), _U64S, c_uint32)),
    "sw_log_take": (c_int, (c_void_p, c_char_p)),
    "sw_trace_start": (c_int, (c_void_p,)),
    "sw_trace_take": (c_size_t, (c_void_p, _U64S, _U64S)),
    "sw_stats_read": (None, (c_void_p, POINTER(StatsC))),
    "sw_result_free": (None, (POINTER(Result),)),
    "sw_run_rows": (
        None,
        (c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(Result)),
    ),
    "sw_run_packets": (None, (c_void_p, c_size_t, c_void_p, c_void_p, c_char_p, POINTER(Result))),
    "sw_result_heads": (None, (POINTER(Result), c_void_p, c_void_p)),
    "sw_result_rows": (None, (POINTER(Result), c_void_p, c_size_t)),
}


def open_library(path: Path) -> ctypes.CDLL:
    """Load a compiled program and declare its functions. Raises `BuildError`."""
    try:
        lib = ctypes.CDLL(str(path))
        for name, (result, args) in _SIGNATURES.items():
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = args
    except (OSError, AttributeError) as e:
        raise BuildError(f"cannot load {path}: {e}; remove it, and it will be compiled again") from e
    return lib


def words(values: list[int]) -> ctypes.Array[c_uint64]:
    """A uint64_t array (at least one element, so that it has an address)."""
    return (c_uint64 * max(len(values), 1))(*values)


def split(value: int, n: int) -> list[int]:
    """A number as n 64-bit words, least significant first."""
    return [value >> (64 * i) & 0xFFFFFFFFFFFFFFFF for i in range(n)]
