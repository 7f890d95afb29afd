"""Named tensors as safetensors bytes with a digest of their own.

A file written here is a safetensors file that every reader of that format takes. Its metadata
ends with a digest over every other byte, and readers here take only what is written here:
offsets follow from dtypes and shapes, wide types first, without gaps, so that none is trusted.

torch is imported when first used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from dingsdk.data.digests import DEFAULT_ALGORITHM, digest_length, digest_of, is_digest
from dingsdk.data.frames import MAX_DIMENSIONS, MAX_HEADER_BYTES, FrameInfo
from dingsdk.errors import DataCorruptError, SchemaMismatchError

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
_BEFORE_METADATA, _BEFORE_DIGEST, _AFTER_DIGEST = b',"__metadata__":', b',"digest":"', b'"}}'
_ARRAY_TYPES = {
    **{f"u{size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    **{f"i{size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"F{8 * size}" for size in (2, 4, 8)},
    "b1": "BOOL",
}


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_tensors_decoder = msgspec.json.Decoder(dict[str, _Tensor])
_metadata_decoder = msgspec.json.Decoder(dict[str, str])


def encode_tensors(
    state: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    algorithm: str = DEFAULT_ALGORITHM,
) -> tuple[list[bytes | memoryview], FrameInfo]:
    """Return the file as buffers to be written in order, and what to hold it to.

    The buffers share the memory of contiguous CPU tensors; write them before it changes.

    Args:
        state: Name -> torch tensor (any device) or numpy array; real numbers of up to 64 bits,
            bfloat16 and bool.
        metadata: Texts to keep with them, without the key ``digest``.
        algorithm: See :func:`encode_frame`.

    Raises:
        SchemaMismatchError: the state is empty or holds something else; ``key`` names it.
    """
    described: dict[str, tuple[str, tuple[int, ...], memoryview | bytes]] = {}
    for name, value in state.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise _unfit(name, "a name that is text", repr(name))
        described[name] = _describe(name, value)
    if not described:
        raise _unfit("", "tensors", "none")
    order = sorted(described, key=lambda name: -_itemsize(described[name][0]))
    offsets: dict[str, tuple[int, int]] = {}
    end = 0
    for name in order:
        start, end = end, end + memoryview(described[name][2]).nbytes
        offsets[name] = (start, end)
    entries = {name: _Tensor(*form[:2], offsets[name]) for name, form in described.items()}
    core = _encode_core(entries, {"format": "pt", **(metadata or {})})
    length = len(core) + len(_BEFORE_DIGEST) + digest_length(algorithm) + len(_AFTER_DIGEST)
    blanks = -(_LENGTH.size + length) % _ALIGNMENT
    if length + blanks > MAX_HEADER_BYTES:
        raise _unfit("*", "a header of at most 1 MiB", f"{length} bytes")
    prefix = _LENGTH.pack(length + blanks) + core
    parts = [described[name][2] for name in order]
    digest = digest_of((prefix, *parts), algorithm)
    head = [prefix, _BEFORE_DIGEST, digest.encode(), _AFTER_DIGEST, b" " * blanks]
    return [b"".join(head), *parts], FrameInfo(_LENGTH.size + length + blanks + end, digest)


def decode_tensors(
    buffer: bytearray, max_bytes: int, expected_digest: str | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return (tensors that share the buffer's memory, metadata).

    Args:
        buffer: The whole file; writable, as tensors have no read-only form.
        max_bytes: The largest file to look at.
        expected_digest: What the writer said the file's digest is.

    Raises:
        DataCorruptError: the bytes are no such file (no other exception).
    """
    size = len(buffer)
    if not _LENGTH.size <= size <= max_bytes:
        _corrupt(f"{size} bytes; {_LENGTH.size} to {max_bytes} are read", "size")
    (header_length,) = _LENGTH.unpack_from(buffer)
    header_end = _LENGTH.size + header_length
    if header_length > MAX_HEADER_BYTES or header_end > size or header_end % _ALIGNMENT:
        _corrupt(f"a header of {header_length} bytes in {size}", "header length")
    core, digest = _split_digest(bytes(buffer[_LENGTH.size : header_end]))
    if expected_digest is not None and digest != expected_digest:
        _corrupt(f"digest {digest}; expected {expected_digest}", "digest")
    entries, metadata = _parse(core, size - header_end)
    view = memoryview(buffer)
    covered = (view[: _LENGTH.size + len(core)], view[header_end:])
    if digest_of(covered, digest.partition(":")[0]) != digest:
        _corrupt("its content does not have its digest", "digest")
    return _views(buffer, header_end, entries), metadata


# Writing -------------------------------------------------------------------------------------


@cache
def _torch_types() -> dict[str, torch.dtype]:
    import torch

    names = [(f"F{n}", f"float{n}") for n in (16, 32, 64)]
    for n in (8, 16, 32, 64):
        names += [(f"I{n}", f"int{n}"), (f"U{n}", f"uint{n}")]
    types = {name: getattr(torch, attribute) for name, attribute in names}
    types |= {"BF16": torch.bfloat16, "BOOL": torch.bool}
    return types


