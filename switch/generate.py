# SPDX-License-Identifier: Apache-2.0
"""bmv2 JSON -> its `ir.Program` and C, both kept in the cache folder: to make them takes its time."""

from __future__ import annotations

import contextlib
import hashlib
import pickle

from switch import ir, sources
from switch.emit import emit_program
from switch.errors import BuildError
from switch.load import load_program
from wire import native

VERSION = sources.version()
"""Asked now that all is imported, once: each of its files that is read waits for busy Python threads."""


def generate(text: str | bytes, *, trace: bool = False) -> tuple[ir.Program, str]:
    """The program and the C of it, see `load_program` and `emit_program`.

    Raises `LoadError`, and `BuildError` for a cache folder that cannot be trusted.
    """
    if VERSION is None:
        return _generate(text, trace)
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    name = f"program-{hashlib.sha256(f'{VERSION} {trace} '.encode() + data).hexdigest()[:32]}.pickle"
    try:
        kept = native.recall(name)
        if kept is not None:
            program, code = pickle.loads(kept)  # as trusted as the shared objects beside it
            return program, code
        made = _generate(text, trace)
        with contextlib.suppress(RecursionError):  # expressions that are nested deeply are not kept
            native.remember(name, pickle.dumps(made))
    except native.BuildError as e:
        raise BuildError(str(e)) from e
    return made


def _generate(text: str | bytes, trace: bool) -> tuple[ir.Program, str]:
    program = load_program(text)
    return program, emit_program(program, trace=trace)
