"""The format of all data that dingsdk writes: a JSON manifest and named arrays.

Payloads, policy versions, checkpoints, saved replay buffers and the small files that point to
them are *containers*. A container holds one value, encoded by :mod:`dingsdk.data.tagged`. Its
manifest is::

    {"version", "kind", "tree", "columns": {name: {"dtype", "shape"}}, "digest"}

``kind`` names the kind of the value; readers check it, so that a policy is never read as a
payload. ``tree`` is the value with each array replaced by ``{"$array": name}``. The name of a
column is its path in the value, joined by dots. ``digest`` covers all other bytes. The algorithm
xxh3-128 detects damage at memory speed; sha256 also detects deliberate changes. The algorithm
``head``, for payloads that never leave the memory of a host, covers only the manifest; its cost
does not depend on the size of the payload.

There are three ways to write a container:

* A *frame* (:func:`encode_frame`): ``magic, 8 bytes | manifest length, uint32 | manifest | zeros
  | arrays``. Arrays are in C order and start at multiples of 64 bytes, so that a memory-mapped
  file can be read in place. Large arrays are not copied when they are written or read.
* A *safetensors file* (:func:`encode_safetensors`), written and read by that library, with the
  manifest in its metadata: any tool that supports safetensors can open the weights of a
  checkpoint. The library copies all arrays; therefore payloads and policies are frames.
* *JSON* (:func:`encode_json`): only the manifest, for small values; arrays are text in it.

Values that are too large for one file are stored in a folder: it has immutable files of segments,
and one container that lists them with their digests and is written last.

Readers do not trust the data. They first compare the total size with a limit. The offset of every
array follows from the dtypes and shapes, and the sizes must add up to the total size. They never
allocate memory because of a number in a manifest, and never execute or decompress anything.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from dingsdk.data.pytree import flatten, nest
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.data.tagged import (
    DTYPES,
    FALSE_DATA,
    MAX_DEPTH,
    Decoder,
    Encoder,
    array_of,
    as_tensor,
    is_fit,
    unfit,
)
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
    DataCorruptError,
    DataVersionError,
)
from dingsdk.runtime.files import Buffer

VERSION = 3
"""Version of the format, for all kinds."""
MAGIC = b"DING\r\n\x1a\n"
DEFAULT_ALGORITHM = "xxh3-128"
DEFAULT_MAX_BYTES = 256 << 20
"""Default limit of the size of a frame."""
MAX_MANIFEST_BYTES = 1 << 20
"""Default limit of the size of the manifest of a frame."""

_ALIGNMENT = 64
_MAX_HEADER_BYTES = 32 << 20
"""Largest header of a safetensors file; our manifest may take half of it."""
_FIXED = struct.Struct("<8sI")
_BEFORE_DIGEST, _AFTER_DIGEST = b',"digest":"', b'"}'
_JOINED_BYTES = 64 << 10
"""Frames up to this size are returned as one buffer: copying them costs less than two buffers."""
_CACHED_LAYOUTS, _CACHED_BYTES = 512, 16 << 10
"""Most layouts of frames in a cache, and the largest manifest of a layout in it."""
_OF_THE_HEAD = "head"
_ALGORITHMS: dict[str, Callable[..., Any]] = {
    "xxh3-128": xxhash.xxh3_128,
    _OF_THE_HEAD: xxhash.xxh3_128,
    "sha256": hashlib.sha256,
}
_OTHER_DIGEST = "its content does not have its digest"
_DIGEST = re.compile(r"(?:xxh3-128|head):[0-9a-f]{32}|sha256:[0-9a-f]{64}")


class FrameInfo(NamedTuple):
    """Size and digest (``algorithm:hex``) of a container, which a reader can check."""

    size_bytes: int
    digest: str


def encode_frame(
    kind: str,
    value: Any,
    *,
    algorithm: str = DEFAULT_ALGORITHM,
    max_manifest_bytes: int = MAX_MANIFEST_BYTES,
) -> tuple[list[Buffer], FrameInfo]:
    """Return a frame as a list of buffers to write in order, with its size and digest.

    The buffers share the memory of large arrays; write them before the arrays change.

    Args:
        kind: The kind of the value, such as ``payload``.
        value: The value; see the module docstring.
        algorithm: ``xxh3-128``; or ``sha256``, at a quarter of the speed; or ``head``, which is
            xxh3-128 of the manifest only.
        max_manifest_bytes: The longest manifest that readers of this kind accept.

    Raises:
        SchemaMismatchError: the value contains something else, or its manifest is too long; ``key``
            is the dotted path.
    """
    form: list[Any] = [kind, algorithm]
    arrays: list[NDArray[Any]] = []
    key: tuple[Any, ...] = ()
    plan = None
    if type(value) is SampleBatch:
        # Most batches have one schema and one of a few lengths: their manifests are cached.
        form.append(len(value))
        _collect(value.columns, (), form, arrays)
        key = tuple(form)
        plan = _plans.get(key)
    if plan is None:
        splitter = _Splitter()
        tree = splitter.visit(value)
        arrays = splitter.arrays
        plan = _make_plan(kind, tree, splitter.columns, algorithm, max_manifest_bytes)
        if key:
            _remember(_plans, key, plan, len(plan.prefix))
    if plan.size_bytes <= _JOINED_BYTES:
        pairs: list[Any] = [part for pair in zip(plan.pads, arrays, strict=True) for part in pair]
        body = b"".join((plan.gap, *pairs))
        digest = _digest_of_frame(algorithm, plan.prefix, body)
        whole = b"".join((plan.prefix, _BEFORE_DIGEST, digest.encode(), _AFTER_DIGEST, body))
        return [whole], FrameInfo(plan.size_bytes, digest)
    parts: list[Buffer] = [plan.gap]
    for pad, array in zip(plan.pads, arrays, strict=True):
        if pad:
            parts.append(pad)
        if array.nbytes:
            parts.append(array.reshape(-1).view(np.uint8).data)
    digest = _digest_of_frame(algorithm, plan.prefix, *parts)
    head = b"".join((plan.prefix, _BEFORE_DIGEST, digest.encode(), _AFTER_DIGEST))
    return [head, *parts], FrameInfo(plan.size_bytes, digest)


def decode_frame(
    kind: str,
    buffer: Buffer,
    max_bytes: int = DEFAULT_MAX_BYTES,
    *,
    expected_digest: str | None = None,
    verify: bool = True,
    max_manifest_bytes: int = MAX_MANIFEST_BYTES,
) -> Any:
    """Return the value of a frame; its arrays are views of the buffer.

    Args:
        kind: The kind that the frame must have.
        buffer: The whole frame. It must not change while the value is in use. Arrays and tensors
            are writable if the buffer is; tensors of a read-only buffer are copies.
        max_bytes: The largest frame to accept.
        expected_digest: The digest that the writer announced.
        verify: Whether to compute the digest. If False, only the manifest is checked.
        max_manifest_bytes: The longest manifest to accept.

    Raises:
        DataCorruptError: the bytes are not a valid frame of this kind.
        DataVersionError: the frame has another version of the format. No other exception is raised
            for any bytes.
    """
    view = memoryview(buffer).cast("B")
    size = len(view)
    if size > max_bytes:
        raise _corrupt(f"{size} bytes; at most {max_bytes} are read", "size")
    if size < _FIXED.size:
        raise _corrupt(f"{size} bytes are no whole frame", "size")
    magic, length = _FIXED.unpack_from(view)
    if magic != MAGIC:
        raise _corrupt("it does not begin like one", "magic")
    end = _FIXED.size + length
    if length > max_manifest_bytes or end > size:
        raise _corrupt(f"a manifest of {length} bytes in {size}", "manifest length")
    core, digest = _split_digest(bytes(view[_FIXED.size : end]))
    if expected_digest is not None and digest != expected_digest:
        raise _corrupt(f"digest {digest}; expected {expected_digest}", "digest")
    if verify:
        parts = view[: _FIXED.size + len(core)], view[end:]
        if _digest_of_frame(digest.partition(":")[0], *parts) != digest:
            raise _corrupt(_OTHER_DIGEST, "digest")
    layout = _layouts.get(core)
    if layout is None:
        layout = _parse_layout(core)
        _remember(_layouts, core, layout, len(core))
    _check_kind(layout.manifest.kind, kind)
    start = _aligned(end)
    if start + layout.size_bytes != size:
        raise _corrupt(f"{size} bytes; its manifest makes it {start + layout.size_bytes}", "size")
    arrays = [
        np.ndarray(shape, dtype, view, start + offset) for shape, dtype, offset in layout.arrays
    ]
    if layout.paths is not None:
        pairs = zip(layout.paths, arrays, strict=True)
        # Columns are rarely nested, and dict() takes a third of the time of nest().
        columns = dict(pairs) if layout.is_flat else nest(pairs)
        return SampleBatch.trusted(columns, layout.rows)
    return _join(layout.manifest, arrays)


def encode_batch(
    batch: SampleBatch, *, algorithm: str = DEFAULT_ALGORITHM
) -> tuple[list[Buffer], FrameInfo]:
    """Return a batch as a frame of the kind ``payload``; see :func:`encode_frame`."""
    return encode_frame("payload", batch, algorithm=algorithm)


def decode_batch(
    buffer: Buffer,
    max_bytes: int = DEFAULT_MAX_BYTES,
    *,
    expected_digest: str | None = None,
    verify: bool = True,
) -> SampleBatch:
    """Return the batch of a payload as read-only views of the buffer; see :func:`decode_frame`."""
    view = memoryview(buffer).toreadonly()
    batch = decode_frame("payload", view, max_bytes, expected_digest=expected_digest, verify=verify)
    if not isinstance(batch, SampleBatch):
        raise _corrupt("its value is no batch", "tree")
    return batch


def encode_safetensors(kind: str, value: Any) -> bytearray:
    """Return a safetensors file whose metadata holds the manifest.

    Raises:
        SchemaMismatchError: as :func:`encode_frame`; also for some complex types, which safetensors
            does not support.
    """
    import safetensors
    import safetensors.torch

    splitter = _Splitter()
    tree = splitter.visit(value)
    # The library does not accept big-endian arrays, or tensors that share memory.
    tensors = {
        name: as_tensor(array.astype(array.dtype.newbyteorder("<"), "C"), column.dtype)
        for (name, column), array in zip(splitter.columns.items(), splitter.arrays, strict=True)
    }
    blank = f"sha256:{'0' * 64}".encode()
    core = _encode_core(_Manifest(VERSION, kind, tree, {}), _MAX_HEADER_BYTES // 2)
    text = b"".join((core, _BEFORE_DIGEST, blank, _AFTER_DIGEST)).decode()
    try:
        content = bytearray(safetensors.torch.save(tensors, {_METADATA_KEY: text}))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise unfit((), "what safetensors stores", str(error)) from error
    at = _place_of(blank, content[: 8 + int.from_bytes(content[:8], "little")])
    content[at : at + len(blank)] = digest_of((content,), "sha256").encode()
    return content


def decode_safetensors(kind: str, data: Buffer) -> Any:
    """Return the value that :func:`encode_safetensors` wrote; it shares no memory with ``data``.

    Raises the same errors as :func:`decode_frame`.
    """
    import safetensors
    import safetensors.torch

    view = memoryview(data)
    end = 8 + int.from_bytes(view[:8], "little")
    if not 8 < end <= min(len(view), _MAX_HEADER_BYTES):
        raise _corrupt(f"a header of {end - 8} bytes in {len(view)}", "header length")
    head = bytes(view[:end])
    try:
        header = msgspec.json.decode(head[8:], type=_SafetensorsHeader)
        core, digest = _split_digest(header.metadata[_METADATA_KEY].encode())
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError) as error:
        raise _corrupt(f"{error!r:.200}", "header") from error
    algorithm, _, digits = digest.partition(":")
    blank = f"{algorithm}:{'0' * len(digits)}".encode()
    at = _place_of(digest.encode(), head)
    _check_digest((view[:at], blank, view[at + len(blank) :]), digest)
    manifest = _parse(core)
    _check_kind(manifest.kind, kind)
    try:
        tensors = safetensors.torch.load(bytes(view))
        arrays = {name: array_of(tensor, (name,)) for name, tensor in tensors.items()}
    except (safetensors.SafetensorError, *FALSE_DATA) as error:
        raise _corrupt(f"{error}", "tensors") from error
    joiner = _Joiner(arrays)
    value = _decoded(joiner, manifest)
    if sorted(joiner.used) != sorted(arrays):
        raise _corrupt("its tree does not name each tensor once", "tree")
    return value


def encode_json(kind: str, value: Any) -> bytes:
    """Return a value as a line of JSON; errors as for :func:`encode_frame`."""
    core = _encode_core(_Manifest(VERSION, kind, Encoder().visit(value), {}))
    digest = digest_of((core,))
    return b"".join((core, _BEFORE_DIGEST, digest.encode(), _AFTER_DIGEST, b"\n"))


def decode_json(kind: str, data: Buffer, max_bytes: int = 64 << 10) -> Any:
    """Return the value that :func:`encode_json` wrote; errors as for :func:`decode_frame`."""
    if len(data) > max_bytes:
        raise _corrupt(f"{len(data)} bytes; at most {max_bytes} are read", "size")
    core, digest = _split_digest(bytes(data).removesuffix(b"\n"))
    _check_digest((core,), digest)
    manifest = _parse(core)
    _check_kind(manifest.kind, kind)
    return _decoded(Decoder(), manifest)


@contextmanager
def checkpoint_errors(path: Path, advice: str) -> Iterator[None]:
    """Convert errors about the content of a file to checkpoint errors.

    Args:
        path: The file.
        advice: Text that says what to do about a damaged file.
    """
    try:
        yield
    except DataVersionError as error:
        facts = {"found": error.found, "expected": error.expected}
        raise CheckpointVersionError(f"{path}: {error}", path=str(path), **facts) from error
    except ValueError as error:  # also errors of msgspec, and of invalid names
        text = f"{path} cannot be used: {error}; {advice}"
        raise CheckpointCorruptError(text, path=str(path)) from error


def digest_of(parts: Iterable[Any], algorithm: str = DEFAULT_ALGORITHM) -> str:
    """Return the digest ``algorithm:hex`` of the concatenation of contiguous buffers."""
    hasher = _ALGORITHMS[algorithm]()
    for part in parts:
        hasher.update(part)
    return f"{algorithm}:{hasher.hexdigest()}"


def _digest_of_frame(algorithm: str, *parts: Any) -> str:
    return digest_of(parts[:1] if algorithm == _OF_THE_HEAD else parts, algorithm)


def _check_digest(parts: Iterable[Any], digest: str) -> None:
    # The digest is checked before the version: it is computed in the same way in all versions.
    if digest_of(parts, digest.partition(":")[0]) != digest:
        raise _corrupt(_OTHER_DIGEST, "digest")


def _split_digest(manifest: bytes) -> tuple[bytes, str]:
    # Quotes in names are escaped, so the last match is the key "digest" of the manifest.
    core, found, rest = manifest.rpartition(_BEFORE_DIGEST)
    digest = rest.removesuffix(_AFTER_DIGEST).decode("latin-1")
    if not found or not rest.endswith(_AFTER_DIGEST) or not _DIGEST.fullmatch(digest):
        raise _corrupt("its manifest has no digest that is known here", "manifest")
    return core, digest


def _place_of(digest: bytes, head: bytes | bytearray) -> int:
    """Return the offset of the digest in a safetensors header, which must contain it once."""
    if head.count(digest) != 1:
        raise _corrupt("its header does not hold its digest once", "digest")
    return head.index(digest)


class _Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest without its digest."""

    version: int
    kind: str
    tree: Any
    columns: dict[str, _Column]


