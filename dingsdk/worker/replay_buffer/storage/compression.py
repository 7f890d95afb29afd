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
    """The compressed content of an array."""

    data: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression method."""

    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]

    def pack_array(self, value: Any) -> Any:
        """Pack a numeric array of 256 bytes or more; return anything else unchanged."""
        if type(value) is not np.ndarray or value.nbytes < LEAST_BYTES:
            return value
        if value.dtype.kind not in NUMERIC_KINDS:
            return value
        return Packed(self.pack(value.tobytes()), value.dtype, value.shape)

    def unpack_array(self, value: Any) -> Any:
        """Unpack a packed array into a new array; return anything else unchanged."""
        if type(value) is not Packed:
            return value
        return np.frombuffer(bytearray(self.unpack(value.data)), value.dtype).reshape(value.shape)


def read_codec(name: str) -> Codec | None:
    """Return the codec that ``storage.compress`` names, None for ``none``.

    Raises:
        ConfigError: its package is not installed.
    """
    try:
        if name == "lz4":
            from lz4 import block

            return Codec(block.compress, block.decompress)
        if name == "zstd":
            import zstandard

            # Level 1: higher ones take several times as long for a few per cent.
            packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
            return Codec(packer.compress, unpacker.decompress)
    except ImportError as error:
        raise ConfigError(
            f"storage.compress {name!r} needs a package that is not installed; run: "
            "pip install lz4 zstandard",
            path="storage.compress",
        ) from error
    return None
