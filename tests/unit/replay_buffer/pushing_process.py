"""A process that pushes numbered rows into a memmap storage, for ever, and is killed for it."""

from __future__ import annotations

import itertools
import os
import sys

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer.memmap_storage import MemmapStorage
from dingsdk.worker.replay_buffer.remover import FifoRemover

CAPACITY = 200


def rows_of(start: int, stop: int) -> SampleBatch:
    """Rows ``start..stop-1``: every 13th ends an episode, so its next observation is no obs."""
    number = np.arange(start, stop)
    after = np.where(number % 13 == 0, -number, number + 1)
    return SampleBatch(
        {
            "obs": {"x": _observation(number)},
            "next_obs": {"x": _observation(after)},
            "id": number,
        }
    )


def _observation(number: np.ndarray) -> np.ndarray:
    return np.repeat(number.astype(np.float32)[:, None], 300, axis=1)


def push(storage: MemmapStorage, remover: FifoRemover, start: int, n: int) -> None:
    accepted = storage.accept(rows_of(start, start + n))
    where, _ = remover.allot(n)
    storage.put(where, accepted)
    storage.commit({**remover.state_dict(), "push_count": start + n})


def main(path: str, next_of: str) -> None:
    storage = MemmapStorage({"path": path, "next_of": next_of or None}, CAPACITY)
    remover = FifoRemover({}, CAPACITY)
    total = 0
    for turn in itertools.count():
        n = 1 + turn * 5 % 17
        push(storage, remover, total, n)
        total += n
        os.write(1, f"{total}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
