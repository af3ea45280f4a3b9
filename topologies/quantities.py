# SPDX-License-Identifier: Apache-2.0
"""What a link does, as people write it: rates, delays, shares, sizes; and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controller.terminal import CommandError, bits_per_second, rate_words
from topologies.errors import SpecError
from topologies.spec import Way
from wire.percent import PercentError, percent

_NUMBER = r"(\d{1,12}(?:\.\d{1,12})?)"
_NOTHING = re.compile(r"0{1,12}(\.0{1,12})?")
"""Zero is zero in any unit."""
_SECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_SIZES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20}


def rate_mbit(text: str) -> float | None:
    """Return a rate in Mbit/s, None for `none`; SpecError for what is none."""
    if text == "none":
        return None
    try:
        return bits_per_second(text) / 1e6
    except CommandError as error:
        raise SpecError(text or "nothing", str(error).partition(": ")[2]) from None


def delay_ms(text: str) -> float:
    """Return a delay in ms; SpecError for what is none."""
    if _NOTHING.fullmatch(text):
        return 0.0
    found = re.fullmatch(rf"{_NUMBER}(us|ms|s)", text.lower())
    if found is None:
        raise SpecError(text or "nothing", "a delay is a number and us, ms or s: 5ms")
    return float(found[1]) * _SECONDS[found[2]]


def share(text: str) -> float:
    """Return a percentage, written with its %, as a share, 0..1; SpecError for what is none."""
    if _NOTHING.fullmatch(text):
        return 0.0
    try:
        if text.endswith("%"):
            return percent(text) / 100
    except PercentError:
        pass
    raise SpecError(text or "nothing", "a share of the packets is 0% to 100%: 1%, 0.05%")


def size_bytes(text: str) -> int:
    """Return a size in bytes; SpecError for what is none."""
    found = re.fullmatch(rf"{_NUMBER}(b|kb|mb)", text.lower())
    if found is None:
        raise SpecError(text or "nothing", "a size is a number and b, kb (1024) or mb: 64kb")
    return round(float(found[1]) * _SIZES[found[2]])


WAY: dict[str, tuple[str, Callable[[str], float | int | None]]] = {
    "rate": ("rate_mbit", rate_mbit),
    "delay": ("delay_ms", delay_ms),
    "loss": ("loss", share),
    "duplicate": ("duplicate", share),
    "corrupt": ("corrupt", share),
    "queue": ("queue_bytes", size_bytes),
}
"""What a way can be told: by the word, its field and how its text is read."""


def with_word(way: Way, word: str, text: str) -> Way:
    """Return the way with one of WAY's words set as `text` says; SpecError for a bad text."""
    field, read = WAY[word]
    value: Any = read(text)
    changed = replace(way, **{field: value})
    # A queue waits for a rate.
    return replace(changed, queue_bytes=None) if (word, changed.rate_mbit) == ("rate", None) else changed


def with_option(way: Way, word: str, text: str, option: str | None = None) -> Way:
    """As with_word, for an option of a command, --WORD unless told otherwise, which a CommandError names.

    What no link can do is one too, as far as this way tells. A share may be without its %: only in a file
    0.01 might be meant as a part of one.
    """
    option = option or f"--{word}"
    try:
        changed = with_word(way, word, f"{text.removesuffix('%')}%" if WAY[word][1] is share else text)
    except SpecError as error:
        why = str(error).removeprefix(f"{error.what}: ")
        raise CommandError(f"{option} {text or 'nothing'}", why) from None
    if (problem := changed.problem()) is not None:
        raise CommandError(f"{option} {text}", problem)
    return changed


def words(way: Way) -> str:
    """Return what a way does as people read it; "plain" when it does nothing."""
    found = [] if way.rate_mbit is None else [rate_words(round(way.rate_mbit * 1e6))]
    if way.delay_ms:
        found.append(f"{way.delay_ms:g} ms")
    shares = (("loss", way.loss), ("duplicates", way.duplicate), ("corruption", way.corrupt))
    found += [f"{what} {100 * part:g} %" for what, part in shares if part]
    if way.queue_bytes is not None:
        found.append(f"queue {way.queue_bytes} B")
    return ", ".join(found) or "plain"
