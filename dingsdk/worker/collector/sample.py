"""The serial collector that returns a given number of train samples."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from dingsdk.config import Seed
from dingsdk.data import SampleBatch
from dingsdk.envs.base import EnvManager
from dingsdk.errors import PolicyOutputError
from dingsdk.policy.modes import Piece, mixes_versions, piece_of
from dingsdk.worker.collector.base import CollectorSection, ISerialCollector
from dingsdk.worker.collector.factory import create_collecting_rollout, traj_len_of
from dingsdk.worker.collector.policy_output import RandomActions
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout, Writer

_MOST_STEPS_IN_VAIN = 20_000
"""Env steps without any sample after which collecting fails."""


class SampleCollector(ISerialCollector):
    """Base class of collectors that return a given number of train samples per call."""

    counts: ClassVar[str] = "n_sample"

    _default_n_sample: int | None = None
    _last_train_iter: int | None = None
    _piece: Piece
    _unroll_len: int
    _on_policy: bool
    _mixes_versions: bool
    """Whether one call may return rows of older policies."""
    _rollout: Any = None
    _stocks: Sequence[list[Any]] = ()
    """Samples of each writer that no call has returned yet; of whole episodes, one item each."""
    _truncates = False
    """Whether trajectories are cut as soon as there are enough transitions."""
    _are_whole = False
    """Whether trajectories are cut only at the ends of episodes."""

    @abstractmethod
    def _build(self, traj_len: int | None) -> tuple[Rollout, Sequence[Any]]:
        """Return a rollout, and each player's writer; None for a player who only acts."""

    def reset_env(self, _env: EnvManager | None = None) -> None:
        """As ``SerialWorker.reset_env``; drops unfinished trajectories and extra samples.

        Call ``end_trajectory`` of a replay buffer of sequences then.
        """
        super().reset_env(_env)
        self._rollout = None

    def _ready(self) -> None:
        """Build the rollout; raise NotSetError if env or policy is missing."""
        if self._rollout is None:
            env_num, _ = self.env.env_num, self.policy
            n_sample, unroll_len = self._default_n_sample, self._unroll_len
            traj_len = traj_len_of(self._piece, n_sample, unroll_len, env_num)
            self._are_whole = traj_len is None
            # Samples of several transitions each cannot be counted before they are made.
            self._truncates = self._on_policy and traj_len is not None and unroll_len == 1
            self._rollout, self._writers = self._build(traj_len)
            self._rollout.drops_older = not self._mixes_versions
            self._stocks = [[] for _ in self._writers]

    def _start(self, n_sample: int | None, train_iter: int) -> int:
        """Prepare to collect with policy version ``train_iter``; return the number of samples."""
        wanted = self._count(n_sample, self._default_n_sample, "n_sample")
        self._ready()
        if not self._mixes_versions and train_iter != self._last_train_iter:
            self._discard()
        self._last_train_iter = train_iter
        return wanted

    def _discard(self) -> None:
        """Drop, and count as dropped, the data that older policies collected."""
        for writer, stock in zip(self._writers, self._stocks, strict=True):
            self._dropped_sample_count += sum(map(len, stock))
            stock.clear()
            if writer is not None:
                self._dropped_sample_count += writer.pending_rows + writer.unfinished_rows
                writer.clear()

    def _take(
        self,
        wanted: int,
        train_iter: int,
        drop_extra: bool | None,
        policy_kwargs: Mapping[str, Any] | None,
        random_actions: RandomActions | None = None,
        is_recorded: bool = True,
    ) -> tuple[list[Any], list[EpisodeRecord]]:
        """Collect; return the samples of each writer, and the episodes that ended."""
        rollout, kwargs, started = self._rollout, dict(policy_kwargs or {}), time.perf_counter()
        steps_before = rollout.env_steps
        pairs = list(zip(self._writers, self._stocks, strict=True))
        for writer, stock in pairs:
            have = wanted if writer is None else sum(map(len, stock))
            while have < wanted:
                while (lacking := wanted - have - writer.pending_rows) > 0:
                    if self._truncates and writer.unfinished_rows >= lacking:
                        writer.cut_unfinished()
                    else:
                        rollout.round(train_iter, kwargs, random_actions)
                flushed = writer.flush_each() if self._are_whole else [writer.flush()]
                if flushed := [samples for samples in flushed if samples]:
                    stock += flushed
                    have += sum(map(len, flushed))
                elif not have and rollout.env_steps - steps_before > _MOST_STEPS_IN_VAIN:
                    raise PolicyOutputError(
                        f"the policy's make_samples made no sample of {_MOST_STEPS_IN_VAIN} env "
                        f"steps; {wanted} samples were to be collected",
                        key="make_samples",
                        expected=wanted,
                        found=0,
                    )
        data = []
        for writer, stock in pairs:
            # More samples of one player may have been cut while collecting for another.
            pieces = [*stock, *(writer.flush_each() if writer is not None else ())]
            samples = _join(pieces)
            stock.clear()
            if drop_extra is not False and len(samples) > wanted:
                ends = list(accumulate(map(len, pieces)))
                borders = [wanted, *(end for end in ends if end > wanted)]
                stock += [samples[start:end] for start, end in pairwise(borders)]
                samples = samples[:wanted]
                if drop_extra:
                    # The rest of an episode is kept, because rows of sequences follow each other.
                    kept = int(self._are_whole and wanted not in ends)
                    self._dropped_sample_count += sum(map(len, stock[kept:]))
                    del stock[kept:]
            data.append(samples)
        episodes, rollout.episodes = rollout.episodes, []
        self._dropped_sample_count += rollout.dropped_rows
        rollout.dropped_rows = 0
        self._end_collect(
            episodes,
            envsteps=rollout.env_steps - steps_before,
            samples=sum(map(len, data)),
            seconds=time.perf_counter() - started,
            train_iter=train_iter,
            policy_kwargs=policy_kwargs,
            is_recorded=is_recorded,
        )
        return data, episodes


