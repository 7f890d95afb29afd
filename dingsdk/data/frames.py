"""DING1 frames: a SampleBatch as bytes that are checked whole and read without a copy.

Layout::

    magic, 8 bytes | header length, uint32 little-endian, <= 1 MiB | header | columns

The header is canonical JSON ``{"v", "rows", "raw_len", "columns": [{"path", "dtype", "shape",
"offset", "nbytes"}], "digest"}``. Columns follow one another at multiples of 64 bytes, in C
order, zeros between them; offsets count from the first. The digest covers every other byte.

There is one way to write a given batch, and a reader takes nothing else: every number of the
header follows from dtypes and shapes, so none is trusted, and nothing is allocated for it. A
frame holds numbers only; there is no compression, so nothing can grow on being read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data.digests import DEFAULT_ALGORITHM, digest_length, digest_of, is_digest
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.errors import DataCorruptError, SchemaMismatchError

MAGIC = b"DING1\r\n\x00"
MAX_HEADER_BYTES = 1 << 20
MAX_DIMENSIONS = 16
MAX_DEPTH = 32
DEFAULT_MAX_BYTES = 256 << 20

_VERSION = 1
_ALIGNMENT = 64
_FIXED = struct.Struct("<8sI")
_KINDS = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
_DTYPES = {
    dtype.str: dtype for dtype in (np.dtype(order + kind) for order in "<>" for kind in _KINDS)
}
_BEFORE_DIGEST, _AFTER_DIGEST = b',"digest":"', b'"}'
_JOINED_BYTES = 64 << 10
"""Frames up to this size leave as one buffer: copying them costs less than a second one."""
_CACHED_LAYOUTS, _CACHED_BYTES = 512, 16 << 10


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """What a reader can hold a file to.

    Attributes:
        size_bytes: The whole file.
        digest: ``algorithm:hex``, as it stands in the file.
    """

    size_bytes: int
    digest: str


def encode_frame(
    batch: SampleBatch, algorithm: str = DEFAULT_ALGORITHM
) -> tuple[list[bytes | memoryview], FrameInfo]:
    """Return the frame as buffers to be written in order, and what to hold it to.

    The buffers share the batch's memory where it is large; write them before it changes.

    Args:
        batch: Anything whose dtypes are bool, integer, float or complex of fixed size.
        algorithm: ``xxh3-128``, or ``sha256`` at a quarter of the speed.

    Raises:
        SchemaMismatchError: a column that a frame cannot hold (dtype, more than 16 dimensions,
            names that are no text, a header above 1 MiB); ``key`` names it.
    """
    form: list[tuple[tuple[str, ...], np.dtype[Any], tuple[int, ...]]] = []
    arrays: list[NDArray[Any]] = []
    _collect(batch.columns, (), form, arrays)
    key = (algorithm, len(batch), *form)
    plan = _plans.get(key)
    if plan is None:
        plan = _make_plan(key[2:], len(batch), algorithm)
        _remember(_plans, key, plan, len(plan.prefix))
    if plan.size_bytes <= _JOINED_BYTES:
        pairs: list[Any] = [part for pair in zip(plan.pads, arrays, strict=True) for part in pair]
        body = b"".join(pairs)
        digest = digest_of((plan.prefix, body), algorithm)
        head = [plan.prefix, _BEFORE_DIGEST, digest.encode(), _AFTER_DIGEST]
        return [b"".join([*head, body])], FrameInfo(plan.size_bytes, digest)
    parts: list[bytes | memoryview] = []
    for pad, array in zip(plan.pads, arrays, strict=True):
        if pad:
            parts.append(pad)
        if array.nbytes:
            parts.append(array.reshape(-1).view(np.uint8).data)
    digest = digest_of((plan.prefix, *parts), algorithm)
    head = [plan.prefix, _BEFORE_DIGEST, digest.encode(), _AFTER_DIGEST]
    return [b"".join(head), *parts], FrameInfo(plan.size_bytes, digest)


def decode_frame(
    buffer: bytes | bytearray | memoryview,
    max_bytes: int = DEFAULT_MAX_BYTES,
    expected_digest: str | None = None,
    verify: bool = True,
) -> SampleBatch:
    """Return the batch of a frame, as read-only views of the buffer.

    Args:
        buffer: The whole frame; it must not change as long as the batch is in use.
        max_bytes: The largest frame to look at.
        expected_digest: What the writer said the frame's digest is.
        verify: Whether to compute the digest. Without, the header alone is checked.

    Raises:
        DataCorruptError: the bytes are no such frame (no other exception).
    """
    view = memoryview(buffer).toreadonly().cast("B")
    size = len(view)
    if size > max_bytes:
        _corrupt(f"{size} bytes; at most {max_bytes} are read", "size")
    if size < _FIXED.size:
        _corrupt(f"{size} bytes are no whole frame", "size")
    magic, header_length = _FIXED.unpack_from(view)
    if magic != MAGIC:
        _corrupt("it does not begin like one", "magic")
    header_end = _FIXED.size + header_length
    if header_length > MAX_HEADER_BYTES or header_end > size:
        _corrupt(f"a header of {header_length} bytes in {size}", "header length")
    header = bytes(view[_FIXED.size : header_end])
    core, digest = _split_digest(header)
    layout = _layouts.get(core)
    if layout is None:
        layout = _parse(core)
        _remember(_layouts, core, layout, len(core))
    start = _aligned(header_end)
    if start + layout.raw_len != size:
        _corrupt(f"{size} bytes; its header makes it {start + layout.raw_len}", "size")
    if expected_digest is not None and digest != expected_digest:
        _corrupt(f"digest {digest}; expected {expected_digest}", "digest")
    if verify:
        covered = (view[: _FIXED.size + len(core)], view[header_end:])
        if digest_of(covered, digest.partition(":")[0]) != digest:
            _corrupt("its content does not have its digest", "digest")
    columns: dict[str, Any] = {}
    for path, dtype, shape, offset in layout.columns:
        node = columns
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = np.ndarray(shape, dtype, view, start + offset)
    return SampleBatch.trusted(columns, layout.rows)


# Writing -------------------------------------------------------------------------------------


class _Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class _Core(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header without its digest."""

    v: int
    rows: int
    raw_len: int
    columns: tuple[_Column, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """All of a frame but its numbers: depends on the schema and the number of rows only."""

    prefix: bytes
    pads: tuple[bytes, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Layout:
    rows: int
    raw_len: int
    columns: tuple[tuple[tuple[str, ...], np.dtype[Any], tuple[int, ...], int], ...]


# Equal pieces are the rule (a policy's schema, a few lengths); both maps are cleared when full.
_plans: dict[Any, _Plan] = {}
_layouts: dict[bytes, _Layout] = {}
_decoder = msgspec.json.Decoder(_Core)


def _collect(
    columns: Mapping[str, Any],
    path: tuple[str, ...],
    form: list[tuple[tuple[str, ...], np.dtype[Any], tuple[int, ...]]],
    arrays: list[NDArray[Any]],
) -> None:
    for name, column in columns.items():
        if isinstance(column, dict):
            if not column or len(path) == MAX_DEPTH:
                raise _unfit((*path, name), "columns, at most 32 levels deep", f"{len(column)}")
            _collect(column, (*path, name), form, arrays)
        else:
            form.append(((*path, name), column.dtype, column.shape))
            is_contiguous = column.flags.c_contiguous
            arrays.append(column if is_contiguous else np.ascontiguousarray(column))


def _make_plan(form: tuple[Any, ...], rows: int, algorithm: str) -> _Plan:
    columns: list[_Column] = []
    pads: list[bytes] = []
    end = 0
    for path, dtype, shape in form:
        if not all(isinstance(name, str) for name in path):
            raise _unfit(path, "a name that is text", repr(path))
        if dtype.str not in _DTYPES or dtype.hasobject:
            raise _unfit(path, "a bool, integer, float or complex dtype", str(dtype))
        if not _is_fit(shape, dtype, rows):
            expected = f"[{rows}, ...] of at most {MAX_DIMENSIONS} dimensions, below 2**62 bytes"
            raise _unfit(path, expected, str(list(shape)))
        offset = _aligned(end)
        nbytes = math.prod(shape) * dtype.itemsize
        columns.append(_Column(path, dtype.str, shape, offset, nbytes))
        pads.append(bytes(offset - end))
        end = offset + nbytes
    core = _encode_core(_Core(_VERSION, rows, end, tuple(columns)))
    digest_bytes = len(_BEFORE_DIGEST) + digest_length(algorithm) + len(_AFTER_DIGEST)
    header_length = len(core) + digest_bytes
    if header_length > MAX_HEADER_BYTES or not columns:
        raise _unfit(("*",), "columns with a header of at most 1 MiB", f"{header_length} bytes")
    header_end = _FIXED.size + header_length
    start = _aligned(header_end)
    pads[0] = bytes(start - header_end)
    return _Plan(_FIXED.pack(MAGIC, header_length) + core, tuple(pads), start + end)


def _encode_core(core: _Core) -> bytes:
    """Return the header up to where the digest follows."""
    try:
        return msgspec.json.encode(core)[:-1]
    except (UnicodeEncodeError, TypeError) as error:
        raise _unfit(("*",), "column names that are text", str(error)) from error


def _unfit(path: tuple[str, ...], expected: str, found: str) -> SchemaMismatchError:
    key = ".".join(map(str, path))
    return SchemaMismatchError(
        f"column {key!r} does not fit into a frame: expected {expected}, found {found}",
        key=key,
        expected=expected,
        found=found,
    )


# Reading -------------------------------------------------------------------------------------


def _split_digest(header: bytes) -> tuple[bytes, str]:
    # A quote inside a name is escaped, so the last match is the header's own key.
    core, found, rest = header.rpartition(_BEFORE_DIGEST)
    if not found or not rest.endswith(_AFTER_DIGEST):
        _corrupt("its header has no digest", "header")
    digest = rest[: -len(_AFTER_DIGEST)].decode("latin-1")
    if not is_digest(digest):
        _corrupt("its header has no digest that is known here", "header")
    return core, digest


def _parse(core: bytes) -> _Layout:
    try:
        found = _decoder.decode(core + b"}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataCorruptError(f"no frame: its header: {error}", where="header") from error
    if found.v != _VERSION:
        _corrupt(f"format {found.v}; this version reads {_VERSION}", "v")
    if not found.columns:
        _corrupt("it has no columns", "columns")
    taken: dict[str, Any] = {}
    columns = []
    end = 0
    for column in found.columns:
        where = ".".join(column.path)
        _place(taken, column.path, where)
        dtype = _DTYPES.get(column.dtype)
        if dtype is None:
            _corrupt(f"dtype {column.dtype!r:.40}", where)
        shape = column.shape
        if not _is_fit(shape, dtype, found.rows):
            _corrupt(f"shape {list(shape)!s:.200} in a batch of {found.rows} rows", where)
        offset, nbytes = _aligned(end), math.prod(shape) * dtype.itemsize
        if column.offset != offset or column.nbytes != nbytes:
            _corrupt(f"{column.nbytes} bytes at {column.offset}; not {nbytes} at {offset}", where)
        columns.append((column.path, dtype, shape, offset))
        end = offset + nbytes
    if found.raw_len != end:
        _corrupt(f"raw_len {found.raw_len}; its columns end at {end}", "raw_len")
    # Double keys, blanks, other spellings of a number: none of them is how we write.
    if _encode_core(found) != core:
        _corrupt("its header is not written as frames are", "header")
    return _Layout(found.rows, end, tuple(columns))


def _place(taken: dict[str, Any], path: tuple[str, ...], where: str) -> None:
    if not 0 < len(path) <= MAX_DEPTH + 1:
        _corrupt(f"a path of {len(path)} names", where)
    node = taken
    for name in path[:-1]:
        node = node.setdefault(name, {})
        if node is None:
            _corrupt("a column inside of a column", where)
    if path[-1] in node:
        _corrupt("a column that is there already", where)
    node[path[-1]] = None


def _is_fit(shape: tuple[int, ...], dtype: np.dtype[Any], rows: int) -> bool:
    if not 0 < len(shape) <= MAX_DIMENSIONS or min(shape) < 0 or shape[0] != rows:
        return False
    # An empty array still needs dimensions that numpy can hold.
    return math.prod(max(length, 1) for length in shape) * dtype.itemsize < 2**62


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _remember(cache: dict[Any, Any], key: Any, value: Any, size_bytes: int) -> None:
    if size_bytes > _CACHED_BYTES:
        return
    if len(cache) >= _CACHED_LAYOUTS:
        cache.clear()
    cache[key] = value


def _corrupt(what: str, where: str) -> NoReturn:
    raise DataCorruptError(f"no frame: {what}", where=where)
