# SPDX-License-Identifier: Apache-2.0
"""Compiling: the cache and what may go wrong with it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

import switch.build
from switch.build import build, library
from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.errors import BuildError
from switch.load import load_program
from tests.switch.programs import simple, to_port

JSON = simple([("a", 8)], [to_port(1)]).json


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(switch.build, "FLAGS", (*switch.build.FLAGS, "-O0"))  # each test compiles all anew
    return tmp_path / "p4reduce"


def test_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = emit_program(load_program(JSON))
    first = build(source)
    assert first.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    inode = first.stat().st_ino
    assert build(source) == first
    assert first.stat().st_ino == inode
    assert build(source + "\n") != first
    assert [p.name for p in cache.iterdir() if p.suffix not in (".so", ".o", ".c")] == ["tidied"]


def test_a_folder_that_others_may_write_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    cache.chmod(0o777)
    with pytest.raises(BuildError, match="not ours alone"):
        SwitchDevice.load(JSON)


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="apt install"):
        SwitchDevice.load(JSON)


@pytest.mark.parametrize("command", ["cc -DSOME=1", "env LC_ALL=C cc", "'cc'  -DSOME='a b'", " "])
def test_a_compiler_of_several_words(cache: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("CC", command)
    with SwitchDevice.load(JSON) as d:
        assert d.process([(0, b"x")]) == [(1, b"x")]


def test_the_compilers_own_flags_count_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = set()
    for command in ("cc", "cc -DSOME=1", "cc -DSOME=2"):
        monkeypatch.setenv("CC", command)
        paths.add(build("int x;"))
    assert len(paths) == 3


@pytest.mark.parametrize(("command", "why"), [("cc '-DX", "quotation"), ("no-such-cc -m64", "'no-such-cc'")])
def test_a_compiler_that_is_none(
    cache: Path, monkeypatch: pytest.MonkeyPatch, command: str, why: str
) -> None:
    monkeypatch.setenv("CC", command)
    with pytest.raises(BuildError, match=why):
        SwitchDevice.load(JSON)


def test_a_library_of_files_alone(cache: Path, tmp_path: Path) -> None:
    for n in (1, 2):
        (tmp_path / f"part{n}.c").write_text(f'#include "wide.h"\nint part{n}(void) {{ return {n}; }}\n')
    sources = [tmp_path / "part1.c", tmp_path / "part2.c"]
    path = library("parts", "the parts", sources)
    c = ctypes.CDLL(str(path))
    assert (c.part1(), c.part2()) == (1, 2)
    assert library("parts", "the parts", sources) == path
    objects = set(cache.glob("*.o"))
    sources[1].write_text("int part2(void) { return 3; }\n")
    assert ctypes.CDLL(str(library("parts", "the parts", sources))).part2() == 3
    assert len(set(cache.glob("*.o")) - objects) == 1


def test_what_the_compiler_said_is_told(cache: Path) -> None:
    with pytest.raises(BuildError, match="expected"):
        build("int main( {")
    assert not list(cache.glob("program-*.so"))


def test_a_broken_cached_file(cache: Path) -> None:
    path = build(emit_program(load_program(JSON)))
    path.write_bytes(b"rubbish")
    with pytest.raises(BuildError, match="remove it"):
        SwitchDevice.load(JSON)


def test_two_processes_at_once(cache: Path) -> None:
    code = (
        "import sys\nimport switch.build\nfrom switch.device import SwitchDevice\n"
        f"switch.build.FLAGS = {switch.build.FLAGS}\n"
        "with SwitchDevice.load(sys.stdin.read()) as d:\n    print(d.process([(0, b'x')]))"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for p in runs:
        assert p.stdin is not None
        p.stdin.write(JSON)
        p.stdin.close()
    for p in runs:
        assert p.stdout is not None
        assert p.stdout.read() == "[(1, b'x')]\n"
        assert p.wait(timeout=120) == 0
        p.stdout.close()
    assert [len(list(cache.glob(f"program-*.{kind}"))) for kind in ("so", "pickle", "part")] == [1, 1, 0]


def test_generated_code_and_runtime_compile_without_warnings(cache: Path) -> None:
    build(emit_program(load_program(JSON)), extra_flags=("-O3", "-Werror"))
