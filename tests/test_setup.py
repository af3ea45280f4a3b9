# SPDX-License-Identifier: Apache-2.0
"""Makefile and setup.sh: what make hands on, and that a damaged .venv is mended. Nothing is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("cc", "mnexec", "ip", "ethtool", "ifconfig", "ping")
PYTHON = """#!/bin/sh
case "$*" in
-V) echo Python 3.11.0 ;;
*"-m venv"*) mkdir -p .venv/bin && cp venv-python .venv/bin/python && rm -f broken-* && echo "$*" >>asked ;;
esac
"""
VENV_PYTHON = """#!/bin/sh
case "$*" in
-c*import*) [ ! -e broken-packages ] ;;
*--version) [ ! -e broken-pip ] ;;
*install*) rm -f broken-*; echo install >>asked ;;
esac
"""


def make_run(*variables: str) -> list[str]:
    """Return the command that `make run` with these variables would have root run."""
    make = ["make", "--no-print-directory", "-n", "run", *variables]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    (line,) = [line for line in done.stdout.splitlines() if "setup.sh root" in line]
    return shlex.split(line)[3:]


@pytest.mark.parametrize(("value", "keeps"), [("", False), ("0", False), ("no", False), ("1", True)])
def test_keep_is_an_option_only_where_it_is_wanted(value: str, keeps: bool) -> None:
    assert make_run(f"KEEP={value}") == [".venv/bin/p4reduce", "train", *(["--keep"] if keeps else [])]


def test_make_hands_its_variables_on() -> None:
    options = ["--workers", "8", "--elements", "64", "--loss", "2", "--seed", "7", "--switch", "bmv2"]
    variables = ("WORKERS=8", "ELEMENTS=64", "LOSS=2", "SEED=7", "SWITCH=bmv2", "PCAP=my captures")
    assert make_run(*variables)[2:] == [*options, "--pcap", "my captures"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with the set-up alone, and with stand-ins for Python and all tools that it looks for."""
    for name in ("setup.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    scripts = {
        **{f"tools/{tool}": "#!/bin/sh\n" for tool in TOOLS},
        "python": PYTHON,
        "venv-python": VENV_PYTHON,
    }
    for name, text in scripts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path


def run_setup(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{folder / 'tools'}:{os.environ['PATH']}",
        "PYTHON": str(folder / "python"),
        "CC": str(folder / "tools/cc"),
    }
    return subprocess.run(
        ["sh", "setup.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def set_up(folder: Path) -> list[str]:
    """Run setup.sh; return what it asked the stand-ins for."""
    asked = folder / "asked"
    asked.write_text("")
    done = run_setup(folder)
    assert done.returncode == 0, done.stderr
    return asked.read_text().splitlines()


def test_the_environment_is_made_once(folder: Path) -> None:
    assert set_up(folder) == ["-m venv --clear .venv", "install"]
    assert set_up(folder) == []


@pytest.mark.parametrize(
    ("damage", "asked"),
    [
        (["broken-packages"], ["install"]),
        (["broken-packages", "broken-pip"], ["-m venv --clear .venv", "install"]),
        ([".venv/bin/python"], ["-m venv --clear .venv", "install"]),
        ([".venv/.p4reduce-setup"], ["install"]),
    ],
    ids=lambda v: " ".join(v),
)
def test_a_damaged_environment_is_mended(folder: Path, damage: list[str], asked: list[str]) -> None:
    set_up(folder)
    for name in damage:
        if name.startswith("broken-"):
            (folder / name).touch()
        else:
            (folder / name).unlink()
    assert set_up(folder) == asked
    assert set_up(folder) == []


def test_other_dependencies_are_installed_and_another_place_is_another_environment(folder: Path) -> None:
    set_up(folder)
    with (folder / "pyproject.toml").open("a") as file:
        file.write("# more\n")
    assert set_up(folder) == ["install"]
    moved = folder.rename(folder.with_name("moved"))
    assert set_up(moved) == ["-m venv --clear .venv", "install"]


@pytest.mark.parametrize("there", [True, False])
def test_an_environment_behind_a_link_is_left_alone(folder: Path, there: bool) -> None:
    """As in a git worktree that borrows another's: it was emptied."""
    other = folder.with_name("other")
    if there:
        shutil.copytree(folder, other)
        set_up(other)
        (folder / ".venv").symlink_to(other / ".venv")
    else:
        (folder / ".venv").symlink_to(other)
    done = run_setup(folder)
    assert done.returncode != 0
    assert f".venv is a link to {other}" in done.stderr
    assert "rm .venv" in done.stderr
    assert not (folder / "asked").exists()
    if there:
        assert set_up(other) == [], "it is as it was"


def test_an_environment_of_this_folder_may_lie_elsewhere(folder: Path) -> None:
    set_up(folder)
    (folder / ".venv").rename(folder / "large-disk")
    (folder / ".venv").symlink_to("large-disk")
    assert set_up(folder) == []


def clean(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "setup.sh", "clean"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_nothing_is_removed_that_something_runs_with(folder: Path) -> None:
    """A network would go on with nothing left to stop it."""
    set_up(folder)
    program = folder / ".venv/bin/daemon"
    program.symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen([program, "60"]) as running:
        try:
            done = clean(folder)
            assert done.returncode != 0
            assert f"{program} 60 ... still runs" in done.stderr
            assert "net down" in done.stderr
            assert program.exists()
        finally:
            running.kill()
    assert clean(folder).returncode == 0
    assert not (folder / ".venv").exists()
