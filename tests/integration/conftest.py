"""A fixture of several files: what a parallel run has counted at its end."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.worker.coordinator import Coordinator


@pytest.fixture
def evicted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The evicted samples of a run by reason, as counted when the coordinator closes."""
    found: list[dict[str, int]] = []
    close = Coordinator.close

    def look(self: Coordinator, *args: Any, **kwargs: Any) -> Any:
        self.validate_state()
        found.append(dict(self.status().samples.evicted))
        return close(self, *args, **kwargs)

    monkeypatch.setattr(Coordinator, "close", look)
    return found
