"""Every public module, class, function, method and property has a docstring."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest

import dingsdk

PACKAGES = [
    name
    for name in (
        "dingsdk",
        "dingsdk_flask_fs",
        "dingsdk_in_memory",
        "dingsdk_ray",
        "dingsdk_shared_memory",
        "dingsdk_watch",
    )
    if importlib.util.find_spec(name) is not None
]
NAMED_BY_BEHAVIOUR = ("test_", "pytest_", "dingsdk_")
"""Prefixes of tests and of hook implementations. Hooks are documented in their specs."""
MEMBERS = (FunctionType, classmethod, staticmethod, property)


def modules_of(package: str) -> Iterator[ModuleType]:
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def undocumented(module: ModuleType) -> Iterator[str]:
    """Yield the public names of a module without a docstring of their own or an inherited one."""
    if not module.__doc__:
        yield module.__name__
    for name, value in list(vars(module).items()):  # lazy names may be added during the loop
        is_own = getattr(value, "__module__", None) == module.__name__
        if not is_own or name.startswith(("_", *NAMED_BY_BEHAVIOUR)):
            continue
        if inspect.isfunction(value) and not value.__doc__:
            yield f"{module.__name__}.{name}"
        if inspect.isclass(value):
            if not vars(value).get("__doc__"):
                yield f"{module.__name__}.{name}"
            yield from (f"{module.__name__}.{name}.{member}" for member in _bare_members(value))


def _bare_members(cls: type) -> Iterator[str]:
    # The rules of a state machine are named like tests.
    is_machine = any(base.__name__ == "RuleBasedStateMachine" for base in cls.__mro__)
    for name, value in vars(cls).items():
        if name.startswith(("_", *NAMED_BY_BEHAVIOUR)) or is_machine:
            continue
        is_told = any(vars(base)[name].__doc__ for base in cls.__mro__ if name in vars(base))
        if not is_told and isinstance(value, MEMBERS):
            yield name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    found = [name for module in modules_of(package) for name in undocumented(module)]

    assert found == []


def test_names_without_docstring_are_found_and_inherited_docstrings_count() -> None:
    class Base:
        """A documented base."""

        def told(self) -> None:
            """Does a thing."""

    class Bare(Base):
        def told(self) -> None: ...

        def untold(self) -> None: ...

        @property
        def value(self) -> int:
            return 1

        def _private(self) -> None: ...

    def bare() -> None: ...

    module = ModuleType(__name__)
    vars(module).update(Base=Base, Bare=Bare, bare=bare, other=dingsdk.lazy)

    names = [name.removeprefix(__name__) for name in undocumented(module)]
    assert names == ["", ".Bare", ".Bare.untold", ".Bare.value", ".bare"]
