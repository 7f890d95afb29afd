"""Acting with a Q network, and making train samples of what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import NonFiniteError, SchemaMismatchError
from dingsdk.policy.networks import QNetwork
from dingsdk.policy.returns import nstep_returns

# Below this a uniform number of 53 bits has no room left to choose the action as well.
_SMALLEST_EPS = 1e-9


class DQNActor:
    """Greedy and epsilon-greedy actions; not thread safe.

    Args:
        network: Read at every call.
        initial_eps: Epsilon of calls that give none.
        rng: Of the exploration.
    """

    def __init__(self, network: QNetwork, initial_eps: float, rng: np.random.Generator) -> None:
        self._network = network
        self._is_on_cpu = network.flat.device.type == "cpu"
        self._initial_eps = initial_eps
        self._rng = rng

    def greedy_batch(
        self, obs: NDArray[Any], env_ids: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """Return ``{"action": int64[n]}``, the best action for each ``obs`` float[n, obs_size].

        Args:
            obs: One row per env.
            env_ids: The env of each row, for messages.

        Raises:
            NonFiniteError: an action value is NaN or infinite.
            SchemaMismatchError: the observations do not fit the network.
        """
        values = self._values(obs, env_ids)
        return {"action": values.argmax(1)}

    def explore_batch(
        self,
        obs: NDArray[Any],
        env_ids: Sequence[int] | None = None,
        eps: float | None = None,
    ) -> dict[str, Any]:
        """As ``greedy_batch``, each row with probability ``eps`` a uniformly drawn action.

        Args:
            eps: In [0, 1]; None for the start of the schedule.
        """
        actions = self._values(obs, env_ids).argmax(1)
        if eps is None:
            eps = self._initial_eps
        if eps > _SMALLEST_EPS:
            draws = self._rng.random(len(actions))
            if draws.min() < eps:
                # Below eps the draw is uniform in [0, eps), so it chooses the action too.
                count = self._network.action_count
                drawn = np.minimum((draws * (count / eps)).astype(np.int64), count - 1)
                actions = np.where(draws < eps, drawn, actions)
        return {"action": actions}

    def greedy(self, obs: Mapping[int, Any]) -> dict[int, dict[str, Any]]:
        """Dict form of ``greedy_batch``: ``{env_id: obs} -> {env_id: {"action": ...}}``."""
        return _by_env(obs, self.greedy_batch(_stack(obs), list(obs))) if obs else {}

    def explore(
        self, obs: Mapping[int, Any], eps: float | None = None
    ) -> dict[int, dict[str, Any]]:
        """Dict form of ``explore_batch``; the same seed draws the same actions."""
        return _by_env(obs, self.explore_batch(_stack(obs), list(obs), eps)) if obs else {}

    def _values(
        self, obs: NDArray[Any], env_ids: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        # torch warns about arrays that it may not write to.
        if obs.dtype != np.float32 or not obs.flags.writeable:
            obs = obs.astype(np.float32)
        tensor = torch.from_numpy(obs)
        try:
            if self._is_on_cpu:
                values = self._network.values(tensor).numpy()
            else:
                flat = self._network.flat
                values = self._network.values(tensor.to(flat.device)).cpu().numpy()
        except RuntimeError as error:
            size = self._network.obs_size
            raise SchemaMismatchError(
                f"the observations have shape {obs.shape}, dqn's network takes [n, {size}]; does "
                "policy.model.obs_shape match the env?",
                key="obs",
                expected=("n", size),
                found=obs.shape,
            ) from error
        # The maximum is NaN where any value is, and costs 1.3 us; isfinite().all() 3.
        if not -np.inf < np.maximum.reduce(values, axis=None) < np.inf:
            raise _non_finite(obs, values, env_ids)
        return values


def transition(obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
    """Return the record of one env step, from the dict form's parts."""
    done = bool(timestep.done)
    return {
        "obs": obs,
        "action": output["action"],
        "reward": timestep.reward,
        "next_obs": timestep.obs,
        "terminated": bool(timestep.info.get("terminated", done)),
        "done": done,
    }


def transitions(obs: Any, output: Mapping[str, Any], step: Any) -> dict[str, Any]:
    """Return the columns of one step of several envs; the arrays are not copied."""
    return {
        "obs": obs,
        "action": output["action"],
        "reward": step.reward,
        "next_obs": step.final_obs,
        "terminated": step.terminated,
        "done": step.terminated | step.truncated,
    }


def samples(
    columns: Mapping[str, Any], ends: NDArray[np.int64], *, gamma: float, nstep: int
) -> SampleBatch:
    """Return one n-step sample per row of whole trajectory pieces.

    Args:
        columns: Those of ``transitions``, and any others, which are kept as they are.
        ends: int64[k], exclusive end offset of each piece.

    Returns:
        The columns with ``reward`` the n-step sum, ``next_obs`` and ``done`` of the last step
        spanned, and ``discount`` instead of ``terminated``. Columns that need no change are
        not copied; for ``nstep`` 1 these are all but ``discount``.
    """
    made = dict(columns)
    reward, discount, last = nstep_returns(
        made["reward"], made.pop("terminated"), ends, gamma=gamma, nstep=nstep
    )
    made["reward"], made["discount"] = reward, discount
    if last is not None:
        made["next_obs"] = made["next_obs"].take(last, axis=0)
        made["done"] = made["done"].take(last)
    return SampleBatch(made)


def sample_dicts(
    piece: Sequence[Mapping[str, Any]], *, gamma: float, nstep: int
) -> list[dict[str, Any]]:
    """Dict form of ``samples`` for one piece: transitions in, as many samples out."""
    if not piece:
        return []
    reward, discount, last = nstep_returns(
        np.array([float(step["reward"]) for step in piece], dtype=np.float32),
        np.array([step["terminated"] for step in piece], dtype=np.bool_),
        np.array([len(piece)]),
        gamma=gamma,
        nstep=nstep,
    )
    made = []
    for row, step in enumerate(piece):
        sample = {key: value for key, value in step.items() if key != "terminated"}
        end = piece[row if last is None else int(last[row])]
        sample.update(
            reward=reward[row], next_obs=end["next_obs"], done=end["done"], discount=discount[row]
        )
        made.append(sample)
    return made


def _stack(obs: Mapping[int, Any]) -> NDArray[Any]:
    return np.stack([np.asarray(value) for value in obs.values()])


def _by_env(obs: Mapping[int, Any], columns: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    return {
        env_id: {key: column[row] for key, column in columns.items()}
        for row, env_id in enumerate(obs)
    }


def _non_finite(
    obs: NDArray[Any], values: NDArray[Any], env_ids: Sequence[int] | None
) -> NonFiniteError:
    is_finite = np.isfinite(values).all(axis=1).tolist()
    ids = range(len(obs)) if env_ids is None else env_ids
    envs = [int(env_id) for env_id, finite in zip(ids, is_finite, strict=True) if not finite]
    if np.isfinite(obs).all():
        cause = (
            "the observations are finite, so the weights diverged: lower "
            "policy.learn.learning_rate, or load an earlier checkpoint"
        )
    else:
        cause = "the observations hold NaN or infinity: look at the env"
    return NonFiniteError(
        f"dqn's action values for env {', '.join(map(str, envs))} are not finite; {cause}",
        key="action",
        env_ids=envs,
    )
