"""Fixtures: a run folder, and servers that are closed after the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dingsdk_watch.runs import Run
from dingsdk_watch.server import Server

from .run_folders import write_run


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    leaked = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not leaked


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "cartpole")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*folders: Path, **options: Any) -> Server:
        server = Server([Run(each) for each in folders], **options)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
