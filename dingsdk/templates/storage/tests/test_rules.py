"""The storage follows the rules of storages, and a buffer with it the rules of buffers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dingsdk_plugin_name import PluginNameStorage

from dingsdk.errors import SchemaMismatchError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.testing import BufferContract, StorageContract
from dingsdk.worker import IBuffer, create_buffer


class TestRules(StorageContract):
    capabilities = PluginNameStorage.contract_capabilities

    def make_part(self, capacity: int, seed: int, folder: Path) -> PluginNameStorage:
        return PluginNameStorage({}, capacity)


class TestBuffer(BufferContract):
    capabilities = frozenset({"ages", "fifo", "parts", "saves", "distinct"})

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        with use_manager(PluginManager()) as manager:
            manager.registry("storages").register("plugin_name", PluginNameStorage)
            return create_buffer({"type": "naive", "storage": {"type": "plugin_name"}, **cfg})


def test_row_that_cannot_be_encoded_is_refused() -> None:
    storage = PluginNameStorage({}, 4)

    with pytest.raises(SchemaMismatchError, match="row 1 cannot be stored"):
        storage.accept([{"a": 1}, {"a": object()}])
