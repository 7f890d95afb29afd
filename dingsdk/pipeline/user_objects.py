"""The objects that can be passed to ``train``: env classes, policy classes and callbacks."""

from __future__ import annotations

import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from types import SimpleNamespace
from typing import Any

from dingsdk.envs.make import GIVEN
from dingsdk.errors import ConfigError, ConfigTypeError, listing, spelling, wrong_type
from dingsdk.plugins import default_manager, hookimpl, hookspecs
from dingsdk.plugins.hooks import Observers
from dingsdk.runtime.spawn import is_at_top, is_importable
from dingsdk.worker import LearnerHook

HOOKS = (
    *(name for name in vars(Observers) if f"dingsdk_{name}" in vars(hookspecs)),
    "should_stop",
    "progress_columns",
    "result_fields",
)
"""Hooks that a callback may implement."""
IN_WORKERS = {
    "after_checkpoint",
    "after_collect",
    "after_episode",
    "after_iter",
    "after_task",
    "before_task",
}
"""Hooks that are called in the process of a worker."""
_HOOK_LIKE = re.compile(r"(before|after|run)_")
_lock = threading.Lock()
_active: set[int] = set()
"""Numbers of the runs and evaluations in this process, which may be in several threads."""
_run: ContextVar[int | None] = ContextVar("run", default=None)
"""Number of the run that the current thread or job belongs to."""


def name_env(env: str | Callable[..., Any]) -> str:
    """Return the ``env.env_id`` for an env id, or for a class or function that makes an env.

    A class or function that cannot be imported is registered with gymnasium, in this process only.

    Raises:
        ConfigTypeError: ``env`` is something else.
    """
    if isinstance(env, str):
        return env
    if not callable(env):
        raise wrong_type("env", "an id, or a class or function that makes an env", env)
    name = getattr(env, "__name__", type(env).__name__)
    if is_at_top(env):
        default_manager().given.add(given := f"{env.__module__}:{name}")
        return given
    import gymnasium as gym

    # Another object with the same name gets a new id: an earlier run may still use the old id.
    stem = env_id = f"{GIVEN}{re.sub(r'[^A-Za-z0-9_]', '', name) or 'env'}"
    counts = itertools.count(2)
    while (spec := gym.registry.get(env_id)) is not None and spec.entry_point is not env:
        env_id = f"{stem}-{next(counts)}"
    if spec is None:
        gym.register(env_id, entry_point=env, disable_env_checker=True)
    return env_id


def name_policy(policy: type) -> str:
    """Register a policy class under its name, and return the name, which is its type key.

    A registered class with the same name and module is replaced, for notebooks that define a class
    again.

    Raises:
        DuplicateTypeError: a class of another module has that name.
    """
    if not isinstance(policy, type):
        raise wrong_type("policy", "a class", policy)
    registry, name = default_manager().registry("policies"), policy.__name__
    before = registry.entry(name)
    is_own = before is not None and before.owner == policy.__module__
    registry.register(name, policy, force_overwrite=is_own)
    return name


def check_importable(name: str, target: object, *, has_script: bool = True) -> None:
    """Raise ConfigError unless the child processes of a run can import a class or function.

    Args:
        name: The argument of ``train``, or the config key, for the message.
        target: The class or function; any other object is accepted.
        has_script: Whether the child processes import the script that was started.
    """
    if callable(target) and not is_importable(target, has_script=has_script):
        shown = getattr(target, "__qualname__", repr(target))
        place = "a module with a file" + (" or of the script" if has_script else ", not the script")
        raise ConfigError(
            f"{name}={shown} cannot be imported by the child processes of this run: define it at "
            f"the top of {place}, or choose parts that run in this process: mode='serial' or the "
            "transport in_memory, an env manager such as vector, system.learner_num 1",
            path=name,
            found=shown,
        )


