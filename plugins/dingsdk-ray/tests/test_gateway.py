"""The gateway of a run, tested in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dingsdk_ray.gateway import Gateway
from dingsdk_ray.transport import RayTransport

from dingsdk.worker.comm.requests import LinkError

from .conftest import UnwatchedGateway


def test_gateway_without_a_coordinator_says_so(tmp_path: Path) -> None:
    """This is the state of a resumed run before the next coordinator has opened."""
    gateway = UnwatchedGateway(RayTransport, {}, tmp_path)
    try:
        with pytest.raises(LinkError, match="no coordinator has opened yet"):
            gateway.request("/join", b"{}", 5.0)
    finally:
        gateway._transport.close()
        gateway._transport.remove_data()


def test_gateway_ends_after_three_checks_of_an_unused_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = iter([False, False, True, False, False, True, False, False, False])
    killed: list[Any] = []
    pauses_s: list[float] = []
    patched = SimpleNamespace(Event=lambda: SimpleNamespace(wait=pauses_s.append))
    monkeypatch.setattr("dingsdk_ray.gateway.threading", patched)
    monkeypatch.setattr("dingsdk_ray.gateway.is_held", lambda run_dir: next(held))
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(current_actor="me"))
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: killed.append((actor, no_restart)))
    gateway: Any = SimpleNamespace(_transport=SimpleNamespace(run_dir=tmp_path))
    Gateway._watch(gateway)
    assert (killed, list(held)) == ([("me", True)], [])
    assert pauses_s == [20.0] * 9
