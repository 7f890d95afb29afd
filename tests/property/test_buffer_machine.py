"""Random calls to every kind of buffer, with every storage, compared with a simple model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import settings

from dingsdk.plugins import default_manager
from dingsdk.testing import BufferMachine
from dingsdk.worker.replay_buffer import IBuffer

from ..contracts.test_rules import BASE, PRIORITIZED, ROWS


class Machine(BufferMachine):
    """A buffer with the parts in ``parts``."""

    parts: ClassVar[Mapping[str, Any]]

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        whole = {**self.parts, **cfg}
        if whole["storage"]["type"] == "memmap":
            whole["storage"] = {**whole["storage"], "path": self.folder.name}
        made: IBuffer = default_manager().create("buffers", whole)
        return made


def machine(
    kind: str, capabilities: frozenset[str], storage: str, *, slow: bool = True, **parts: Any
) -> type[BufferMachine.TestCase]:
    """Return the test case for a type of buffer with a type of storage."""
    columns = parts.pop("columns", {})
    whole = {"type": kind, **parts, "storage": {"type": storage, **columns}}
    made = type("Machine", (Machine,), {"capabilities": capabilities, "parts": whole})
    test: type[BufferMachine.TestCase] = made.TestCase  # type: ignore[attr-defined]
    # The fast machine of each kind runs all examples; the others run a quarter of them.
    share = 4 if slow else 1
    thorough = settings.default.max_examples  # type: ignore[attr-defined]
    test.settings = settings(max_examples=(thorough if thorough > 100 else 20) // share)
    test = pytest.mark.timeout(900)(test)
    return pytest.mark.slow(test) if slow else test


LINKED = {"next_of": "obs"}
SEQUENCES = BASE | {"sequences"}

TestNaiveOverArrays = machine("naive", ROWS | {"columns"}, "array", slow=False)
TestNaiveOverLinkedArrays = machine("naive", ROWS | {"columns"}, "array", columns=LINKED)
TestNaiveOverObjects = machine("naive", ROWS | {"objects"}, "object")
TestNaiveOverMaps = machine("naive", ROWS | {"columns"}, "memmap")
TestNaiveOverLinkedMaps = machine("naive", ROWS | {"columns"}, "memmap", columns=LINKED)
TestSequenceOverArrays = machine("sequence", SEQUENCES | {"columns"}, "array", slow=False)
TestSequenceOverObjects = machine("sequence", SEQUENCES | {"objects"}, "object")
TestSequenceOverLinkedMaps = machine("sequence", SEQUENCES | {"columns"}, "memmap", columns=LINKED)
TestEpisodesOverObjects = machine("episode", ROWS | {"episodes"}, "object", slow=False)
TestAdvancedOverArrays = machine(
    "advanced", PRIORITIZED | {"columns", "proportional"}, "array", slow=False
)
TestAdvancedOverObjects = machine("advanced", PRIORITIZED | {"proportional"}, "object")
TestAdvancedByRank = machine(
    "advanced", PRIORITIZED | {"columns"}, "array", sampler={"type": "rank"}
)
TestAdvancedOverLinkedMaps = machine(
    "advanced", PRIORITIZED | {"columns", "proportional"}, "memmap", columns=LINKED
)
