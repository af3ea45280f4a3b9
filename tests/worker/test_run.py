# SPDX-License-Identifier: Apache-2.0
"""`p4reduce worker run`: what it reads, writes and refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import worker
from tests.worker.api import Api, refused, serving
from wire.control import RefusedError
from worker import MismatchError, StalledError, WorkerError
from worker import run as run_module
from worker.cli import CODES, _Drawn, app
from worker.join import join
from worker.run import FileError, OptionError, bytes_of, dtype_of, read, written


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A job of one rank, this one."""
    socket = tmp_path / "controller.sock"

    def joined(job: str, rank: int, *, net: str | None, **options: Any) -> Any:
        assert net is None
        return join(job, rank, address=socket, **options)

    monkeypatch.setattr(run_module, "join", joined)
    with serving(socket) as server:
        yield server


def command(*words: object, code: int = 0) -> str:
    """Run `worker run`; its exit code must be that. Returns stdout, or what the error says."""
    done = CliRunner().invoke(app, ["run", *map(str, words)])
    if isinstance(done.exception, WorkerError):
        assert done.exception.exit_code == code, done.exception
        assert "\n" not in str(done.exception)
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.stdout


def test_a_generated_array(api: Api) -> None:
    told = json.loads(command("demo", "--rank", 0, "--size", "64KiB", "--iters", 3, "--json"))
    wanted = {
        "job": "demo",
        "rank": 0,
        "n": 1,
        "op": "sum",
        "dtype": "float32",
        "output": None,
        "elements": 16384,
        "bytes": 65536,
        "iters": 3,
    }
    assert {name: told[name] for name in wanted} == wanted
    assert len(told["seconds"]) == 3
    assert told["goodput_bps"] == pytest.approx(8 * 3 * 65536 / sum(told["seconds"]))
    # In each a header packet, 256 of values, and before these as many of exponents as the lead, 2.
    assert told["packets_sent"] == 3 * (1 + 256 + 2) + told["retransmissions"]
    assert told["packets_received"] == 3 * (1 + 256 + 2)
    assert set(told["rtt"]) == {"p50", "p90", "p99"}
    assert set(told["window"]) == {"slots", "mean", "limited"}
    assert api.calls[-1][:2] == ("DELETE", "/v1/sessions/s1")


def test_the_table(api: Api) -> None:
    shown = command("demo", "--rank", 0, "--size", "4KiB", "--dtype", "int32")
    assert re.search(r"job demo +┃ rank 0 of 1 ", shown)
    assert re.search(r"all-reduces +│ 10 of 1024 int32 \(4096 bytes\)", shown)
    for what in ("goodput", "packets sent, received", "retransmissions", "round trip", "packets in flight"):
        assert what in shown


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(7, 31), (0,), ()])
def test_files(api: Api, tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    # Numbers of few bits: exact in each of these dtypes.
    values = np.asarray(np.random.default_rng(1).integers(-100, 100, shape))
    np.save(tmp_path / "a.npy", np.array(values, dtype_of(dtype), order="F"))
    out = tmp_path / "b.npy"
    out.write_bytes(b"of before")
    given = ["--input", tmp_path / "a.npy", "--output", out, "--json"]
    if dtype in ("bfloat16", "float64"):
        given += ["--dtype", dtype]
    told = json.loads(command("demo", "--rank", 0, *given))
    assert (told["iters"], told["dtype"], told["output"]) == (1, dtype, str(out))
    got = np.load(out)
    assert got.shape == shape
    if dtype == "bfloat16":
        got = got.view(dtype_of(dtype))
    assert got.dtype == dtype_of(dtype)
    np.testing.assert_array_equal(got.astype(np.float64), values)
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*.part"))
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~mask


def test_an_input_file_is_not_read_into_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.float32))
    assert isinstance(read(tmp_path / "a.npy", None), np.memmap)


def test_a_file_may_be_summed_into_itself(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000, dtype=np.int32))
    (tmp_path / "link.npy").symlink_to(path)
    command("demo", "--rank", 0, "--input", path, "--output", tmp_path / "link.npy")
    np.testing.assert_array_equal(np.load(path), np.arange(1000))
    assert (tmp_path / "link.npy").is_symlink()


