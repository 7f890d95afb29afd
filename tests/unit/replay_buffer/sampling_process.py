"""A process that pushes, samples and uses up rows on disk until a test kills it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker import AdvancedReplayBuffer

CAPACITY = 300


def buffer_in(folder: str | Path) -> AdvancedReplayBuffer:
    """Return a buffer with ``max_use`` 2 and the rows of the folder, if it has any."""
    reopen = (Path(folder) / "header.json").exists()
    storage = {"type": "memmap", "path": str(folder), "reopen": reopen}
    cfg = {"replay_buffer_size": CAPACITY, "max_use": 2, "storage": storage, "seed": 0}
    return AdvancedReplayBuffer(cfg)


def numbers_in(buffer: AdvancedReplayBuffer) -> list[int]:
    """Return the numbers of the rows that can be sampled, oldest first."""
    state = buffer.state_dict()
    living = state["metadata"]["replay_unique_id"]
    oldest = buffer._remover.oldest_first()
    return [int(n) for n in state["data"]["id"][living[oldest] >= 0]]


def main(folder: str) -> None:
    buffer = buffer_in(folder)
    pushed = 0
    while True:
        buffer.push(SampleBatch({"id": np.arange(pushed, pushed + 7)}), 0)
        pushed += 7
        sample: Any = buffer.sample(4, 0)
        used = sample.columns
        pairs = zip(used["id"].tolist(), used["use"].tolist(), strict=True)
        os.write(1, json.dumps(dict(pairs)).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
