"""A fixture that registers a remover of a plugin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dingsdk.plugins import PluginManager, use_manager

from .random_remover import RandomRemover


@pytest.fixture
def random_removers() -> Iterator[dict[str, str]]:
    """Register the type ``random``, and yield its config section."""
    with use_manager(PluginManager()) as manager:
        manager.registry("removers").register("random", RandomRemover)
        yield {"type": "random"}
