"""Env managers that outlive the tasks they are for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

from dingsdk.envs import create_env_manager, make_env_fns, seed_envs
from dingsdk.envs.base import EnvManager

EnvKind = Literal["collector", "evaluator"]


class EnvPool:
    """Keeps the env managers of a worker from task to task, one for collecting and one for
    evaluating: building a simulator may take longer than a task. Thread safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[EnvKind, tuple[Any, EnvManager]] = {}
        self._lent: dict[EnvManager, tuple[EnvKind, Any]] = {}
        self._is_closed = False

    def take(
        self, kind: EnvKind, manager_cfg: Mapping[str, Any], env_cfg: Any, seed: int | None
    ) -> EnvManager:
        """Return a launched manager whose envs are reset; a new one where its config changed.

        Args:
            kind: What for; ``<kind>_env_num`` of ``env_cfg`` is the number of envs.
            manager_cfg: Section ``env_manager``.
            env_cfg: Section ``env``.
            seed: Root of the seeds; None to leave the envs as they are.
        """
        section = (dict(manager_cfg), env_cfg)
        with self._lock:
            found, manager = self._idle.pop(kind, (None, None))
        if manager is not None and found != section:
            manager.close()
            manager = None
        if manager is None:
            envs = make_env_fns(env_cfg, int(env_cfg[f"{kind}_env_num"]))
            manager = create_env_manager(manager_cfg, envs)
        try:
            if seed is not None:
                seed_envs(manager, seed, kind)
            if manager.closed:
                manager.launch()
            else:
                manager.reset()
        except BaseException:
            manager.close()
            raise
        with self._lock:
            self._lent[manager] = (kind, section)
        return manager

    def give_back(self, manager: EnvManager, *, is_usable: bool) -> None:
        """Take a manager back; it is closed where it is not usable or not of this pool."""
        with self._lock:
            kind, section = self._lent.pop(manager, (None, None))
            is_kept = kind is not None and is_usable and not (self._is_closed or manager.closed)
            if kind is not None and is_kept and kind not in self._idle:
                self._idle[kind] = (section, manager)
                return
        manager.close()

    def close(self) -> None:
        """Close the managers that nobody uses, and from now on each that comes back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for _, manager in idle.values():
            manager.close()
