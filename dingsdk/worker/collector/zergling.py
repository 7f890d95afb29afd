"""The parallel collector with one policy and many envs."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from dingsdk.config import NotNegative, Positive
from dingsdk.data.collected import versions_of
from dingsdk.data.list_samples import pack_samples
from dingsdk.errors import ConfigError, NotSetError, TaskTimeoutError
from dingsdk.plugins import observe
from dingsdk.policy import create_policy
from dingsdk.policy.modes import mixes_versions, piece_of
from dingsdk.worker.collector.env_pool import Unfinished
from dingsdk.worker.collector.episode_numbers import numbers_of_episode, summaries_of_episodes
from dingsdk.worker.collector.factory import create_collecting_rollout, traj_len_of
from dingsdk.worker.collector.parallel_base import BaseParallelCollector
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout, Writer, tell_observers

MAX_RETURNS_KEPT = 10_000
"""Most episode returns that are kept, because a task without an end must not grow."""
PROGRESS_S = 0.05
"""Least time between two reports of progress at the ends of episodes, as each is a message."""


class ZerglingParallelCollector(BaseParallelCollector):
    """Plays the episodes of one collect task; ``serial`` runs evaluations.

    Collecting ends after ``env.collector_episode_num`` episodes per env *on average*: envs
    that finish early continue, so that no env idles. The next task of the worker continues the
    unfinished episodes; if it started new ones, long episodes would never end.

    Unlike in DI-engine, a payload is not one sample, but a SampleBatch of about ``n_sample`` rows,
    or of one episode with ``policy.traj_len_inf``. Trajectories are cut as in the serial collector
    (``traj_len_of``). A new policy is loaded between two rounds, never during one. On-policy, only
    admitted env steps are taken, and a payload has steps of only one policy version, unless the age
    of samples has no limit.
    """

    class Config(BaseParallelCollector.Config, frozen=True, kw_only=True):
        """Section ``policy.collect.parallel_collector``.

        Attributes:
            compressor: Has no effect, because the transport compresses; kept for older configs.
            update_policy_second: Least seconds between two checks for a newer policy, which come
                between two rounds of env steps; 0: between all.
            policy_timeout_s: Seconds to wait for a policy; a learner may take
                ``system.coordinator.start_timeout_s`` to start.
        """

        type: str = "zergling"
        compressor: str = "none"
        update_policy_second: NotNegative = 0.02
        policy_timeout_s: Positive = 180.0

    acts_remotely: ClassVar[bool] = True
    """Whether an inference server can compute the actions for it."""
    counts_one_of: ClassVar[tuple[str, ...]] = ("n_sample", "n_episode")
    """Keys of ``policy.collect``; a run must set one of them."""
    _section: Config
    _policy_iter = 0
    """Train iteration of the current policy."""
    _mixes_versions = False
    """Whether a piece of a trajectory may have steps of several policy versions."""
    _modes: list[Any]
    _acting: list[ZerglingParallelCollector]
    """One item: the task that the policies act for now. Later tasks reuse the policies."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.collect_setting = dict(cfg.get("collect_setting") or {})
        policy = cfg["policy"] if isinstance(cfg["policy"], Mapping) else cfg["policy"][0]
        self._policy_cfg: Mapping[str, Any] = policy
        """Section ``policy`` of the first player."""
        self._is_on_policy = bool(policy.get("on_policy")) and not self._eval_flag
        self._mixes_versions = mixes_versions(policy)
        self._inference = None if self._eval_flag else cfg.get("inference")
        paths, are_updated = cfg["policy_update_path"], cfg.get("policy_update_flag", [True])
        self._paths: list[str] = [paths] if isinstance(paths, str) else list(paths)
        self._are_updated: list[bool] = list(are_updated)
        self._last_update = self._last_progress = -math.inf
        self._returns: deque[float] = deque(maxlen=MAX_RETURNS_KEPT)
        self._lengths: deque[int] = deque(maxlen=MAX_RETURNS_KEPT)
        self._numbers: deque[Mapping[str, float]] = deque(maxlen=MAX_RETURNS_KEPT)
        self._episode_count = 0
        self._sample_count = 0
        self._payload_count = 0
        self._least_rows = int(cfg.get("payload_rows", 1))
        self._unsent_episodes = 0  # that ended since the last payload
        self._step_limit = 0.0
        self._acting_iter = 0
        self._has_tidied = False
        """Whether the env manager has called ``_tidy_up`` in its current step."""
        self._writers: Sequence[Writer] = ()
        try:
            self._target_episodes, before = self._set_up_envs(cfg)
            self._acting = [self] if before is None else before._acting
            self._acting[0] = self
            self._modes = self._create_policies() if before is None else before._modes
            self.policy = self._modes[0]
            self._rollout = self._set_up_rollout(before)
        except BaseException:
            self._release()
            raise

    def __repr__(self) -> str:
        kind = "evaluator" if self._eval_flag else "collector"
        return f"{type(self).__name__.removesuffix('ParallelCollector')} {kind} {self._uid}"

    def get_finish_info(self) -> dict[str, Any]:
        """Return the result of the task.

        Returns:
            Counts, mean times in s (0 if nothing was counted), the episode returns
            (``reward_mean`` is 0 without an episode), and summaries of the episodes' ``numbers``.
        """
        duration = self._duration_s or max(time.time() - self._start_time, 0.0)
        episodes, samples, steps = self._counts().values()
        returns = list(self._returns)
        # Steps of a task also belong to episodes that an earlier task began or a later one ends.
        length = np.mean(self._lengths) if self._lengths else steps / max(1, episodes)
        return {
            "eval_flag": self._eval_flag,
            "env_num": self._env_num,
            "duration": duration,
            "train_iter": self._policy_iter,
            "collector_done": self._is_done(),
            "predefined_episode_count": self._target_episodes,
            "real_episode_count": episodes,
            "step_count": steps,
            "sample_count": samples,
            "avg_time_per_episode": duration / max(1, episodes),
            "avg_time_per_step": duration / max(1, steps),
            "avg_time_per_train_sample": duration / max(1, samples),
            "avg_step_per_episode": float(length),
            "avg_sample_per_episode": samples / max(1, episodes),
            "reward_mean": float(np.mean(returns)) if returns else 0.0,
            "reward_std": float(np.std(returns)) if returns else 0.0,
            "reward_raw": returns,
            "finish_time": time.time(),
            "collect_setting": dict(self.collect_setting),
            "numbers": summaries_of_episodes(self._numbers),
        }

    def _create_policies(self) -> list[Any]:
        """Return the modes of all players."""
        return [self._create_policy(self._policy_cfg, self._cfg.get("seed"))]

    def _create_policy(self, cfg: Mapping[str, Any], seed: int | None) -> Any:
        field = "eval" if self._eval_flag else "collect"
        if self._inference is not None:
            cfg = {**cfg, "cuda": False}  # it acts here only if the server does not
        policy: Any = create_policy(cfg, enable_field=[field], seed=seed)
        if self._inference is not None:
            acting = self._acting
            policy.act = self._inference.acting(policy.act, lambda: acting[0]._asked())
        return policy.eval_mode if self._eval_flag else policy.collect_mode

    def _asked(self) -> tuple[str, int, bool]:
        """Return the id and the version of the policy that must act, and whether it is exact.

        If the version is exact, no newer one may act.
        """
        return self._paths[0], self._policy_iter, self._is_on_policy

    def _set_up_envs(self, cfg: Mapping[str, Any]) -> tuple[float, Self | None]:
        """Launch the envs.

        Returns:
            The number of episodes of the task (inf for no end), and the earlier task whose
            unfinished episodes it continues, or None.

        Raises:
            ConfigError: the task is an evaluation.
        """
        if self._eval_flag:
            raise ConfigError(
                f"{type(self).__name__} collects; give an evaluation task the type 'serial'",
                path="collector_cfg.type",
            )
        env_cfg = cfg["env"]
        self._env_num = int(env_cfg["collector_env_num"])
        asked = env_cfg.get("collector_episode_num")
        episodes = math.inf if asked is None else float(asked) * self._env_num
        return episodes, self._take_envs("collector", cfg["policy"])

    def _set_up_rollout(self, before: Self | None) -> Rollout:
        read = self.policy.get_attribute
        n_sample, n_episode = read("n_sample"), read("n_episode")
        if not n_sample and not n_episode:
            raise NotSetError(
                "please set n_sample or n_episode: policy.collect names neither", what="n_sample"
            )
        self._unroll_len, piece = int(read("unroll_len")), piece_of(self.policy)
        traj_len = traj_len_of(
            piece, None if n_episode else n_sample, self._unroll_len, self._env_num
        )
        # Whole episodes when the policy counts in episodes; each is sent as it ends.
        rows = max(int(n_sample or 1), self._least_rows)
        if piece == "unroll":  # so many steps
            rows = max(1, self._least_rows // self._unroll_len)
        self._rows_per_payload: float = 1 if traj_len is None else rows
        self._sends_episodes = piece == "episode"
        if self._is_on_policy:
            self._rows_per_payload = math.inf  # rows are sent after the last admitted step
        rollout, self._writers = self._collecting_rollout(traj_len, before)
        rollout.drops_older = not self._mixes_versions
        rollout.env_steps = 0  # count only the steps of this task
        return rollout

    def _collecting_rollout(
        self, traj_len: int | None, before: Self | None
    ) -> tuple[Rollout, Sequence[Writer]]:
        """Return the rollout of a collect task, and the writers whose samples are sent."""
        self.env_manager.meanwhile = self._tidy_up
        if before is not None:
            return before._rollout, before._writers
        rollout, writer = create_collecting_rollout(
            self.env_manager, self.policy, traj_len, True, self._copies_obs()
        )
        return rollout, [writer]

    def _copies_obs(self) -> bool:
        """Return ``deepcopy_obs`` of the config's collector."""
        collect = self.policy.get_attribute("cfg").get("collect") or {}
        return bool((collect.get("collector") or {}).get("deepcopy_obs"))

    def _observe(self) -> Any:
        return self._rollout.observe()

    def _policy_inference(self, obs: Any) -> Any:
        self._acting_iter = self._policy_iter
        return self._rollout.infer(obs, self.collect_setting)

    def _env_step(self, policy_output: Any) -> Any:
        self._has_tidied = False
        return self._rollout.step_env(policy_output)

    def _tidy_up(self) -> None:
        """Send full payloads and look for a newer policy while the envs step."""
        self._has_tidied = True
        self._send_full()
        self._look_for_policies()

    def _process_timestep(self, obs: Any, policy_output: Any, step: Any) -> None:
        acted = self._acting_iter
        if self._inference is not None and not self._is_on_policy:
            acted = self._inference.version  # it may act with a newer policy
        self._rollout.record(obs, policy_output, step, acted)
        episodes = self._rollout.episodes
        if episodes:
            self._rollout.episodes = []
            self._note_episodes(episodes)
        if not self._has_tidied:
            self._send_full()
        if episodes and (self._is_done() or self.clock() - self._last_progress >= PROGRESS_S):
            self._last_progress = self.clock()
            self.send_metadata(self._progress())

    def _send_full(self) -> None:
        for writer in self._writers:
            if writer.pending_rows >= self._rows_per_payload:
                self._send_payload(writer)

    def _note_episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Count finished episodes."""
        self._episode_count += len(episodes)
        self._unsent_episodes += len(episodes)
        own = [each for each in episodes if self._is_own(each)]
        self._returns.extend(each.episode_return for each in own)
        self._lengths.extend(each.length for each in own)
        self._numbers.extend(filter(None, map(numbers_of_episode, own)))
        tell_observers(self._instance_name, episodes)

    def _is_own(self, episode: EpisodeRecord) -> bool:
        """Return whether an episode was played for the policy of this task."""
        return True

    def _is_done(self) -> bool:
        return self._rollout.is_finished or self._episode_count >= self._target_episodes

    def _may_go_on(self) -> bool:
        steps = self._rollout.env_steps
        if self._is_on_policy:
            return self._is_admitted(self._paths[0], steps)
        if self._eval_flag or steps < self._step_limit:
            return True
        if steps:
            self.send_metadata(self._progress())
        self._step_limit, _ = self.await_steps(steps)
        return steps < self._step_limit

    def _is_admitted(self, path: str, steps: int) -> bool:
        """Wait until the next round may be taken; return False if the task is over.

        Args:
            path: Path of the policy that is trained.
            steps: Env steps that the task has taken.
        """
        is_admitted = steps < self._step_limit
        if is_admitted and not self._note_look_if_due():
            return True
        update = self.get_policy_update_info(path)
        if is_admitted and (update is None or self._mixes_versions):
            if update is not None:
                self._load(path, update)
            return True
        self._send_all()
        if update is not None:
            self._load(path, update)
        delivered = {"delivered_steps": steps, "policy_iter": self._policy_iter}
        self.send_metadata({**self._progress(), **delivered})
        if is_admitted:
            return True

        def lacks_policy() -> bool:
            # Asked each time, because both values may decrease when the learner restarts.
            self._step_limit, policy_iter = self.await_steps(steps)
            return steps < self._step_limit and self._policy_iter < policy_iter

        while not self._is_closed and lacks_policy():
            self._update_one(path, lacks_policy)
        return not self._is_closed and steps < self._step_limit

    def _send_all(self) -> None:
        """Cut all trajectories now, and send the collected samples."""
        for writer in self._writers:
            writer.cut_unfinished()
            if writer.pending_rows:
                self._send_payload(writer)

    def _iter_after_hook(self) -> None:
        if not self._has_tidied:
            self._look_for_policies()

    def _look_for_policies(self) -> None:
        if self._eval_flag or self._is_on_policy or not self._note_look_if_due():
            return
        updated = zip(self._paths, self._are_updated, strict=True)
        for path in dict.fromkeys(path for path, is_updated in updated if is_updated):
            update = self.get_policy_update_info(path)
            if update is not None:
                self._load(path, update)

    def _note_look_if_due(self) -> bool:
        """Return whether to look for a newer policy now; if so, the next look is due later."""
        now = self.clock()
        is_due = now - self._last_update >= self._section.update_policy_second
        if is_due:
            self._last_update = now
        return is_due

    def _finish_task(self) -> None:
        # After close, nothing reads the data, and sending could block.
        if not self._is_closed:
            self._send_all()
            if not self._eval_flag:
                self._left = Unfinished(self._cfg["policy"], self, self._end_unfinished)
        self.info(f"finished: {self._episode_count} episodes, {self._rollout.env_steps} steps")

    def _end_unfinished(self) -> None:
        """Called if no later task continues the unfinished episodes of this one."""

    def _update_policy(self) -> None:
        for path in dict.fromkeys(self._paths):
            self._update_one(path)

    def _update_one(self, path: str, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Wait for a newer policy and load it; stop waiting when ``is_needed`` returns False."""
        timeout_s = self._section.policy_timeout_s
        deadline = self.clock() + timeout_s
        while not self._is_closed and is_needed():
            update = self.get_policy_update_info(path)
            if update is not None:
                self._load(path, update)
                return
            now = time.monotonic()
            if self.clock() > deadline:
                raise TaskTimeoutError(
                    f"no policy was published under {path!r} within {timeout_s} s; "
                    "does its learner run?",
                    task="first policy load",
                    timeout_s=timeout_s,
                )
            self.yield_turn()
            if time.monotonic() - now < 5e-4:
                # No other task had work to do; do not spin.
                self._close_flag.wait(1e-3)

    def _load(self, path: str, update: Mapping[str, Any]) -> None:
        for mode, of_mode in zip(self._modes, self._paths, strict=True):
            if of_mode == path:
                mode.load_state_dict({"model": update["model"]})
        self._note_load(path, update)

    def _note_load(self, path: str, update: Mapping[str, Any]) -> None:
        if path == self._paths[0]:
            self._policy_iter = int(update["iter"])
        self._last_update = self.clock()

    def _send_payload(self, writer: Writer) -> None:
        pieces = writer.flush_each() if self._sends_episodes else [writer.flush()]
        for samples in filter(None, pieces):
            self._send_samples(samples)
            observe().after_collect(
                source=self._instance_name,
                sample_count=len(samples),
                envstep=self._rollout.env_steps,
                train_iter=self._policy_iter,
            )

    def _send_samples(self, samples: Any) -> None:
        batch = pack_samples(samples)
        rows, versions = len(batch), versions_of(batch)
        self._sample_count += rows
        self._payload_count += 1
        data_id = f"{self._uid}-{self._payload_count}"
        meta = {
            "eval_flag": self._eval_flag,
            "data_id": data_id,
            "rows": rows,
            "episodes": self._unsent_episodes,
            "policy_iter": self._policy_iter if versions is None else int(versions.min()),
            "unroll_len": self._unroll_len,
            "get_data_time": time.time(),
            **self._counts(),
        }
        self._unsent_episodes = 0
        self.send_stepdata(data_id, batch)
        self.send_metadata(meta)

    def _progress(self) -> dict[str, Any]:
        return {
            "eval_flag": self._eval_flag,
            "get_info_time": time.time(),
            "collector_done": self._is_done(),
            **self._counts(),
        }

    def _counts(self) -> dict[str, int]:
        return {
            "cur_episode": self._episode_count,
            "cur_sample": self._sample_count,
            "cur_step": self._rollout.env_steps,
        }
