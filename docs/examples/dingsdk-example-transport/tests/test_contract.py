"""The transport follows the contract of all transports."""

from __future__ import annotations

from pathlib import Path

from dingsdk_example_transport.transport import UnixSocketTransport

from dingsdk.testing import TransportContract


class TestUnixSocket(TransportContract):
    capabilities = frozenset({"many_processes"})

    def make_transport(self, run_dir: Path) -> UnixSocketTransport:
        return UnixSocketTransport({}, run_dir)
