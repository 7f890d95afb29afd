"""The in_memory transport passes the contract, with threads and with greenlets."""

from __future__ import annotations

from pathlib import Path

from dingsdk_in_memory.transport import InMemoryTransport

from dingsdk.testing import TransportContract


class TestThreads(TransportContract):
    def make_transport(self, run_dir: Path) -> InMemoryTransport:
        return InMemoryTransport({"concurrency": "threads", "check_wire": True}, run_dir)


class TestTurns(TransportContract):
    def make_transport(self, run_dir: Path) -> InMemoryTransport:
        return InMemoryTransport({"concurrency": "greenlets", "check_wire": True}, run_dir)
