# SPDX-License-Identifier: Apache-2.0
"""Percentages as people write them in options."""

from __future__ import annotations

import re

from .errors import P4ReduceError


class PercentError(P4ReduceError):
    """Not a percentage; `text` is what was given."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text or 'nothing'}: is no percentage, 0 to 100: 1, 1% or 0.05%")
        self.text = text


def percent(text: str) -> float:
    """Return the number, 0 to 100, of 1, 1% or 0.05%; PercentError for others."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12}) ?%?", text.strip(), re.ASCII)
    if found is None or float(found[1]) > 100:
        raise PercentError(text)
    return float(found[1])
