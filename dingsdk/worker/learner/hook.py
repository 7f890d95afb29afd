"""Learner hooks: what runs before and after a run and an iteration, chosen by config.

*Chosen by config, ordered by priority, state per learner*: write a ``LearnerHook``. *Whole
process, only observes*: write a hookimpl (see ``dingsdk.plugins``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dingsdk.config import check_known_keys, to_easydict
from dingsdk.errors import ConfigTypeError, HookError, UnknownKeyError, nearest_name
from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.worker.learner.base import BaseLearner

HookTable = dict[str, list["LearnerHook"]]
"""The hooks of a learner by position, each list in calling order."""

_CONFIG_PATH = "policy.learn.learner.hook"
_FULL_PRIORITY = 100
_FULL_KEYS = {
    "name": "",
    "type": "",
    "priority": _FULL_PRIORITY,
    "position": "",
    "ext_args": {},
    "import_names": [],
}


class Hook(ABC):
    """A named action with a place in an order.

    Args:
        name: For messages and for finding it again.
        priority: >= 0; lower runs earlier, equal ones in the order they were added.

    Raises:
        HookError: ``priority`` is negative or no number.
    """

    def __init__(self, name: str, priority: float, **kwargs: Any) -> None:
        is_number = isinstance(priority, int | float) and not isinstance(priority, bool)
        if not is_number or not priority >= 0:
            raise HookError(
                f"the hook {name!r} has priority {priority!r}; use a number >= 0, lower is earlier",
                name=name,
                found=priority,
            )
        self._name = name
        self._priority = priority

    @property
    def name(self) -> str:
        """Name of this hook."""
        return self._name

    @property
    def priority(self) -> float:
        """Place in the order; lower is earlier."""
        return self._priority

    @abstractmethod
    def __call__(self, engine: Any) -> None:
        """Act on ``engine``; an exception ends the run with its traceback."""


class LearnerHook(Hook):
    """A hook of a learner.

    Args:
        name, priority: As for ``Hook``.
        position: One of ``positions``.

    Raises:
        HookError: Another position.

    Example:
        >>> class CountHook(LearnerHook):
        ...     calls = 0
        ...
        ...     def __call__(self, engine):
        ...         self.calls += 1
        >>> CountHook("count", 50, position="after_iter").position
        'after_iter'
    """

    positions: ClassVar[tuple[str, ...]] = ("before_run", "after_run", "before_iter", "after_iter")

    def __init__(self, name: str, priority: float, *, position: str, **kwargs: Any) -> None:
        super().__init__(name, priority, **kwargs)
        if position not in self.positions:
            raise HookError(
                f"the hook {name!r} has position {position!r}; use one of {list(self.positions)}",
                name=name,
                found=position,
                nearest=nearest_name(str(position), self.positions),
            )
        self._position = position

    @property
    def position(self) -> str:
        """When it runs; one of ``positions``."""
        return self._position

    @abstractmethod
    def __call__(self, engine: BaseLearner) -> None:
        """Act on the learner; ``engine.last_iter.val`` is the iteration just finished."""


def register_learner_hook(name: str, hook_type: type[LearnerHook]) -> None:
    """Make ``hook_type`` available to configs as ``type: name``, replacing what has that name.

    Raises:
        HookError: It is not a subclass of ``LearnerHook``.
    """
    if not (isinstance(hook_type, type) and issubclass(hook_type, LearnerHook)):
        raise HookError(
            f"cannot register {hook_type!r} as the learner hook {name!r}: derive it from "
            "dingsdk.worker.LearnerHook",
            name=name,
            found=hook_type,
        )
    default_manager().registry("learner_hooks").register(name, hook_type, force_overwrite=True)


def build_learner_hook_by_cfg(cfg: Mapping[str, Any], config_path: str = _CONFIG_PATH) -> HookTable:
    """Build the hooks that a config section names.

    Args:
        cfg: Entries in two forms. *Simplified*: ``log_show_after_iter: freq``,
            ``load_ckpt_before_run: path``, ``save_ckpt_after_iter: freq``,
            ``save_ckpt_after_run: bool``, ``log_reduce_after_iter: bool``; ``False``, ``0``,
            ``''`` and ``None`` turn one off. *Full*, under any key: a dict of ``type``,
            ``position``, and optionally ``name`` (the key), ``priority`` (100), ``ext_args``
            and ``import_names``; under a simplified key ``type`` and ``position`` may be left
            out as well.
        config_path: Where ``cfg`` stands in the whole config, for messages.

    Returns:
        All four positions, each with its hooks in calling order.

    Raises:
        UnknownKeyError: A key of neither form.
        UnknownPluginError: A ``type`` that nothing provides.
        HookError, ConfigTypeError: A value that cannot work.
    """
    hooks: HookTable = {position: [] for position in LearnerHook.positions}
    for key, value in cfg.items():
        path = f"{config_path}.{key}"
        if isinstance(value, Mapping):
            add_learner_hook(hooks, _build_full(key, value, path))
        elif value is not None and value is not False:
            hook = _build_simplified(key, value, path)
            if hook is not None:
                add_learner_hook(hooks, hook)
        elif key not in _SIMPLIFIED:
            raise _unknown(key, path)
    return hooks


def add_learner_hook(hooks: HookTable, hook: LearnerHook) -> None:
    """Insert ``hook`` in place: ascending priority, after those of equal priority."""
    insort_right(hooks[hook.position], hook, key=lambda present: present.priority)


def merge_hooks(hooks1: HookTable, hooks2: HookTable) -> HookTable:
    """Return a new table of both; at equal priority ``hooks1`` come first.

    Raises:
        HookError: The tables have different positions.
    """
    if hooks1.keys() != hooks2.keys():
        raise HookError(
            f"cannot merge hook tables with positions {sorted(hooks1)} and {sorted(hooks2)}",
            name="",
            found=sorted(hooks2),
        )
    return {
        position: sorted([*hooks1[position], *hooks2[position]], key=lambda hook: hook.priority)
        for position in hooks1
    }


# Simplified key: (type, position, name, priority, ext_args key of the value). The names that
# differ from the key are what callers of the reference look for.
_SIMPLIFIED: dict[str, tuple[str, str, str, float, str | None]] = {
    "load_ckpt_before_run": ("load_ckpt", "before_run", "load_ckpt", 20, "load_path"),
    "log_show_after_iter": ("log_show", "after_iter", "log_show", 20, "freq"),
    "save_ckpt_after_iter": ("save_ckpt", "after_iter", "save_ckpt_after_iter", 20, "freq"),
    "save_ckpt_after_run": ("save_ckpt", "after_run", "save_ckpt_after_run", 20, None),
    "log_reduce_after_iter": ("log_reduce", "after_iter", "log_reduce_after_iter", 10, None),
}
_VALUE_TYPES: dict[str | None, type] = {"load_path": str, "freq": int, None: bool}


def _build_simplified(key: str, value: Any, path: str) -> LearnerHook | None:
    if key not in _SIMPLIFIED:
        raise _unknown(key, path)
    type_key, position, name, priority, argument = _SIMPLIFIED[key]
    expected = _VALUE_TYPES[argument]
    # A bool is an int: `freq: True` means every iteration. 1e4 is how people write 10000.
    if expected is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, expected):
        raise _wrong_type(path, expected.__name__, value)
    if not value:
        return None
    ext_args = {argument: expected(value)} if argument is not None else {}
    return _create(type_key, (), path, name, priority, position, ext_args)


def _build_full(key: str, entry: Mapping[str, Any], path: str) -> LearnerHook:
    check_known_keys(entry, _FULL_KEYS, path, open_paths=[f"{path}.ext_args"])
    type_key, position, name, *_ = _SIMPLIFIED.get(key, (None, None, key))
    type_key = entry.get("type", type_key)
    position = entry.get("position", position)
    for required, value in (("type", type_key), ("position", position)):
        if not isinstance(value, str):
            raise _wrong_type(f"{path}.{required}", "str", value)
    ext_args = entry.get("ext_args") or {}
    if not isinstance(ext_args, Mapping):
        raise _wrong_type(f"{path}.ext_args", "dict", ext_args)
    return _create(
        str(type_key),
        entry.get("import_names") or (),
        path,
        entry.get("name", name),
        entry.get("priority", _FULL_PRIORITY),
        str(position),
        ext_args,
    )


def _create(
    type_key: str,
    import_names: Any,
    path: str,
    name: str,
    priority: float,
    position: str,
    ext_args: Mapping[str, Any],
) -> LearnerHook:
    hook_type = default_manager().get(
        "learner_hooks", type_key, import_names=import_names, config_path=path
    )
    try:
        hook: LearnerHook = hook_type(
            name, priority, position=position, ext_args=to_easydict(ext_args)
        )
    except Exception as error:
        error.add_note(f"While building the learner hook {name!r} (type {type_key!r}) of {path}.")
        raise
    return hook


def _unknown(key: str, path: str) -> UnknownKeyError:
    nearest = nearest_name(key, _SIMPLIFIED)
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return UnknownKeyError(
        f"unknown learner hook {path}.{hint} Known: {', '.join(sorted(_SIMPLIFIED))}; any other "
        "name takes a dict with 'type' and 'position'.",
        path=path,
        key=key,
        known=sorted(_SIMPLIFIED),
        nearest=nearest,
    )


def _wrong_type(path: str, expected: str, found: Any) -> ConfigTypeError:
    return ConfigTypeError(
        f"{path} is {found!r}, expected {expected}",
        path=path,
        expected=expected,
        found=type(found).__name__,
    )
