# SPDX-License-Identifier: Apache-2.0
"""Other people's P4Runtime clients drive the switch: p4runtime-shell's shell, and finsy."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.switch.p4rt import FIXTURES, Served, ethernet
from tests.switch.test_notify import frame

CLIENTS = Path(__file__).parent / "clients"
FINSY = "finsy==0.30.0"
LIMIT_S = 60.0


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def talk(
    served: Served, python: Path, client: str, programs: tuple[str, str], frames: list[bytes]
) -> list[str]:
    """Run a client to its end; what it printed. At each `ready` a frame arrives on port 2."""
    files = [str(FIXTURES / f"{name}{suffix}") for name in programs for suffix in (".p4info.txtpb", ".json")]
    command = [str(python), str(CLIENTS / client), served.address, *files]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        watch = threading.Timer(LIMIT_S, process.kill)
        watch.start()
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                if line == "ready\n":
                    served.receive(2, frames.pop(0))
                else:
                    lines.append(line.rstrip("\n"))
            code = process.wait(LIMIT_S)
            log.seek(0)
            assert code == 0, log.read()
            return lines
        finally:
            watch.cancel()
            process.kill()


def test_p4runtime_shell(served: Served) -> None:
    said = talk(served, Path(sys.executable), "shell.py", ("forward", "groups"), [ethernet(9)])
    assert said == [
        "entry 05",
        "group [(1, 1), (2, 2)]",
        f"packet {9:012x} ['02', '02', '00']",
        "counter 1",
        "members [(1, 1), (2, 2)]",
        "one-shot [2]",
    ]
    assert served.out == [(3, b"payload")]


@pytest.fixture(scope="module")
def finsy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with finsy in it."""
    folder = tmp_path_factory.mktemp("finsy")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", FINSY], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        pytest.skip(f"pip cannot install {FINSY}: {done.stderr.strip()[-300:]}")
    return python


@pytest.mark.slow
def test_finsy(served: Served, finsy: Path) -> None:
    frames = [ethernet(9), frame(src=0xABCDEF), frame(src=0xABCDEF)]
    said = talk(served, finsy, "finsy_client.py", ("forward", "notify"), frames)
    assert said == [
        "entry {'dst': 5} {'port': 4}",
        "entry {'dst': 9} {'reason': 2}",
        "group 2",
        f"packet {9:012x} {{'ingress_port': 2, 'reason': 2, 'pad': 0}}",
        "counter 1",
        "left []",
        f"digest {0xABCDEF}",
        "idle {'src': 5}",
    ]
    assert served.out[0] == (3, b"payload")
