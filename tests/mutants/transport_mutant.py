"""The in_memory transport with replaceable parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dingsdk_in_memory.stores import MemoryDataStore, MemoryPolicyStore
from dingsdk_in_memory.transport import (
    InMemoryTransport,
    MemoryMasterEnd,
    MemorySlaveEnd,
)

PATIENCE_S = 2.0


class Mutant(InMemoryTransport):
    """The unchanged transport; mutants replace one of its parts."""

    breaks: int = 0
    also: frozenset[int] = frozenset()
    master: type[MemoryMasterEnd] = MemoryMasterEnd
    slave: type[MemorySlaveEnd] = MemorySlaveEnd
    data: type[MemoryDataStore] = MemoryDataStore
    policies: type[MemoryPolicyStore] = MemoryPolicyStore

    def __init__(self, run_dir: Path) -> None:
        super().__init__({"concurrency": "threads", "check_wire": True}, run_dir)
        self._master = self.master(self._scheduler, check_wire=True)
        self._data_store, self._policy_store = self.data(), self.policies()

    def close(self, timeout_s: float = 5.0) -> None:
        # The transport closes correctly, even if close() of the mutated master end is broken.
        MemoryMasterEnd.close(self._master)
        self._scheduler.close(timeout_s)

    def slave_end(self, address: str) -> MemorySlaveEnd:
        return self.slave(self._master)


MUTANTS: list[type[Mutant]] = []


def mutant(breaks: int, *also: int) -> Callable[[type], type[Mutant]]:
    """Turn a class of a part into a mutant; its base class says which part it replaces."""

    def make(part: type) -> type[Mutant]:
        if issubclass(part, Mutant):
            made = part
        else:
            bases = {
                MemoryMasterEnd: "master",
                MemorySlaveEnd: "slave",
                MemoryDataStore: "data",
                MemoryPolicyStore: "policies",
            }
            slot = next(name for base, name in bases.items() if issubclass(part, base))
            made = type(part.__name__, (Mutant,), {slot: part})
        made.breaks, made.also = breaks, frozenset(also)
        MUTANTS.append(made)
        return made

    return make
