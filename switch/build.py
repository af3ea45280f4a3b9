# SPDX-License-Identifier: Apache-2.0
"""Generated programs and the runtime -> shared objects, by wire.native."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from switch.errors import BuildError
from wire import native

RUNTIME = Path(__file__).parent / "runtime"
RUNTIME_SOURCES = (
    *("core.c", "batch.c", "tables.c", "slices.c", "trace.c", "profiles.c", "hash.c", "alike.c"),
)
FLAGS: tuple[str, ...] = (*native.FLAGS, "-Wno-unused-label", "-Wno-logical-not-parentheses")
# Of fields that were just stored one by one, no vectors: they would have to wait for the stores.
PROGRAM_FLAGS = ("-fno-tree-slp-vectorize",)


def library(
    name: str, what: str, sources: Sequence[Path], *, text: str = "", extra_flags: Sequence[str] = ()
) -> Path:
    """Compile C files that may include the headers of `RUNTIME`, as `wire.native.library`.

    `extra_flags` go to every compiler call (tests: -fsanitize=undefined). Raises `BuildError`.
    """
    flags = [*FLAGS, *extra_flags]
    try:
        return native.library(name, what, sources, flags=flags, include=RUNTIME, text=text)
    except native.BuildError as e:
        raise BuildError(str(e)) from e


def build(source: str, *, extra_flags: Sequence[str] = ()) -> Path:
    """Compile a generated program with the runtime; the shared object. Raises `BuildError`; see `library`."""
    sources = [RUNTIME / name for name in RUNTIME_SOURCES]
    flags = [*PROGRAM_FLAGS, *extra_flags]
    return library("program", "the program", sources, text=source, extra_flags=flags)
