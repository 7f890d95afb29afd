"""Keeps env managers between tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from dingsdk.envs import create_env_manager, make_env_fns, seed_envs
from dingsdk.envs.base import EnvManager
from dingsdk.runtime.deadline import close_in_time

EnvKind = Literal["collector", "evaluator"]


class Unfinished(NamedTuple):
    """The unfinished episodes of a task, which the next task continues.

    Attributes:
        policy_cfg: Config of the policies; a task with other policies starts new episodes.
        parts: The object that plays the episodes.
        close: Called if no task continues the episodes.
    """

    policy_cfg: Any
    parts: Any
    close: Callable[[], None] = lambda: None


class EnvPool:
    """Keeps the env managers of a worker between tasks. Thread-safe.

    There is one for collecting and one for evaluating. Building a simulator may take longer than a
    task, so managers are reused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[EnvKind, tuple[Any, EnvManager, Unfinished | None]] = {}
        self._lent: dict[EnvManager, tuple[EnvKind, Any]] = {}
        self._is_closed = False

    def take(
        self,
        kind: EnvKind,
        manager_cfg: Mapping[str, Any],
        env_cfg: Any,
        seed: int | None,
        policy_cfg: Any = None,
    ) -> tuple[EnvManager, Any]:
        """Return a launched manager, new if its config changed, and the parts to continue with.

        If a task with the same policies left unfinished episodes, the envs are not reset, and the
        parts are those of ``Unfinished``. Otherwise the envs are reset, and the parts are None.

        Args:
            kind: Use of the envs; ``<kind>_env_num`` of ``env_cfg`` is their number.
            manager_cfg: Section ``env_manager``.
            env_cfg: Section ``env``.
            seed: Root of the seeds; None does not seed the envs.
            policy_cfg: Config of the task's policies; None to always reset the envs.
        """
        section = (dict(manager_cfg), env_cfg)
        with self._lock:
            found, manager, left = self._idle.pop(kind, (None, None, None))
        if left is not None and (found != section or left.policy_cfg != policy_cfg):
            left.close()
            left = None
        if manager is not None and found != section:
            _close(manager)
            manager = None
        if manager is None:
            own = {**env_cfg, "is_evaluation": kind == "evaluator"}
            envs = make_env_fns(own, int(env_cfg[f"{kind}_env_num"]))
            manager = create_env_manager(manager_cfg, envs)
        if left is None:
            self._reset(manager, kind, seed)
        with self._lock:
            self._lent[manager] = (kind, section)
        return manager, None if left is None else left.parts

    @staticmethod
    def _reset(manager: EnvManager, kind: EnvKind, seed: int | None) -> None:
        try:
            if seed is not None:
                seed_envs(manager, seed, kind)
            if manager.closed:
                manager.launch()
            else:
                manager.reset()
        except BaseException:
            _close(manager)
            raise

    def give_back(
        self, manager: EnvManager, *, is_usable: bool, left: Unfinished | None = None
    ) -> None:
        """Take a manager back; close it if it is not usable or not from this pool.

        Args:
            manager: A manager that ``take`` returned.
            is_usable: Whether another task can use it.
            left: The unfinished episodes, for the next task; None to end them.
        """
        with self._lock:
            kind, section = self._lent.pop(manager, (None, None))
            is_kept = kind is not None and is_usable and not (self._is_closed or manager.closed)
            if kind is not None and is_kept and kind not in self._idle:
                self._idle[kind] = (section, manager, left)
                return
        if left is not None:
            left.close()
        _close(manager)

    def close(self) -> None:
        """Close the idle managers now, and the others when they are given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for _, manager, left in idle.values():
            if left is not None:
                left.close()
            _close(manager)


def _close(manager: EnvManager) -> None:
    """Close a manager; if it hangs, wait only for the time that every part has to close."""
    close_in_time(manager.close, "env_manager")
