"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Getter = Callable[[str], Any]


def lazy_names(
    package: str, file: str, otherwise: Getter | None = None
) -> tuple[Getter, Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    The names are those that its ``__init__.py`` imports for type checkers, in the block that
    starts with ``if TYPE_CHECKING:``. They are read from the source, so that they stand there
    once: importing them for real would load torch, numba or gymnasium.

    Args:
        package: ``__name__`` of the package.
        file: ``__file__`` of the package.
        otherwise: Asked for any other name; raises AttributeError where it knows none.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    modules = {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = vars(sys.modules[package])

    def getter(name: str) -> Any:
        if name in modules:
            names[name] = getattr(importlib.import_module(modules[name]), name)
            return names[name]
        if otherwise is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return otherwise(name)

    return getter, lambda: sorted({*names, *names["__all__"]}), sorted(modules)
