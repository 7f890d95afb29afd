"""Every kind of buffer keeps the contract, over every storage."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from dingsdk.plugins import default_manager
from dingsdk.testing import BufferContract
from dingsdk.worker.replay_buffer import IBuffer

BASE = frozenset({"parts", "saves"})
ROWS = BASE | {"distinct", "ages"}


class Contract(BufferContract):
    """A buffer of the type ``kind`` with a storage of the type ``storage``."""

    kind: ClassVar[str] = "naive"
    storage: ClassVar[str] = "array"
    capabilities: ClassVar[Collection[str]] = ROWS | {"columns"}

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        section = {"type": self.kind, "storage": {"type": self.storage}, **cfg}
        made: IBuffer = default_manager().create("buffers", section)
        return made


class TestNaiveOverArrays(Contract):
    pass


class TestNaiveOverObjects(Contract):
    storage = "object"
    capabilities = ROWS | {"objects"}


class TestElasticOverArrays(Contract):
    kind = "elastic"
    capabilities = BASE | {"columns", "distinct", "elastic"}


class TestElasticOverObjects(Contract):
    kind = "elastic"
    storage = "object"
    capabilities = BASE | {"objects", "distinct", "elastic"}


class TestSequenceOverArrays(Contract):
    kind = "sequence"
    capabilities = BASE | {"columns", "sequences"}


class TestSequenceOverObjects(Contract):
    kind = "sequence"
    storage = "object"
    capabilities = BASE | {"objects", "sequences"}


class TestEpisodes(Contract):
    kind = "episode"
    storage = "object"
    capabilities = ROWS | {"episodes"}


class TestAdvancedOverArrays(Contract):
    kind = "advanced"
    capabilities = BASE | {"columns", "ages", "priorities", "proportional"}


class TestAdvancedOverObjects(Contract):
    kind = "advanced"
    storage = "object"
    capabilities = BASE | {"ages", "priorities", "proportional"}
