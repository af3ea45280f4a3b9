# SPDX-License-Identifier: Apache-2.0
"""Epochs only grow, over restarts and clocks that go back; UDP ports rest ten minutes."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.epochs import EpochStore, Source
from controller.errors import BindAgainError, StateError

H1, H2 = Source("h1", "10.0.0.1", 40000), Source("h2", "10.0.0.2", 40000)


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(1, 2_000_000), st.booleans()), min_size=1, max_size=8))
def test_an_epoch_is_the_time_or_one_more_than_the_last(steps: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        clock = Clock(0)
        store = EpochStore(path, clock)
        last = 0
        for now, restart in steps:
            clock.now = now
            if restart:
                store = EpochStore(path, clock)
            last = max(last + 1, now)
            assert store.begin([]) == last
            assert store.last == EpochStore(path, clock).last == last


def test_the_file_is_private(tmp_path: Path) -> None:
    store = EpochStore(tmp_path / "state.db", Clock(5))
    store.begin([H1])
    assert [p.name for p in tmp_path.iterdir()] == ["state.db"]
    assert stat.S_IMODE((tmp_path / "state.db").stat().st_mode) == 0o600


def test_nothing_is_given_out_that_is_not_on_disk(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"absent/state\.db: the state file cannot be used"):
        EpochStore(tmp_path / "absent" / "state.db", Clock(5))
    store = EpochStore(tmp_path / "state.db", Clock(5))
    (tmp_path / "state.db").unlink()
    (tmp_path / "state.db").mkdir()
    with pytest.raises(StateError, match="cannot be used"):
        store.begin([H1])


@pytest.mark.parametrize("text", ["{}", "SQLite format 3, or so it says", "x" * 5000])
def test_an_unreadable_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.db").write_text(text)
    with pytest.raises(StateError, match=r"cannot be used.*net up makes a new one"):
        EpochStore(tmp_path / "state.db")
    assert (tmp_path / "state.db").read_text() == text


def test_what_a_job_still_holds_is_in_use_over_a_restart(tmp_path: Path) -> None:
    clock = Clock(1000)
    EpochStore(tmp_path / "s", clock).begin([H1])
    store = EpochStore(tmp_path / "s", clock)
    store.hold([H1])
    clock.now = 9000
    with pytest.raises(BindAgainError, match="is in use by a job"):
        store.check([H1])
    store.check([H2])


def test_epochs_have_32_bits(tmp_path: Path) -> None:
    store = EpochStore(tmp_path / "s", Clock(2**32 - 1))
    assert store.begin([]) == 2**32 - 1
    with pytest.raises(StateError, match="more than 32 bits"):
        store.begin([])


def test_a_port_rests_ten_minutes(tmp_path: Path) -> None:
    clock = Clock(1000)
    store = EpochStore(tmp_path / "s", clock)
    store.begin([H1, H2])
    with pytest.raises(BindAgainError, match=r"40000 of h1 .* is in use by a job: bind again"):
        store.begin([H1])
    clock.now = 5000
    store.end([H1])
    clock.now = 5599
    with pytest.raises(BindAgainError, match="was in use 599 s ago") as raised:
        store.begin([H1])
    assert (raised.value.host, raised.value.udp_port) == ("h1", 40000)
    clock.now = 5600
    store.begin([H1])


def test_over_a_restart_ports_rest_on(tmp_path: Path) -> None:
    clock = Clock(1000)
    store = EpochStore(tmp_path / "s", clock)
    store.begin([H1, H2])
    store.end([H2])
    clock.now = 1300
    store = EpochStore(tmp_path / "s", clock)
    for source in (H1, H2):  # h1's job was live when the controller ended: it counts from now
        with pytest.raises(BindAgainError):
            store.begin([source])
    clock.now = 1600
    store.begin([H2])
    with pytest.raises(BindAgainError):
        store.begin([H1])
    clock.now = 1900
    store.begin([H1])


@pytest.mark.parametrize(
    ("ports", "says"),
    [
        ((0xBE00,), "among the job ports"),
        ((0xBEFF,), "among the job ports"),
        ((0,), "is no UDP port"),
        ((65536,), "is no UDP port"),
        ((4000, 4000), "is that of two workers"),
    ],
)
def test_ports_that_no_worker_may_have(tmp_path: Path, ports: tuple[int, ...], says: str) -> None:
    store = EpochStore(tmp_path / "s", Clock(7))
    with pytest.raises(BindAgainError, match=says):
        store.begin([Source("h1", "10.0.0.1", port) for port in ports])
    assert store.last == 0
    assert store.begin([Source("h1", "10.0.0.1", 0xBDFF), Source("h1", "10.0.0.1", 0xBF00)]) == 7
