"""Compressed arrays; the codecs come with the extra ``dingsdk[compress]``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dingsdk.data.columns import NUMERIC_KINDS
from dingsdk.errors import ConfigError

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
    """A compression method; ``unpack(data, size)`` returns the original ``size`` bytes."""

    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes, int], bytes]

    def pack_array(self, value: Any) -> Any:
        """Pack a numeric array of 256 bytes or more; return anything else unchanged."""
        if type(value) is not np.ndarray or value.nbytes < LEAST_BYTES:
            return value
        if value.dtype.kind not in NUMERIC_KINDS:
            return value
        raw = value.tobytes()
        return Packed(min(self.pack(raw), raw, key=len), value.dtype, value.shape, len(raw))

    def unpack_array(self, value: Any) -> Any:
        """Unpack a packed array into a new array; return anything else unchanged."""
        if type(value) is not Packed:
            return value
        is_raw = len(value.data) == value.size_bytes
        raw = bytearray(value.data if is_raw else self.unpack(value.data, value.size_bytes))
        return np.frombuffer(raw, value.dtype).reshape(value.shape)


def read_codec(name: str) -> Codec | None:
    """Return the codec that ``storage.compress`` names, None for ``none``.

    Raises:
        ConfigError: its package is not installed.
    """
    try:
        if name == "lz4":
            from lz4 import block

            return Codec(
                lambda raw: bytes(block.compress(raw, store_size=False)),
                lambda data, size: bytes(block.decompress(data, uncompressed_size=size)),
            )
        if name == "zstd":
            import zstandard

            # Level 1: higher ones take several times as long for a few per cent.
            packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
            return Codec(packer.compress, lambda data, size: unpacker.decompress(data, size))
    except ImportError as error:
        raise ConfigError(
            f"storage.compress {name!r} needs a package that is not installed; run: "
            "pip install lz4 zstandard",
            path="storage.compress",
        ) from error
    return None
