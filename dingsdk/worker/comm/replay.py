"""What a worker has of the run's replay server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.worker.replay_server import ReplayClient

PAUSE_S = 0.05
"""Pause before a limiter that refused rows is asked again."""
LONGEST_WAIT_S = 1.0
"""How long one call waits for the limiter: a worker that is told to stop waits no longer."""


class ServedReplay:
    """A client of the replay server, connected when it is first used.

    Args:
        cfg: Section ``system.replay``, with the address.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._cfg = cfg
        self._client: ReplayClient | None = None

    @property
    def client(self) -> ReplayClient:
        """The client; raises as its constructor."""
        if self._client is None:
            self._client = ReplayClient(
                self._cfg["address"], self._cfg["path"] or None, timeout_s=self._cfg["timeout_s"]
            )
        return self._client

    def close(self) -> None:
        """Close the connection; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
