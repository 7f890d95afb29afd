"""Helpers for tests of prioritized buffers, whose rows are numbered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker import AdvancedReplayBuffer

STORAGES = ["array", "object"]


def make_buffer(**cfg: Any) -> AdvancedReplayBuffer:
    return AdvancedReplayBuffer({"replay_buffer_size": 8, "seed": 0, **cfg})


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"obs": np.full(3, number, np.float32), "action": number, **more}


def batch(*numbers: int, **columns: Any) -> SampleBatch:
    rows = SampleBatch.from_rows([row(number) for number in numbers])
    return rows.with_columns(**columns) if columns else rows


def column(sample: Any, key: str) -> list[Any]:
    return [each[key].item() if hasattr(each[key], "item") else each[key] for each in sample]


def info(sample: Any, priority: Any) -> dict[str, Any]:
    keys = ("replay_unique_id", "replay_buffer_idx")
    return {**{key: column(sample, key) for key in keys}, "priority": priority}


def facts(buffer: AdvancedReplayBuffer, key: str) -> dict[int, Any]:
    """Return the value of ``key`` of each row by its action; samples each row once."""
    found: dict[int, Any] = {}
    for age in range(buffer.count()):
        sample = buffer.sample(1, 0, slice(age, age + 1))
        found[column(sample, "action")[0]] = column(sample, key)[0]
    return found


def equal_states(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal_states(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def train(buffer: AdvancedReplayBuffer, rounds: int, size: int) -> AdvancedReplayBuffer:
    """In each round push 7 rows, sample and update priorities; return the buffer."""
    rng = np.random.default_rng(0)
    for n in range(rounds):
        buffer.push(batch(*range(n * 7, n * 7 + 7), collect_iter=np.full(7, n)), n)
        sample = buffer.sample(size, n)
        buffer.update(info(sample, rng.random(size) * 3))
    return buffer