class SampleSerialCollector(SampleCollector):
    """Collects ``n_sample`` train samples per call, and keeps extra samples for the next call.

    An on-policy collector cuts the trajectories as soon as there are enough transitions (the
    policy bootstraps there), and drops remaining data of an older policy, unless
    ``max_policy_lag`` is null. If envs are asynchronous, it also drops the steps that an older
    policy began.

    It behaves as DI-engine's collector of this name, except:
    - extra samples are returned by the next call, not discarded (see ``drop_extra``);
    - with a batched policy, ``collect`` returns a SampleBatch instead of a list of dicts;
    - ``reset()`` without arguments resets the current env and policy;
    - every second of collecting counts once in the statistics;
    - an external ``tb_logger`` is flushed at ``close()``, not closed;
    - env and policy may be set later, in either order.
    """

    class Config(CollectorSection, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``.

        Attributes:
            seed: Seed of random actions; None takes one from the operating system.
        """

        type: str = "sample"
        seed: Seed | None = None

    resumes = True
    saved = (*ISerialCollector.saved, "_stocks", "_last_train_iter")

    _cfg: Config

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
        ``n_sample``, not of the argument. If the policy has none, only when its episode ends. An
        unroll becomes one sample when it holds ``unroll_len`` transitions.

        Args:
            n_sample: Number of samples; None for the policy's ``n_sample``.
            train_iter: Version of the policy; recorded as the column ``collect_iter``.
            drop_extra: What to do with samples beyond ``n_sample``. None: the next call
                returns them first (an on-policy collector only if ``train_iter`` is the
                same). True: discard them, except the rest of an episode if the policy's
                trajectories are whole episodes (``traj_len_inf``); the next call returns the
                rest first. False: return them too.
            random_collect: Take random actions instead of calling the policy.
            record_random_collect: False excludes this call from the episode statistics and
                the log.
            policy_kwargs: Passed to the policy's forward, e.g. ``{"eps": 0.1}``.
            level_seeds: One per env, recorded as the column ``seed``. Extra samples of earlier
                calls are dropped if they lack the column, or have it and None is given here.

        Returns:
            Samples in the order in which their trajectories were cut: a SampleBatch if the
            policy has the batched form, else a list of the samples that the policy made. After
            anything else that drops samples (``reset_env``, ``reset_policy``, another
            ``level_seeds``), call ``end_trajectory`` of a replay buffer of sequences.

        Raises:
            NotSetError: no env, no policy, or no ``n_sample``.
            PolicyOutputError: the policy's output is not valid.
            EnvError: an env failed three times in a row.
        """
        wanted = self._start(n_sample, train_iter)
        (writer,), (stock,) = self._writers, self._stocks
        if (level_seeds is None) != (writer.level_seeds is None):
            # A batch cannot hold both rows with and rows without the column ``seed``.
            self._dropped_sample_count += sum(map(len, stock))
            stock.clear()
        writer.level_seeds = level_seeds
        random_actions = self._random_actions if random_collect else None
        (samples,), _ = self._take(
            wanted, train_iter, drop_extra, policy_kwargs, random_actions, record_random_collect
        )
        result: SampleBatch | list[Any] = samples
        return result

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self._rollout is not None:
            parts = (self._rollout, *self._writers, self._random_actions)
            state["begun"] = [part.state_dict() for part in parts]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "begun" in state:
            self._ready()
            parts = (self._rollout, *self._writers, self._random_actions)
            for part, each in zip(parts, state["begun"], strict=True):
                part.load_state_dict(each)
        super().load_state_dict(state)

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

    def _build(self, traj_len: int | None) -> tuple[Rollout, Sequence[Writer]]:
        rollout, writer = create_collecting_rollout(
            self.env, self.policy, traj_len, self._cfg.transform_obs, self._cfg.deepcopy_obs
        )
        self._random_actions = RandomActions(self.env.action_space, self._cfg.seed)
        return rollout, [writer]

    def _take_policy(self, policy: Any) -> None:
        super()._take_policy(policy)
        if policy is not None:
            read = policy.get_attribute
            self._piece = piece_of(policy)
            self._default_n_sample = read("n_sample")
            self._unroll_len = int(read("unroll_len"))
            self._on_policy = bool(read("on_policy"))
            self._mixes_versions = mixes_versions({**read("cfg"), "on_policy": self._on_policy})
            self._rollout = None


def _join(flushed: list[Any]) -> Any:
    if len(flushed) == 1:
        return flushed[0]
    if flushed and isinstance(flushed[0], SampleBatch):
        return SampleBatch.concat(flushed)
    return [sample for samples in flushed for sample in samples]
