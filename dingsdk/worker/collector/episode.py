"""The serial collector that returns a given number of whole episodes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dingsdk.envs.base import EnvManager
from dingsdk.worker.collector.base import CollectorSection, ISerialCollector
from dingsdk.worker.collector.columns import BatchedRollout, ColumnsWriter, split_episodes
from dingsdk.worker.collector.factory import add_columns, in_columns
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout, Writer, check_episodes
from dingsdk.worker.collector.rows import DictRollout, RowsWriter


class WholeEpisodeCollector(ISerialCollector):
    """Base class of collectors that play a given number of whole episodes per call."""

    counts: ClassVar[str] = "n_episode"
    gives_episodes: ClassVar[bool] = True
    """Whether ``collect`` returns whole episodes, and not a flat sequence of samples."""
    resumes = True
    saved = (*ISerialCollector.saved, "_is_at_start")
    _default_n_episode: int | None = None
    _is_at_start = True
    """Whether all envs are at the start of an episode."""

    def _statistics(self) -> dict[str, Any]:
        return {**super()._statistics(), **self._times()}

    def reset_env(self, _env: EnvManager | None = None) -> None:
        super().reset_env(_env)
        self._is_at_start = True

    @abstractmethod
    def _begin(self, n_episode: int) -> tuple[Rollout, Sequence[Writer]]:
        """Return a rollout of ``n_episode`` episodes, and the writer of each player."""

    def _play(
        self, n_episode: int | None, train_iter: int, policy_kwargs: Mapping[str, Any] | None
    ) -> tuple[list[Any], list[EpisodeRecord]]:
        """Play episodes; return the data of each writer, and the records of the episodes."""
        wanted = self._count(n_episode, self._default_n_episode, "n_episode")
        env = self.env
        check_episodes(wanted, env.env_num, "policy.collect.n_episode", "env.collector_env_num")
        started = time.perf_counter()
        if not self._is_at_start:
            env.reset()
            self._take_policy(None)
        self._is_at_start = False
        rollout, writers = self._begin(wanted)
        while not rollout.is_finished:
            rollout.round(train_iter, policy_kwargs or {})
        self._is_at_start = env.capabilities.partial_step
        data = [writer.flush() or [] for writer in writers]
        self._end_collect(
            rollout.episodes,
            envsteps=rollout.env_steps,
            samples=sum(map(len, data)),
            seconds=time.perf_counter() - started,
            train_iter=train_iter,
            policy_kwargs=policy_kwargs,
        )
        return data, rollout.episodes


class EpisodeSerialCollector(WholeEpisodeCollector):
    """Plays exactly ``n_episode`` episodes per call.

    Envs start further episodes until ``n_episode`` have started in total. Then an env that ends an
    episode waits for the others. (If the env manager cannot step a subset, the env is stepped, but
    its steps do not count.) An env that fails starts its episode again.

    It behaves as DI-engine's collector of this name, except:
    - an episode of a policy with the batched form is a SampleBatch instead of a list of dicts;
    - ``reset()``, ``tb_logger`` and late binding are as for ``SampleSerialCollector``.
    """

    class Config(CollectorSection, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``.

        Attributes:
            get_train_sample: Whether to return train samples instead of episodes.
            reward_shaping: Whether the env manager's ``reward_shaping(env_id, transitions)``
                may change each finished episode, a list of dicts, in place.
        """

        type: str = "episode"
        get_train_sample: bool = False
        reward_shaping: bool = False

    _cfg: Config

    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Play ``n_episode`` episodes.

        Args:
            n_episode: Number of episodes, at least one per env; None for the policy's
                ``n_episode``.
            train_iter: Version of the policy; recorded as the column ``collect_iter``.
            policy_kwargs: Passed to the policy's forward, e.g. ``{"eps": 0.1}``.

        Returns:
            The episodes in the order in which they ended; the last transition of each is
            ``done``. If the policy has the batched form, each is a SampleBatch, else a list of
            transitions as tensors. With ``get_train_sample``, the train samples of all episodes.

        Raises:
            NotSetError: no env, no policy, or no ``n_episode``.
            ConfigError: fewer episodes than envs, or an env manager that cannot shape rewards.
            PolicyOutputError: the policy's output is not valid.
            EnvError: an env failed three times in a row.
        """
        (data,), _ = self._play(n_episode, train_iter, policy_kwargs)
        result: list[Any] = data
        return result

    def _begin(self, n_episode: int) -> tuple[Rollout, Sequence[Writer]]:
        cfg, env, policy = self._cfg, self.env, self.policy
        writer: Any
        is_batched = in_columns(env, policy, "make_transitions", "make_samples")
        if is_batched and not cfg.reward_shaping:
            make = policy.make_samples if cfg.get_train_sample else split_episodes
            writer = ColumnsWriter(env.env_num, None, make)
            add_columns(writer, policy)
            return BatchedRollout(env, policy, writer, n_episode), [writer]
        writer = RowsWriter(env.env_num, None, self._convert, cfg.deepcopy_obs)
        add_columns(writer, policy)
        rollout = DictRollout(env, policy, writer, n_episode, cfg.transform_obs, cfg.deepcopy_obs)
        return rollout, [writer]

    def _convert(self, env_id: int, episode: list[dict[str, Any]]) -> list[Any]:
        if self._cfg.reward_shaping:
            self.env.reward_shaping(env_id, episode)
        return self.policy.get_train_sample(episode) if self._cfg.get_train_sample else [episode]

    def _take_policy(self, policy: Any) -> None:
        super()._take_policy(policy)
        if policy is not None:
            self._default_n_episode = policy.get_attribute("n_episode")
