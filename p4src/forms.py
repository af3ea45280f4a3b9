# SPDX-License-Identifier: Apache-2.0
"""The forms that the one program is compiled to: values a packet, and slots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wire.constants import ELEMENT_CHOICES, FEW_SLOTS, MANY_SLOTS
from wire.errors import P4ReduceError

COMPILED = Path(__file__).parent / "compiled"
STAMP = COMPILED / "stamp.json"


class FormError(P4ReduceError):
    """The program was not compiled for these numbers; carries them."""

    def __init__(self, elements: int, slots: int) -> None:
        known = ", ".join(f"{f.elements} elements and {f.slots} slots" for f in FORMS)
        super().__init__(f"no program for {elements} elements and {slots} slots: there are {known}")
        self.elements = elements
        self.slots = slots


@dataclass(frozen=True)
class Form:
    """One compiled form of the program."""

    elements: int
    slots: int

    @property
    def name(self) -> str:
        """Base name of its files."""
        return f"p4reduce_{self.elements}x{self.slots}"

    @property
    def json_path(self) -> Path:
        """The bmv2 JSON."""
        return COMPILED / f"{self.name}.json"

    @property
    def p4info_path(self) -> Path:
        """P4Info in protobuf's text form."""
        return COMPILED / f"{self.name}.p4info.txtpb"


FORMS = tuple(Form(elements, slots) for elements in ELEMENT_CHOICES for slots in (FEW_SLOTS, MANY_SLOTS))


def form(elements: int, slots: int) -> Form:
    """Return the form for these numbers, or raise FormError."""
    wanted = Form(elements, slots)
    if wanted not in FORMS:
        raise FormError(elements, slots)
    return wanted