def test_what_fails_leaves_the_output_as_it_was(api: Api, tmp_path: Path) -> None:
    out = tmp_path / "b.npy"
    out.write_bytes(b"of before")
    np.save(tmp_path / "a.npy", np.array([1, np.nan], np.float32))
    words = ("demo", "--rank", 0, "--input", tmp_path / "a.npy", "--output", out)
    assert "NaN" in command(*words, code=7)
    assert out.read_bytes() == b"of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "controller.sock"]
    with pytest.raises(ZeroDivisionError), written(out, np.zeros(3)) as array:
        array[:] = 1 // 0
    assert out.read_bytes() == b"of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "controller.sock"]


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match=r"b.npy: 24 bytes cannot be written: No space left.*make room"):
        with written(tmp_path / "b.npy", np.zeros(3)):
            raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_at_the_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(FileError, match=r"b.npy: cannot be written: Input/output error; name another"):
        with written(tmp_path / "b.npy", np.zeros(3)):
            pass
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", np.zeros(100, np.float32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-1])
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "several.npz", a=np.zeros(1))
    (tmp_path / "not-zipped.npy").write_bytes(b"PK\x03\x04")
    for name, shape in (("open-ended", "(3,"), ("endless", f"({2**70},)}}")):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}\n".encode()
        (tmp_path / f"{name}.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header)
    os.mkfifo(tmp_path / "pipe.npy")
    np.save(tmp_path / "int64.npy", np.zeros(1, np.int64))
    np.save(tmp_path / "big-endian.npy", np.zeros(1, ">f4"))
    np.save(tmp_path / "float64.npy", np.zeros(1))
    np.save(tmp_path / "two-bytes.npy", np.zeros(1, "V2"))
    for name, dtype, said in (
        ("none.npy", None, "cannot be read: No such file"),
        ("cut.npy", None, "no whole .npy file of numbers; write it with numpy.save"),
        ("text.npy", None, "no whole .npy file of numbers"),
        ("empty.npy", None, "no whole .npy file of numbers"),
        ("several.npz", None, "no whole .npy file of numbers"),
        ("not-zipped.npy", None, "no whole .npy file of numbers"),
        ("open-ended.npy", None, "no whole .npy file of numbers"),
        ("endless.npy", None, "no whole .npy file of numbers"),
        ("pipe.npy", None, "no ordinary file; name another --input"),
        ("int64.npy", None, "holds int64 values; convert it to one of int32, float32, float16"),
        ("big-endian.npy", None, "holds >f4 values; convert"),
        ("float64.npy", None, "say --dtype float64"),
        ("two-bytes.npy", None, "if it is bfloat16, say --dtype bfloat16"),
        ("whole.npy", "int32", "holds float32 values, and --dtype says int32"),
    ):
        with pytest.raises(FileError, match=f"{name}: .*{re.escape(said)}") as caught:
            read(tmp_path / name, dtype)
        assert caught.value.exit_code == 2
    for path in (tmp_path, tmp_path / "no" / "b.npy", Path("/dev/null"), tmp_path / ("b" * 300)):
        with pytest.raises(FileError, match="name another --output"), written(path, np.zeros(1)):
            raise AssertionError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "64"], None),
        (["--size", "64MB"], "--size 64MB: a size is a number and B, KiB, MiB or GiB"),
        (["--size", "-1"], "--size -1: "),
        (["--size", "6"], "--size 6: float32 values have 4 bytes each"),
        (["--size", "9000000GiB"], "--size 9000000GiB: more than this machine's memory"),
        (["--dtype", "int8"], "--dtype int8: take one of int32, float32"),
        (["--op", "max"], "--op max: take one of sum, mean"),
        (["--op", "mean", "--dtype", "int32"], "--op mean: int32 values have none"),
        (["--size", "8", "--input", "a.npy"], "--size and --input: give one of them"),
    ],
)
def test_options(api: Api, words: list[str], said: str | None) -> None:
    if said is None:
        command("demo", "--rank", 0, *words)
    else:
        assert said in command("demo", "--rank", 0, *words, code=2)
        assert api.calls == []


