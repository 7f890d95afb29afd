"""A process that pushes numbered episodes into a folder until a test kills it."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer import EpisodeReplayBuffer

CAPACITY = 6
_WIDTH = 2100
"""Length of an observation; large enough for rows of two pages."""


def episode_of(number: int) -> SampleBatch:
    """Return episode ``number``; its length, 1 to 40, depends on the number."""
    steps = np.arange(2 + number * 7 % 40)
    obs = np.repeat((1000 * number + steps).astype(np.float32)[:, None], _WIDTH, axis=1)
    return SampleBatch({"obs": obs[:-1], "next_obs": obs[1:], "id": 1000 * number + steps[:-1]})


def main(storage: dict[str, Any]) -> None:
    buffer = EpisodeReplayBuffer({"replay_buffer_size": CAPACITY, "storage": storage})
    pushed = 0
    for turn in itertools.count():
        n = 1 + turn % 3
        buffer.push([episode_of(number) for number in range(pushed, pushed + n)], 0)
        pushed += n
        os.write(1, f"{pushed}\n".encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