@contextmanager
def callbacks_registered(callbacks: Sequence[Any], *, in_processes: bool) -> Iterator[None]:
    """Register callbacks for the duration of the block; learner hooks are ignored.

    They are not called for runs in other threads of this process.

    Raises:
        ConfigError: a callback implements no hook, or a hook that is called in worker processes.
        PluginLoadError: a callback has an argument that its hook does not have.
    """
    manager = default_manager()
    with ExitStack() as stack:
        run = stack.enter_context(numbered_run())
        for index, callback in enumerate(callbacks):
            if isinstance(callback, LearnerHook):
                continue
            name, functions = _functions_of(callback, f"callbacks[{index}]")
            remote = sorted(IN_WORKERS & functions.keys())
            if remote and in_processes:
                raise ConfigError(
                    f"{name} implements {listing(remote)}, which this run calls in its workers, "
                    "and they do not have this object; use mode='serial', the transport in_memory, "
                    "or a plugin",
                    path=f"callbacks[{index}]",
                    found=remote,
                )
            plugin = SimpleNamespace(
                **{
                    f"dingsdk_{hook}": _implementation(each, run)
                    for hook, each in functions.items()
                }
            )
            where = f"callbacks[{index}]" + (f" of run {run} in this process" if run > 1 else "")
            registered = manager.register_plugin(plugin, f"{name} ({where})")
            stack.callback(manager.unregister_plugin, registered)
        yield


def learner_hooks(callbacks: Sequence[Any], mode: str) -> list[LearnerHook]:
    """Return the learner hooks among the callbacks; raise ConfigError for them in parallel mode.

    Raises ConfigTypeError if the callbacks are no list.
    """
    if not isinstance(callbacks, Sequence):
        raise wrong_type("callbacks", "a list of functions and objects", callbacks)
    found = [each for each in callbacks if isinstance(each, LearnerHook)]
    if found and mode == "parallel":
        raise ConfigError(
            f"the learner hook {found[0].name!r} cannot be given to a run in parallel mode, whose "
            "worker makes its own learner: register its class and name it in "
            "policy.learn.learner.hook, or write a callback after_iter(learner)",
            path="callbacks",
            found=found[0].name,
        )
    return found


def _functions_of(callback: Any, path: str) -> tuple[str, dict[str, Callable[..., Any]]]:
    """Return the name of a callback, and its functions by the name of their hook."""
    name = getattr(callback, "__name__", type(callback).__name__)
    if isinstance(callback, type):
        raise ConfigTypeError(
            f"{path} is the class {name}; give an instance of it", path=path, found=name
        )
    candidates = [name]
    if not inspect.isroutine(callback):
        members = [each for each in dir(callback) if not each.startswith("_")]
        candidates = [each for each in members if _is_function(callback, each)]
    found = {
        each: callback if inspect.isroutine(callback) else getattr(callback, each)
        for each in candidates
        if each in HOOKS
    }
    strange = [each for each in candidates if each not in HOOKS and _HOOK_LIKE.match(each)]
    if strange or not found:
        asked = (strange or candidates or [""])[0]
        nearest, hint = spelling(asked, HOOKS)
        what = f"{name} has {asked!r}, which is no hook" if strange else f"{name} names no hook"
        raise ConfigError(
            f"{path}: {what}{hint} A callback is a function with the name of a hook, or an object "
            f"with such methods: {listing(HOOKS)}",
            path=path,
            found=asked,
            nearest=nearest,
        )
    return name, found


def _is_function(callback: Any, name: str) -> bool:
    try:
        return callable(getattr(callback, name))
    except Exception:  # of any code, as a property is
        return False


@contextmanager
def numbered_run() -> Iterator[int]:
    """Give the run of this thread the lowest number that no other active run has.

    In the block, the callbacks of other runs are not called.
    """
    with _lock:
        number = next(each for each in itertools.count(1) if each not in _active)
        _active.add(number)
    token = _run.set(number)
    try:
        yield number
    finally:
        _run.reset(token)
        _active.discard(number)


def _implementation(function: Callable[..., Any], run: int) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args) if _run.get() in (run, None) else None

    implementation: Callable[..., Any] = hookimpl(call)
    return implementation
