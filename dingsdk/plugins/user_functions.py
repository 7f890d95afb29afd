"""Finds what a config names as ``module:name``, and decides whether it may be called.

A config may come from somebody else, and the standard library and installed packages are full of
callables, such as ``subprocess.Popen``. So what a config names is called only if it is known to be
made for that; see ``why_refused``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dingsdk.errors import error_text, raised_at
from dingsdk.plugins.discovery import SHIPPED

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_MARK = "__dingsdk_factory__"
_PETTINGZOO = ("env", "raw_env", "parallel_env", "make_env")
"""Names that PettingZoo's convention gives to functions that make envs."""
_OURS = {"dingsdk", *(name.replace("-rl-", "_").replace("-", "_") for name in SHIPPED.values())}
"""The packages of this repository; they are library code, even if they are installed in place."""


def factory(function: FunctionT) -> FunctionT:
    """Mark a function or class, so that configs may name it: ``@dingsdk.envs.factory``.

    The function may then be named by ``env.env_id``, ``env.eval_opponents`` and the ``data`` of an
    evaluator. A package needs this for its functions; classes of envs and the user's own functions
    do not.
    """
    setattr(function, _MARK, True)
    return function


def find_function(name: str) -> tuple[Callable[..., Any] | None, str]:
    """Import the function ``module:function``; return it with "", or None with the reason."""
    module, _, function = name.rpartition(":")
    if not module:
        return None, "no module:function"
    try:
        found = getattr(importlib.import_module(module), function, None)
    except (Exception, SystemExit) as error:
        return None, f"its import raised {error_text(error)}{raised_at(error)}"
    if not callable(found):
        return None, f"{module} has no function {function!r}"
    why = why_refused(found, name)
    return (None, why) if why else (found, "")


def why_refused(found: Any, name: str, *, is_env: bool = False) -> str:
    """Return why what a config names must not be called; "" if it may be.

    Accepted are functions with the mark of ``factory``, functions with an annotation that they
    return an env, and functions and partials of modules that are neither of the standard library
    nor of an installed package.

    Args:
        found: The object.
        name: Its name in the config, ``module:name``.
        is_env: Whether an env is wanted. Then a class with ``reset`` and ``step`` is accepted too,
            and a function of a package with a name that PettingZoo gives to functions of envs.
    """
    module, _, attribute = name.rpartition(":")
    is_function = inspect.isfunction(found)
    own = found.__module__ if is_function else module
    if getattr(found, _MARK, None) is True or (is_env and _is_env_class(found)):
        return ""
    if is_function or isinstance(found, functools.partial):
        is_by_name = is_env and is_function and attribute in _PETTINGZOO and not _is_standard(own)
        if _is_of_user(own) or is_by_name or (is_function and _is_env_class(_returned(found))):
            return ""
    kind = "class" if isinstance(found, type) else "function" if is_function else "callable"
    wanted = "an env" if is_env else "a function made for this"
    return (
        f"it is a {kind} of {own} that is not known to be {wanted}, so it was not called; if you "
        "trust it, mark it with @dingsdk.envs.factory, or call it in a function of a module of "
        "your own and name that"
    )


def _is_env_class(found: Any) -> bool:
    """Whether it is a class of envs; the base classes of gymnasium and PettingZoo have both."""
    names = ("reset", "step")
    return isinstance(found, type) and all(callable(getattr(found, each, None)) for each in names)


def _returned(function: Any) -> Any:
    """Return the class in the annotation of what a function returns, or None."""
    found = function.__annotations__.get("return")
    if not isinstance(found, str):
        return getattr(found, "__origin__", found)
    # Read without eval: a dotted name, as in "gym.Env[Any, Any]".
    first, *rest = (re.match(r"[\w.]*", found) or [""])[0].split(".")
    value = function.__globals__.get(first)
    for each in rest:
        value = getattr(value, each, None)
    return value


def _is_standard(module: str) -> bool:
    """Whether a module is of the standard library."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] in sys.stdlib_module_names:
        return True
    path = Path(file).resolve()
    folders = {Path(sysconfig.get_path(each)).resolve() for each in ("stdlib", "platstdlib")}
    return any(path.is_relative_to(each) for each in folders) and not _is_installed(Path(file))


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _is_of_user(module: str) -> bool:
    """Whether a module is code of the user, and not of a library."""
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if file is None:  # code of a notebook or a shell is the user's
        return module == "__main__" and found is not None
    is_ours = module.partition(".")[0] in _OURS
    return not (is_ours or _is_standard(module) or _is_installed(Path(file)))
