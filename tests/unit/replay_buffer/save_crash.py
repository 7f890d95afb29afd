"""Saves rows in child processes, and kills each child later than the one before.

Run as ``python save_crash.py FOLDER KILLS``; prints the number of kills, of different saves that
were loaded, and of files. ``number`` is the push index, so loaded numbers must be consecutive.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.persistence import SavedRows, save

CAPACITY = 1000


def numbers(start: int, n: int) -> SampleBatch:
    return SampleBatch({"number": np.arange(start, start + n), "more": np.ones((n, 16))})


def save_on_and_on(folder: Path, buffer: NaiveReplayBuffer, told: int) -> None:
    while True:
        buffer.push(numbers(buffer.push_count, 150), 0)
        save(folder, buffer, segment_rows=128)
        os.write(told, b".")


def main(folder: Path, kills: int) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": CAPACITY})
    buffer.push(numbers(0, CAPACITY), 0)
    start_s = time.monotonic()
    save(folder, buffer, segment_rows=128)
    took_s = time.monotonic() - start_s
    seen = set()
    for kill in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            save_on_and_on(folder, buffer, writer)
        os.close(writer)
        if kill % 2:
            os.read(reader, 1)  # one save is done, and the next one starts
        time.sleep(took_s * kill / kills)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        rows = np.concatenate([piece.columns["number"] for piece, _ in SavedRows(folder)])
        assert rows.tolist() == list(range(rows[0], rows[0] + CAPACITY)), rows
        seen.add(int(rows[0]))
    save(folder, buffer, segment_rows=128)
    left = len(list(folder.iterdir()))
    sys.stdout.write(f"{kills} {len(seen)} {left}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
