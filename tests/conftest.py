"""What every test is held to: it leaves the process as it found it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

from dingsdk.plugins import PluginManager, use_manager

# Workers of pytest share the cores; more threads for each wait for one another. Not read again
# once torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples each time. `make test-all` takes the profile `thorough`.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, stateful_step_count=25
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=400)
settings.load_profile("default")

if threading.current_thread() is threading.main_thread():
    # A shell ignores Ctrl-C in what it runs in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

GRACE_S = 5.0
"""Threads that were told to end may take a moment (a queue's feeder, for one)."""


@pytest.fixture(autouse=True, scope="module")
def _has_plugins_of_its_own() -> Iterator[None]:
    """What a file's tests register is gone with it, and new processes do not load it."""
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
    # Libraries set variables of their own when they are first imported; pytest names the test.
    environment.pop("PYTEST_CURRENT_TEST", None)
    changed = [key for key, value in environment.items() if os.environ.get(key) != value]
    added = [key for key in os.environ if key.startswith("DING") and key not in environment]
    assert not changed + added, f"changed environment variables {changed + added}"
    assert logging.getLogger().handlers == handlers, "leaked logging handlers"
