"""Copies that bypass the caches write every byte, and no bytes outside the target."""

from __future__ import annotations

import numpy as np
import pytest
from dingsdk_shared_memory.streaming import LEAST_BYTES, copy

SIZES = [0, 1, LEAST_BYTES - 1, *(LEAST_BYTES + more for more in (0, 1, 63, 64, 65, 4095))]


def memory(size: int, offset: int) -> np.ndarray:
    """Return ``size`` bytes at an address ``offset`` bytes above a multiple of 64."""
    whole = np.zeros(size + 256, np.uint8)
    start = -whole.ctypes.data % 64 + 64 + offset
    return whole[start : start + size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("to", "of"), [(0, 0), (0, 1), (1, 0), (32, 32)])
def test_copy_writes_every_byte_and_none_outside(size: int, to: int, of: int) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    source, target = memory(size, of), memory(size, to)
    source[:] = content
    source.flags.writeable = False

    copy(target, source)

    assert np.array_equal(target, content)
    assert np.array_equal(source, content)
    assert int(target.base.sum(dtype=np.int64)) == int(content.sum(dtype=np.int64))


def test_copy_into_less_room_is_refused_before_it_begins() -> None:
    target = memory(LEAST_BYTES - 64, 0)
    with pytest.raises(ValueError, match=f"{LEAST_BYTES} bytes, and room for {LEAST_BYTES - 64}"):
        copy(target, np.ones(LEAST_BYTES, np.uint8))
    assert not target.any()
