# SPDX-License-Identifier: Apache-2.0
"""A YAML or JSON text with the line of each of its parts, for errors that name it.

PyYAML only composes the nodes of the text, which keep their lines: no tag of it is followed, and each scalar
is a text until somebody reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from topologies.errors import SpecError
from topologies.spec import NODE_NAME

MAX_BYTES = 1 << 20
_MOST_TOLD = 400
"""Characters of an error's text."""


class MarkedFile:
    """A text with its nodes; `fail` says where something is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise SpecError(str(path), "is no file")  # to open a pipe would wait for who writes
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise SpecError(str(path), f"the file has more than {MAX_BYTES} bytes: that is no topology")
            # JSON is YAML but for tabs between its words; within them it has none.
            text = data.decode().expandtabs()
            root = yaml.compose(text, yaml.SafeLoader)
        except OSError as error:
            raise SpecError(str(path), f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise SpecError(str(path), f"is no text in UTF-8 (byte {error.start})") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f", line {mark.line + 1}" if mark else ""
            raise SpecError(f"{path}{where}", f"is no YAML: {error.problem or error.context}") from None
        except yaml.reader.ReaderError as error:
            line = text[: error.position].count("\n") + 1
            raise SpecError(
                f"{path}, line {line}", f"is no YAML: the character U+{error.character:04X} may not be in it"
            ) from None
        except RecursionError:
            raise SpecError(str(path), "is nested far too deep for a topology") from None
        if root is None:
            raise SpecError(str(path), "is empty: a topology has hosts, switches and links")
        self.root: Node = root

    def fail(self, node: Node, message: str) -> NoReturn:
        """Raise SpecError for what a node says, in one line of moderate length whatever the file holds."""
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        if len(shown) > _MOST_TOLD:
            shown = f"{shown[: _MOST_TOLD // 2]} … {shown[-_MOST_TOLD // 2 :]}"
        raise SpecError(f"{self.path}, line {node.start_mark.line + 1}", shown)

    def pairs(self, node: Node, what: str, allowed: tuple[str, ...] = ()) -> dict[str, tuple[Node, Node]]:
        """Return (key node, value node) by key of a mapping; all keys are `allowed`, if any are named."""
        if not isinstance(node, MappingNode):
            self.fail(node, f"{what} is a mapping, not {kind(node)}")
        found: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            name = self.text(key, f"a key of {what}")
            if name in found:
                self.fail(key, f"{name} is there twice in {what}")
            if allowed and name not in allowed:
                self.fail(key, f"{what} has no {name}: it has {', '.join(allowed)}")
            found[name] = key, value
        return found

    def items(self, node: Node, what: str) -> list[Node]:
        """Return the items of a list."""
        if not isinstance(node, SequenceNode):
            self.fail(node, f"{what} is a list, not {kind(node)}")
        return list(node.value)

    def text(self, node: Node, what: str) -> str:
        """Return the text of a scalar."""
        if not isinstance(node, ScalarNode):
            self.fail(node, f"{what} is one word or number, not {kind(node)}")
        return str(node.value)

    def names(self, node: Node | None, what: str) -> dict[str, tuple[Node, Node | None]]:
        """Return (name node, what is said of it) by name, of a mapping or of a list of names."""
        if node is None or empty(node):
            return {}
        if isinstance(node, SequenceNode):
            found: dict[str, tuple[Node, Node | None]] = {}
            for item in node.value:
                name = self.text(item, f"an item of {what}")
                if name in found:
                    self.fail(item, f"{name} is there twice in {what}")
                found[name] = item, None
        elif isinstance(node, MappingNode):
            found = {**self.pairs(node, what)}
        else:
            self.fail(node, f"{what} are a list of names or a mapping, not {kind(node)}")
        for name, (at, _) in found.items():
            if not NODE_NAME.fullmatch(name):
                self.fail(at, f"{name}: a node's name is a small letter and at most four letters or digits")
        return found

    def read(self, node: Node, what: str, read: Callable[[str], object]) -> object:
        """Return what `read` makes of a scalar, its SpecError told with the line."""
        try:
            return read(self.text(node, what))
        except SpecError as error:
            self.fail(node, f"{what} {error}")


def kind(node: Node) -> str:
    """Say what a node is, for an error's text."""
    if isinstance(node, ScalarNode):
        return f"{node.value!r}" if node.value else "nothing"
    return "a list" if isinstance(node, SequenceNode) else "a mapping"


def empty(node: Node) -> bool:
    """Say whether a node is YAML's null."""
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"
