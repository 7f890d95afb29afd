"""The serial collector that hands out a given number of train samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dingsdk.config import PartSection, Seed, Whole
from dingsdk.data import SampleBatch
from dingsdk.envs.base import EnvManager
from dingsdk.errors import NotSetError
from dingsdk.worker.collector.base import ISerialCollector
from dingsdk.worker.collector.factory import create_collecting_rollout, traj_len_of
from dingsdk.worker.collector.policy_output import RandomActions
from dingsdk.worker.collector.rollout import Rollout, Writer


class SampleSerialCollector(ISerialCollector):
    """Collects ``n_sample`` train samples a call; unfinished trajectories wait for the next.

    Behaviour kept from DI-engine's collector of this name; other than there:
    - policies with the batched form get a SampleBatch back instead of a list of dicts;
    - ``reset()`` without arguments resets the env and the policy that it has;
    - every second of collecting counts once in the statistics;
    - an external ``tb_logger`` is flushed at ``close()``, not closed;
    - env and policy may come in either order, and later.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``.

        Attributes:
            deepcopy_obs: Whether observations are copied when they are recorded.
            transform_obs: Whether the policy is given observations as float32 tensors.
            collect_print_freq: Least number of train iterations between two logs.
            seed: Of random actions; None for one from the operating system.
        """

        type: str = "sample"
        deepcopy_obs: bool = False
        transform_obs: bool = False
        collect_print_freq: Whole = 100
        seed: Seed | None = None

    _cfg: Config
    _config_path: ClassVar[str] = "policy.collect.collector"

    _rollout: tuple[Rollout, Writer] | None = None
    _has_warned = False
    _default_n_sample: int | None = None

    def reset_env(self, _env: EnvManager | None = None) -> None:
        """As ``SerialWorker.reset_env``; unfinished trajectories are dropped."""
        super().reset_env(_env)
        self._rollout = None

    def reset_policy(self, _policy: Any = None) -> None:
        """As ``SerialWorker.reset_policy``; NotSetError also where there is no env yet."""
        _ = self.env
        super().reset_policy(_policy)

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        random_collect: bool = False,
        record_random_collect: bool = True,
        policy_kwargs: Mapping[str, Any] | None = None,
        level_seeds: Sequence[int] | None = None,
    ) -> SampleBatch | list[Any]:
        """Step the envs until there are ``n_sample`` train samples.

        A trajectory becomes samples when its episode ends or when it holds ``traj_len``
        transitions: ``max(unroll_len, ceil(n_sample / env_num))`` of the *policy's*
        ``n_sample``, whatever is asked here; without one, only at episode ends.

        Args:
            n_sample: How many; None for the policy's ``n_sample``.
            train_iter: Version of the policy; recorded as the column ``collect_iter``.
            drop_extra: Return exactly ``n_sample`` and discard what the last round gave
                beyond it; else return all, at least ``n_sample``.
            random_collect: Act at random instead of asking the policy.
            record_random_collect: False keeps this call out of the episode statistics and
                the log.
            policy_kwargs: Passed to the policy's forward, e.g. ``{"eps": 0.1}``.
            level_seeds: One per env, recorded as the column ``seed``.

        Returns:
            Samples in the order in which their trajectories were cut: a SampleBatch from a
            policy with the batched form, else the list that the policy made.

        Raises:
            NotSetError: no env, no policy, or no ``n_sample``.
            PolicyOutputError: the policy's answer cannot be used.
            EnvError: an env failed three times in a row.
        """
        wanted = self._wanted(n_sample)
        rollout, writer = self._ready()
        writer.level_seeds = level_seeds
        kwargs = dict(policy_kwargs or {})
        random_actions = self._random_actions if random_collect else None
        started = time.perf_counter()
        steps_before = rollout.env_steps
        flushed: list[Any] = []
        have = 0
        while have < wanted:
            while writer.pending_rows < wanted - have:
                rollout.round(train_iter, kwargs, random_actions)
            samples = writer.flush()
            if samples:
                flushed.append(samples)
                have += len(samples)
        result: SampleBatch | list[Any] = _join(flushed)
        if drop_extra and have > wanted:
            result = result[:wanted]
        if self._on_policy:
            writer.clear()
        episodes, rollout.episodes = rollout.episodes, []
        self._end_collect(
            episodes,
            envsteps=rollout.env_steps - steps_before,
            samples=len(result),
            seconds=time.perf_counter() - started,
            train_iter=train_iter,
            is_recorded=record_random_collect,
        )
        return result

    def _wanted(self, n_sample: int | None) -> int:
        wanted = self._default_n_sample if n_sample is None else n_sample
        if wanted is None:
            raise NotSetError(
                "please set n_sample: neither collect(n_sample=...) nor the policy names one",
                what="n_sample",
            )
        if self._env is not None and wanted % self._env.env_num and not self._has_warned:
            self._has_warned = True
            self._logger.warning(
                "n_sample %d is no multiple of the %d envs: part of the last round is dropped",
                wanted,
                self._env.env_num,
            )
        return int(wanted)

    def _ready(self) -> tuple[Rollout, Writer]:
        """Return the rollout, built when env and policy are both there."""
        if self._rollout is None:
            env, policy, n_sample = self.env, self.policy, self._default_n_sample
            traj_len = traj_len_of(self._policy_cfg, n_sample, self._unroll_len, env.env_num)
            self._rollout = create_collecting_rollout(
                env, policy, traj_len, self._cfg.transform_obs, self._cfg.deepcopy_obs
            )
            self._random_actions = RandomActions(env.action_space, self._cfg.seed)
        return self._rollout

    def _take_policy(self, policy: Any) -> None:
        if policy is not None:
            read = policy.get_attribute
            self._policy_cfg = read("cfg")
            self._default_n_sample = read("n_sample")
            self._unroll_len = int(read("unroll_len"))
            self._on_policy = bool(read("on_policy"))
            self._rollout = None
        super()._take_policy(policy)


def _join(flushed: list[Any]) -> Any:
    if len(flushed) == 1:
        return flushed[0]
    if flushed and isinstance(flushed[0], SampleBatch):
        return SampleBatch.concat(flushed)
    return [sample for samples in flushed for sample in samples]
