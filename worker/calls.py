# SPDX-License-Identifier: Apache-2.0
"""What a rank calls: arrays, element types and operations, checked before anything is sent.

The codes travel in header packets (docs/protocol.md, The packet), so that ranks can compare their calls.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import MismatchError, UnsupportedError

OPS = {"sum": 1, "mean": 2}
"""Operations by name; the number is the low byte of a header's first value."""
DTYPES = {"int32": 2, "float32": 1, "float16": 3, "bfloat16": 4, "float64": 5}
"""Element types by numpy's name; the number is the second byte of a header's first value.

bfloat16 is that of the package ml_dtypes.
"""
CALL_VALUES = 4
"""Header values a rank: dtype and op, element count, all-reduce number, digest of the shape."""


class Call:
    """One rank's all_reduce call of arrays, one or more of one dtype.

    Raises UnsupportedError for what no rank could pass.
    `sources` are the inputs as flat contiguous arrays, `targets` the outputs (`outs`): both are the caller's
    own memory where that is contiguous and aligned.
    """

    def __init__(
        self, arrays: Sequence[ArrayLike], op: str, outs: Sequence[NDArray[Any] | None], cast: bool
    ) -> None:
        given = [np.asarray(array) for array in arrays]
        self.dtype = given[0].dtype
        code = _code(self.dtype)
        if not code or (code == DTYPES["float64"] and not cast):
            _refuse_dtype(self.dtype)
        self.is_float = code != DTYPES["int32"]
        if op not in OPS:
            raise UnsupportedError(f"all_reduce op {op!r} is not known; use one of {', '.join(OPS)}")
        if op == "mean" and not self.is_float:
            raise UnsupportedError(
                f"the mean of {self.dtype} is none; take op='sum' and divide it, or pass floats"
            )
        self.op, self._code, self._shapes = op, code << 8 | OPS[op], [array.shape for array in given]
        self.outs = [
            np.empty(array.shape, array.dtype) if out is None else _checked_out(out, array)
            for array, out in zip(given, outs, strict=True)
        ]
        self.sources = [(array if _is_plain(array) else array.copy()).reshape(-1) for array in given]
        self.targets = [
            out.reshape(-1) if _is_plain(out) else np.empty(out.size, out.dtype) for out in self.outs
        ]
        refuse_overlaps(self.sources, self.targets)
        self.size = sum(source.size for source in self.sources)

    def finish(self) -> None:
        """Fill the outputs, once `targets` are complete."""
        for out, target in zip(self.outs, self.targets, strict=True):
            if not _is_plain(out):
                out[...] = target.reshape(out.shape)

    def header(self, number: int) -> NDArray[np.int32]:
        """Return the CALL_VALUES that tell the other ranks of this call, the job's all-reduce `number`."""
        digest = shape_digest(*self._shapes)
        words = struct.pack("=4I", self._code, self.size & 0xFFFFFFFF, number & 0xFFFFFFFF, digest)
        return np.frombuffer(bytearray(words), np.int32)


