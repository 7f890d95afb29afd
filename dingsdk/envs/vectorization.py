"""gymnasium's vector envs: choosing one, building and closing it, reading its infos."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from dingsdk.envs.guard import GuardedEnv, close_quietly
from dingsdk.envs.make import EnvFn
from dingsdk.envs.managed import ManagedEnvs
from dingsdk.errors import ConfigError
from dingsdk.plugins import default_manager

MODES = ("auto", "native", "sync", "async")
AUTORESET_MODES = {
    "auto": None,
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class GuardedEnvFn:
    """Makes a GuardedEnv; picklable, for the child processes of ``async``."""

    def __init__(self, env_fn: Callable[[], Any], env_id: int, section: ManagedEnvs.Config) -> None:
        self._env_fn = env_fn
        self._env_id = env_id
        self._section = section

    def __getstate__(self) -> dict[str, Any]:
        # Wrappers are made by type key: the child must know the types registered here.
        return {**vars(self), "_snapshot": default_manager().snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        default_manager().restore(state.pop("_snapshot"))
        vars(self).update(state)

    def __call__(self) -> GuardedEnv:
        return GuardedEnv(self._env_fn, self._env_id, self._section)


def choose_mode(
    mode: str, autoreset: AutoresetMode | None, env_fns: Sequence[Callable[[], Any]]
) -> tuple[str, AutoresetMode]:
    """Return ``native``, ``sync`` or ``async``, and the autoreset mode that goes with it.

    ``auto`` takes the env's own vector env where there is one, it keeps to ``autoreset`` and
    the envs are all alike and unwrapped; else ``sync``. Of the autoreset modes, sync and
    async envs take SAME_STEP by default: no step is spent on resets.

    Raises:
        ConfigError: ``native`` was asked for and is not available; the text says why.
    """
    if mode in ("auto", "native"):
        obstacle = _why_not_native(env_fns, autoreset)
        if obstacle is None:
            return "native", _native_autoreset(env_fns[0])
        if mode == "native":
            raise ConfigError(
                f"env_manager.vectorization_mode: native vectorization is not available: "
                f"{obstacle}; use auto, sync or async",
                path="env_manager.vectorization_mode",
                expected=list(MODES),
                found=mode,
            )
        mode = "sync"
    return mode, autoreset or AutoresetMode.SAME_STEP


def build_vector_env(
    mode: str,
    autoreset: AutoresetMode,
    env_fns: Sequence[Callable[[], Any]],
    section: ManagedEnvs.Config,
) -> Any:
    """Build the vector env that ``choose_mode`` chose; sync and async envs are guarded."""
    if mode == "native":
        native_fn: Any = env_fns[0]  # an EnvFn, as choose_mode has found
        return native_fn.make_native(len(env_fns))
    guarded = [GuardedEnvFn(env_fn, index, section) for index, env_fn in enumerate(env_fns)]
    # The managers copy what they hand out; gymnasium's own copy is a deepcopy.
    if mode == "sync":
        return SyncVectorEnv(guarded, copy=False, autoreset_mode=autoreset)
    with _ctrl_c_blocked():
        return AsyncVectorEnv(guarded, copy=False, context="spawn", autoreset_mode=autoreset)


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT while child processes start, so that they ignore a Ctrl-C in the terminal.

    A terminal sends Ctrl-C to the whole process group, but the run decides when its envs end.
    A child process inherits the blocked signals of the thread that started it.
    """
    resource_tracker.ensure_running()  # it must survive a Ctrl-C too, and ignores it by itself
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def close_vector_env(vec: Any, timeout_s: float = 4.0) -> None:
    """Close a vector env, also a failed one; child processes get ``timeout_s`` to end."""
    if isinstance(vec, AsyncVectorEnv):
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
            if process.is_alive():
                process.kill()
                process.join()
        # Otherwise gymnasium would first wait for answers of processes that have ended.
        vec._state = AsyncState.DEFAULT
        close_quietly(vec, terminate=True)
        vec.error_queue.close()
    else:
        close_quietly(vec)


def info_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of env ``row``, scalars as Python numbers.

    Args:
        infos: ``{key: values}``, where ``infos["_" + key]`` tells which envs gave the key;
            nested dicts likewise.
        row: The env.
    """
    own: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not mask[row]:
            continue
        if isinstance(value, Mapping):
            own[key] = info_row(value, row)
        elif isinstance(value, np.ndarray | list | tuple) and len(value) > row:
            item = value[row]
            own[key] = item.item() if isinstance(item, np.generic) else item
        else:
            own[key] = value
    return own


def final_row(final_obs: Any, row: int) -> Any:
    """Return the last observation of env ``row``'s episode out of ``infos["final_obs"]``."""
    if isinstance(final_obs, Mapping):
        return {key: final_row(value, row) for key, value in final_obs.items()}
    return final_obs[row]


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


def _native_autoreset(env_fn: Callable[[], Any]) -> AutoresetMode:
    entry = env_fn.spec.vector_entry_point  # type: ignore[attr-defined]
    if not callable(entry):
        entry = gym.envs.registration.load_env_creator(entry)
    mode = getattr(entry, "metadata", {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return AutoresetMode(mode)
