"""Frames of payloads and policies, in the form in which calls of a gateway send them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dingsdk.runtime import Buffer

SMALL_BYTES = 64 << 10
"""Frames up to this size are sent as bytes; larger ones as arrays, which Ray shares."""
POLICY = "policy"


def joined(buffers: list[Buffer], size_bytes: int) -> Any:
    """Return a frame as one object: bytes if it is small, else an array that Ray shares."""
    if size_bytes <= SMALL_BYTES:
        return b"".join(buffers)
    frame = np.empty(size_bytes, np.uint8)
    at = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        frame[at : at + len(view)] = view
        at += len(view)
    return frame
