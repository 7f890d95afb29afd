"""Base class of serial collectors: the interface and the statistics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dingsdk.config import PartSection, Whole
from dingsdk.data.capture import capture
from dingsdk.errors import NotSetError
from dingsdk.plugins import observe
from dingsdk.worker.collector.episode_numbers import (
    numbers_of_episode,
    summaries_of_episodes,
    summary_statistics,
)
from dingsdk.worker.collector.rollout import EpisodeRecord, return_statistics, tell_observers
from dingsdk.worker.run_logger import floats_of, write_statistics
from dingsdk.worker.serial_worker import SerialWorker, whole_number

ENV_STEPS_PER_ITER = 10
"""A log is also due after this number of env steps for each iteration of ``collect_print_freq``."""


class CollectorSection(PartSection, frozen=True, kw_only=True):
    """Section ``policy.collect.collector``.

    Attributes:
        deepcopy_obs: Whether observations are copied when they are recorded.
        transform_obs: Whether a policy without a batched form receives observations as float32
            tensors; in parallel mode it always does.
        collect_print_freq: A log is written after this number of train iterations or ten times as
            many env steps, and at the end of the run.
    """

    deepcopy_obs: bool = False
    transform_obs: bool = False
    collect_print_freq: Whole = 100


class ISerialCollector(SerialWorker):
    """A collector that runs in the caller's thread; arguments as ``SerialWorker``."""

    saved: ClassVar[tuple[str, ...]] = (
        "_total_envstep_count",
        "_total_episode_count",
        "_total_sample_count",
        "_dropped_sample_count",
        "_total_duration_s",
        "_last_log_iter",
        "_logged_envsteps",
        "_logged_samples",
        "_duration_s",
    )

    last_episodes: Sequence[EpisodeRecord] = ()
    """Episodes that ended in the last ``collect``."""
    needs_env: ClassVar[bool] = True
    """Whether it steps envs. A run makes none for a collector that does not, and reads the data set
    that its class method ``recorded(section)`` returns."""
    is_exhausted = False
    """Whether no later call of ``collect`` returns samples."""
    counts: ClassVar[str] = ""
    """Unit of the amount that ``collect`` collects: ``n_sample``, ``n_episode``; empty: another."""
    _config_path: ClassVar[str] = "policy.collect.collector"

    _default_name = "collector"

    @abstractmethod
    def collect(self, *args: Any, **kwargs: Any) -> Any:
        """Collect data with the current policy."""

    def reset_policy(self, _policy: Any = None) -> None:
        """As ``SerialWorker.reset_policy``; raises NotSetError also if there is no env yet."""
        _ = self.env
        super().reset_policy(_policy)

    def close(self) -> None:
        """As ``SerialWorker.close``; logs the episodes since the last log."""
        if not self._is_closed:
            self._log()
        super().close()

    def _count(self, given: int | None, default: int | None, name: str) -> int:
        """Return the number of samples or episodes to collect."""
        wanted = default if given is None else given
        if wanted is None:
            raise NotSetError(
                f"please set {name}: neither collect({name}=...) nor the policy names one",
                what=name,
            )
        return whole_number(name, wanted)

    @property
    def envstep(self) -> int:
        """Total env steps collected; may be set to continue the count of an earlier run."""
        return self._total_envstep_count

    @envstep.setter
    def envstep(self, value: int) -> None:
        self._total_envstep_count = int(value)

    @property
    def dropped_sample_count(self) -> int:
        """Total number of samples and transitions that were collected and then dropped."""
        return self._dropped_sample_count

    def state_dict(self) -> dict[str, Any]:
        """As ``Savable``; the envs are not included, their manager saves them."""
        # Logs use no other info, and infos may hold objects of the env that cannot be saved.
        kept = ("players", "names")
        finished = [
            (
                *each[:3],
                {key: each.info[key] for key in kept if key in each.info}
                or numbers_of_episode(each),
            )
            for each in self._finished
        ]
        return {**super().state_dict(), "finished": capture(finished, "finished")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As ``Savable``; the envs must be in the state that they had when it was saved."""
        super().load_state_dict(state)
        self._finished[:] = [EpisodeRecord(*each) for each in state["finished"]]

    def _zero(self) -> None:
        self._total_envstep_count = 0
        self._total_episode_count = 0
        self._total_sample_count = 0
        self._dropped_sample_count = 0
        self._total_duration_s = 0.0
        self._last_log_iter = 0
        self._newest: tuple[int, Mapping[str, Any]] | None = None
        """Train iteration and settings of the last collect that counts in the log."""
        self._start_interval()

    def _start_interval(self) -> None:
        """Reset the counters of the interval between two logs."""
        self._finished: list[EpisodeRecord] = []
        self._logged_envsteps = 0
        self._logged_samples = 0
        self._duration_s = 0.0

    def _end_collect(
        self,
        episodes: Sequence[EpisodeRecord],
        *,
        envsteps: int,
        samples: int,
        seconds: float,
        train_iter: int,
        policy_kwargs: Mapping[str, Any] | None,
        is_recorded: bool = True,
    ) -> None:
        """Count and log the results of one ``collect``, and call the observers."""
        self.last_episodes = tuple(episodes)
        self._total_envstep_count += envsteps
        self._total_sample_count += samples
        if is_recorded:
            self._total_episode_count += len(episodes)
            self._finished.extend(episodes)
            self._logged_envsteps += envsteps
            self._logged_samples += samples
            self._duration_s += seconds
            self._total_duration_s += seconds
            tell_observers(self._instance_name, episodes)
            self._newest = (train_iter, policy_kwargs or {})
            every = getattr(self._cfg, "collect_print_freq", 100)
            is_due = (
                train_iter - self._last_log_iter >= every
                or self._logged_envsteps >= every * ENV_STEPS_PER_ITER
            )
            if is_due and self._finished and self._log_pace.is_due():
                self._log()
        observe().after_collect(
            source=self._instance_name,
            sample_count=samples,
            envstep=self._total_envstep_count,
            train_iter=train_iter,
        )

    def _log(self) -> None:
        """Log float settings and statistics of the episodes since the last log, if any ended."""
        if self._newest is None or not self._finished:
            return
        train_iter, policy_kwargs = self._newest
        self._last_log_iter = train_iter
        variables = self._statistics() | floats_of(policy_kwargs)
        table = self._logger.get_tabulate_vars_hor(variables)
        self._logger.info("collect at iteration %d\n%s", train_iter, table)
        write_statistics(
            self._tb_logger, self._instance_name, variables, train_iter, self._total_envstep_count
        )
        self._start_interval()

    def _return_statistics(self) -> dict[str, float]:
        return return_statistics([each.episode_return for each in self._finished])

    def _statistics(self) -> dict[str, Any]:
        lengths = np.array([each.length for each in self._finished])
        seconds = max(self._duration_s, 1e-9)
        episodes = len(self._finished)
        numbers = summaries_of_episodes(map(numbers_of_episode, self._finished))
        return {
            **summary_statistics(numbers),
            "episode_count": episodes,
            "envstep_count": self._logged_envsteps,
            "avg_envstep_per_episode": float(lengths.mean()),
            "avg_envstep_per_sec": self._logged_envsteps / seconds,
            "avg_episode_per_sec": episodes / seconds,
            **self._return_statistics(),
            "total_envstep_count": self._total_envstep_count,
            "total_episode_count": self._total_episode_count,
        }

    def _times(self) -> dict[str, float]:
        """Seconds of collecting since the last log and in total, for collectors that log them."""
        return {"collect_time": self._duration_s, "total_duration": self._total_duration_s}
