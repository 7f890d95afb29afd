"""The flask_fs transport passes the contract, also with a bad network."""

from __future__ import annotations

from pathlib import Path

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.testing import TransportContract


class TestFlaskFS(TransportContract):
    capabilities = frozenset({"many_processes", "survives_faults"})

    @pytest.fixture(autouse=True)
    def _own_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DINGSDK_SECRET", raising=False)
        monkeypatch.delenv("DINGSDK_SECRET_FILE", raising=False)

    def make_transport(self, run_dir: Path) -> FlaskFSTransport:
        # A silent worker must count as lost before the kit stops waiting.
        return FlaskFSTransport({"threads": 12, "lost_after_s": 3.0}, run_dir)
