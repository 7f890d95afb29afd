"""The results of a step of several envs, in both forms, and what a manager of envs can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dingsdk.envs.spaces import Obs

_NO_EPISODE_INFO: Mapping[int, Mapping[str, Any]] = MappingProxyType({})


class Timestep(NamedTuple):
    """Result of one env's step, in dict form.

    ``obs`` is the observation that the action led to, the true terminal one at an episode
    end; ``info`` always holds ``terminated`` and ``truncated``, at ``done`` also
    ``eval_episode_return``. ``info['abnormal']`` marks a step that must be discarded: the env
    failed and was restarted, ``obs`` is the first of its new episode, ``reward`` is 0,
    ``done`` is False and ``info['error']`` says what happened.

    For an env of several players ``obs`` and ``reward`` have a player axis, and ``info`` is a
    list of one dict per player, each with the keys above.
    """

    obs: Any
    reward: Any
    done: bool
    info: Any


class StepColumns(NamedTuple):
    """Result of one ``step_batch``: one row per stepped env, in the order of ``env_ids``.

    The arrays belong to the caller: no later call writes into them, but ``final_obs`` may be
    ``obs``. A named tuple, because building a frozen dataclass of eight fields costs 1 us.

    Attributes:
        obs: The observation for the next action: the new episode's first observation where an
            episode ended and the env was reset in this step.
        final_obs: The observation that the action led to; equal to ``obs`` except at
            episode ends, where ``final_obs`` is the true last observation. May be the same
            object as ``obs`` when no episode ended.
        reward: float32[n]; float32[n, players] for envs of several players.
        terminated: bool[n], the task ended (no bootstrap).
        truncated: bool[n], the episode was cut (bootstrap from ``final_obs``).
        valid: bool[n], or None for all True. False rows are not transitions: the env spent
            the step on its reset, failed and was rebuilt (see ``abnormal``), or is finished.
            Their ``reward``, ``terminated`` and ``truncated`` are 0 and False.
        abnormal: bool[n], or None for all False. True: the env failed in this step; drop the
            unfinished trajectory of that env, ``obs`` is the first of a fresh episode.
        episode_info: ``{row: dict}``, for episodes that ended in this step: the statistics that
            envs report, the numbers that ``env.info_numbers`` chooses, and as
            ``eval_episode_return`` the return that counts, if it is not the sum of ``reward``.
    """

    obs: Obs
    final_obs: Obs
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_] | None = None
    abnormal: NDArray[np.bool_] | None = None
    episode_info: Mapping[int, Mapping[str, Any]] = _NO_EPISODE_INFO


def step_columns(
    obs: Obs,
    final_obs: Obs,
    reward: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    valid: NDArray[np.bool_],
    abnormal: NDArray[np.bool_],
    episode_info: Mapping[int, Mapping[str, Any]],
) -> StepColumns:
    """Return these columns, with 0 and False where a row is not ``valid``."""
    # Looking for a byte costs a fraction of any() on arrays this small.
    is_all_valid = 0 not in valid.tobytes()
    if not is_all_valid:
        reward[~valid] = 0
        terminated &= valid
        truncated &= valid
    return StepColumns(
        obs,
        final_obs,
        reward,
        terminated,
        truncated,
        None if is_all_valid else valid,
        abnormal if 1 in abnormal.tobytes() else None,
        episode_info,
    )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features that a manager supports; some vectorised envs cannot support all of them.

    Attributes:
        per_env_seed: env ``i`` has a random stream of its own, set by ``seed``.
        per_env_reset: ``reset({i: None})`` resets env ``i`` alone.
        partial_step: ``step``/``step_batch`` may name a subset of the envs.
        reset_takes_step: an env spends one step on its reset after an episode end
            (gymnasium's next-step autoreset); that row has ``valid=False``.
        asynchronous: ``step`` may return fewer envs than it was given, and ``ready_obs`` leaves
            out envs whose step has not ended.
    """

    per_env_seed: bool = True
    per_env_reset: bool = True
    partial_step: bool = True
    reset_takes_step: bool = False
    asynchronous: bool = False
