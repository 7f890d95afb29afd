"""The remover follows the rules of removers, and a buffer with it the rules of buffers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dingsdk_plugin_name import PluginNameRemover

from dingsdk.plugins import PluginManager, use_manager
from dingsdk.testing import BufferContract, RemoverContract
from dingsdk.worker import IBuffer, create_buffer


class TestRules(RemoverContract):
    capabilities = PluginNameRemover.contract_capabilities

    def make_part(self, capacity: int, seed: int, folder: Path) -> PluginNameRemover:
        return PluginNameRemover({}, capacity, seed)


class TestBuffer(BufferContract):
    capabilities = frozenset({"ages", "columns", "distinct", "parts", "saves"})

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        with use_manager(PluginManager()) as manager:
            manager.registry("removers").register("plugin_name", PluginNameRemover)
            return create_buffer({"type": "naive", "remover": {"type": "plugin_name"}, **cfg})


def test_rows_leave_only_when_the_buffer_is_full() -> None:
    remover = PluginNameRemover({}, 4, 0)

    assert remover.allot(4)[1] is None
    where, leaving = remover.allot(2)

    assert leaving is not None
    assert sorted(where.tolist()) == sorted(leaving.tolist())
