"""Arrays kept as compressed bytes; the codecs come with the extra ``dingsdk[compress]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import NUMERIC_KINDS
from dingsdk.errors import ConfigError, DataCorruptError

LEAST_BYTES = 256
"""Smaller arrays gain nothing by it."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The content of an array: compressed, or as it is where that is no longer."""

    data: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int
    """Of the array."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to compress; ``unpack`` gives at most as many bytes as it is told."""

    pack: Callable[[bytes | memoryview], bytes]
    unpack: Callable[[bytes, int], bytes]

    def shrink(self, raw: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes compressed, or as they are where that is no longer."""
        packed = self.pack(raw)
        return packed if len(packed) < len(raw) else raw

    def restore(self, data: bytes, size_bytes: int) -> bytes:
        """Return the bytes, so many, that :meth:`shrink` was given.

        Raises:
            DataCorruptError: there are not so many.
        """
        raw = data if len(data) == size_bytes else self.unpack(data, size_bytes)
        if len(raw) != size_bytes:
            raise DataCorruptError(
                f"a compressed array gives {len(raw)} bytes, not {size_bytes}",
                where="compressed array",
            )
        return raw

    def pack_array(self, value: Any) -> Any:
        """Return a numeric array of 256 bytes or more packed, anything else as it is."""
        if type(value) is not np.ndarray or value.nbytes < LEAST_BYTES:
            return value
        if value.dtype.kind not in NUMERIC_KINDS:
            return value
        data = bytes(self.shrink(value.tobytes()))
        return Packed(data, value.dtype, value.shape, value.nbytes)

    def unpack_array(self, value: Any) -> Any:
        """Return what :meth:`pack_array` packed as a new array, anything else as it is.

        Raises:
            DataCorruptError: the bytes do not give the array.
        """
        return self._unpacked(value) if type(value) is Packed else value

    def _unpacked(self, packed: Packed) -> NDArray[Any]:
        raw = self.restore(packed.data, packed.size_bytes)
        return np.frombuffer(bytearray(raw), packed.dtype).reshape(packed.shape)


def read_codec(cfg: Mapping[str, Any]) -> Codec | None:
    """Return the codec that ``storage.compress`` names, None for ``none``.

    Raises:
        ConfigError: there is no such codec, or its package is not installed.
    """
    name = cfg.get("compress", "none")
    if name == "none":
        return None
    makers = {"lz4": _lz4, "zstd": _zstd}
    if name not in makers:
        raise ConfigError(
            f"storage.compress is {name!r}; choose one of lz4, none, zstd", path="storage.compress"
        )
    try:
        return makers[name]()
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
            # The frame's own word for its size would be believed, and allocated.
            if zstandard.frame_content_size(data) != size:
                raise _damaged("another size")
            return unpacker.decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise _damaged(error) from error

    return Codec(packer.compress, unpack)


def _damaged(why: object) -> DataCorruptError:
    return DataCorruptError(f"a compressed array is damaged: {why}", where="compressed array")
