"""The sampler follows the rules of samplers, and a buffer with it the rules of buffers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dingsdk_plugin_name import PluginNameSampler

from dingsdk.plugins import PluginManager, use_manager
from dingsdk.testing import BufferContract, SamplerContract
from dingsdk.worker import IBuffer, create_buffer


class TestRules(SamplerContract):
    capabilities = PluginNameSampler.contract_capabilities

    def make_part(self, capacity: int, seed: int, folder: Path) -> PluginNameSampler:
        return PluginNameSampler({}, capacity, seed)


class TestBuffer(BufferContract):
    # Without "distinct": some pairs of rows are drawn together more often than others.
    capabilities = frozenset({"ages", "columns", "fifo", "parts", "saves"})

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        with use_manager(PluginManager()) as manager:
            manager.registry("samplers").register("plugin_name", PluginNameSampler)
            return create_buffer({"type": "naive", "sampler": {"type": "plugin_name"}, **cfg})


def test_rows_of_a_batch_are_spread() -> None:
    drawn = PluginNameSampler({}, 100, 0).draw(100, 10)

    assert [row // 10 for row in drawn.tolist()] == list(range(10))
