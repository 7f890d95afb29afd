"""What holds for all tests, those of the plugins too: threads, examples and signals."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Workers of pytest share the cores; more threads for each wait for one another. Not read again
# once torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples each time. `make test-all` uses the profile `thorough`; `random` has other
# examples each time, and prints how to repeat a failure.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, stateful_step_count=25
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=400)
settings.register_profile(
    "random", settings.get_profile("thorough"), derandomize=False, print_blob=True, database=None
)
settings.load_profile("default")

if threading.current_thread() is threading.main_thread():
    # A shell ignores Ctrl-C in what it runs in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _collections_skip_earlier_objects() -> Iterator[None]:
    """Leave objects from before a test file out of its garbage collections, which take long."""
    gc.freeze()
    yield
    gc.unfreeze()
