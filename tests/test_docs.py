# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows is true: links lead somewhere, commands exist, code runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    local = [t for t in targets if "://" not in t]
    missing = [t for t in local if not (page.parent / t).exists()]
    named = re.findall(
        r"`((?:p4src|wire|switch|controller|worker|topologies|traces|training|bench|tests)/[\w./]*)`", text
    )
    missing += [n for n in named if not (ROOT / n).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page: Path) -> None:
    for line in re.findall(r"^p4reduce ([^#\n]*)", page.read_text(), re.MULTILINE):
        words = [w for w in line.split() if not w.startswith("-")][:2]
        if words[0] == "train":
            words = words[:1]
        done = subprocess.run(
            [sys.executable, "-c", "from controller.cli import main; main()", *words, "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for option in re.findall(r"--[a-z-]+", line):
            assert option in done.stdout, f"{line}: no {option}"


def test_make_variables_and_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    for target in re.findall(r"make ([a-z0-9-]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for variable in re.findall(r"\b([A-Z]+)=", readme):
        assert variable in makefile or variable == "P4REDUCE_SWITCH", variable


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda p: p.name)
def test_python_runs_and_prints_what_the_page_shows(page: Path) -> None:
    """The ```python blocks of a page are one program; a ```text block after one is what it prints."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", page.read_text(), re.DOTALL)
    code = "".join(text for kind, text in blocks if kind == "python")
    if not code:
        return
    shown = "".join(text for kind, text in blocks if kind == "text")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


def test_the_switchs_test_file_passes_as_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "switch.md").read_text()
    (text,) = re.findall(r"```stf\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"```trace\n(.*?)```", page, re.DOTALL)
    (tmp_path / "l2.stf").write_text(text)
    command = [sys.executable, "-c", "from controller.cli import main; main()", "switch", "stf", "--trace"]
    done = subprocess.run(
        [*command, str(ROOT / "bench/programs/l2.json"), "l2.stf"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


def test_the_change_that_the_page_proposes_fails_the_tests_it_names(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "one-chunk.md").read_text()
    (diff,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    (path,) = re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)
    (old,) = re.findall(r"^-( .*)$", diff, re.MULTILINE)
    (new,) = re.findall(r"^\+( .*)$", diff, re.MULTILINE)
    (command,) = re.findall(r"^\.venv/bin/(pytest -x .*)$", page, re.MULTILINE)
    for room in ("wire", "worker", "tests"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml",):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / "tests" / "conftest.py").unlink()  # it looks at the machine; these tests need none of it
    run = [sys.executable, "-m", *shlex.split(command), "-p", "no:cacheprovider"]
    # The copy goes first: the installed rooms are this checkout's.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    text = (tmp_path / path).read_text()
    assert text.count(old + "\n") == 1
    (tmp_path / path).write_text(text.replace(old, new))
    done = subprocess.run(
        run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the send rule" in done.stdout
