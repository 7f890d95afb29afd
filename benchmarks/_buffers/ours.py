"""The buffers of this package, filled completely."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from _buffers.workloads import CHUNK, Workload
from dingsdk import SampleBatch
from dingsdk.errors import UnknownKeyError, UnknownPluginError
from dingsdk.plugins import default_manager


class NotBuiltError(Exception):
    """A buffer type or a setting does not exist."""


def make(load: Workload, kind: str, **cfg: Any) -> Any:
    """Return an empty buffer.

    Raises:
        NotBuiltError: the buffer type or one of its settings does not exist.
    """
    full_cfg = {"type": kind, "replay_buffer_size": load.capacity, "seed": 0, **cfg}
    try:
        return default_manager().create("buffers", full_cfg)
    except (UnknownPluginError, UnknownKeyError) as error:
        raise NotBuiltError(f"{kind} buffer {cfg or ''}".rstrip()) from error


def full(load: Workload, kind: str, **cfg: Any) -> Any:
    """Return a buffer into which a little more than its capacity was pushed."""
    buffer = make(load, kind, **cfg)
    batches = itertools.cycle(batches_of(load))
    for _ in range(load.capacity // CHUNK + 1):
        buffer.push(next(batches), 0)
    return buffer


def batches_of(load: Workload) -> list[SampleBatch]:
    """Return chunks to push repeatedly."""
    return [SampleBatch(columns) for columns in load.chunks()]


def uniform(buffer: Any, size: int) -> Callable[[], object]:
    return lambda: buffer.sample(size, 0).tensors()


def sequences(buffer: Any, batch: int, steps: int) -> Callable[[], object]:
    return lambda: buffer.sample(batch, steps, 0).tensors()


def prioritized(buffer: Any, size: int) -> Callable[[np.ndarray[Any, Any]], object]:
    """Return an operation: sample, convert to tensors, and update with the given priorities."""

    def run(priorities: np.ndarray[Any, Any]) -> Mapping[str, Any]:
        batch = buffer.sample(size, 0)
        tensors: Mapping[str, Any] = batch.tensors()
        columns = batch.columns
        buffer.update(
            {
                "replay_unique_id": columns["replay_unique_id"],
                "replay_buffer_idx": columns["replay_buffer_idx"],
                "priority": priorities,
            }
        )
        return tensors

    return run
