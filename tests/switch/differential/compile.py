# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.switch.differential.compile [NAME...]`: compile the programs beside it with p4c."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
INCLUDED = ("common", "plain")
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.p4") if path.stem not in INCLUDED)
# What these warn of is tested on purpose.
QUIET = ("overflow", "mismatch", "unsupported")


def without_sources(node: Any) -> Any:
    """The same JSON without `source_info`, which is most of it and changes nothing."""
    if isinstance(node, dict):
        return {key: without_sources(value) for key, value in node.items() if key != "source_info"}
    return [without_sources(value) for value in node] if isinstance(node, list) else node


def compile_program(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "program.json"
        info = PROGRAMS / f"{name}.p4info.txtpb"
        command = [
            *("p4c-bm2-ss", "--std", "p4-16", *(f"--Wdisable={kind}" for kind in QUIET)),
            *("-o", str(made), "--p4runtime-files", str(info), f"{name}.p4"),
        ]
        subprocess.run(command, cwd=PROGRAMS, check=True, timeout=600)
        program = without_sources(json.loads(made.read_text()))
        program["program"] = f"{name}.p4"
        text = json.dumps(program, separators=(",", ":"))
        (PROGRAMS / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        print(chosen, flush=True)
        compile_program(chosen)