@cache
def _type_names() -> dict[torch.dtype, str]:
    return {dtype: name for name, dtype in _torch_types().items()}


def _itemsize(name: str) -> int:
    return _torch_types()[name].itemsize


def _describe(name: str, value: Any) -> tuple[str, tuple[int, ...], memoryview | bytes]:
    import torch

    if isinstance(value, torch.Tensor):
        type_name = _type_names().get(value.dtype)
        if type_name is None or value.layout is not torch.strided:
            raise _unfit(name, "a dense tensor of real numbers", f"{value.dtype} {value.layout}")
        shape = tuple(value.shape)
        flat = value.detach().resolve_neg().cpu().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy()
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        type_name = _ARRAY_TYPES.get(f"{array.dtype.kind}{array.dtype.itemsize}")
        if type_name is None:
            raise _unfit(name, "an array of real numbers", str(array.dtype))
        shape = array.shape
        # "<": the format knows no other byte order.
        native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        raw = native.reshape(-1).view(np.uint8)
    else:
        raise _unfit(name, "a tensor or array", type(value).__name__)
    if len(shape) > MAX_DIMENSIONS:
        raise _unfit(name, f"at most {MAX_DIMENSIONS} dimensions", str(len(shape)))
    return type_name, shape, raw.data if raw.nbytes else b""


def _encode_core(entries: Mapping[str, _Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the header up to where the digest follows."""
    try:
        tensors, texts = msgspec.json.encode(entries), msgspec.json.encode(metadata)
    except (UnicodeEncodeError, TypeError) as error:
        raise _unfit("*", "names that are text", str(error)) from error
    return tensors[:-1] + _BEFORE_METADATA + texts[:-1]


def _unfit(key: Any, expected: str, found: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{key!r:.80} does not fit into a tensor file: expected {expected}, found {found}",
        key=key,
        expected=expected,
        found=found,
    )


# Reading -------------------------------------------------------------------------------------


def _split_digest(header: bytes) -> tuple[bytes, str]:
    core, found, rest = header.rpartition(_BEFORE_DIGEST)
    rest = rest.rstrip(b" ")
    blanks = len(header) - len(core) - len(found) - len(rest)
    if not found or not rest.endswith(_AFTER_DIGEST) or blanks >= _ALIGNMENT:
        _corrupt("its header has no digest", "header")
    digest = rest[: -len(_AFTER_DIGEST)].decode("latin-1")
    if not is_digest(digest):
        _corrupt("its header has no digest that is known here", "header")
    return core, digest


def _parse(core: bytes, data_bytes: int) -> tuple[dict[str, _Tensor], dict[str, str]]:
    tensors, found, texts = core.rpartition(_BEFORE_METADATA)
    if not found:
        _corrupt("its header has no metadata", "header")
    try:
        entries = _tensors_decoder.decode(tensors + b"}")
        metadata = _metadata_decoder.decode(texts + b"}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataCorruptError(f"no tensor file: its header: {error}", where="header") from error
    for name, entry in entries.items():
        if entry.dtype not in _torch_types():
            _corrupt(f"dtype {entry.dtype!r:.40}", name)
        if len(entry.shape) > MAX_DIMENSIONS or min(entry.shape, default=0) < 0:
            _corrupt(f"shape {list(entry.shape)!s:.200}", name)
        if math.prod(max(length, 1) for length in entry.shape) >= 2**60:
            _corrupt(f"shape {list(entry.shape)!s:.200} is beyond any memory", name)
    end = 0
    for name in sorted(entries, key=lambda name: -_itemsize(entries[name].dtype)):
        entry = entries[name]
        start, end = end, end + math.prod(entry.shape) * _itemsize(entry.dtype)
        if entry.data_offsets != (start, end):
            _corrupt(f"offsets {entry.data_offsets!s:.99}; not {(start, end)}", name)
    if end != data_bytes or not entries:
        _corrupt(f"{data_bytes} bytes of data; its header makes it {end}", "size")
    # Double keys, blanks, other spellings of a number: none of them is how we write.
    if _encode_core(entries, metadata) != core:
        _corrupt("its header is not written as ours are", "header")
    return entries, metadata


def _views(
    buffer: bytearray, start: int, entries: Mapping[str, _Tensor]
) -> dict[str, torch.Tensor]:
    import torch

    if start == len(buffer):
        data = torch.empty(0, dtype=torch.uint8)
    else:
        data = torch.frombuffer(buffer, dtype=torch.uint8, offset=start)
    types = _torch_types()
    return {
        name: data[slice(*entry.data_offsets)].view(types[entry.dtype]).reshape(entry.shape)
        for name, entry in entries.items()
    }


def _corrupt(what: str, where: str) -> NoReturn:
    raise DataCorruptError(f"no tensor file: {what}", where=where)
