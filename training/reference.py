# SPDX-License-Identifier: Apache-2.0
"""`python -m training.reference PLAN`: the same training in one process, its accuracy on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from types import TracebackType

from wire.errors import P4ReduceError

from .data import Digits
from .loop import Plan, reference_accuracy

LIMIT_S = 300.0
_SAID = 2000


class OneProcessError(P4ReduceError):
    """The training in one process did not end well; carries what it said."""

    def __init__(self, said: str) -> None:
        super().__init__(f"the reference training in one process failed:\n{said[-_SAID:].rstrip()}")
        self.said = said


class Reference:
    """The reference training as a process beside the run. Use as a context manager: it always ends."""

    def __init__(self, plan: Plan) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "training.reference", json.dumps(asdict(plan))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",  # not the user's folder: python -m would import its modules before ours
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for us: we end it
        )

    def accuracy(self) -> float:
        """Wait for the end and return the accuracy, 0..1. Raises OneProcessError."""
        try:
            out, said = self._child.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise OneProcessError(f"it was not done in {LIMIT_S:g} s") from None
        if self._child.returncode != 0:
            raise OneProcessError(said)
        return float(out)

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()


if __name__ == "__main__":
    os.nice(10)
    given = Plan(**json.loads(sys.argv[1]))
    print(reference_accuracy(given, Digits.load(given.seed)))
