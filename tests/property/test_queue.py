"""The queue gives each row once, in order of arrival, and refuses pushes while batches wait."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.data import SampleBatch
from dingsdk.errors import BufferFullError
from dingsdk.worker.replay_buffer.advanced import QueueReplayBuffer

BATCH = 4
CALLS = st.lists(st.one_of(st.integers(1, 6), st.just("sample"), st.just("reload")), max_size=60)


def queue() -> QueueReplayBuffer:
    return QueueReplayBuffer({"replay_buffer_size": 32, "seed": 0})


@given(calls=CALLS, in_columns=st.booleans())
def test_each_row_once_in_order(calls: list[Any], in_columns: bool) -> None:
    buffer, waiting, pushed = queue(), list[int](), 0
    buffer.sample(BATCH, 0)  # so that its limiter knows the size of a batch
    for call in calls:
        if call == "reload":
            state = buffer.state_dict()
            buffer.close()
            buffer = queue()
            buffer.load_state_dict(state)
        elif call == "sample":
            batch: Any = buffer.sample(BATCH, 0)
            if len(waiting) < BATCH:
                assert batch is None
                continue
            rows = batch.columns["n"] if in_columns else [row["n"] for row in batch]
            assert [int(row) for row in rows] == waiting[:BATCH]
            del waiting[:BATCH]
        else:
            numbers = list(range(pushed, pushed + call))
            columns = SampleBatch({"n": np.array(numbers)})
            try:
                buffer.push(columns if in_columns else [{"n": n} for n in numbers], 0)
            except BufferFullError:
                assert len(waiting) >= BATCH  # the learner can always go on
                continue
            waiting += numbers
            pushed += call
            assert len(waiting) <= 4 * BATCH
        assert buffer.count() == len(waiting)
    buffer.close()
