"""The buffer follows the rules of all buffers, and samples from its window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dingsdk_plugin_name import PluginNameBuffer
from hypothesis import settings

from dingsdk.data import SampleBatch
from dingsdk.testing import BufferContract, BufferMachine


class TestRules(BufferContract):
    capabilities = PluginNameBuffer.contract_capabilities

    def make_buffer(self, cfg: Mapping[str, Any]) -> PluginNameBuffer:
        return PluginNameBuffer(cfg)


class Machine(BufferMachine):
    capabilities = PluginNameBuffer.contract_capabilities

    def make_buffer(self, cfg: Mapping[str, Any]) -> PluginNameBuffer:
        return PluginNameBuffer(cfg)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=20, deadline=None)


def test_batch_comes_from_the_newest_rows() -> None:
    buffer = PluginNameBuffer({"replay_buffer_size": 100, "window": 10, "seed": 0})
    buffer.push(SampleBatch({"step": np.arange(100)}), 0)

    batch = buffer.sample(200, 0, replace=True)

    assert set(batch.columns["step"].tolist()) == set(range(90, 100))
