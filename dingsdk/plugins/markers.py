"""The pluggy markers: ``@hookimpl`` for plugin authors, ``@hookspec`` for new hooks."""

from __future__ import annotations

import pluggy

PROJECT_NAME = "dingsdk"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
"""Declares a hook, in a module that a plugin passes to ``manager.add_hookspecs``."""

hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a plugin's function as the implementation of the hook of the same name."""
