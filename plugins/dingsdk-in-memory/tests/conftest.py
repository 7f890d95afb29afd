"""Fixtures: a transport with its scheduler for both kinds of concurrency, closed after the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dingsdk_in_memory.transport import InMemoryTransport

CONCURRENCY = ("greenlets", "threads")


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    leaked = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not leaked


@pytest.fixture(params=CONCURRENCY)
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InMemoryTransport]:
    made = InMemoryTransport({"concurrency": request.param, "check_wire": True}, tmp_path)
    yield made
    made.close()
