"""Counts acknowledged and trained samples, independently of the run's own counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.worker import Coordinator
from dingsdk.worker.replay_buffer.home import TableHome

_ACKNOWLEDGED, _TRAINED = "acknowledged", "trained"


def count_acknowledged(folder: Path) -> None:
    """Make every coordinator of this process record each payload that it acknowledges.

    Also records the lengths of the episodes that end in the payload; correct if an observation
    begins with the number of steps before it.
    """
    acknowledge = Coordinator.deal_with_collector_send_data

    def counted(self: Coordinator, task_id: str, buffer_id: str, data_id: str, data: Any) -> bool:
        is_taken = acknowledge(self, task_id, buffer_id, data_id, data)
        if is_taken and buffer_id in self.state.buffers:
            columns = self.data_store.get(data_id).columns
            ends = np.asarray(columns["done"], bool)
            lengths = np.asarray(columns["obs"])[ends, 0].astype(int) + 1
            text = ",".join(map(str, lengths.tolist()))
            with (folder / _ACKNOWLEDGED).open("a") as file:
                file.write(f"{data_id} {data['rows']} {text};\n")
        return is_taken

    Coordinator.deal_with_collector_send_data = counted  # type: ignore[method-assign]


def count_trained(folder: Path) -> None:
    """Make every learner of this process record the samples of each batch that it draws.

    The buffer has to number its samples, as a prioritized one does.
    """
    sample = TableHome.sample

    def counted(self: TableHome, size: int, train_iter: int) -> Any:
        batch = sample(self, size, train_iter)
        if isinstance(batch, SampleBatch):
            rows = np.unique(np.asarray(batch.columns["replay_unique_id"], np.int64))
            # Another home counts its rows, and how often it used each, anew.
            home = vars(self).setdefault("counted_as", time.time_ns())
            with (folder / _TRAINED).open("ab") as file:
                file.write(np.stack([np.full_like(rows, home), rows], axis=1).tobytes())
        return batch

    TableHome.sample = counted  # type: ignore[method-assign]


def _acknowledged(folder: Path) -> list[tuple[int, list[int]]]:
    """Return the rows and the episode lengths of each recorded payload, without duplicates."""
    lines = (folder / _ACKNOWLEDGED).read_text().split("\n")
    found: dict[str, tuple[int, list[int]]] = {}
    for line in lines:
        if line.endswith(";"):  # a coordinator may have been killed in the middle of a line
            data_id, rows, lengths = line[:-1].split(" ")
            found[data_id] = int(rows), [int(each) for each in lengths.split(",") if each]
    return list(found.values())


def acknowledged_rows(folder: Path) -> int:
    """Return the number of rows in all recorded payloads, each payload counted once."""
    return sum(rows for rows, _ in _acknowledged(folder))


def episode_lengths(folder: Path) -> list[int]:
    """Return the lengths of the episodes whose end was acknowledged."""
    return [length for _, lengths in _acknowledged(folder) for length in lengths]


def most_uses(folder: Path) -> int:
    """Return the largest number of batches of one learner that a sample was in."""
    path = folder / _TRAINED
    content = path.read_bytes() if path.exists() else b""
    # A learner may have been killed in the middle of a batch.
    samples: NDArray[np.int64] = np.frombuffer(content[: len(content) // 16 * 16], np.int64)
    if not len(samples):
        return 0
    return int(np.unique(samples.reshape(-1, 2), axis=0, return_counts=True)[1].max())
