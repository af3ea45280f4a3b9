# SPDX-License-Identifier: Apache-2.0
"""What `p4reduce worker run` does: sums one array over the ranks of a job, as often as told, and measures.

It checks no sum: what the other ranks contribute it cannot know.

1. An input file is memory-mapped, and read once by each all-reduce: it may be larger than the memory.
2. An output file appears whole or not at all: it is written beside its place, synced, and renamed there. Its
   blocks are reserved before anything begins, so that a full disk is an error and not a signal.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .calls import DTYPES, OPS
from .errors import WorkerError
from .join import join
from .stats import Stats

UNITS = {"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
"""Of sizes, as powers of two."""
RANDOM_BYTES = 1 << 20
"""Of random values in a generated array, which repeats them."""


class OptionError(WorkerError):
    """A command that cannot be run as it was typed; `what` is the part at fault."""

    exit_code = 2

    def __init__(self, what: str, message: str) -> None:
        self.what = what
        super().__init__(f"{what}: {message}")


class FileError(WorkerError):
    """A file that cannot be read or written; `path` names it."""

    exit_code = 2

    def __init__(self, path: Path, message: str) -> None:
        self.path = path
        super().__init__(f"{path}: {message}")


@dataclass(frozen=True)
class Options:
    """What is summed, and how often."""

    job: str
    rank: int
    net: str | None
    size: str | None
    """Of a generated array, as 64MiB; None where `input` is given."""
    input: Path | None
    output: Path | None
    iters: int
    dtype: str | None
    op: str
    timeout: float


@dataclass
class Outcome:
    """What a run did. `stats` are of its all-reduces, `seconds` how long each took."""

    n: int
    window: int
    elements: int
    dtype: str
    bytes: int
    seconds: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def goodput(self) -> float:
        """Bits of the array a second, over all iterations."""
        return 8 * self.bytes * len(self.seconds) / max(1e-9, sum(self.seconds))


class Watch(Protocol):
    """Told of what happens."""

    def joined(self, rank: int, n: int) -> None:
        """All ranks are there."""

    def progress(self, iteration: int, done: int, elements: int) -> None:
        """Tell how many values of an iteration's are summed."""


def run(options: Options, watch: Watch) -> Outcome:
    """Join the job, sum, and leave it, however it ends. Raises OptionError, FileError, and as `join`."""
    if options.op not in OPS:
        raise OptionError(f"--op {options.op}", f"take one of {', '.join(OPS)}")
    array = read(options.input, options.dtype) if options.input is not None else made(options)
    if options.op == "mean" and array.dtype == np.int32:
        raise OptionError("--op mean", "int32 values have none: take --op sum, or floats")
    with written(options.output, array) as out:
        with join(
            options.job,
            options.rank,
            net=options.net,
            timeout=options.timeout,
            call_timeout=options.timeout,
        ) as worker:
            member = worker.membership
            watch.joined(member.rank, member.n)
            outcome = Outcome(member.n, member.window, array.size, array.dtype.name, array.nbytes)
            before = worker.stats.copy()
            for iteration in range(options.iters):

                def progress(done: int, elements: int, iteration: int = iteration) -> None:
                    watch.progress(iteration, done, elements)

                begun = time.perf_counter()
                worker.all_reduce(array, options.op, out=out, cast=True, progress=progress)
                outcome.seconds.append(time.perf_counter() - begun)
            outcome.stats = worker.stats.since(before)
    return outcome


def bytes_of(size: str) -> int:
    """Return a size as 64MiB or 4096 in bytes."""
    found = re.fullmatch(r"(\d{1,15})([A-Za-z]*)", size)
    if found is None or found[2] not in UNITS:
        raise OptionError(f"--size {size}", "a size is a number and B, KiB, MiB or GiB, as 64MiB")
    return int(found[1]) << UNITS[found[2]]


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name; OptionError for one that is not summed."""
    if name not in DTYPES:
        raise OptionError(f"--dtype {name}", f"take one of {', '.join(DTYPES)}")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise OptionError("--dtype bfloat16", "it needs a package: pip install ml_dtypes") from None
    found: np.dtype[Any] = np.dtype(bfloat16)
    return found


def made(options: Options) -> NDArray[Any]:
    """Return an array of the size and dtype asked for, with values of the rank's own."""
    assert options.size is not None
    dtype, size = dtype_of(options.dtype or "float32"), bytes_of(options.size)
    count, rest = divmod(size, dtype.itemsize)
    if rest:
        raise OptionError(f"--size {options.size}", f"{dtype} values have {dtype.itemsize} bytes each")
    draw = np.random.default_rng(options.rank)
    some = RANDOM_BYTES // dtype.itemsize
    values = (
        draw.integers(-(2**31), 2**31, some, dtype=np.int32)
        if dtype == np.int32
        else draw.standard_normal(some).astype(dtype)
    )
    try:
        return np.resize(values, count)
    except MemoryError:
        raise OptionError(
            f"--size {options.size}", "more than this machine's memory; an --input file may be larger"
        ) from None


def read(path: Path, dtype: str | None) -> NDArray[Any]:
    """Return a .npy file's array, memory-mapped; its dtype must be `dtype` if one is given."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise FileError(path, "is no ordinary file; name another --input")
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}; give another --input") from error
    except WorkerError:
        raise
    except Exception as error:  # a header may hold anything, and numpy raises what it comes upon
        raise FileError(path, "is no whole .npy file of numbers; write it with numpy.save") from error
    wanted = None if dtype is None else dtype_of(dtype)
    if wanted is not None and wanted.name == "bfloat16" and array.dtype == np.dtype("V2"):
        return array.view(wanted)  # numpy's files do not name it
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        also = "; if it is bfloat16, say --dtype bfloat16" if array.dtype == np.dtype("V2") else ""
        kinds = ", ".join(name for name in DTYPES if name not in ("float64", "bfloat16"))
        raise FileError(path, f"holds {array.dtype} values; convert it to one of {kinds}{also}")
    if array.dtype == np.float64 and wanted is None:
        raise FileError(
            path, "holds float64 values, which are summed as float32; say --dtype float64 if that will do"
        )
    if wanted is not None and array.dtype != wanted:
        raise FileError(path, f"holds {array.dtype} values, and --dtype says {dtype}; leave --dtype out")
    return array


@contextmanager
def written(path: Path | None, like: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array to sum into; if the block ends well it is in the .npy file `path`, if one is given."""
    if path is None:
        yield np.empty(like.shape, like.dtype)
        return
    path = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():
            raise FileError(path, "is no ordinary file; name another --output")
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}; name another --output") from error
    part = Path(name)
    try:
        with os.fdopen(handle, "r+b") as file:
            try:
                out = _mapped(part, like)
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
            except OSError as error:
                raise FileError(
                    path,
                    f"{like.nbytes} bytes cannot be written: {error.strerror}; make room, or name another "
                    "--output",
                ) from error
            yield out.view(like.dtype)
            try:
                out.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), _mode())
                part.replace(path)
            except OSError as error:
                raise FileError(
                    path, f"cannot be written: {error.strerror}; name another --output"
                ) from error
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _mapped(part: Path, like: NDArray[Any]) -> np.memmap[Any, Any]:
    dtype = np.dtype("V2") if like.dtype.name == "bfloat16" else like.dtype
    return np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=like.shape)


def _mode() -> int:
    """Return the mode of a new file."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
