# SPDX-License-Identifier: Apache-2.0
"""Compiling C: whose cache is trusted, and what becomes of files. See also switch/test_build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wire.native import BuildError, cache_folder, library, load


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "p4reduce"


def test_a_link_instead_of_the_folder_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="not ours alone"):
        cache_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    os.chown(cache, 12345, -1)
    with pytest.raises(BuildError, match="owner 12345"):
        cache_folder()


def test_a_file_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="XDG_CACHE_HOME"):
        cache_folder()


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


def test_what_the_compiler_said_is_told(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "bad.c"
    source.write_text("int main( {")
    with pytest.raises(BuildError, match=r"compiling bad\.c failed(.|\n)*expected"):
        library("bad", "nothing", [source])
    assert not list(cache.glob("*.so"))
