# SPDX-License-Identifier: Apache-2.0
"""The files of a capture: which packet is which, which ends of which links they show, and since when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .blocks import Statistics, last_statistics
from .names import source as source_of
from .table import Category, Direction, Source, Table
from .verify_columns import NEVER
from .verify_findings import Packet

_NUMBER_BITS = 40
"""Of a ref: the packet's number in its file; the source's index is above."""
_NEXT_FILE = re.compile(r"\.0*[1-9][0-9]*\.pcapng")
"""In the name of a ring's file that is not its first."""


class Capture:
    """Grows as tables are read; `paths` are the files."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self.sources: list[Source] = []
        self.links: set[str] = set()
        """Links whose way up was captured, where names tell."""
        self._index: dict[Source, int] = {}
        self._ends: dict[str, int] = {}
        self._end_of: list[int] = []
        self._one_way: set[int] = set()
        self._with_results: set[int] = set()
        self._ends_of_link: dict[str, set[str]] = {}
        self._since: dict[str, int] = {}
        self._lossy: set[str] = set()
        told: dict[str, list[Statistics | None]] = {}
        for path in sorted(paths):
            end = source_of(path).end
            found = last_statistics(path)
            told.setdefault(end, []).append(found)
            if found is not None:
                self._enter_statistics(path, end, found)
        # A file without statistics, and another after it: the recorder died, and was started again later.
        self._lossy.update(end for end, files in told.items() if None in files[:-1])

    def _enter_statistics(self, path: Path, end: str, found: Statistics) -> None:
        if found.dropped:
            self._lossy.add(end)
        if found.began is not None and not _NEXT_FILE.search(path.name):
            self._since[end] = min(found.began, self._since.get(end, NEVER))

    def enter(self, table: Table) -> NDArray[np.int64]:
        """Take a table's sources in; return each row's."""
        for source in table.sources:
            if source not in self._index:
                self._index[source] = len(self.sources)
                self.sources.append(source)
                end = self._ends.setdefault(source.end, len(self._ends))
                self._end_of.append(end)
                if source.direction is not Direction.UNKNOWN:
                    self._one_way.add(end)
                if source.node and source.direction is not Direction.DOWN:
                    self.links.add(source.link)
                    self._ends_of_link.setdefault(source.link, set()).add(source.end)
        found = np.array([self._index[source] for source in table.sources], np.int64)[table.file]
        for index, first in zip(*np.unique(found, return_index=True), strict=True):
            self._since.setdefault(self.sources[index].end, int(table.time[first]))
        results = np.unique(found[table.category == Category.RESULT])
        self._with_results.update(self._end_of[source] for source in results.tolist())
        return found

    def ends(self, sources: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the link end of each source."""
        return np.array(self._end_of, np.int64)[sources]

    def end_name(self, end: int) -> str:
        """Return what an end is called."""
        return next(name for name, index in self._ends.items() if index == end)

    def apart(self, end: int) -> bool:
        """Say whether the two directions of an end are in files of their own."""
        return end in self._one_way

    def has_results(self, end: int) -> bool:
        """Say whether any result was captured there."""
        return end in self._with_results

    def since(self, link: str) -> int:
        """Return from when on all of a link's ends that were captured were: ns, NEVER if unknown."""
        return max((self._since.get(end, NEVER) for end in self._ends_of_link.get(link, ())), default=NEVER)

    def lose(self, sources: NDArray[np.int64]) -> bool:
        """Note that packets of these sources cannot be judged; return whether that is new of any end."""
        ends = {self.sources[index].end for index in np.unique(sources).tolist()}
        new = not ends <= self._lossy
        self._lossy |= ends
        return new

    def lossy(self, link: str, end: int) -> bool:
        """Say whether packets of a link, or of an end, are missing in their files."""
        ends = self._ends_of_link.get(link, set()) | ({self.end_name(end)} if end >= 0 else set())
        return bool(ends & self._lossy)

    def refs(self, table: Table, sources: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each row what `packet` takes."""
        return sources << _NUMBER_BITS | table.number

    def packet(self, ref: int) -> Packet:
        """Return the packet of a ref."""
        return Packet(self.sources[ref >> _NUMBER_BITS], ref & ((1 << _NUMBER_BITS) - 1))