@pytest.mark.parametrize("words", [[], ["--rank", "-1"], ["--rank", "0", "--iters", "0"], ["--rank", "x"]])
def test_usage(words: list[str]) -> None:
    command("demo", *words, code=2)


def test_sizes() -> None:
    assert [bytes_of(size) for size in ("0", "7B", "4KiB", "64MiB", "1GiB")] == [0, 7, 4096, 2**26, 2**30]


def test_what_refuses_the_rank(api: Api) -> None:
    assert "has no rank 3" in command("demo", "--rank", 3, code=8)
    api.refusals = [refused(409, "RankTakenError", "rank 0 of job demo is held by a worker on h1")]
    assert "held by a worker" in command("demo", "--rank", 0, code=8)
    api.job = refused(404, "NoSuchJobError", "there is no job demo")
    assert "there is no job demo" in command("demo", "--rank", 0, code=8)


def test_nobody_else_comes(api: Api) -> None:
    api.told = [{"do": "nothing"}] * 1000
    assert "missing: rank 0 (host h1)" in command("demo", "--rank", 0, "--timeout", 0.2, code=5)


def interrupted(*words: object) -> str:
    """Run `worker run`, which an interrupt ends; return what it says of that."""
    done = CliRunner().invoke(app, ["run", *map(str, words)])
    assert (done.exit_code, done.stdout) == (130, "")
    return done.stderr


def test_an_interrupt_says_how_far_it_was(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = _Drawn.progress

    def interrupt(self: _Drawn, iteration: int, done: int, elements: int) -> None:
        progress(self, iteration, done, elements)
        if iteration == 2 and done == elements:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_Drawn, "progress", interrupt)
    said = interrupted("demo", "--rank", 0, "--iters", 5, "--json")
    assert said == "stopped: rank 0 of 1 was in all-reduce 3 of 5 (100% summed), and has left job demo\n"
    assert api.calls[-1][:2] == ("DELETE", "/v1/sessions/s1")


def test_an_interrupt_while_others_are_missing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = api.answer

    def interrupt(method: str, path: str, body: Any) -> Any:
        if path.endswith("/sync"):
            os.kill(os.getpid(), signal.SIGINT)
            return 200, {"do": "nothing"}
        return answer(method, path, body)

    monkeypatch.setattr(api, "answer", interrupt)
    said = interrupted("demo", "--rank", 0)  # among what the server says of a caller that is gone
    assert "stopped: this rank was waiting for the other ranks, and has left job demo\n" in said


def test_every_error_has_a_code_that_the_help_tells() -> None:
    shown = CliRunner().invoke(app, ["run", "--help"]).output
    for code, why in CODES.items():
        assert code in shown
        assert why[:20] in shown
    errors = [getattr(worker, name) for name in worker.__all__ if name.endswith("Error")]
    codes = {error.__name__: error.exit_code for error in [*errors, OptionError, FileError, RefusedError]}
    assert set(map(str, codes.values())) <= set(CODES)
    assert (MismatchError.exit_code, StalledError.exit_code, codes["WorkerLostError"]) == (3, 5, 4)
    assert [codes[f"{name}Error"] for name in ("RendezvousTimeout", "JobRemoved", "NonFinite")] == [5, 6, 7]


def test_the_page_tells_the_codes_and_the_options() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "workers.md").read_text()
    table = re.findall(r"^\| (`\w+Error`.*?) \|.* (\d) \|$", page, re.MULTILINE)
    told = {name: int(code) for names, code in table for name in re.findall(r"`(\w+)`", names)}
    own = {name for name in worker.__all__ if name.endswith("Error") and getattr(worker, name).exit_code != 1}
    assert told == {name: getattr(worker, name).exit_code for name in own}
    shown = CliRunner().invoke(app, ["run", "--help"]).output
    for line in re.findall(r"p4reduce worker run (.*)$", page, re.MULTILINE):
        for option in re.findall(r"--[a-z]+", line):
            assert option in shown
    for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL):
        compile(block, "workers.md", "exec")
