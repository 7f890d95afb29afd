"""Fixtures: a run folder, and servers that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dingsdk_watch.runs import Run
from dingsdk_watch.server import Server

from tests.conftest import _leaves_nothing_behind as _leaves_nothing_behind

from .run_folders import write_run


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
