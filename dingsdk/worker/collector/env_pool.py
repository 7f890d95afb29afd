"""Env managers that outlive the tasks they are for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from dingsdk.data.deadline import close_in_time
from dingsdk.envs import create_env_manager, make_env_fns, seed_envs
from dingsdk.envs.base import EnvManager

EnvKind = Literal["collector", "evaluator"]


class Unfinished(NamedTuple):
    """What a task hands on to the next one, which goes on with its episodes.

    Attributes:
        policy_cfg: Config of the policies that act; a task of others begins anew.
        parts: What plays the episodes.
        close: Called where no task goes on with them.
    """

    policy_cfg: Any
    parts: Any
    close: Callable[[], None] = lambda: None


class EnvPool:
    """Keeps the env managers of a worker from task to task, one for collecting and one for
    evaluating: building a simulator may take longer than a task. Thread safe.
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
        """Return a launched manager, a new one where its config changed, and what it goes on with.

        Its envs are reset and that is None, unless a task of the same policies has left unfinished
        episodes: then it is what plays them.

        Args:
            kind: What for; ``<kind>_env_num`` of ``env_cfg`` is the number of envs.
            manager_cfg: Section ``env_manager``.
            env_cfg: Section ``env``.
            seed: Root of the seeds; None to leave the envs as they are.
            policy_cfg: Of the policies that are to act; None to reset the envs in any case.
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
            envs = make_env_fns(env_cfg, int(env_cfg[f"{kind}_env_num"]))
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
        """Take a manager back; it is closed where it is not usable or not of this pool.

        Args:
            manager: Of ``take``.
            is_usable: Whether another task can use it.
            left: Of the episodes in progress, for the next task; None to end them.
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
        """Close the managers that nobody uses, and from now on each that comes back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for _, manager, left in idle.values():
            if left is not None:
                left.close()
            _close(manager)


def _close(manager: EnvManager) -> None:
    """Close a manager; a worker waits for one that hangs no longer than for any other part."""
    close_in_time(manager.close, "env_manager")
