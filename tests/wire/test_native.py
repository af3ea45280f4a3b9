# SPDX-License-Identifier: Apache-2.0
"""Compiling C: whose cache is trusted, and what becomes of files. See also switch/test_build."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wire import native
from wire.native import BuildError, cache_folder, library, load, recall, remember


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "p4reduce"


def test_a_link_instead_of_the_folder_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="not ours alone"):
        cache_folder()


def test_a_folder_of_somebody_else_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    try:
        os.chown(cache, 12345, -1)
    except OSError:  # in a user namespace there may be no other user
        pytest.skip("only the machine's root can give a folder away")
    with pytest.raises(BuildError, match="owner 12345"):
        cache_folder()


def test_a_file_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="XDG_CACHE_HOME"):
        cache_folder()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(BuildError, match="set XDG_CACHE_HOME"):
        cache_folder()


def test_what_was_kept_under_another_name_or_is_damaged_is_not_recalled(cache: Path) -> None:
    remember("one.pickle", b"one")
    assert recall("one.pickle") == b"one"
    (cache / "two.pickle").write_bytes((cache / "one.pickle").read_bytes())
    assert recall("two.pickle") is None
    (cache / "one.pickle").write_bytes((cache / "one.pickle").read_bytes()[:-1])
    assert recall("one.pickle") is None
    assert recall("three.pickle") is None


def test_a_library_and_a_damaged_one(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "seven.c"
    source.write_text("#ifndef SEVEN\n#define SEVEN 7\n#endif\nint seven(void) { return SEVEN; }\n")
    path = library("seven", "the number", [source])
    assert path.parent == cache
    assert load(path).seven() == 7
    other = library("seven", "the number", [source], flags=["-fPIC", "-DSEVEN=8"])
    assert other != path
    other.write_bytes(b"rubbish")
    with pytest.raises(BuildError, match="remove it"):
        load(other)


def test_many_at_once_compile_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, calls = tmp_path / "one.c", tmp_path / "calls"
    source.write_text("int one(void) { return 1; }\n")
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo >>{calls} ;; esac\nexec cc "$@"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: library("one", "the number", [source]), range(4)))
    assert len(set(paths)) == 1
    assert load(paths[0]).one() == 1
    assert calls.read_text() == "\n\n", "an object, and the library"


@pytest.mark.parametrize(
    "call", ["int *a; take(&a)", "take(7)", "long a; take(&a)", "gone()", "int a = take"], ids=lambda c: c
)
def test_calls_of_what_has_another_type_are_errors(cache: Path, tmp_path: Path, call: str) -> None:
    source = tmp_path / "bad.c"
    source.write_text(f"void take(int *p);\nint f(void);\nint f(void) {{ {call}; return 0; }}\n")
    with pytest.raises(BuildError, match=r"compiling bad\.c failed"):
        library("bad", "the test", [source])


def test_what_the_compiler_said_is_told(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "bad.c"
    source.write_text("int main( {")
    with pytest.raises(BuildError, match=r"compiling bad\.c failed(.|\n)*expected"):
        library("bad", "nothing", [source])
    assert not list(cache.glob("*.so"))


def age(*paths: Path, hours: float) -> None:
    for path in paths:
        os.utime(path, (time.time() - 3600 * hours,) * 2)


def test_the_cache_is_kept_small(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(name: str) -> Path:
        source = tmp_path / f"{name}.c"
        source.write_text(f"int {name}(void) {{ return 1; }}\n")
        return library(name, "the test", [source])

    monkeypatch.setattr(native, "KEPT_BYTES", 1_000_000)
    cache.mkdir(mode=0o700)
    least, both, last = cache / "program-0.so", cache / "program-0.c", cache / "program-1.so"
    others = [cache / "rootless.lock", cache / "star.failed"]
    for path, size in ((least, 400_000), (both, 100_000), (last, 400_000), (others[0], 400_000)):
        path.write_bytes(bytes(size))
    others[1].mkdir()
    age(least, *others, hours=9)
    age(both, last, hours=8)
    left = cache / "tmpabc.part"
    left.write_bytes(b"")
    age(left, hours=2)
    kept = cache / "program-2.so"
    kept.write_bytes(bytes(400_000))
    age(kept, hours=7)
    one = compiled("one")
    assert not least.exists()
    assert not both.exists(), "goes with what it belongs to"
    assert not left.exists(), "of a process that was killed"
    assert all(path.exists() for path in (last, kept, one, *others))

    monkeypatch.setattr(native, "KEPT_BYTES", 0)
    compiled("two")
    assert last.exists(), "once an hour"
    remember("program-3.pickle", b"kept")
    age(one, cache / "program-3.pickle", hours=2)
    assert compiled("one") == one
    assert recall("program-3.pickle") == b"kept"
    age(cache / "tidied", hours=2)
    three = compiled("three")
    assert not last.exists()
    assert not kept.exists()
    assert all(path.exists() for path in (one, three, cache / "program-3.pickle", *others))
    assert load(one).one() == 1