def _is_plain(array: NDArray[Any]) -> bool:
    """Whether C may use it where it lies."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def of_one_dtype(arrays: Sequence[ArrayLike]) -> list[slice]:
    """Return runs of arrays of one dtype: each run can be a Call."""
    dtypes = [np.asarray(array).dtype for array in arrays]
    borders = [i for i in range(len(dtypes)) if i == 0 or dtypes[i] != dtypes[i - 1]]
    return [slice(a, b) for a, b in pairwise([*borders, len(dtypes)])]


def outputs(out: Sequence[NDArray[Any] | None] | None, count: int) -> list[NDArray[Any] | None]:
    """Return what was given as `out` of a list of arrays, one each; UnsupportedError."""
    if out is None:
        return [None] * count
    try:
        outs = list(out)
    except TypeError:
        raise UnsupportedError(
            f"all_reduce of {count} arrays: out is a {type(out).__name__}; pass a list of as many arrays"
        ) from None
    if len(outs) != count:
        raise UnsupportedError(f"all_reduce of {count} arrays with {len(outs)} in out; pass as many")
    return outs


def refuse_overlaps(sources: list[NDArray[Any]], targets: list[NDArray[Any]]) -> None:
    """Nothing may lie where an output is written, except the whole of its own input."""
    if len(sources) == 1 and not np.may_share_memory(sources[0], targets[0]):
        return
    spans = []
    for source, target in zip(sources, targets, strict=True):
        if target.size:
            at, of = target.ctypes.data, source.ctypes.data
            spans.append((at, at + target.nbytes, True))
            if of != at:
                spans.append((of, of + source.nbytes, False))
    read_end = written_end = 0
    for low, high, written in sorted(spans):
        if low < (max(read_end, written_end) if written else written_end):
            raise UnsupportedError(
                "all_reduce: out overlaps an array; pass that array itself as its out, or other memory"
            )
        if written:
            written_end = max(written_end, high)
        else:
            read_end = max(read_end, high)


@cache
def _code(dtype: np.dtype[Any]) -> int:
    """Return a dtype's code, 0 if it has none."""
    return DTYPES.get(dtype.name, 0) if dtype.isnative else 0


def _refuse_dtype(dtype: np.dtype[Any]) -> NoReturn:
    if not _code(dtype):
        wanted = ", ".join(name for name in DTYPES if name != "float64")
        raise UnsupportedError(
            f"all_reduce of {dtype} is not supported; convert the array to one of {wanted} "
            "(native byte order) first"
        )
    raise UnsupportedError(
        "all_reduce of float64 would sum float32 values; pass cast=True if that will do, or int32"
    )


def _checked_out(out: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    if not isinstance(out, np.ndarray):
        raise UnsupportedError(f"all_reduce: out is a {type(out).__name__}; pass a numpy array")
    if (out.shape, out.dtype) != (array.shape, array.dtype):
        raise UnsupportedError(
            f"all_reduce: out is {out.dtype} of shape {out.shape}, and the array is {array.dtype} of shape "
            f"{array.shape}; pass an equal one"
        )
    if not out.flags.writeable:
        raise UnsupportedError("all_reduce: out is read-only; pass an array that can be written")
    return out


def shape_digest(*shapes: tuple[int, ...]) -> int:
    """Return the CRC-32 of the shapes' dimensions as 64-bit big-endian numbers, all ones between shapes."""
    between = b"\xff" * 8
    return zlib.crc32(between.join(struct.pack(f">{len(shape)}Q", *shape) for shape in shapes))


def header_packets(n: int, elements: int) -> int:
    """Return H, the header packets of an all-reduce of n ranks."""
    return -(-CALL_VALUES * n // elements)


def describe_call(values: NDArray[np.int32]) -> str:
    """Say in words what the four header values of one rank mean."""
    code, count, number, digest = (int(v) & 0xFFFFFFFF for v in values)
    dtype = next((d for d, c in DTYPES.items() if c == code >> 8), f"dtype {code >> 8}")
    op = next((o for o, c in OPS.items() if c == code & 0xFF), f"op {code & 0xFF}")
    return f"{op} of {count} {dtype} (shape {digest:08x}) as all-reduce {number}"


def compare_calls(calls: NDArray[np.int32]) -> MismatchError | None:
    """Return how ranks differ, of whose calls `calls` (n, CALL_VALUES) tells; None where they do not."""
    keys = [row.tobytes() for row in calls]
    if keys == keys[:1] * len(keys):
        return None
    words = [describe_call(row) for row in calls]
    common, count = Counter(keys).most_common(1)[0]
    if 2 * count <= len(keys):
        return MismatchError(list(range(len(keys))), words, None)
    differing = [r for r, key in enumerate(keys) if key != common]
    return MismatchError(differing, words, words[keys.index(common)])
