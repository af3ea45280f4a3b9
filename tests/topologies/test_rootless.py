# SPDX-License-Identifier: Apache-2.0
"""Networks without root: as root these tests become an ordinary user, who has no rights of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller import cli
from topologies import doctor, rootless
from topologies.errors import RootlessError

ROOT = Path(__file__).resolve().parents[2]
ORDINARY = 54321
"""A uid that nobody has."""
ENTER = "import sys; from topologies import rootless; sys.argv[1:] = {}; sys.exit(rootless.main())"
P4REDUCE = "import sys; from controller.cli import main; sys.argv[1:] = {}; main()"
SITES = [path for path in sys.path if path]


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the ordinary user's, reachable for it (pytest's own folders are root's alone)."""
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as folder:
        try:
            os.chown(folder, ORDINARY, ORDINARY)
        except OSError:
            pytest.skip("only the machine's root can become an ordinary user")
        yield Path(folder)


def _reachable() -> bool:
    """Say whether an ordinary user may read the program and Python's packages."""
    for path in [Path(sys.executable).resolve(), ROOT / "topologies", *map(Path, SITES)]:
        for folder in [path, *path.parents]:
            if folder.exists() and not folder.stat().st_mode & 0o001:
                return False
    return True


def ordinary(home: Path, code: str) -> subprocess.Popen[str]:
    """Start Python code as an ordinary user; the caller waits for it."""
    if not _reachable():
        pytest.skip("an ordinary user may not read this folder, or this Python")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *SITES]),
    }
    return subprocess.Popen(
        [sys.executable, "-B", "-c", code],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        user=ORDINARY,
        group=ORDINARY,
        extra_groups=[],
    )


def result(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture
def possible(home: Path) -> None:
    """Skip where the kernel refuses user namespaces."""
    code, out, err = result(ordinary(home, "from topologies.rootless import refusal; print(refusal())"))
    assert (code, err) == (0, "")
    if out != "None\n":
        pytest.skip(out.strip())


@pytest.mark.usefixtures("possible")
def test_a_command_is_root_in_namespaces_of_its_own(home: Path) -> None:
    script = "id -u; ls /sys/class/net; ls -A /run/p4reduce; touch /run/p4reduce/x made; pwd; exit 7"
    code, out, err = result(ordinary(home, ENTER.format(["sh", "-c", script])))
    assert (code, err) == (7, "")
    assert out.split() == ["0", "lo", ".rootless", str(home)]
    assert not Path("/run/p4reduce/x").exists()
    assert (home / "made").stat().st_uid == ORDINARY


@pytest.mark.usefixtures("possible")
def test_the_next_command_is_in_the_same_ones_and_nothing_is_left(home: Path) -> None:
    show = "readlink /proc/self/ns/user /proc/self/ns/mnt /proc/self/ns/net"
    first = ordinary(home, ENTER.format(["sh", "-c", f"{show}; echo ready; exec sleep 60"]))
    try:
        assert first.stdout is not None
        theirs = [first.stdout.readline() for _ in range(4)]
        assert theirs.pop() == "ready\n"
        assert result(ordinary(home, ENTER.format(["sh", "-c", show])))[1].splitlines(True) == theirs
        # A command that makes no network goes there too.
        joins = "from topologies import rootless; print(rootless.enter(make=False), rootless.inside())"
        assert result(ordinary(home, joins)) == (0, "True True\n", "")
    finally:
        first.send_signal(signal.SIGTERM)
        assert result(first)[0] == -signal.SIGTERM
    assert result(ordinary(home, joins)) == (0, "False False\n", "")


def test_what_the_kernel_forbids_is_told_with_its_remedy(tmp_path: Path) -> None:
    limit, apparmor = tmp_path / "limit", tmp_path / "apparmor"
    limit.write_text("0\n")
    apparmor.write_text("1\n")
    switches = (
        (str(tmp_path / "absent"), "0", "a=1", "x"),
        (str(limit), "0", "user.max_user_namespaces=15000", "allows none"),
        (str(apparmor), "1", "kernel.apparmor=0", "has AppArmor"),
    )
    assert rootless._why("unshare: no", switches) == (
        "user namespaces are refused (unshare: no): the kernel allows none; "
        "to change that: sudo sysctl -w user.max_user_namespaces=15000"
    )
    limit.write_text("9\n")
    assert rootless._why("no", switches).endswith(
        "has AppArmor; to change that: sudo sysctl -w kernel.apparmor=0"
    )
    apparmor.write_text("0\n")
    assert rootless._why("no", switches).endswith("start it with --privileged")


def test_a_refusal_leaves_the_process_as_it_was_and_is_one_line(home: Path) -> None:
    refuse = "from topologies import rootless\n"
    refuse += (
        "def no(uid, gid): raise OSError(28, 'No space left on device', 'unshare')\nrootless._build = no\n"
    )
    code, out, err = result(ordinary(home, refuse + ENTER.format(["id"]).replace("; ", "\n")))
    assert (code, out) == (127, "")
    assert re.fullmatch(r"error: user namespaces are refused \(unshare: No space left on device\): .*\n", err)
    code, out, err = result(ordinary(home, refuse + P4REDUCE.format(["net", "up", "star"])))
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: .*with sudo, or: user namespaces are refused \(unshare: .*\n", err)


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("net up star", True),
        ("train --net star", True),
        ("bench switch", True),
        ("net doctor", True),
        ("net status", False),
        ("job list --net star", False),
        ("net exec h1 curl --url x", False),
        ("trace show caps", False),
        ("job list --url http://elsewhere:1", None),
        ("net up --help", None),
    ],
)
def test_which_commands_make_namespaces(
    words: str, made: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def enter(*, make: bool) -> bool:
        asked.append(make)
        raise RootlessError("refused, so the command stays where it is")

    monkeypatch.setattr(rootless, "enter", enter)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    cli._enter_own_networks(words.split())
    assert asked == ([] if made is None else [made])


def test_root_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not rootless.enter(make=True)


def test_small_buffers_are_told(tmp_path: Path) -> None:
    (tmp_path / "rmem_max").write_text("212992\n")
    (problem,) = doctor._small_buffers(tmp_path)
    assert "212992 bytes" in problem
    assert f"sudo sysctl -w net.core.rmem_max={doctor.BUFFER_BYTES}" in problem


@pytest.mark.root
@pytest.mark.usefixtures("possible")
def test_an_ordinary_user_has_networks(home: Path) -> None:
    def p4reduce(words: str) -> tuple[int, str]:
        code, out, err = result(ordinary(home, P4REDUCE.format(words.split())))
        return code, out + err

    try:
        code, said = p4reduce("net up star --hosts 2 --name mine")
        assert code == 0, said
        assert p4reduce("net exec h1 ping -c 1 10.0.0.2")[0] == 0
        code, said = p4reduce("job add one --workers h1,h2")
        assert code == 0, said
    finally:
        code, said = p4reduce("net down")
        assert (code, said) == (0, "network mine is down\n")
    _wait(lambda: not _processes(), "the ordinary user's processes to end")


def _processes() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == ORDINARY and (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.05)
