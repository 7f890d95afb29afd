"""What every test is held to: it leaves the process as it found it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator

import pytest

GRACE_S = 5.0
"""Threads that were told to end may take a moment (a queue's feeder, for one)."""


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    threads = set(threading.enumerate())
    environment = dict(os.environ)
    handlers = list(logging.getLogger().handlers)
    yield
    for thread in threading.enumerate():
        if thread not in threads:
            thread.join(GRACE_S)
            assert not thread.is_alive(), f"leaked thread {thread.name}"
    for process in multiprocessing.active_children():
        process.join(GRACE_S)
        assert not process.is_alive(), f"leaked process {process.name}"
    # pytest itself keeps the running test's name there.
    ours = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    assert ours == environment, "leaked environment variables"
    assert logging.getLogger().handlers == handlers, "leaked logging handlers"
