"""Every kind of buffer against a plain model, over every storage, through any calls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import settings

from dingsdk.plugins import default_manager
from dingsdk.testing import BufferMachine
from dingsdk.worker.replay_buffer import IBuffer

BASE = frozenset({"parts", "saves"})
ROWS = BASE | {"distinct", "ages"}
PRIORITIZED = BASE | {"ages", "priorities"}


def machine(
    kind: str,
    capabilities: frozenset[str],
    storage: str,
    examples: int = 20,
    next_of: str | None = None,
    **parts: Any,
) -> type[BufferMachine.TestCase]:
    """Return the test of a type of buffer over a type of storage."""

    class Machine(BufferMachine):
        def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
            section = {"type": storage}
            if next_of is not None:
                section["next_of"] = next_of
            if storage == "memmap":
                self.paths = getattr(self, "paths", None) or itertools.count()
                section["path"] = str(Path(self.folder.name) / f"map{next(self.paths)}")
            whole = {"type": kind, **parts, "storage": section, **cfg}
            made: IBuffer = default_manager().create("buffers", whole)
            return made

    Machine.capabilities = capabilities
    test: type[BufferMachine.TestCase] = Machine.TestCase
    test.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    return test


TestNaiveOverArrays = machine("naive", ROWS | {"columns"}, "array")
TestNaiveOverLinkedArrays = machine("naive", ROWS | {"columns"}, "array", next_of="obs")
TestNaiveOverObjects = machine("naive", ROWS | {"objects"}, "object")
TestNaiveOverMaps = machine("naive", ROWS | {"columns", "durable"}, "memmap", 8)
TestElasticOverArrays = machine("elastic", BASE | {"distinct", "elastic", "columns"}, "array")
TestSequenceOverArrays = machine("sequence", BASE | {"sequences", "columns"}, "array")
TestSequenceOverObjects = machine("sequence", BASE | {"sequences", "objects"}, "object")
TestEpisodesOverObjects = machine("episode", ROWS | {"episodes"}, "object")
TestEpisodesOverLinkedArrays = machine("episode", ROWS | {"episodes"}, "array", next_of="obs")
TestEpisodesOverMaps = machine("episode", ROWS | {"episodes", "durable"}, "memmap", 8)
TestAdvancedOverArrays = machine("advanced", PRIORITIZED | {"columns", "proportional"}, "array")
TestAdvancedOverObjects = machine("advanced", PRIORITIZED | {"proportional"}, "object")
TestAdvancedByRank = machine(
    "advanced", PRIORITIZED | {"columns"}, "array", sampler={"type": "rank"}
)
TestAdvancedOverLinkedMaps = machine(
    "advanced", PRIORITIZED | {"columns", "proportional", "durable"}, "memmap", 8, next_of="obs"
)
