"""Compressed arrays; the codecs come with the extra ``dingsdk[compress]``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dingsdk.data.columns import NUMERIC_KINDS
from dingsdk.errors import ConfigError, DataCorruptError

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
