# SPDX-License-Identifier: Apache-2.0
"""C source -> shared object, compiled once: the cache is keyed by everything that went into it.

The cache folder holds code that we load, so it must be ours alone: created with mode 0700, refused when it
belongs to someone else or others may write to it. Files appear by an atomic rename, so that two processes
that compile the same program at once both get a whole one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .errors import P4ReduceError

FLAGS: tuple[str, ...] = (
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-g1"),
    *("-Wall", "-Wextra"),
    # C that calls what has another type now would run, and crash
    *(f"-Werror={what}" for what in ("incompatible-pointer-types", "int-conversion", "implicit")),
)
TIMEOUT = 300.0
"""Seconds that one call of the compiler may take."""
KEPT_BYTES = 512 << 20
"""Of the cache folder; what was used least recently goes first."""
FRESH_S = 3600.0
"""What was used within the last hour stays in any case: a process may be about to load it."""
PART = ".part"
"""Ends what is being written, and what was when its process was killed."""
KEPT_SUFFIXES = (".so", ".o", ".c", ".pickle")
DIGEST_BYTES = hashlib.sha256().digest_size


class BuildError(P4ReduceError):
    """The C compiler is missing, failed, or the cache folder cannot be trusted."""


def compiler() -> list[str]:
    """The C compiler's command: $CC (several words, as in make: "ccache gcc", "gcc -m64"), else cc.

    Raises `BuildError` with the remedy when there is none.
    """
    name = os.environ.get("CC", "")
    try:
        words = shlex.split(name) or ["cc"]
    except ValueError as e:
        raise BuildError(f"CC={name!r} is not a command ({e}): set it as in CC='ccache gcc'") from e
    path = shutil.which(words[0])
    if path is None:
        raise BuildError(
            f"no C compiler {words[0]!r}: install one (Debian, Ubuntu: apt install gcc libc6-dev)"
        )
    return [path, *words[1:]]


def cache_folder() -> Path:
    """The owner-only folder of compiled programs. Raises `BuildError` when it cannot be trusted."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "p4reduce"
    except RuntimeError:  # a user whom no passwd entry and no HOME give one, as in containers
        raise BuildError(
            f"user {os.geteuid()} has no home folder for a cache: set XDG_CACHE_HOME to a folder of yours"
        ) from None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as e:
        raise BuildError(
            f"cannot use the cache folder {folder}: {e}; set XDG_CACHE_HOME to a folder of yours"
        ) from e
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise BuildError(
            f"the cache folder {folder} is not ours alone "
            f"(owner {info.st_uid}, mode {info.st_mode & 0o7777:o}): "
            "remove it, or set XDG_CACHE_HOME to a folder of yours"
        )
    return folder


def _machine() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _digest(parts: Sequence[bytes | str]) -> str:
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()[:32]


def _run(command: list[str], what: str, folder: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"compiling {what} took more than {TIMEOUT:.0f} s") from None
    except OSError as e:
        raise BuildError(f"cannot run {command[0]}: {e}") from e
    if done.returncode != 0 and os.strerror(errno.ENOSPC) in done.stderr:
        raise BuildError(
            f"compiling {what} failed: no space left in {folder} or {tempfile.gettempdir()}; make room, "
            "or set XDG_CACHE_HOME and TMPDIR to other folders"
        )
    if done.returncode != 0:
        raise BuildError(f"compiling {what} failed:\n{done.stderr[-4000:]}")


def recall(name: str) -> bytes | None:
    """What `remember` kept under this file name; None where it did not, or the file is damaged.

    Raises `BuildError` when the cache folder cannot be trusted.
    """
    path = cache_folder() / name
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    _used(path)
    digest, data = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
    return data if _seal(name, data) == digest else None


def _seal(name: str, data: bytes) -> bytes:
    """What tells whether a file is whole, and the one of this name."""
    return hashlib.sha256(name.encode() + b"\0" + data).digest()


def remember(name: str, data: bytes) -> None:
    """Keep what can be made again: where there is no room, it is not kept.

    Raises `BuildError` when the cache folder cannot be trusted.
    """
    folder = cache_folder()
    with contextlib.suppress(OSError):
        fd, part = tempfile.mkstemp(suffix=PART, dir=folder)
        try:
            with open(fd, "wb") as file:
                file.write(_seal(name, data) + data)
            os.replace(part, folder / name)
        finally:
            Path(part).unlink(missing_ok=True)


