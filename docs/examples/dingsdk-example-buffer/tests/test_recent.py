"""The buffer follows the rules of all buffers, and samples from its window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dingsdk_example_buffer import RecentReplayBuffer
from hypothesis import settings

from dingsdk import SampleBatch
from dingsdk.testing import BufferContract, BufferMachine

CAPABILITIES = frozenset({"ages", "fifo", "parts", "saves"})


class TestRules(BufferContract):
    capabilities = CAPABILITIES

    def make_buffer(self, cfg: Mapping[str, Any]) -> RecentReplayBuffer:
        return RecentReplayBuffer(cfg)


class Machine(BufferMachine):
    capabilities = CAPABILITIES

    def make_buffer(self, cfg: Mapping[str, Any]) -> RecentReplayBuffer:
        return RecentReplayBuffer(cfg)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=20, deadline=None)


def test_batch_comes_from_the_newest_rows() -> None:
    buffer = RecentReplayBuffer({"replay_buffer_size": 100, "window": 10, "seed": 0})
    buffer.push(SampleBatch({"step": np.arange(100)}), 0)

    batch = buffer.sample(200, 0, replace=True)

    assert set(batch.columns["step"].tolist()) == set(range(90, 100))
