"""The serial collector that hands out a given number of train samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dingsdk.config import Seed
from dingsdk.data import SampleBatch
from dingsdk.envs.base import EnvManager
from dingsdk.errors import PolicyOutputError
from dingsdk.worker.collector.base import CollectorSection, ISerialCollector
from dingsdk.worker.collector.factory import create_collecting_rollout, traj_len_of
from dingsdk.worker.collector.policy_output import RandomActions
from dingsdk.worker.collector.rollout import Rollout, Writer

# Without a sample so far, no more steps will give one.
_MOST_STEPS_IN_VAIN = 20_000


class SampleSerialCollector(ISerialCollector):
    """Collects ``n_sample`` train samples a call; what is beyond them waits for the next.

    An on-policy collector cuts the trajectories where there are enough transitions, for the
    policy to bootstrap, and throws away what is left of an older policy.

    Behaviour kept from DI-engine's collector of this name; other than there:
    - a surplus is returned by the next call, not discarded (see ``drop_extra``);
    - policies with the batched form get a SampleBatch back instead of a list of dicts;
    - ``reset()`` without arguments resets the env and the policy that it has;
    - every second of collecting counts once in the statistics;
    - an external ``tb_logger`` is flushed at ``close()``, not closed;
    - env and policy may come in either order, and later.
    """

    class Config(CollectorSection, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``.

        Attributes:
            seed: Seed of random actions; None takes one from the operating system.
        """

        type: str = "sample"
        seed: Seed | None = None

    counts: ClassVar[str] = "n_sample"
    resumes = True
    saved = (*ISerialCollector.saved, "_surplus", "_last_train_iter", "_has_warned")

    _cfg: Config

    _rollout: tuple[Rollout, Writer] | None = None
    _surplus: SampleBatch | list[Any] | None = None
    _last_train_iter: int | None = None
    _has_warned = False
    _default_n_sample: int | None = None

    def reset_env(self, _env: EnvManager | None = None) -> None:
        """As ``SerialWorker.reset_env``; unfinished trajectories and a surplus are dropped."""
        super().reset_env(_env)
        self._rollout = self._surplus = None

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool | None = None,
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
            drop_extra: What to do with samples beyond ``n_sample``. None: the next call
                returns them first, of an on-policy collector if its ``train_iter`` is the
                same. True: discard them. False: return them too.
            random_collect: Act at random instead of asking the policy.
            record_random_collect: False keeps this call out of the episode statistics and
                the log.
            policy_kwargs: Passed to the policy's forward, e.g. ``{"eps": 0.1}``.
            level_seeds: One per env, recorded as the column ``seed``. A surplus without that
                column is dropped where it is asked for, and the other way round.

        Returns:
            Samples in the order in which their trajectories were cut: a SampleBatch from a
            policy with the batched form, else the list that the policy made.

        Raises:
            NotSetError: no env, no policy, or no ``n_sample``.
            PolicyOutputError: the policy's answer cannot be used.
            EnvError: an env failed three times in a row.
        """
        wanted = self._count(n_sample, self._default_n_sample, "n_sample")
        rollout, writer = self._ready()
        if self._on_policy and train_iter != self._last_train_iter:
            self._discard(writer)
        self._last_train_iter = train_iter
        if self._surplus is not None and (level_seeds is None) != (writer.level_seeds is None):
            # Rows with and without the column ``seed`` do not fit into one batch.
            self._dropped_sample_count += len(self._surplus)
            self._surplus = None
        writer.level_seeds = level_seeds
        if (drop_extra or self._on_policy) and wanted % self.env.env_num and not self._has_warned:
            self._has_warned = True
            self._logger.warning(
                "n_sample %d is no multiple of the %d envs: part of the last round is dropped",
                wanted,
                self.env.env_num,
            )
        kwargs = dict(policy_kwargs or {})
        random_actions = self._random_actions if random_collect else None
        started = time.perf_counter()
        steps_before = rollout.env_steps
        flushed = [] if self._surplus is None else [self._surplus]
        have = sum(map(len, flushed))
        while have < wanted:
            while writer.pending_rows < wanted - have:
                if (
                    self._truncates
                    and writer.unfinished_rows >= wanted - have - writer.pending_rows
                ):
                    writer.cut_unfinished()
                else:
                    rollout.round(train_iter, kwargs, random_actions)
            samples = writer.flush()
            if samples:
                flushed.append(samples)
                have += len(samples)
            elif not have and rollout.env_steps - steps_before > _MOST_STEPS_IN_VAIN:
                raise PolicyOutputError(
                    f"the policy's make_samples made no sample of {_MOST_STEPS_IN_VAIN} env steps; "
                    f"{wanted} samples were to be collected",
                    key="make_samples",
                    expected=wanted,
                    found=0,
                )
        result = _join(flushed)
        self._surplus = None
        if drop_extra:
            self._dropped_sample_count += have - wanted
        elif drop_extra is None and have > wanted:
            self._surplus = result[wanted:]
        if drop_extra is not False and have > wanted:
            result = result[:wanted]
        episodes, rollout.episodes = rollout.episodes, []
        self._end_collect(
            episodes,
            envsteps=rollout.env_steps - steps_before,
            samples=len(result),
            seconds=time.perf_counter() - started,
            train_iter=train_iter,
            policy_kwargs=policy_kwargs,
            is_recorded=record_random_collect,
        )
        return result

    def state_dict(self) -> dict[str, Any]:
        state, begun = super().state_dict(), self._rollout
        if begun is not None:
            parts = (*begun, self._random_actions)
            state["begun"] = [part.state_dict() for part in parts]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if "begun" in state:
            parts = (*self._ready(), self._random_actions)
            for part, each in zip(parts, state["begun"], strict=True):
                part.load_state_dict(each)

    def _statistics(self) -> dict[str, Any]:
        samples = self._logged_samples
        return {
            **super()._statistics(),
            "train_sample_count": samples,
            "avg_sample_per_episode": samples / len(self._finished),
            "avg_train_sample_per_sec": samples / max(self._duration_s, 1e-9),
            "total_train_sample_count": self._total_sample_count,
            "total_dropped_sample_count": self._dropped_sample_count,
        }

    def _discard(self, writer: Writer) -> None:
        """Throw away, and count, what an older policy collected."""
        surplus = len(self._surplus or ())
        self._dropped_sample_count += surplus + writer.pending_rows + writer.unfinished_rows
        self._surplus = None
        writer.clear()

    def _ready(self) -> tuple[Rollout, Writer]:
        """Return the rollout, built when env and policy are both there."""
        if self._rollout is None:
            env, policy, n_sample = self.env, self.policy, self._default_n_sample
            traj_len = traj_len_of(self._policy_cfg, n_sample, self._unroll_len, env.env_num)
            self._rollout = create_collecting_rollout(
                env, policy, traj_len, self._cfg.transform_obs, self._cfg.deepcopy_obs
            )
            # Samples of several transitions each cannot be counted before they are made.
            is_counted = traj_len is not None and self._unroll_len == 1
            self._truncates = self._on_policy and is_counted
            self._random_actions = RandomActions(env.action_space, self._cfg.seed)
        return self._rollout

    def _take_policy(self, policy: Any) -> None:
        if policy is not None:
            read = policy.get_attribute
            self._policy_cfg = read("cfg")
            self._default_n_sample = read("n_sample")
            self._unroll_len = int(read("unroll_len"))
            self._on_policy = bool(read("on_policy"))
            self._rollout = self._surplus = None
        super()._take_policy(policy)


def _join(flushed: list[Any]) -> SampleBatch | list[Any]:
    if len(flushed) == 1:
        samples: SampleBatch | list[Any] = flushed[0]
        return samples
    if flushed and isinstance(flushed[0], SampleBatch):
        return SampleBatch.concat(flushed)
    return [sample for samples in flushed for sample in samples]
