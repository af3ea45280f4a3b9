# SPDX-License-Identifier: Apache-2.0
"""What is kept of a program that was loaded before: the same as if it were made anew, and never stale."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from switch import generate as generator
from switch import sources
from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.errors import BuildError, LoadError
from switch.generate import generate
from switch.load import load_program
from tests.switch.everything import everything
from tests.switch.programs import assign, const, expr, field, simple, to_port

JSON = simple([("a", 8)], [to_port(1)]).json
HOUSE = Path(sources.__file__).parents[1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "p4reduce"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each program that is made, not recalled."""
    calls: list[str] = []

    def load(text: str | bytes) -> object:
        calls.append("made")
        return load_program(text)

    monkeypatch.setattr(generator, "load_program", load)
    return calls


def kept(cache: Path) -> list[Path]:
    left = list(cache.iterdir())
    assert not [path for path in left if path.suffix == ".part"]
    return [path for path in left if path.suffix == ".pickle"]


@pytest.mark.parametrize("trace", [False, True])
def test_what_is_recalled_is_what_was_made(cache: Path, made: list[str], trace: bool) -> None:
    text = everything().json
    program = load_program(text)
    want = emit_program(program, trace=trace)
    for _ in range(2):
        found, code = generate(text, trace=trace)
        assert code == want
        assert emit_program(found, trace=trace) == want
        assert list(found.tables) == list(program.tables)
    assert generate(text.encode(), trace=trace)[1] == want
    assert made == ["made"]
    assert len(kept(cache)) == 1


def test_a_recalled_program_runs_and_traces(cache: Path, made: list[str]) -> None:
    for _ in range(2):
        with SwitchDevice.load(JSON) as d:
            assert d.process([(0, b"x")]) == [(1, b"x")]
        with SwitchDevice.load(JSON, trace=True) as d:
            assert d.process_traced([(0, b"x")])[1]
    assert made == ["made", "made"]


def test_each_text_is_another_program(cache: Path, made: list[str]) -> None:
    for port in (1, 2, 1, 2):
        with SwitchDevice.load(simple([("a", 8)], [to_port(port)]).json) as d:
            assert d.process([(0, b"x")]) == [(port, b"x")]
    assert made == ["made", "made"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:32],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:],
        lambda data: bytes(len(data)),
    ],
)
def test_a_damaged_file_is_made_anew(cache: Path, made: list[str], damage: object) -> None:
    first = generate(JSON)[1]
    (path,) = kept(cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))  # type: ignore[operator]
    assert generate(JSON)[1] == first
    assert made == ["made", "made"]
    assert generate(JSON)[1] == first
    assert len(made) == 2
    assert kept(cache) == [path]


def test_a_folder_in_the_files_place(cache: Path, made: list[str]) -> None:
    generate(JSON)
    (path,) = kept(cache)
    path.unlink()
    path.mkdir()
    generate(JSON)
    assert len(made) == 2
    assert kept(cache) == [path]


def test_a_program_is_recalled_where_its_library_is_gone(cache: Path, made: list[str]) -> None:
    for _ in range(2):
        with SwitchDevice.load(JSON) as d:
            assert d.process([(0, b"x")]) == [(1, b"x")]
        for library in cache.glob("program-*.so"):
            library.unlink()
    assert made == ["made"]


def test_a_folder_that_others_may_write_is_refused(cache: Path, made: list[str]) -> None:
    generate(JSON)
    cache.chmod(0o777)
    with pytest.raises(BuildError, match="not ours alone"):
        generate(JSON)


def test_what_is_refused_is_refused_again(cache: Path) -> None:
    for _ in range(2):
        with pytest.raises(LoadError, match="not valid JSON"):
            generate("{")
    assert not cache.exists() or not kept(cache)


def test_deep_nesting_is_fine_or_told(cache: Path) -> None:
    """Whether or not what is made can be kept; see also test_refusals."""
    text = simple([("a", 8)], [assign(field("h", "a"), expr("~", None, const(1)))]).json
    inner = json.dumps(const(1))
    for depth in range(50, 1000, 60):
        before = '{"type": "expression", "value": {"op": "~", "left": null, "right": ' * depth
        deep = text.replace(inner, before + inner + "}}" * depth)
        with contextlib.suppress(LoadError):
            assert generate(deep)[1] == emit_program(load_program(deep))


# ---- other versions of the code


def test_all_that_makes_a_program_counts_in_the_version() -> None:
    code = (
        "import sys; before = set(sys.modules)\nimport switch.generate\n"
        "print('\\n'.join(n for n in sys.modules if n not in before and n.split('.')[0] in "
        "('switch', 'wire', 'controller', 'worker', 'topologies', 'traces', 'p4src', 'bench')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOUSE)
    names = run.stdout.split()
    assert "switch.emit_calc" in names
    assert names[0] == "switch.sources", "before any that it tells of"
    for name in names:
        if name.partition(".")[0] == "switch":
            assert name.count(".") <= 1, "a folder whose files the version leaves out"
        else:
            assert name in ("wire", "wire.errors", "wire.native"), "they write nothing of a program"


def test_any_change_of_the_code_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "switch"
    shutil.copytree(sources.FOLDER, folder)
    monkeypatch.setattr(sources, "FOLDER", folder)
    assert sources.version() is not None, "a copy is the same version"
    emit = folder / "emit.py"
    text = emit.read_text()
    emit.write_text(text + "\n")
    assert sources.version() is None
    emit.write_text(text)
    assert sources.version() is not None
    (folder / "new.py").write_text("")
    assert sources.version() is None
    (folder / "new.py").unlink()
    emit.unlink()
    assert sources.version() is None


def test_code_that_changed_under_the_process_keeps_nothing(
    cache: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switch.generate.VERSION", None)
    for _ in range(2):
        with SwitchDevice.load(JSON) as d:
            assert d.process([(0, b"x")]) == [(1, b"x")]
    assert made == ["made", "made"]
    assert not kept(cache)


def test_a_changed_generator_uses_nothing_of_the_former(cache: Path, tmp_path: Path) -> None:
    for room in ("switch", "wire"):
        shutil.copytree(HOUSE / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"from switch.generate import generate\nprint(generate({JSON!r})[1].split('. */')[0])"

    def first_line() -> str:
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd=tmp_path
        )
        return run.stdout

    before = first_line()
    assert "Made by switch/emit.py" in before
    emit = tmp_path / "switch" / "emit.py"
    emit.write_text(emit.read_text().replace("Made by switch/emit.py", "Made by another one"))
    assert first_line() == before.replace("switch/emit.py", "another one")
    assert len(kept(cache)) == 2
