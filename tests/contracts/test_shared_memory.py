"""The shared_memory transport passes the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.testing import TransportContract

transport = pytest.importorskip("dingsdk_shared_memory.transport")
run_memory = pytest.importorskip("dingsdk_shared_memory.run_memory")


class TestSharedMemory(TransportContract):
    capabilities = frozenset({"many_processes"})

    @pytest.fixture(autouse=True)
    def _leaves_no_memory(self) -> Iterator[None]:
        yield
        run_memory.remove_stale()

    def make_transport(self, run_dir: Path) -> transport.SharedMemoryTransport:
        # A silent worker must count as lost before the kit stops waiting.
        return transport.SharedMemoryTransport({"lost_after_s": 3.0}, run_dir)
