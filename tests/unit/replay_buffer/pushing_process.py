"""A process that pushes numbered rows into a memmap storage until a test kills it."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer.remover import FifoRemover
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

CAPACITY = 200
WIDTH = 2100
"""Length of an observation; large enough for rows of two pages."""


def rows_of(start: int, stop: int) -> SampleBatch:
    """Return rows ``start..stop-1``. Every 13th ends an episode: its ``next_obs`` is no row's obs.

    Every 7th observation is noise.
    """
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
    rows = np.repeat(number.astype(np.float32)[:, None], WIDTH, axis=1)
    for row in np.flatnonzero(number % 7 == 0):
        rows[row] = np.random.default_rng(abs(number[row])).random(WIDTH, np.float32)
    return rows


def push(storage: MemmapStorage, remover: FifoRemover, start: int, n: int) -> None:
    accepted = storage.accept(rows_of(start, start + n))
    where, _ = remover.allot(n)
    storage.put(where, accepted)
    storage.commit({**remover.state_dict(), "push_count": start + n})


def main(cfg: dict[str, Any]) -> None:
    storage = MemmapStorage(cfg, CAPACITY)
    remover = FifoRemover({}, CAPACITY)
    total = 0
    for turn in itertools.count():
        n = 1 + turn * 5 % 17
        push(storage, remover, total, n)
        total += n
        os.write(1, f"{total}\n".encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
