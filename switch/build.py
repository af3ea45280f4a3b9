# SPDX-License-Identifier: Apache-2.0
"""C source -> shared object, compiled once: the cache is keyed by everything that went into it.

The cache folder holds code that we load, so it must be ours alone: created with mode 0700, refused when it
belongs to someone else or others may write to it. Files appear by an atomic rename, so that two processes
that compile the same program at once both get a whole one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from switch.errors import BuildError

RUNTIME = Path(__file__).parent / "runtime"
RUNTIME_SOURCES = ("core.c", "tables.c", "hash.c")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-g1",
         "-Wall", "-Wextra", "-Wno-unused-label", "-Wno-logical-not-parentheses")  # fmt: skip
TIMEOUT = 300.0


def compiler() -> str:
    """Path of the C compiler: $CC, else cc. Raises `BuildError` with the remedy when there is none."""
    name = os.environ.get("CC") or "cc"
    path = shutil.which(name)
    if path is None:
        raise BuildError(f"no C compiler {name!r}: install one (Debian, Ubuntu: apt install gcc libc6-dev)")
    return path


def cache_folder() -> Path:
    """The owner-only folder of compiled programs. Raises `BuildError` when it cannot be trusted."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "p4reduce"
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


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"compiling {what} took more than {TIMEOUT:.0f} s") from None
    except OSError as e:
        raise BuildError(f"cannot run {command[0]}: {e}") from e
    if done.returncode != 0:
        raise BuildError(f"compiling {what} failed:\n{done.stderr[-4000:]}")


def _into_cache(target: Path, make: list[str], what: str) -> None:
    """Run a compiler command whose output is put in place of `{out}`, then rename it to `target`."""
    try:
        fd, name = tempfile.mkstemp(suffix=target.suffix, dir=target.parent)
        os.close(fd)
    except OSError as e:
        raise BuildError(f"cannot write to the cache folder {target.parent}: {e}") from e
    try:
        _run([name if a == "{out}" else a for a in make], what)
        os.replace(name, target)
    except OSError as e:
        raise BuildError(f"cannot write {target}: {e}") from e
    finally:
        Path(name).unlink(missing_ok=True)


def _version(cc: str) -> str:
    """The compiler's own account of itself."""
    try:
        return subprocess.run(
            [cc, "--version"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BuildError(f"cannot run {cc}: {e}") from e


def build(source: str, *, extra_flags: Sequence[str] = ()) -> Path:
    """Compile a generated program with the runtime; the shared object, from the cache where it can.

    `extra_flags` go to every compiler call (tests: -fsanitize=undefined). Raises `BuildError`.
    """
    cc, folder = compiler(), cache_folder()
    flags = [*FLAGS, *extra_flags]
    headers: list[bytes] = [p.read_bytes() for p in sorted(RUNTIME.glob("*.h"))]
    sources = [(RUNTIME / name).read_bytes() for name in RUNTIME_SOURCES]
    common: list[bytes | str] = [_version(cc), _machine(), " ".join(flags), *headers]
    target = folder / f"program-{_digest([*common, *sources, source])}.so"
    if target.exists():
        return target
    objects = []
    for name, text in zip(RUNTIME_SOURCES, sources, strict=True):
        obj = folder / f"{Path(name).stem}-{_digest([*common, text])}.o"
        if not obj.exists():
            _into_cache(obj, [cc, *flags, "-c", str(RUNTIME / name), "-o", "{out}"], name)
        objects.append(str(obj))
    text_file = target.with_suffix(".c")
    part = text_file.with_suffix(f".{os.getpid()}.c")
    try:
        part.write_text(source)
        os.replace(part, text_file)
    except OSError as e:
        raise BuildError(f"cannot write {text_file}: {e}") from e
    command = [cc, *flags, f"-I{RUNTIME}", "-shared", "-Wl,-Bsymbolic", str(text_file), *objects, "-lpthread"]
    _into_cache(target, [*command, "-o", "{out}"], "the program")
    return target
