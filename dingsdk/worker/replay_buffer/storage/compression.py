"""Compressed arrays and columns; the codecs come with the extra ``dingsdk[compress]``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import NUMERIC_KINDS
from dingsdk.errors import ConfigError, DataCorruptError

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.storage.mapped_folder import SlotFile

PAGE_BYTES = 4096
"""Size of a memory page; a slot of a packed row is a whole number of pages."""
LEAST_BYTES = 256
"""Smaller arrays are not compressed, because they gain nothing."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The content of an array: compressed, or uncompressed if compression does not shrink it."""

    data: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int
    """Size of the array."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression method; ``unpack(data, size)`` returns at most ``size`` bytes."""

    pack: Callable[[bytes | memoryview], bytes]
    unpack: Callable[[bytes, int], bytes]

    def shrink(self, raw: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes compressed, or unchanged if compression does not shrink them."""
        packed = self.pack(raw)
        return packed if len(packed) < len(raw) else raw

    def restore(self, data: bytes, size_bytes: int) -> bytes:
        """Return the original bytes of :meth:`shrink`, or raise DataCorruptError."""
        raw = data if len(data) == size_bytes else self.unpack(data, size_bytes)
        if len(raw) != size_bytes:
            raise _damaged(f"{len(raw)} bytes, not {size_bytes}")
        return raw

    def pack_array(self, value: Any) -> Any:
        """Pack a numeric array of 256 bytes or more; return anything else unchanged."""
        if type(value) is not np.ndarray or value.nbytes < LEAST_BYTES:
            return value
        if value.dtype.kind not in NUMERIC_KINDS:
            return value
        return Packed(bytes(self.shrink(value.tobytes())), value.dtype, value.shape, value.nbytes)

    def unpack_array(self, value: Any) -> Any:
        """Unpack a packed array into a new array; return anything else unchanged."""
        if type(value) is not Packed:
            return value
        raw = bytearray(self.restore(value.data, value.size_bytes))
        return np.frombuffer(raw, value.dtype).reshape(value.shape)


def slot_bytes(row_bytes: int) -> int:
    """Return the bytes of a slot: the bytes of a row, rounded up to whole pages."""
    return -(-row_bytes // PAGE_BYTES) * PAGE_BYTES


class PackedColumn:
    """A column of compressed rows in a sparse file, each in a slot that fits an uncompressed row.

    It has the methods of an array that a storage uses. A row that compression does not shrink is
    stored uncompressed, at its full length. Pages of a slot that were never written take no space.

    It uses one thread. Two threads took as long (512 rows of 28 KB: 9.5 ms either way, lz4,
    2 cores, 2026-11), because each call of a codec is too short to hand over the interpreter lock.

    Args:
        tail: The shape of a row.
        dtype: The dtype of a row.
        codec: Compresses rows.
        lengths: int32[capacity], the stored bytes of each row.
        file: A file of ``capacity * slot_bytes(...)`` bytes.
    """

    def __init__(
        self,
        tail: tuple[int, ...],
        dtype: np.dtype[Any],
        codec: Codec,
        lengths: NDArray[np.int32],
        file: SlotFile,
    ) -> None:
        self.shape = (len(lengths), *tail)
        self.ndim = len(self.shape)
        self.dtype = dtype
        self._row_bytes = math.prod(tail) * dtype.itemsize
        self._slot_bytes = slot_bytes(self._row_bytes)
        self._codec, self._lengths, self._file = codec, lengths, file

    def __len__(self) -> int:
        return self.shape[0]

    def __setitem__(self, where: NDArray[np.int64], rows: NDArray[Any]) -> None:
        raw = _as_bytes(np.ascontiguousarray(rows))
        size = self._row_bytes
        for number, position in enumerate(where.tolist()):
            data = self._codec.shrink(raw[number * size : (number + 1) * size])
            self._file.write(data, position * self._slot_bytes)
            self._lengths[position] = len(data)

    def take(self, where: Any, axis: int = 0) -> NDArray[Any]:
        """Return the rows at positions, or the row at one position, as a new array.

        Raises:
            DataCorruptError: the stored bytes of a row are damaged.
        """
        where = np.asarray(where)
        taken = np.empty((*where.shape, *self.shape[1:]), self.dtype)
        out, start, size = _as_bytes(taken), 0, self._row_bytes
        for position in where.reshape(-1).tolist():
            out[start : start + size] = self._row(position, int(self._lengths[position]))
            start += size
        return taken

    def _row(self, position: int, length: int) -> bytes:
        try:
            if not 0 < length <= self._row_bytes:
                raise DataCorruptError(f"its length is {length}", where="length")
            data = self._file.read(length, position * self._slot_bytes)
            return self._codec.restore(data, self._row_bytes)
        except DataCorruptError as error:
            raise DataCorruptError(
                f"the row at position {position} of {self._file.path} is damaged: {error}",
                where=str(self._file.path),
                position=position,
            ) from error


def _as_bytes(array: NDArray[Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def read_codec(name: str) -> Codec | None:
    """Return the codec that ``storage.compress`` names, None for ``none``.

    Raises:
        ConfigError: its package is not installed.
    """
    try:
        return {"none": lambda: None, "lz4": _lz4, "zstd": _zstd}[name]()
    except ImportError as error:
        raise ConfigError(
            f"storage.compress {name!r} needs a package that is not installed; run: "
            "pip install lz4 zstandard",
            path="storage.compress",
        ) from error


def _lz4() -> Codec:
    from lz4 import block

    def unpack(data: bytes, size: int) -> bytes:
        try:
            return bytes(block.decompress(data, uncompressed_size=size))
        except block.LZ4BlockError as error:
            raise _damaged(error) from error

    return Codec(lambda raw: bytes(block.compress(raw, store_size=False)), unpack)


def _zstd() -> Codec:
    import zstandard

    # Level 1: higher ones take several times as long for a few per cent.
    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def unpack(data: bytes, size: int) -> bytes:
        try:
            # Otherwise zstandard would allocate the size that the frame claims.
            if zstandard.frame_content_size(data) != size:
                raise _damaged("another size")
            return unpacker.decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise _damaged(error) from error

    return Codec(packer.compress, unpack)


def _damaged(why: object) -> DataCorruptError:
    return DataCorruptError(f"a compressed array is damaged: {why}", where="compressed array")