def _into_cache(target: Path, make: list[str], what: str) -> None:
    """Run a compiler command whose output is put in place of `{out}`, then rename it to `target`."""
    try:
        fd, name = tempfile.mkstemp(suffix=PART, dir=target.parent)
        os.close(fd)
    except OSError as e:
        raise BuildError(f"cannot write to the cache folder {target.parent}: {e}") from e
    try:
        _run([name if a == "{out}" else a for a in make], what, target.parent)
        os.replace(name, target)
    except OSError as e:
        raise BuildError(f"cannot write {target}: {e}") from e
    finally:
        Path(name).unlink(missing_ok=True)


def _version(cc: Sequence[str]) -> str:
    """The compiler's own account of itself."""
    try:
        return subprocess.run(
            [*cc, "--version"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BuildError(f"cannot run {shlex.join(cc)}: {e}") from e


def library(
    name: str,
    what: str,
    sources: Sequence[Path],
    *,
    flags: Sequence[str] = FLAGS,
    include: Path | None = None,
    text: str = "",
) -> Path:
    """Compile C files, and a generated `text` with them, to a shared object, from the cache where it can.

    `name` begins the object's file name, `what` is what errors call it. Each of `sources` is an object of its
    own in the cache, which other texts share. All may include the headers of the folder `include`. `flags` go
    to every compiler call. Raises `BuildError`.
    """
    cc, folder = compiler(), cache_folder()
    headers = [p.read_bytes() for p in sorted(include.glob("*.h"))] if include is not None else []
    common: list[bytes | str] = [_version(cc), _machine(), shlex.join([*cc, *flags]), *headers]
    contents = [p.read_bytes() for p in sources]
    target = folder / f"{name}-{_digest([*common, *contents, text])}.so"
    if target.exists():
        _used(target)
        return target
    command = [*cc, *flags, *([f"-I{include}"] if include is not None else [])]
    with _turn(folder):
        if not target.exists():
            _compile(target, what, command, dict(zip(sources, contents, strict=True)), common, text)
            _tidy(folder)
    return target


def _used(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)


def _tidy(folder: Path) -> None:
    """Make the folder smaller than KEPT_BYTES, where it can; once an hour is enough."""
    now, mark = time.time(), folder / "tidied"
    with contextlib.suppress(OSError):
        if 0 <= now - mark.stat().st_mtime < FRESH_S:
            return
    with contextlib.suppress(OSError):
        mark.touch(mode=0o600)
        groups: dict[str, list[tuple[float, int, str]]] = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, dot, suffix = entry.name.rpartition(".")
                if dot + suffix not in (*KEPT_SUFFIXES, PART) or not entry.is_file(follow_symlinks=False):
                    continue
                info = entry.stat(follow_symlinks=False)
                if dot + suffix != PART:
                    groups.setdefault(stem, []).append((info.st_mtime, info.st_size, entry.path))
                elif now - info.st_mtime >= FRESH_S:
                    os.unlink(entry.path)
        size = sum(bytes_ for group in groups.values() for _, bytes_, _ in group)
        for group in sorted(groups.values(), key=max):
            if size <= KEPT_BYTES or now - max(group)[0] < FRESH_S:
                break
            for _, bytes_, path in group:
                os.unlink(path)
                size -= bytes_


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Let one process of many compile, since they mostly want the same; after TIMEOUT it would do no harm."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError as e:
        raise BuildError(f"cannot use the cache folder {folder}: {e}") from e
    try:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _compile(
    target: Path,
    what: str,
    command: list[str],
    sources: dict[Path, bytes],
    common: list[bytes | str],
    text: str,
) -> None:
    folder = target.parent
    jobs, parts = [], []
    for source, content in sources.items():
        obj = folder / f"{source.stem}-{_digest([*common, content])}.o"
        parts.append(str(obj))
        if obj.exists():
            _used(obj)
        else:
            jobs.append((obj, [*command, "-c", str(source), "-o", "{out}"], source.name))
    with ThreadPoolExecutor(max(len(jobs), 1)) as pool:
        list(pool.map(lambda job: _into_cache(*job), jobs))
    if text:
        parts.insert(0, str(_text_file(target.with_suffix(".c"), text)))
    _into_cache(target, [*command, "-shared", "-Wl,-Bsymbolic", *parts, "-lpthread", "-o", "{out}"], what)


def load(path: Path) -> ctypes.CDLL:
    """Load what `library` made. Raises `BuildError`."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        raise BuildError(f"cannot load {path}: {e}; remove it, and it will be compiled again") from e


def _text_file(path: Path, text: str) -> Path:
    """The generated text as a file that stays: debuggers and sanitizers name its lines."""
    part = path.with_suffix(f".{os.getpid()}{PART}")
    try:
        part.write_text(text)
        os.replace(part, path)
    except OSError as e:
        raise BuildError(f"cannot write {path}: {e}") from e
    return path
