"""Checks around every test: it leaves no thread, process, variable or logging handler behind."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator

import pytest

from dingsdk.plugins import PluginManager, use_manager

GRACE_S = 5.0
"""How long a stopped thread or process may take to end (for example the feeder of a queue)."""


@pytest.fixture(autouse=True, scope="module")
def _has_plugins_of_its_own() -> Iterator[None]:
    """Give each test file its own plugin manager, so that its registrations end with it."""
    with use_manager(PluginManager()):
        yield


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
    # Pytest sets this variable for each test. Libraries may add others when they are imported.
    environment.pop("PYTEST_CURRENT_TEST", None)
    changed = [key for key, value in environment.items() if os.environ.get(key) != value]
    added = [key for key in os.environ if key.startswith("DING") and key not in environment]
    assert not changed + added, f"changed environment variables {changed + added}"
    assert logging.getLogger().handlers == handlers, "leaked logging handlers"
