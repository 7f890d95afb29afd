"""What serial collectors share: the interface, binding of env and policy, statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dingsdk.config import Configurable
from dingsdk.envs.base import EnvManager
from dingsdk.errors import NotSetError
from dingsdk.plugins import observe
from dingsdk.worker.collector.rollout import EpisodeRecord
from dingsdk.worker.run_logger import build_logger


class ISerialCollector(Configurable, ABC):
    """A collector that runs in the caller's thread; not safe for concurrent callers.

    Env and policy may be given later, by ``reset_env`` and ``reset_policy``.

    Args:
        cfg: See ``config`` of the class.
        env: An env manager; launched here unless it runs already.
        policy: A collect mode.
        tb_logger: Writer for scalars; it stays open at ``close()``. None: one is opened.
        exp_name: The run folder; logs go to ``{exp_name}/log/{instance_name}``.
        instance_name: Prefix of the scalars' tags.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        env: EnvManager | None = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "collector",
    ) -> None:
        self._is_closed = True
        self._cfg = cfg
        self._exp_name = exp_name
        self._instance_name = instance_name
        self._env: EnvManager | None = None
        self._policy: Any = None
        self._print_freq = cfg.get("collect_print_freq", 100)
        logger, own_tb = build_logger(
            str(Path(exp_name) / "log" / instance_name), instance_name, need_tb=tb_logger is None
        )
        self._logger = logger
        self._own_tb = own_tb
        self._tb_logger = own_tb if tb_logger is None else tb_logger
        self._is_closed = False
        self._zero_statistics()
        self.reset(policy, env)

    @abstractmethod
    def reset_env(self, _env: EnvManager | None = None) -> None:
        """Take and launch another manager, or reset the envs of the current one."""

    @abstractmethod
    def reset_policy(self, _policy: Any = None) -> None:
        """Take another policy and read its attributes, or reset the current one."""

    @abstractmethod
    def reset(self, _policy: Any = None, _env: EnvManager | None = None) -> None:
        """Reset env and policy (None: the old ones) and zero all counters and caches."""

    @abstractmethod
    def collect(self, *args: Any, **kwargs: Any) -> Any:
        """Collect data with the current policy."""

    @property
    def envstep(self) -> int:
        """Env steps collected in total; may be set, to go on with an earlier run's count."""
        return self._total_envstep_count

    @envstep.setter
    def envstep(self, value: int) -> None:
        self._total_envstep_count = int(value)

    def close(self) -> None:
        """Close the env manager and the logs that were opened here; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._env is not None:
                self._env.close()
        finally:
            if self._tb_logger is not None:
                self._tb_logger.flush()
            if self._own_tb is not None:
                self._own_tb.close()
            self._logger.close()

    def __del__(self) -> None:
        # The constructor may have failed before it set anything.
        if not getattr(self, "_is_closed", True):
            self.close()

    def _bind_env(self, env: EnvManager | None) -> None:
        if env is not None:
            self._env = env
            if env.closed:
                env.launch()
                return
        if self._env is None:
            raise NotSetError(
                f"please set env first: {self._instance_name} has no env manager to reset; "
                "pass one to the constructor or to reset_env",
                what="env",
            )
        self._env.reset()

    def _zero_statistics(self) -> None:
        self._total_envstep_count = 0
        self._total_episode_count = 0
        self._total_sample_count = 0
        self._last_log_iter = 0
        self._finished: list[EpisodeRecord] = []
        # Since the last log, so that no second and no step counts twice.
        self._logged_envsteps = 0
        self._logged_samples = 0
        self._duration_s = 0.0

    def _note_episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Count finished episodes and tell the observers."""
        self._finished.extend(episodes)
        self._total_episode_count += len(episodes)
        after_episode = observe().after_episode
        for each in episodes:
            after_episode(
                source=self._instance_name,
                env_id=each.env_id,
                episode_return=each.episode_return,
                length=each.length,
            )

    def _log(self, train_iter: int) -> None:
        """Write statistics when ``collect_print_freq`` iterations have passed."""
        if train_iter - self._last_log_iter < self._print_freq or not self._finished:
            return
        self._last_log_iter = train_iter
        variables = self._statistics()
        self._logger.info(
            "collect at iteration %d\n%s",
            train_iter,
            self._logger.get_tabulate_vars_hor(variables),
        )
        if self._tb_logger is not None:
            for name, value in variables.items():
                tag = f"{self._instance_name}_iter/{name}"
                self._tb_logger.add_scalar(tag, value, train_iter)
                if name != "total_envstep_count":
                    tag = f"{self._instance_name}_step/{name}"
                    self._tb_logger.add_scalar(tag, value, self._total_envstep_count)
        self._finished.clear()
        self._logged_envsteps = self._logged_samples = 0
        self._duration_s = 0.0

    def _statistics(self) -> dict[str, Any]:
        returns = np.array([each.episode_return for each in self._finished])
        lengths = np.array([each.length for each in self._finished])
        seconds = max(self._duration_s, 1e-9)
        episodes = len(self._finished)
        return {
            "episode_count": episodes,
            "envstep_count": self._logged_envsteps,
            "train_sample_count": self._logged_samples,
            "avg_envstep_per_episode": float(lengths.mean()),
            "avg_sample_per_episode": self._logged_samples / episodes,
            "avg_envstep_per_sec": self._logged_envsteps / seconds,
            "avg_train_sample_per_sec": self._logged_samples / seconds,
            "avg_episode_per_sec": episodes / seconds,
            "reward_mean": float(returns.mean()),
            "reward_std": float(returns.std()),
            "reward_max": float(returns.max()),
            "reward_min": float(returns.min()),
            "total_envstep_count": self._total_envstep_count,
            "total_train_sample_count": self._total_sample_count,
            "total_episode_count": self._total_episode_count,
        }
