"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import functools
import importlib
import sys

TYPE_CHECKING = False  # typing would double the time in which Ctrl-C prints a traceback
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Getter = Callable[[str], Any]


def lazy_names(
    package: str, file: str, otherwise: Getter | None = None
) -> tuple[Getter, Callable[[], list[str]]]:
    """Return a ``__getattr__`` (which also provides ``__all__``) and a ``__dir__`` for a package.

    The public names are the names that its ``__init__.py`` imports in the block that starts with
    ``if TYPE_CHECKING:``. They are read from the source, so that they need to be written only
    once. Importing them would load torch, numba or gymnasium.

    Args:
        package: ``__name__`` of the package.
        file: ``__file__`` of the package.
        otherwise: Called for any other name; raises AttributeError if there is no such name.
    """
    names = vars(sys.modules[package])
    modules = functools.cache(lambda: _typed_imports(file))

    def getter(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        if name in modules():
            names[name] = getattr(importlib.import_module(modules()[name]), name)
            return names[name]
        if otherwise is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return otherwise(name)

    return getter, lambda: sorted({*names, *modules()})


def _typed_imports(file: str) -> dict[str, str]:
    """Return the module of each name that a file imports for type checkers."""
    import ast

    with open(file, encoding="utf-8") as source:  # noqa: PTH123 - pathlib takes 10 ms to import
        tree = ast.parse(source.read())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
