"""The saved state of a writer includes pieces that it has cut but not returned yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.worker.collector.columns import ColumnsWriter
from dingsdk.worker.collector.rollout import Writer
from dingsdk.worker.collector.rows import RowsWriter


def columns_writer() -> Writer:
    return ColumnsWriter(2, 4, lambda columns, ends: SampleBatch(columns))


def rows_writer() -> Writer:
    return RowsWriter(2, 4, lambda env_id, rows: rows)


def record(writer: Any, time: int, returns: dict[int, float]) -> None:
    """Record one round of two envs, in which the episodes in ``returns`` end."""
    writer.episode_returns = returns
    if isinstance(writer, ColumnsWriter):
        writer.record({"obs": np.array([time, 100 + time])}, time)
        writer.cut(sorted(returns))
        return
    for env_id in range(2):
        writer.record(env_id, {"obs": env_id * 100 + time}, time, env_id in returns)


def values(samples: Any, name: str) -> list[float]:
    if isinstance(samples, SampleBatch):
        return samples.columns[name].tolist()
    return [float(sample[name]) for sample in samples]


@pytest.mark.parametrize("make", [columns_writer, rows_writer])
def test_state_includes_pending_pieces_and_their_returns(make: Any) -> None:
    writer = make()
    writer.added_columns = ["episode_return"]
    record(writer, 0, {})
    record(writer, 1, {1: 7.0})
    assert (writer.pending_rows, writer.unfinished_rows) == (2, 2)

    other = make()
    other.added_columns = ["episode_return"]
    other.load_state_dict(writer.state_dict())

    assert (other.pending_rows, other.unfinished_rows) == (2, 2)
    record(other, 2, {0: 3.0})
    assert other.pending_rows == 5
    samples = other.flush()
    assert values(samples, "obs") == [100, 101, 0, 1, 2]
    assert values(samples, "episode_return") == [7, 7, 3, 3, 3]
    assert (other.pending_rows, other.unfinished_rows) == (0, 1)
