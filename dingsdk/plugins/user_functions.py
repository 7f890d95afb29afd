"""Finds functions of the user, which a config names as ``module:function``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dingsdk.errors import raised_at


def find_function(name: str) -> tuple[Callable[..., Any] | None, str]:
    """Import the function ``module:function``; return it with "", or None with the reason."""
    module, _, function = name.rpartition(":")
    if not module:
        return None, "no module:function"
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        return None, f"its import raised {type(error).__name__}: {error}{raised_at(error)}"
    return (found, "") if callable(found) else (None, f"{module} has no function {function!r}")
