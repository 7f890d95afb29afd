"""Every kind of buffer passes the contract, with every storage and every sampler."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dingsdk.plugins import PluginManager, default_manager, use_manager
from dingsdk.testing import BufferContract
from dingsdk.worker.replay_buffer import IBuffer
from dingsdk.worker.replay_buffer.advanced import QueueReplayBuffer

from .random_remover import RandomRemover

BASE = frozenset({"fifo", "parts", "saves"})
ROWS = BASE | {"distinct", "ages"}
PRIORITIZED = BASE | {"ages", "priorities"}


class Contract(BufferContract):
    """A buffer with the parts in ``parts``."""

    parts: ClassVar[Mapping[str, Any]]

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        made: IBuffer = default_manager().create("buffers", {**self.parts, **cfg})
        return made


class MappedContract(Contract):
    """A buffer with a storage that needs a folder."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder: Path = tmp_path_factory.mktemp("mapped")

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        storage = {**self.parts["storage"], "path": str(self.folder)}
        return super().make_buffer({"storage": storage, **cfg})


class TestNaiveOverArrays(Contract):
    parts: ClassVar = {"type": "naive", "storage": {"type": "array"}}
    capabilities: ClassVar[Collection[str]] = ROWS | {"columns"}


class TestNaiveWithRandomRemover(Contract):
    parts: ClassVar = {"type": "naive", "remover": {"type": "random"}}
    capabilities = (ROWS | {"columns", "objects"}) - {"fifo"}

    @pytest.fixture(autouse=True)
    def _type(self) -> Iterator[None]:
        with use_manager(PluginManager()) as manager:
            manager.registry("removers").register("random", RandomRemover)
            yield


@pytest.mark.slow
class TestAdvancedWithRandomRemover(TestNaiveWithRandomRemover):
    parts: ClassVar = {"type": "advanced", "remover": {"type": "random"}}
    capabilities = (PRIORITIZED | {"columns", "proportional"}) - {"fifo"}


@pytest.mark.slow
class TestSequenceOverLinkedMaps(MappedContract):
    parts: ClassVar = {"type": "sequence", "storage": {"type": "memmap", "next_of": "obs"}}
    capabilities = BASE | {"columns", "sequences"}


class TestElastic(Contract):
    parts: ClassVar = {"type": "elastic", "storage": {"type": "array"}}
    capabilities = BASE | {"columns", "distinct", "elastic"}


class TestSequenceOverArrays(Contract):
    parts: ClassVar = {"type": "sequence", "storage": {"type": "array"}}
    capabilities = BASE | {"columns", "sequences"}


@pytest.mark.slow
class TestSequenceOverObjects(Contract):
    parts: ClassVar = {"type": "sequence", "storage": {"type": "object"}}
    capabilities = BASE | {"objects", "sequences"}


class TestEpisodesByFirstPush(Contract):
    parts: ClassVar = {"type": "episode"}
    capabilities: ClassVar[Collection[str]] = ROWS | {"episodes"}


@pytest.mark.slow
class TestEpisodesOverArrays(TestEpisodesByFirstPush):
    parts: ClassVar = {"type": "episode", "storage": {"type": "array", "next_of": "obs"}}


@pytest.mark.slow
class TestEpisodesOverObjects(TestEpisodesByFirstPush):
    parts: ClassVar = {"type": "episode", "storage": {"type": "object"}}


@pytest.mark.slow
class TestEpisodesOverMaps(MappedContract):
    parts: ClassVar = {"type": "episode", "storage": {"type": "memmap"}}
    capabilities = ROWS | {"episodes"}


@pytest.mark.slow
class TestEpisodesOverLinkedMaps(MappedContract):
    parts: ClassVar = {"type": "episode", "storage": {"type": "memmap", "next_of": "obs"}}
    capabilities = ROWS | {"episodes"}


class TestAdvancedOverArrays(Contract):
    parts: ClassVar = {"type": "advanced", "storage": {"type": "array"}}
    capabilities = PRIORITIZED | {"columns", "proportional"}


@pytest.mark.slow
class TestAdvancedOverObjects(Contract):
    parts: ClassVar = {"type": "advanced", "storage": {"type": "object"}}
    capabilities = PRIORITIZED | {"proportional"}


class TestQueue(Contract):
    parts: ClassVar = {"type": "queue", **QueueReplayBuffer.contract_config}
    capabilities = QueueReplayBuffer.contract_capabilities


@pytest.mark.slow
class TestAdvancedByRank(Contract):
    parts: ClassVar = {"type": "advanced", "sampler": {"type": "rank", "sort_after": 0.01}}
    capabilities = PRIORITIZED | {"columns"}


@pytest.mark.slow
class TestAdvancedOverMaps(MappedContract):
    parts: ClassVar = {"type": "advanced", "storage": {"type": "memmap", "next_of": "obs"}}
    capabilities = PRIORITIZED | {"columns", "proportional"}
