# SPDX-License-Identifier: Apache-2.0
"""`make p4`: compile every form of the program with p4c, and stamp the result with its sources."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from p4src.forms import COMPILED, FORMS, STAMP, Form
from wire.errors import P4ReduceError
from wire.verdicts import p4_constants

SOURCES = Path(__file__).parent
PROGRAM = "p4reduce.p4"
COMPILE_SECONDS = 600


class CompileError(P4ReduceError):
    """p4c is missing or refused a form; carries what it printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message + (f"\n{output}" if output else ""))
        self.output = output


def source_hash() -> str:
    """Return the SHA-256 over names and texts of all .p4 sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.p4")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def out_of_date() -> bool:
    """Say whether the .p4 sources are others than those that compiled/ was made of."""
    stamp: dict[str, str] = json.loads(STAMP.read_text())
    return stamp["sources_sha256"] != source_hash()


def p4c_version(p4c: str) -> str:
    """Return the version that a p4c command says it has."""
    said = subprocess.run([p4c, "--version"], capture_output=True, text=True, timeout=30)
    version = re.search(r"Version (\S+)", said.stdout + said.stderr)
    return version[1] if version else "unknown"


def compile_form(form: Form, p4c: str, folder: Path) -> tuple[str, str]:
    """Compile one form; return minified bmv2 JSON and P4Info text. Raises CompileError."""
    base = folder / form.name
    command = [
        p4c,
        *("--std", "p4-16", f"-DELEMENTS={form.elements}", f"-DSLOTS={form.slots}"),
        *("-o", f"{base}.json", "--p4runtime-files", f"{base}.p4info.txtpb", PROGRAM),
    ]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    if done.returncode != 0 or done.stderr.strip():
        raise CompileError(f"p4c refused {PROGRAM} as {form.name}:", done.stderr)
    program = json.loads(Path(f"{base}.json").read_text())
    return json.dumps(program, separators=(",", ":")) + "\n", Path(f"{base}.p4info.txtpb").read_text()


def compile_all() -> None:
    """Write p4src/verdicts.p4 and all of p4src/compiled/; nothing is replaced unless all forms compile."""
    p4c = shutil.which("p4c-bm2-ss")
    if p4c is None:
        raise CompileError(
            "p4c-bm2-ss is not on PATH: install p4lang's p4c package (see README.md), or use compiled/"
        )
    (SOURCES / "verdicts.p4").write_text(p4_constants())
    made: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            print(f"p4c: {form.name}", flush=True)
            made[form.json_path.name], made[form.p4info_path.name] = compile_form(form, p4c, Path(folder))
    stamp = {
        "sources_sha256": source_hash(),
        "p4c": p4c_version(p4c),
    }
    made[STAMP.name] = json.dumps(stamp, indent=1) + "\n"
    COMPILED.mkdir(exist_ok=True)
    for name, text in made.items():
        (COMPILED / name).write_text(text)
    print(f"wrote {len(made)} files to {COMPILED}")


if __name__ == "__main__":
    try:
        compile_all()
    except P4ReduceError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
