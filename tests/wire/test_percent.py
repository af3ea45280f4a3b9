# SPDX-License-Identifier: Apache-2.0
"""Percentages with and without their sign."""

import pytest

from wire.percent import PercentError, percent


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2), ("2%", 2), ("2 %", 2), ("0.05%", 0.05), (".5", 0.5), ("100%", 100), ("0", 0)],
)
def test_percentages(text: str, value: float) -> None:
    assert percent(text) == value


@pytest.mark.parametrize("text", ["", "%", "-1", "100.5", "1e1", "nan", "1%%", "٣", "9" * 5000, "."])
def test_what_is_none(text: str) -> None:
    with pytest.raises(PercentError, match="is no percentage, 0 to 100"):
        percent(text)
