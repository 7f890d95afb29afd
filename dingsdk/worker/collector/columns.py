"""Collecting in columns: no Python loop over envs unless an episode ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.action_mask import legal_actions
from dingsdk.data.collected import DISCOUNTED_RETURN, with_collected
from dingsdk.data.columns import mismatch
from dingsdk.data.pytree import Path, map_leaves, nest, part_of
from dingsdk.envs.base import EnvManager
from dingsdk.envs.spaces import Obs
from dingsdk.envs.steps import StepColumns
from dingsdk.errors import SchemaMismatchError
from dingsdk.policy.modes import CollectMode, EvalMode
from dingsdk.worker.collector.policy_output import RandomActions, check_columns, check_samples
from dingsdk.worker.collector.rollout import EpisodeRecord, Quota, Rollout, Writer

# Larger than any time; the sum of two still fits int64.
_NEVER = 1 << 60
_SKIPPED = -_NEVER
"""In place of a policy version: the env made no transition in this round."""

Episodes = list[SampleBatch]
_Array = np.ndarray  # looked up for each column of each round


class BatchedRollout(Rollout):
    """The rollout for policies with ``forward_batch``.

    Arguments as ``Rollout``; with a writer, the policy must also have ``make_transitions``.
    """

    saved = (*Rollout.saved, "_time", "_returns", "_begun")

    _writer: ColumnsWriter | None

    def __init__(
        self,
        env: EnvManager,
        policy: CollectMode | EvalMode,
        writer: ColumnsWriter | None = None,
        quota: Quota = None,
    ) -> None:
        super().__init__(env, policy, writer, quota)
        self._forward: Any = policy.forward_batch
        self._make_transitions: Any = getattr(policy, "make_transitions", None)
        self._env_ids = np.arange(self._env_num)
        # The env ids passed to the manager; None is its fast path for all envs.
        self._subset: NDArray[np.int64] | None = None
        self._is_partial = False
        self._time = 0
        self._returns = np.zeros(self._env_num, np.float64)
        # Time at which each env's episode began, so that lengths need no counter per step.
        self._begun = [0] * self._env_num
        self._obs = self._env.current_obs()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As ``Savable``; the envs must be in the state that they had when it was saved."""
        super().load_state_dict(state)
        self._obs = self._env.current_obs()

    def observe(self) -> Obs:
        """Return the observation columns of the envs to step."""
        return self._obs

    def infer(self, obs: Obs, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        output: dict[str, Any] = self._forward(obs, self._env_ids, **policy_kwargs)
        check_columns(output, len(self._env_ids))
        return output

    def random_output(self, obs: Obs, actions: RandomActions) -> dict[str, Any]:
        legal = legal_actions(obs, self._env_ids)
        return {"action": actions.draw(len(self._env_ids), legal)}

    def step_env(self, output: Mapping[str, Any]) -> StepColumns:
        return self._env.step_batch(output["action"], self._subset)

    def record(self, obs: Obs, output: Any, step: StepColumns, train_iter: int) -> None:
        if step.reward.ndim > 1:
            # Of a manager that is not dingsdk's.
            step = step._replace(reward=step.reward.reshape(len(step.reward)))
        self._obs = step.obs
        self._time += 1
        writer = self._writer
        if writer is not None:
            transitions = self._make_transitions(obs, output, step)
            if self._subset is not None:
                transitions = map_leaves(self._spread, transitions)
            writer.record(transitions, train_iter)
        ended = step.terminated | step.truncated
        if self._is_partial or step.abnormal is not None:
            ended = self._count_some(step, ended)
        else:
            # Rows that are not valid have a reward of 0 and have not ended.
            self._returns += step.reward
            self.env_steps += self._env_num
            if step.valid is not None:
                idle = (~step.valid).nonzero()[0].tolist()
                if len(idle) == self._env_num and self._env.done:
                    self._refuse_to_idle()
                self._skip(idle)
        # On arrays this small, searching the bytes is much faster than any().
        if 1 not in ended.tobytes():
            if writer is not None:
                writer.cut(())
            return
        env_ids: list[int] = ended.nonzero()[0].tolist()
        episodes: list[EpisodeRecord] = []
        returns, begun, time = self._returns, self._begun, self._time
        # Few envs end in a round, so a loop is faster than one numpy call for each column.
        for env_id in env_ids:
            episodes.append(EpisodeRecord(env_id, returns.item(env_id), time - begun[env_id]))
            returns[env_id], begun[env_id] = 0.0, time
        if step.episode_info:
            infos = {int(self._env_ids[row]): info for row, info in step.episode_info.items()}
            for k, each in enumerate(episodes):
                info = infos.get(each.env_id) or {}
                # The env may report its own return.
                total = float(np.sum(info.get("eval_episode_return", each.episode_return)))
                episodes[k] = each._replace(episode_return=total, info=info)
        if writer is not None:
            if writer.added_columns:
                writer.episode_returns = {each.env_id: each.episode_return for each in episodes}
            writer.cut(env_ids)
        self._end_episodes(env_ids, episodes)

    def _skip(self, env_ids: list[int], *, have_failed: bool = False) -> None:
        """Undo the effects of a round for envs that made no transition in it.

        They failed, or were reset in it. The policy acted on their last observation, so its
        recurrent state is cleared once more.
        """
        if not env_ids:
            return
        self.env_steps -= len(env_ids)
        for env_id in env_ids:
            self._begun[env_id] = self._time
        if self._writer is not None:
            forget = self._writer.drop if have_failed else self._writer.skip
            forget(env_ids)
        self._policy.reset(env_ids)

    def _spread(self, rows: Any) -> Any:
        """Expand rows of the stepped envs to rows of all envs, with zeros for the others."""
        if not isinstance(rows, np.ndarray):
            return rows  # the writer refuses it
        spread = np.zeros((self._env_num, *rows.shape[1:]), rows.dtype)
        spread[self._env_ids] = rows
        return spread

    def _count_some(self, step: StepColumns, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Count a round in which envs failed, or in which some envs have retired.

        Returns:
            bool[env_num]: live envs whose episode ended in a valid step.
        """
        env_ids = self._env_ids
        if self._writer is not None:
            self._writer.drop((~self._is_live).nonzero()[0].tolist())
        live = self._is_live[env_ids]
        counts = live if step.valid is None else live & step.valid
        self.env_steps += int(np.count_nonzero(live))
        if step.abnormal is not None:
            failed = env_ids[step.abnormal & live].tolist()
            self._returns[failed] = 0
            self._skip(failed, have_failed=True)
            live, counts = live & ~step.abnormal, counts & ~step.abnormal
        self._returns[env_ids[counts]] += step.reward[counts]
        self._skip(env_ids[live & ~counts].tolist())
        ended_envs = np.zeros(self._env_num, np.bool_)
        ended_envs[env_ids[ended & counts]] = True
        return ended_envs

    def _on_retired(self) -> None:
        self._is_partial = True
        if self._can_step_some:
            stay = self._is_live[self._env_ids]
            self._obs = part_of(self._obs, stay)
            self._env_ids = self._subset = self._env_ids[stay]


class ColumnsWriter(Writer):
    """Records rounds in columns and cuts them into trajectory pieces.

    All envs share one time axis; an env's unfinished trajectory is the range from its start to
    the current time. Pieces are kept until ``flush``, in the order in which they were cut.

    Args:
        env_num: Number of envs.
        traj_len: A trajectory is cut when it holds this many transitions; None for only
            at its end.
        make_samples: The policy's ``make_samples``, or ``split_episodes``.
    """

    def __init__(
        self,
        env_num: int,
        traj_len: int | None,
        make_samples: Callable[[dict[str, Any], NDArray[np.int64]], SampleBatch | Episodes],
    ) -> None:
        self._traj_len = _NEVER if traj_len is None else traj_len
        self._make_samples = make_samples
        super().__init__(env_num)

    @property
    def unfinished_rows(self) -> int:
        return self._time * self._env_num - sum(self._starts)

    def clear(self) -> None:
        capacity = 64 if self._traj_len == _NEVER else max(64, 2 * self._traj_len)
        self._store = ColumnStore(self._env_num, min(capacity, 4096))
        self._starts = [0] * self._env_num
        self._time = 0
        self._next_full = self._traj_len
        # (env, start, stop) of the waiting pieces, and the returns of their episodes.
        self._pieces: list[tuple[int, int, int]] = []
        self._returns: list[float] = []
        self.pending_rows = 0

    def state_dict(self) -> dict[str, Any]:
        """As ``Savable``; includes only the rounds that are still needed."""
        first, stop = min(self._starts), self._time
        return {
            **super().state_dict(),
            "rounds": self._store.rounds(first, stop) if first < stop else {},
            "iters": self._store.versions[first:stop].copy(),
            "starts": [start - first for start in self._starts],
            "next_full": self._next_full - first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        for time, iters in enumerate(state["iters"]):
            self._append(part_of(state["rounds"], time), iters)
        super().load_state_dict(state)
        self._starts = list(state["starts"])
        self._next_full = state["next_full"]

    def record(self, columns: Mapping[str, Any], train_iter: int | NDArray[np.int64]) -> None:
        """Append one round of all envs.

        Args:
            columns: Result of ``make_transitions``, one row per env.
            train_iter: Version of the behaviour policy, or of that of each env; recorded as the
                column ``collect_iter``.

        Raises:
            SchemaMismatchError: there is a ``gamma``, and no ``reward`` or ``done``.
        """
        if self.gamma is not None:
            for name in ("reward", "done"):
                if name not in columns:
                    raise _mismatch((name,), "an array, for policy.normalize.reward", None)
            self._discounted *= self.gamma
            self._discounted += columns["reward"]
            returns = self._discounted.astype(np.float32)
            self._discounted[columns["done"].astype(np.bool_)] = 0.0
            columns = {**columns, DISCOUNTED_RETURN: returns}
        self._append(columns, train_iter)

    def _append(self, columns: Mapping[str, Any], train_iter: int | NDArray[np.int64]) -> None:
        if self._time == self._store.capacity:
            self._make_room()
        self._store.append(columns, train_iter)
        self._time += 1

    def drop(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._starts[env_id] = self._time
            self._discounted[env_id] = 0.0

    def cut(self, ended: Sequence[int]) -> None:
        """End the trajectories that the newest round ended or filled.

        Args:
            ended: The envs whose episode ended, in order.
        """
        time, starts = self._time, self._starts
        is_filled = time >= self._next_full
        if is_filled:
            latest, also = time - self._traj_len, set(ended)
            ended = [i for i, start in enumerate(starts) if start <= latest or i in also]
        for env_id in ended:
            start = starts[env_id]
            self._pieces.append((env_id, start, time))
            self.pending_rows += time - start
            starts[env_id] = time
        if ended and self.added_columns:
            returns = self.episode_returns
            self._returns += [returns.get(env_id, math.nan) for env_id in ended]
            self.episode_returns = {}
        if is_filled:
            # Starts only grow, so this is never too late, but it may be too early.
            self._next_full = min(starts) + self._traj_len

    def cut_unfinished(self) -> None:
        if self._traj_len != _NEVER:
            self.cut([i for i, start in enumerate(self._starts) if start < self._time])

    def flush(self) -> SampleBatch | Episodes | None:
        if not self._pieces:
            return None
        samples = self._samples_of(self._pieces, self._returns)
        self._end_flush()
        return samples

    def flush_each(self) -> list[SampleBatch | Episodes]:
        if not self._pieces:
            return []
        samples = [
            self._samples_of([piece], self._returns[index : index + 1])
            for index, piece in enumerate(self._pieces)
        ]
        self._end_flush()
        return samples

    def _samples_of(
        self, pieces: list[tuple[int, int, int]], returns: list[float]
    ) -> SampleBatch | Episodes:
        env_num = self._env_num
        rows, ends = self._rows_of(pieces)
        columns = self._store.gather(rows)
        extra: dict[str, NDArray[Any]] = {"collect_iter": self._store.versions.take(rows)}
        if self.level_seeds is not None:
            seeds = np.array([self.level_seeds[i] for i in range(env_num)], np.int64)
            extra["seed"] = seeds.take(rows % env_num)
        if "env_id" in self.added_columns:
            extra["env_id"] = rows % env_num
        if "episode_return" in self.added_columns:
            extra["episode_return"] = np.array(returns, np.float32).repeat(np.diff(ends, prepend=0))
        columns.update(extra)
        samples = self._make_samples(columns, ends)
        if isinstance(samples, SampleBatch):
            return with_collected(samples, extra, ends)
        return check_samples(samples, "make_samples")

    def _rows_of(
        self, pieces: list[tuple[int, int, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row numbers in the store, pieces laid end to end, and their exclusive ends."""
        env_num = self._env_num
        envs, starts, stops = map(np.array, zip(*pieces, strict=True))
        lengths = stops - starts
        ends = lengths.cumsum()
        # Consecutive rows of a piece are env_num apart: one arange, shifted for each piece.
        shifts = envs + (stops - ends) * env_num
        return np.arange(0, int(ends[-1]) * env_num, env_num) + shifts.repeat(lengths), ends

    def _end_flush(self) -> None:
        self._pieces.clear()
        self._returns.clear()
        self.pending_rows = 0
        if min(self._starts) == self._time:
            # No trajectory is unfinished: start again at time 0.
            self._starts = [0] * self._env_num
            self._time = 0
            self._store.clear()
            self._next_full = self._traj_len

    def _make_room(self) -> None:
        first = min([*self._starts, *(start for _, start, _ in self._pieces)])
        dropped = self._store.make_room(first)
        self._starts = [start - dropped for start in self._starts]
        self._pieces = [(env, start - dropped, end - dropped) for env, start, end in self._pieces]
        self._time -= dropped
        self._next_full -= dropped


class UnrollWriter(ColumnsWriter):
    """Cuts pieces of exactly ``traj_len`` transitions of one env, across the ends of episodes.

    Rounds in which an env made no transition, because it was reset, are left out of its pieces.
    ``pending_rows`` counts pieces, each of which becomes one sample.
    """

    _traj_len: int

    def clear(self) -> None:
        super().clear()
        self._idle = [0] * self._env_num
        """For each env: rounds without a transition in its unfinished piece."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for env_id, start in enumerate(self._starts):
            versions = self._store.versions[start : self._time, env_id]
            self._idle[env_id] = int(np.count_nonzero(versions == _SKIPPED))

    @property
    def unfinished_rows(self) -> int:
        return super().unfinished_rows - sum(self._idle)

    def drop(self, env_ids: Sequence[int]) -> None:
        super().drop(env_ids)
        for env_id in env_ids:
            self._idle[env_id] = 0

    def skip(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._store.versions[self._time - 1, env_id] = _SKIPPED
            self._idle[env_id] += 1
            self._discounted[env_id] = 0.0

    def cut(self, ended: Sequence[int]) -> None:
        time, starts, idle = self._time, self._starts, self._idle
        if time < self._next_full:
            return
        for env_id, start in enumerate(starts):
            if time - start - idle[env_id] == self._traj_len:
                self._pieces.append((env_id, start, time))
                self.pending_rows += 1
                starts[env_id], idle[env_id] = time, 0
        self._next_full = min(map(add, starts, idle)) + self._traj_len

    def cut_unfinished(self) -> None:
        pass

    def _rows_of(
        self, pieces: list[tuple[int, int, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows, _ = super()._rows_of(pieces)
        rows = rows[self._store.versions.take(rows) != _SKIPPED]
        return rows, np.arange(1, len(pieces) + 1) * self._traj_len


class ColumnStore:
    """Arrays ``[capacity, env_num, ...]`` of columns, which may be in nested dicts.

    The first round sets names, shapes and dtypes.

    Args:
        env_num: Number of envs.
        capacity: Initial capacity in rounds.

    Attributes:
        versions: int64[capacity, env_num], the policy versions that acted.
    """

    def __init__(self, env_num: int, capacity: int) -> None:
        self.env_num = env_num
        self.capacity = capacity
        self.versions = np.empty((capacity, env_num), np.int64)
        self._arrays: dict[Path, NDArray[Any]] = {}
        self._slots: list[tuple[str, Path, Any, Any, Any]] = []
        """Of each column: its name, the keys below it, shape and dtype of a round, the array."""
        self._written = 0

    def append(self, columns: Mapping[str, Any], versions: int | NDArray[np.int64]) -> None:
        """Add a round of arrays ``[env_num, ...]``, possibly in nested dicts; there must be room.

        Raises:
            SchemaMismatchError: names, shapes or dtypes differ from the first round.
        """
        if not self._slots:
            for path, value in _columns_of(columns, ()):
                if not isinstance(value, np.ndarray) or value.shape[:1] != (self.env_num,):
                    expected = f"an array of {self.env_num} rows, one for each env"
                    raise _mismatch(path, expected, value)
                self._arrays[path] = np.empty((self.capacity, *value.shape), value.dtype)
            self._set_slots()
        # This runs for each column of each round: shapes and dtypes are not read from the arrays.
        time = self._written
        for name, keys, shape, dtype, array in self._slots:
            value = columns.get(name)
            if keys:  # entering an empty loop takes longer than this
                for key in keys:
                    value = value.get(key) if isinstance(value, Mapping) else None
            if type(value) is not _Array and not isinstance(value, _Array):
                raise _mismatch((name, *keys), "an array as in its first call", None)
            if value.shape != shape or (value.dtype is not dtype and value.dtype != dtype):
                expected = f"{dtype}{list(shape)} as in its first call"
                raise _mismatch((name, *keys), expected, value)
            array[time] = value
        self.versions[time] = versions
        self._written += 1

    def gather(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return rows of every column as new arrays; a row number is ``time * env_num + env``."""
        row_num = self.capacity * self.env_num
        return nest(
            (path, array.reshape(row_num, *array.shape[2:]).take(rows, axis=0))
            for path, array in self._arrays.items()
        )

    def rounds(self, start: int, stop: int) -> dict[str, Any]:
        """Return a copy of the rounds as columns ``[stop - start, env_num, ...]``."""
        return nest((path, array[start:stop].copy()) for path, array in self._arrays.items())

    def clear(self) -> None:
        """Forget all rounds."""
        self._written = 0

    def make_room(self, first: int) -> int:
        """Make room for more rounds.

        Args:
            first: The first round that is still needed.

        Returns:
            How many rounds were dropped at the start: ``first``, or 0 if the capacity was doubled.
        """
        # Moving less than half keeps the cost per round constant, and never overlaps.
        if first * 2 >= self.capacity:
            kept = self._written - first
            for array in (self.versions, *self._arrays.values()):
                array[:kept] = array[first : self._written]
            self._written = kept
            return first
        self.capacity *= 2
        self.versions = _doubled(self.versions)
        self._arrays = {path: _doubled(array) for path, array in self._arrays.items()}
        self._set_slots()
        return 0

    def _set_slots(self) -> None:
        self._slots = [
            (path[0], path[1:], array.shape[1:], array.dtype, array)
            for path, array in self._arrays.items()
        ]


def _columns_of(columns: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of each column in nested dicts."""
    for name, value in columns.items():
        if isinstance(value, Mapping):
            yield from _columns_of(value, (*path, name))
        else:
            yield (*path, name), value


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([array, np.empty_like(array)])


def split_episodes(columns: Mapping[str, Any], ends: NDArray[np.int64]) -> Episodes:
    """Split concatenated trajectories into one batch each."""
    rows = SampleBatch(columns)
    stops = ends.tolist()
    return [rows[start:stop] for start, stop in pairwise([0, *stops])]


def _mismatch(path: Path, expected: str, value: Any) -> SchemaMismatchError:
    found = None if value is None else type(value).__name__
    if isinstance(value, np.ndarray):
        found = f"{value.dtype}{list(value.shape)}"
    what = "a column of the policy's make_transitions"
    return mismatch(f"{what}, {'.'.join(path)!r}", ".".join(path), expected, found)
