"""Every kind of buffer against a plain model, over every storage, through any calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hypothesis import settings

from dingsdk.plugins import default_manager
from dingsdk.testing import BufferMachine
from dingsdk.worker.replay_buffer import IBuffer

ROWS = frozenset({"parts", "saves"})
PLAIN = ROWS | {"distinct", "ages"}
PRIORITIZED = ROWS | {"ages", "priorities", "proportional"}


def machine(
    kind: str, capabilities: frozenset[str], examples: int = 25, **storage: Any
) -> type[BufferMachine.TestCase]:
    """Return the test of a type of buffer over a storage."""

    class Machine(BufferMachine):
        parts: ClassVar[dict[str, Any]] = {"type": kind, "storage": storage}

        def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
            made: IBuffer = default_manager().create("buffers", {**self.parts, **cfg})
            return made

    Machine.capabilities = capabilities
    test: type[BufferMachine.TestCase] = Machine.TestCase
    test.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    return test


TestNaiveOverArrays = machine("naive", PLAIN | {"columns"}, type="array")
TestNaiveOverObjects = machine("naive", PLAIN | {"objects"}, type="object")
TestElastic = machine("elastic", ROWS | {"distinct", "elastic", "columns"}, type="array")
TestSequenceOverArrays = machine("sequence", ROWS | {"sequences", "columns"}, type="array")
TestSequenceOverObjects = machine("sequence", ROWS | {"sequences", "objects"}, type="object")
TestEpisodes = machine("episode", PLAIN | {"episodes"}, type="object")
TestAdvancedOverArrays = machine("advanced", PRIORITIZED | {"columns"}, type="array")
TestAdvancedOverObjects = machine("advanced", PRIORITIZED, type="object")
