"""The control loop over all envs at once, shared by collectors and evaluators.

One round is: read the observations, call the policy, step the envs, record. The base class
counts steps, episodes and quotas; ``BatchedRollout`` does the four steps in columns, and
``DictRollout`` in dicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.capture import Savable
from dingsdk.envs.base import EnvManager
from dingsdk.errors import ConfigError
from dingsdk.plugins import observe
from dingsdk.policy.modes import CollectMode, EvalMode
from dingsdk.worker.collector.episode_numbers import numbers_of_episode
from dingsdk.worker.collector.policy_output import RandomActions

NO_INFO: Mapping[str, Any] = MappingProxyType({})


class EpisodeRecord(NamedTuple):
    """One finished episode (a named tuple, because a frozen dataclass takes 3 times as long).

    Attributes:
        env_id: The env it ran in.
        episode_return: Undiscounted sum of the env's own rewards, beneath the wrappers of the
            config, or the return that the env reports.
        length: Number of transitions, >= 1.
        info: Further statistics that the env reported at the end, and the chosen numbers of
            ``env.info_numbers``.
    """

    env_id: int
    episode_return: float
    length: int
    info: Mapping[str, Any] = NO_INFO


def return_statistics(returns: Sequence[float], name: str = "reward") -> dict[str, float]:
    """Return ``{name}_mean``, ``_std``, ``_max`` and ``_min`` of at least one return."""
    values = np.asarray(returns, np.float64)
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_std": float(values.std()),
        f"{name}_max": float(values.max()),
        f"{name}_min": float(values.min()),
    }


def tell_observers(source: str, episodes: Iterable[EpisodeRecord]) -> None:
    """Call the hook ``dingsdk_after_episode`` for each finished episode."""
    observers = observe()
    if not observers.has_listener("after_episode"):
        return
    after_episode = observers.after_episode
    for each in episodes:
        after_episode(
            source=source,
            env_id=each.env_id,
            episode_return=each.episode_return,
            length=each.length,
            numbers=numbers_of_episode(each),
        )


def episode_quota(n_episode: int, env_num: int, path: str) -> NDArray[np.int64]:
    """Return int64[env_num], the episodes of each env: ``n_episode`` spread evenly.

    The number for each env is fixed in advance, because taking the first ``n_episode`` episodes
    to end in any env would favour short ones.

    Raises:
        ConfigError: an env would have no episode to play; ``path`` is the config key it names.
    """
    check_episodes(n_episode, env_num, path, "env.evaluator_env_num")
    return n_episode // env_num + (np.arange(env_num) < n_episode % env_num)


def check_episodes(n_episode: int, env_num: int, path: str, instead: str) -> None:
    """Raise ConfigError if an env would have no episode to play.

    Args:
        n_episode: Total number of episodes.
        env_num: Number of envs.
        path: Config key of the number of episodes.
        instead: Config key of the number of envs.
    """
    if n_episode < env_num:
        raise ConfigError(
            f"{path} is {n_episode}, less than the {env_num} envs: every env plays at least one "
            f"episode; raise it, or lower {instead}",
            path=path,
            found=n_episode,
        )


class Writer(Savable, ABC):
    """Records transitions and cuts them into the pieces that train samples are made of.

    Its state is saved between two collects, when no piece waits for ``flush``.

    Attributes:
        level_seeds: Seeds by env id, recorded as the column ``seed``; None for no such column.
        added_columns: Columns to add to samples: any of ``env_id`` and ``episode_return``.
        gamma: Discount of the column ``discounted_return``; None for no such column.
        episode_returns: Returns by env id of the episodes that ended in the round to be cut.
        pending_rows: How many transitions, samples or unrolls wait for ``flush``.
    """

    saved: ClassVar[tuple[str, ...]] = ("level_seeds", "_discounted")

    level_seeds: Sequence[int] | None = None
    added_columns: Collection[str] = ()
    gamma: float | None = None
    episode_returns: Mapping[int, float] = MappingProxyType({})
    pending_rows: int

    def __init__(self, env_num: int) -> None:
        self._env_num = env_num
        self._discounted = np.zeros(env_num)
        """Discounted return of each env's episode so far. Unlike the recorded data it is not
        cleared when data of an older policy is dropped, as the episode goes on."""
        self.clear()

    @property
    @abstractmethod
    def unfinished_rows(self) -> int:
        """Transitions of trajectories that are not cut yet."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all recorded data."""

    @abstractmethod
    def drop(self, env_ids: Sequence[int]) -> None:
        """Drop the unfinished trajectories of these envs, including the newest round."""

    def skip(self, env_ids: Sequence[int]) -> None:
        """Forget the newest round of these envs, which were reset in it: their episodes ended."""
        self.drop(env_ids)

    @abstractmethod
    def cut_unfinished(self) -> None:
        """Cut all trajectories now, as if they were full; do nothing without a ``traj_len``."""

    @abstractmethod
    def flush(self) -> Any:
        """Return and remove the samples of all waiting pieces; None if there are none."""

    @abstractmethod
    def flush_each(self) -> list[Any]:
        """Return and remove the samples of each waiting piece, in the order of the cuts."""


