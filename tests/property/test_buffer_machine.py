"""Every kind of buffer against a plain model, over every storage, through any calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings

from dingsdk.plugins import PluginManager, default_manager, use_manager
from dingsdk.testing import BufferMachine
from dingsdk.worker.replay_buffer import IBuffer
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

BASE = frozenset({"fifo", "parts", "saves"})
ROWS = BASE | {"distinct", "ages"}
PRIORITIZED = BASE | {"ages", "priorities"}


class PackedMaps(MemmapStorage):
    """Compresses columns as small as those of the kit's rows."""

    least_packed_bytes = 200


@pytest.fixture(autouse=True)
def _packed_type() -> Iterator[None]:
    with use_manager(PluginManager()) as manager:
        manager.registry("storages").register("packed", PackedMaps)
        yield


class Machine(BufferMachine):
    """A buffer of these parts; every one over a storage with a path gets another folder."""

    parts: ClassVar[Mapping[str, Any]]

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        made: IBuffer = default_manager().create("buffers", {**self.parts, **cfg})
        return made


class DurableMachine(Machine):
    """A buffer over a storage with a path, which is another one for each."""

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        self.paths: dict[IBuffer, Path] = getattr(self, "paths", {})
        return self.opened(Path(self.folder.name) / f"map{len(self.paths)}", False, cfg)

    def reopen_buffer(self, buffer: IBuffer) -> IBuffer:
        return self.opened(self.paths[buffer], True, self.cfg)

    def opened(self, path: Path, reopen: bool, cfg: Mapping[str, Any]) -> IBuffer:
        storage = {**self.parts["storage"], "path": str(path), "reopen": reopen}
        made = super().make_buffer({**cfg, "storage": storage})
        self.paths[made] = path
        return made


def machine(
    kind: str,
    capabilities: frozenset[str],
    storage: str,
    examples: int = 20,
    columns: Mapping[str, Any] | None = None,
    **parts: Any,
) -> type[BufferMachine.TestCase]:
    """Return the test of a type of buffer over a type of storage."""
    base = DurableMachine if "durable" in capabilities else Machine
    whole = {"type": kind, **parts, "storage": {"type": storage, **(columns or {})}}
    made = type("Machine", (base,), {"capabilities": capabilities, "parts": whole})
    test: type[BufferMachine.TestCase] = made.TestCase  # type: ignore[attr-defined]
    test.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    return test


LINKED = {"next_of": "obs"}
PACKED = {"compress": "lz4"}

TestNaiveOverArrays = machine("naive", ROWS | {"columns"}, "array")
TestNaiveOverLinkedArrays = machine("naive", ROWS | {"columns"}, "array", columns=LINKED)
TestNaiveOverObjects = machine("naive", ROWS | {"objects"}, "object")
TestNaiveOverMaps = machine("naive", ROWS | {"columns", "durable"}, "memmap", 8)
TestNaiveOverPackedMaps = machine(
    "naive", ROWS | {"columns", "durable"}, "packed", 8, columns=PACKED
)
TestNaiveOverLinkedPackedMaps = machine(
    "naive", ROWS | {"columns", "durable"}, "packed", 8, columns=LINKED | PACKED
)
TestElasticOverArrays = machine("elastic", BASE | {"distinct", "elastic", "columns"}, "array")
TestSequenceOverArrays = machine("sequence", BASE | {"sequences", "columns"}, "array")
TestSequenceOverObjects = machine("sequence", BASE | {"sequences", "objects"}, "object")
TestEpisodesOverObjects = machine("episode", ROWS | {"episodes"}, "object")
TestEpisodesOverLinkedArrays = machine("episode", ROWS | {"episodes"}, "array", columns=LINKED)
TestEpisodesOverMaps = machine("episode", ROWS | {"episodes", "durable"}, "memmap", 8)
TestEpisodesOverLinkedPackedMaps = machine(
    "episode", ROWS | {"episodes", "durable"}, "packed", 8, columns=LINKED | PACKED
)
TestAdvancedOverArrays = machine("advanced", PRIORITIZED | {"columns", "proportional"}, "array")
TestAdvancedOverObjects = machine("advanced", PRIORITIZED | {"proportional"}, "object")
TestAdvancedByRank = machine(
    "advanced", PRIORITIZED | {"columns"}, "array", sampler={"type": "rank"}
)
TestAdvancedOverLinkedMaps = machine(
    "advanced", PRIORITIZED | {"columns", "proportional", "durable"}, "memmap", 8, columns=LINKED
)
