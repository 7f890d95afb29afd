"""The env manager ``vector``: gymnasium's vector envs, native, sync or in child processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from dingsdk.config import NotNegative
from dingsdk.envs.base_vector import BaseVectorEnvManager
from dingsdk.envs.guard import GuardedEnvFn
from dingsdk.envs.make import EnvFn
from dingsdk.errors import ConfigError
from dingsdk.runtime.spawn import signals_blocked


class VectorEnvManager(BaseVectorEnvManager):
    """Type ``vector``: steps all envs in one call, in columns.

    ``capabilities`` says which guarantees the chosen mode gives.

    An env that fails in sync or async mode is rebuilt alone. When a native vector env fails, or
    a child process dies or is late, all envs are rebuilt and all rows of that step are abnormal.
    """

    class Config(BaseVectorEnvManager.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            vectorization_mode: ``native`` uses the env's own vector env: it is fast, but all envs
                share one random stream, are reset together, and mostly spend a step on each reset.
                ``sync`` loops in this process; ``async`` has a child process for each env;
                ``auto`` is native if possible, else sync.
            autoreset_mode: Autoreset mode of gymnasium; ``auto`` is that of the native vector env,
                else ``same_step``.
            step_timeout: Seconds that ``async`` waits for the slowest env to step.
            reset_timeout: Seconds that ``async`` waits for the slowest env to be reset.
        """

        vectorization_mode: Literal["auto", "native", "sync", "async"] = "auto"
        autoreset_mode: Literal["auto", "next_step", "same_step", "disabled"] = "auto"
        step_timeout: NotNegative = 60.0
        reset_timeout: NotNegative = 60.0

    _instead = "env_manager.vectorization_mode to sync"

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        self._mode, self._autoreset = self._choose_mode()
        self._per_env = self._mode != "native"

    @property
    def vectorization_mode(self) -> str:
        """The mode in use: ``native``, ``sync`` or ``async``."""
        return self._mode

    def make_vector_env(self) -> Any:
        if self._mode == "native":
            native_fn: Any = self._env_fns[0]  # an EnvFn, as _choose_mode has found
            return native_fn.make_native(self._env_num)
        guarded = [GuardedEnvFn(fn, index, self.section) for index, fn in enumerate(self._env_fns)]
        # The manager copies the results itself; gymnasium's own copy is a deepcopy.
        if self._mode == "sync":
            return SyncVectorEnv(guarded, copy=False, autoreset_mode=self._autoreset)
        with signals_blocked():
            vec: Any = AsyncVectorEnv(
                guarded, copy=False, context="spawn", autoreset_mode=self._autoreset
            )
        vec.step_wait = partial(vec.step_wait, timeout=self.section.step_timeout)
        vec.reset_wait = partial(vec.reset_wait, timeout=self.section.reset_timeout)
        return vec

    def _call(self, env_id: int, name: str, *args: Any) -> Any:
        self._check_open()
        if self._mode != "sync":
            return super()._call(env_id, name, *args)
        return self._vec.envs[env_id].call(name, *args)

    def _choose_mode(self) -> tuple[str, AutoresetMode]:
        mode, name = self.section.vectorization_mode, self.section.autoreset_mode
        autoreset = None if name == "auto" else AutoresetMode[name.upper()]
        if mode in ("auto", "native"):
            obstacle = _why_not_native(self._env_fns, autoreset)
            if obstacle is None:
                return "native", _native_autoreset(self._env_fns[0])
            if mode == "native":
                raise ConfigError(
                    f"env_manager.vectorization_mode: native vectorization is not available: "
                    f"{obstacle}; use auto, sync or async",
                    path="env_manager.vectorization_mode",
                    expected=["auto", "native", "sync", "async"],
                    found=mode,
                )
            mode = "sync"
        # SAME_STEP spends no step on resets.
        return mode, autoreset or AutoresetMode.SAME_STEP

    def _discard(self) -> None:
        if isinstance(self._vec, AsyncVectorEnv):
            _end_processes(self._vec)
        super()._discard()


def _end_processes(vec: Any, timeout_s: float = 4.0) -> None:
    """End the processes of an AsyncVectorEnv, even of a failed one, and mark it as closed."""
    deadline = time.monotonic() + timeout_s
    for pipe in vec.parent_pipes:
        # gymnasium replaces the pipe of a failed child by None.
        if pipe is not None and not pipe.closed:
            try:
                pipe.send(("close", None))
            except OSError:
                continue
    for process in vec.processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
    # Otherwise gymnasium would first wait for answers of processes that have ended.
    vec._state = AsyncState.DEFAULT
    vec.close_extras(terminate=True)
    vec.error_queue.close()
    vec.closed = True


def _why_not_native(
    env_fns: Sequence[Callable[[], Any]], autoreset: AutoresetMode | None
) -> str | None:
    first = env_fns[0]
    if not isinstance(first, EnvFn):
        return "the envs are made by functions of their own"
    if first.wrappers:
        return "the envs are wrapped"
    if any(env_fn != first for env_fn in env_fns):
        return "the envs differ"
    if first.spec.additional_wrappers:
        return f"{first.env_id} is registered with wrappers"
    if first.spec.vector_entry_point is None:
        return f"{first.env_id} has no vector env of its own"
    own = _native_autoreset(first)
    if autoreset is not None and autoreset is not own:
        return f"{first.env_id} resets in mode {own.name.lower()}, not {autoreset.name.lower()}"
    return None


def _native_autoreset(env_fn: Any) -> AutoresetMode:
    entry = env_fn.spec.vector_entry_point
    if not callable(entry):
        entry = gym.envs.registration.load_env_creator(entry)
    mode = getattr(entry, "metadata", {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return AutoresetMode(mode)