Quota = NDArray[np.int64] | int | None


class Rollout(Savable, ABC):
    """Steps the envs of one manager with one policy; not thread-safe.

    Args:
        env: A launched manager; no other code may step or reset it.
        policy: A collect or eval mode.
        writer: Records the transitions; None to only count steps and episodes.
        quota: Episodes to count: int64[env_num] for each env, or an int >= env_num in total, each
            started by the next env that is ready; None for no limit. Steps of an env beyond its
            quota are not counted, and not taken if the manager can step a subset.

    Attributes:
        env_steps: Transitions so far; resets and failed steps do not count.
        episodes: Finished episodes; the owner of the rollout must empty the list.
        drops_older: Whether steps that began with another version of the policy than the current
            one are counted, but not recorded (on-policy). Only the envs of an asynchronous manager
            end such steps.
        dropped_rows: Transitions that were not recorded for that reason; the owner of the rollout
            must reset it.
    """

    saved: ClassVar[tuple[str, ...]] = ("env_steps",)

    drops_older = False

    def __init__(
        self,
        env: EnvManager,
        policy: CollectMode | EvalMode,
        writer: Writer | None = None,
        quota: Quota = None,
    ) -> None:
        self._env = env
        self._policy = policy
        self._writer = writer
        self._quota = quota
        self._env_num = env.env_num
        self._can_step_some = env.capabilities.partial_step
        self.env_steps = self.dropped_rows = 0
        self.episodes: list[EpisodeRecord] = []
        self._episode_counts = np.zeros(self._env_num, np.int64)
        self._is_live = np.ones(self._env_num, np.bool_)
        self.is_finished = False

    def round(
        self,
        train_iter: int,
        policy_kwargs: Mapping[str, Any],
        random_actions: RandomActions | None = None,
    ) -> None:
        """Do one round: every live env takes one step.

        ``random_actions``, if given, draws the actions. Otherwise the policy, of version
        ``train_iter``, is called with ``policy_kwargs``.

        Raises:
            PolicyOutputError: the policy's output is not valid; the envs were not stepped.
            EnvError: an env failed for the third time in a row.
        """
        obs = self.observe()
        if random_actions is None:
            output = self.infer(obs, policy_kwargs)
        else:
            output = self.random_output(obs, random_actions)
        self.record(obs, output, self.step_env(output), train_iter)

    @abstractmethod
    def observe(self) -> Any:
        """Return the observations of the envs that wait for an action."""

    @abstractmethod
    def infer(self, obs: Any, policy_kwargs: Mapping[str, Any]) -> Any:
        """Call the policy and check its output."""

    @abstractmethod
    def random_output(self, obs: Any, actions: RandomActions) -> Any:
        """Return random actions in the form of a policy's output."""

    @abstractmethod
    def step_env(self, output: Any) -> Any:
        """Step the envs with the actions in ``output``."""

    @abstractmethod
    def record(self, obs: Any, output: Any, step: Any, train_iter: int) -> None:
        """Record one round and count its steps and episodes."""

    def _refuse_to_idle(self) -> None:
        """Raise ConfigError: all envs are DONE, so the rollout would never end."""
        raise ConfigError(
            f"every env has used up the {self._env.episode_num:g} episodes that the env manager "
            "allows it, and more are to be played; leave env_manager.episode_num away",
            path="env_manager.episode_num",
            found=self._env.episode_num,
        )

    def _abandon(self, env_ids: list[int]) -> None:
        """Drop the unfinished episodes of envs that failed or were reset."""
        if self._writer is not None:
            self._writer.drop(env_ids)
        self._reset_policy(env_ids)

    def _reset_policy(self, env_ids: list[int]) -> None:
        self._policy.reset(env_ids)

    def _end_episodes(self, env_ids: list[int], episodes: Iterable[EpisodeRecord]) -> None:
        """Count finished episodes of live envs, and retire envs at their quota."""
        self.episodes.extend(episodes)
        self._reset_policy(env_ids)
        if self._quota is None:
            return
        self._episode_counts[env_ids] += 1
        if isinstance(self._quota, int):
            # Each live env has begun one more episode than it has ended.
            over = int(self._episode_counts.sum() + self._is_live.sum()) - self._quota
            retired = env_ids[len(env_ids) - over :] if over > 0 else []
        else:
            retired = [i for i in env_ids if self._episode_counts[i] >= self._quota[i]]
        if retired:
            self._is_live[retired] = False
            self.is_finished = not self._is_live.any()
            self._on_retired()

    def _on_retired(self) -> None:
        """Stop stepping the envs that are not live, if the manager can step a subset."""
