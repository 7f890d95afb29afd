"""The process's own plugin manager, made when it is first needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dingsdk.plugins.manager import PluginManager
from dingsdk.plugins.observers import Observers
from dingsdk.plugins.switches import Switches

_lock = threading.RLock()
_default: PluginManager | None = None


def default_manager() -> PluginManager:
    """Return the manager of this process; the first call reads the ``DINGSDK_*`` switches.

    Raises:
        ConfigError: a switch that is neither on nor off, or that is unknown.
    """
    global _default
    with _lock:
        if _default is None:
            _default = PluginManager(Switches.from_environ(os.environ))
        return _default


@contextmanager
def use_manager(manager: PluginManager) -> Iterator[PluginManager]:
    """Make ``manager`` the default inside the block, for tests and for tools."""
    global _default
    with _lock:
        previous, _default = _default, manager
    try:
        yield manager
    finally:
        with _lock:
            _default = previous


def observe() -> Observers:
    """Return the observe hooks, to call as ``observe().after_iter(...)``.

    The first call loads the plugins that only observe. A call that nobody listens to costs
    less than 1 us.
    """
    manager = _default or default_manager()
    if not manager.has_observers:
        manager.load_observers()
    return manager.observers
