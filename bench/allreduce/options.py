# SPDX-License-Identifier: Apache-2.0
"""The options of `p4reduce bench allreduce`: lists with commas, each word read and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

import typer

from wire.constants import MAX_WORKERS
from wire.percent import PercentError, percent

from .cells import DTYPES, PEERS

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_RATES = {"mbit": 1.0, "gbit": 1000.0}
UNSHAPED = "unshaped"
NONE = "none"

T = TypeVar("T")


def words(option: str, text: str, read: Callable[[str, str], T]) -> list[T]:
    """Return what the words of a list with commas stand for; typer.BadParameter for a bad or repeated one."""
    found = [read(option, word.strip()) for word in text.split(",")]
    if len(set(found)) != len(found):
        raise typer.BadParameter(f"{text!r} names one thing twice", param_hint=option)
    return found


def nbytes(option: str, text: str) -> int:
    """Return the bytes of a size like 65536, 256KiB or 4MiB."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise typer.BadParameter(f"{text!r} is no size like 65536, 256KiB or 4MiB", param_hint=option)
    size = int(match[1]) * _UNITS[match[2]]
    if size < 4 or size % 4:
        raise typer.BadParameter("values have 4 bytes: a multiple of 4, at least 4", param_hint=option)
    return size


def workers(option: str, text: str) -> int:
    """Return a number of workers."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise typer.BadParameter(f"{text!r} is no number of workers, 1 to {MAX_WORKERS}", param_hint=option)
    return int(text)


def link(option: str, text: str) -> float | None:
    """Return the Mbit/s of a link like 100mbit or 1gbit, None for `unshaped`."""
    if text == UNSHAPED:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)", text)
    rate = float(match[1]) * _RATES[match[2]] if match else 0.0
    if not rate:
        raise typer.BadParameter(f"{text!r} is no link like 100mbit, 1gbit or {UNSHAPED}", param_hint=option)
    return rate


def loss(option: str, text: str) -> float:
    """Return the share, 0 to 0.5, of a percentage like 1, 1% or 0.01%."""
    try:
        share = percent(text) / 100
    except PercentError:
        share = math.nan
    if not 0 <= share <= 0.5:
        raise typer.BadParameter(f"{text!r} is no loss like 0, 0.1% or 5%, at most 50%", param_hint=option)
    return share


def one_of(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    """Return a reader that takes these words only."""

    def read(option: str, text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"{text!r} is none of {', '.join(choices)}", param_hint=option)
        return text

    return read


dtype = one_of(DTYPES)


def peers(option: str, text: str) -> list[str]:
    """Return the peers of a list, [] for `none`."""
    return [] if text == NONE else words(option, text, one_of(PEERS))