class _Version(msgspec.Struct):
    version: Any = None


class _SafetensorsHeader(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


_METADATA_KEY = "dingsdk"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A frame without its numbers; depends only on the kind, the schema and the number of rows."""

    prefix: bytes
    gap: bytes
    """Zeros between the manifest and the first array."""
    pads: tuple[bytes, ...]
    """Zeros before each array."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The checked content of a frame's manifest."""

    manifest: _Manifest
    arrays: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    size_bytes: int
    """Total size of the arrays."""
    paths: tuple[Any, ...] | None
    """If the value is a batch, the paths of its columns in order; if ``is_flat``, their names."""
    is_flat: bool
    rows: int


# Caches, because most batches have the same form; both are cleared when full.
_plans: dict[Any, _Plan] = {}
_layouts: dict[bytes, _Layout] = {}
_decoder = msgspec.json.Decoder(_Manifest)
_version_decoder = msgspec.json.Decoder(_Version)


def _collect(
    columns: Mapping[str, Any], path: tuple[str, ...], form: list[Any], arrays: list[NDArray[Any]]
) -> None:
    for name, column in columns.items():
        if isinstance(column, dict):
            if len(path) > MAX_DEPTH:
                raise unfit(path, f"at most {MAX_DEPTH} levels", "more")
            _collect(column, (*path, name), form, arrays)
        else:
            form += path, name, column.dtype, column.shape
            is_contiguous = column.flags.c_contiguous
            arrays.append(column if is_contiguous else np.ascontiguousarray(column))


def _make_plan(
    kind: str, tree: Any, columns: dict[str, _Column], algorithm: str, max_manifest_bytes: int
) -> _Plan:
    digest_bytes = len(digest_of((), algorithm))
    core = _encode_core(_Manifest(VERSION, kind, tree, columns), max_manifest_bytes)
    length = len(core) + len(_BEFORE_DIGEST) + digest_bytes + len(_AFTER_DIGEST)
    pads: list[bytes] = []
    end = 0
    for column in columns.values():
        start = _aligned(end)
        pads.append(bytes(start - end))
        end = start + _size_of(column)
    gap = bytes(-(_FIXED.size + length) % _ALIGNMENT)
    prefix = _FIXED.pack(MAGIC, length) + core
    return _Plan(prefix, gap, tuple(pads), _FIXED.size + length + len(gap) + end)


def _encode_core(manifest: _Manifest, max_manifest_bytes: int = MAX_MANIFEST_BYTES) -> bytes:
    """Return the part of the manifest before the digest."""
    try:
        core = msgspec.json.encode(manifest)[:-1]
    except (UnicodeEncodeError, TypeError) as error:
        raise unfit((), "names and text that have a UTF-8 form", str(error)) from error
    if len(core) > max_manifest_bytes - 128:
        raise unfit((), f"a manifest of at most {max_manifest_bytes} bytes", f"{len(core)}")
    return core


def _parse_layout(core: bytes) -> _Layout:
    manifest = _parse(core)
    arrays = []
    end = 0
    for name, column in manifest.columns.items():
        dtype, shape = DTYPES.get(column.dtype), column.shape
        if dtype is None:
            raise _corrupt(f"dtype {column.dtype!r:.40}", name)
        if not is_fit(shape, dtype.itemsize):
            raise _corrupt(f"shape {list(shape)!s:.200}", name)
        start = _aligned(end)
        arrays.append((shape, dtype, start))
        end = start + _size_of(column)
    paths, is_flat, rows = None, False, 0
    if isinstance(manifest.tree, dict) and "$batch" in manifest.tree:
        # Computed once, so that the next batch with this manifest needs no walk through the tree.
        blanks = [np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype, _ in arrays]
        batch = _join(manifest, blanks)
        is_flat, rows = not any(type(each) is dict for each in batch.columns.values()), len(batch)
        paths = tuple(batch.columns if is_flat else (path for path, _ in flatten(batch.columns)))
    return _Layout(manifest, tuple(arrays), end, paths, is_flat, rows)


def _parse(core: bytes) -> _Manifest:
    _check_version(core + b"}")
    try:
        return _decoder.decode(core + b"}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _corrupt(f"its manifest: {error}", "manifest") from error


def _check_version(manifest: bytes) -> None:
    try:
        found = _version_decoder.decode(manifest).version
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _corrupt(f"its manifest: {error}", "manifest") from error
    if found != VERSION:
        raise DataVersionError(
            f"format version {found!r:.40}; this version of dingsdk reads {VERSION}",
            where="version",
            found=found,
            expected=VERSION,
        )


def _check_kind(found: str, kind: str) -> None:
    if found != kind:
        raise _corrupt(f"its kind is {found!r:.40}, not {kind!r}", "kind")


def _size_of(column: _Column) -> int:
    return math.prod(column.shape) * DTYPES[column.dtype].itemsize


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _remember(cache: dict[Any, Any], key: Any, value: Any, size_bytes: int) -> None:
    if size_bytes > _CACHED_BYTES:
        return
    if len(cache) >= _CACHED_LAYOUTS:
        cache.clear()
    cache[key] = value


def _corrupt(what: str, where: str) -> DataCorruptError:
    return DataCorruptError(f"not a container: {what}", where=where)


class _Splitter(Encoder):
    """Collects the arrays of a value, and names them."""

    def __init__(self) -> None:
        self.columns: dict[str, _Column] = {}
        self.arrays: list[NDArray[Any]] = []

    def place(self, array: NDArray[Any], dtype: str, path: tuple[str, ...]) -> str:
        name = ".".join(map(str, path)) or "value"
        while name in self.columns:
            name += "~"
        self.columns[name] = _Column(dtype, array.shape)
        self.arrays.append(np.asarray(array, order="C"))
        return name


class _Joiner(Decoder):
    """Puts arrays, with the names of their dtypes, in their places."""

    def __init__(self, arrays: Mapping[str, tuple[NDArray[Any], str]]) -> None:
        self._arrays = arrays
        self.used: list[str] = []

    def place(self, spec: str) -> tuple[NDArray[Any], str]:
        self.used.append(spec)
        return self._arrays[spec]


def _join(manifest: _Manifest, arrays: Iterable[NDArray[Any]]) -> Any:
    """Return the value of a frame, whose tree must name each array once, in order."""
    columns = zip(manifest.columns.items(), arrays, strict=True)
    joiner = _Joiner({name: (array, column.dtype) for (name, column), array in columns})
    value = _decoded(joiner, manifest)
    if joiner.used != list(manifest.columns):
        raise _corrupt("its tree does not name each array once, in order", "tree")
    return value


def _decoded(decoder: Decoder, manifest: _Manifest) -> Any:
    try:
        return decoder.visit(manifest.tree)
    except FALSE_DATA as error:
        raise _corrupt(f"its tree: {error!r:.200}", "tree") from error
