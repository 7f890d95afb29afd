"""The prioritized buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, ConfigError
from dingsdk.worker.replay_buffer.base import ReplayBuffer
from dingsdk.worker.replay_buffer.keeping.row_reader import FactColumns
from dingsdk.worker.replay_buffer.prioritized.arrivals import Arrivals, take_apart
from dingsdk.worker.replay_buffer.prioritized.priorities import (
    LEAST_PRIORITY,
    read_numbers,
    read_priorities,
)
from dingsdk.worker.replay_buffer.prioritized.row_facts import NOBODY, RowFacts
from dingsdk.worker.replay_buffer.prioritized.settings import DEFAULTS, AdvancedSettings, spread
from dingsdk.worker.replay_buffer.prioritized.staleness import Staleness
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.requests import check_range, checked_size
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.sampler.priority import PrioritySampler
from dingsdk.worker.replay_buffer.storage import Rows
from dingsdk.worker.replay_buffer.watching.samples import SampleMonitor

_LEFT = -1
"""The mark of a row that left early; that of others is how often they were sampled."""


class AdvancedReplayBuffer(ReplayBuffer):
    """A ring of dicts, sampled by priority (type ``advanced``, also ``deque``).

    A row leaves when it is overwritten, was sampled ``max_use`` times, or is ``max_staleness``
    learner iterations old. :meth:`count` counts the rows that are left. Rows that were saved and
    pushed into another buffer by :meth:`load_data` keep their priority and uses.

    Config:
        replay_buffer_size: Capacity in rows.
        alpha: Priority exponent, in [0, 1].
        beta: Exponent of the importance weights, in [0, 1], at first.
        anneal_step: Samples in which beta moves to 1; 0 leaves it.
        max_use: Samples after which a row leaves. A batch may hold a row more often.
        max_staleness: Age at which a row leaves: the iteration given to :meth:`sample`
            minus its ``collect_iter`` (or ``policy_iter``).
        sampler: ``{type: proportional}`` or ``{type: rank}``.
        thruput_controller: ``push_sample_rate_limit: {max, min}`` bounds rows pushed per row
            sampled within ``window_seconds``; ``sample_min_limit_ratio``: rows held for each
            one sampled, without which sampling waits.
        monitor: ``periodic_thruput.seconds`` between two logs of the throughput;
            ``sampled_data_attr: {average_range, print_freq}``: samples that an average over
            their rows is of, and samples between two logs of it.
        storage, remover, limiter, deepcopy, seed: As in the plain buffer.

    Source: Schaul et al. 2016, "Prioritized Experience Replay"; DI-engine's
    ``AdvancedReplayBuffer``, whose keys these are. Differences:

    * pushed dicts are copied, never written to, and something else than a dict is an error;
    * ids are numbers; rows refused by a limiter raise or wait, and are not dropped;
    * ``sample_range`` counts by age, among the rows that are left;
    * stale rows leave wherever they are, not only as far as the first fresh one.

    Example:
        >>> buffer = AdvancedReplayBuffer({"replay_buffer_size": 100, "seed": 0})
        >>> buffer.push(SampleBatch({"obs": np.zeros((8, 4), np.float32)}), 8)
        >>> batch = buffer.sample(4, 0)
        >>> info = {key: batch.columns[key] for key in ("replay_unique_id", "replay_buffer_idx")}
        >>> buffer.update({**info, "priority": [0.5, 2.0, 0.0, 1.0]})
        >>> buffer.sample(2, 1).columns["IS"].dtype
        dtype('float32')
    """

    config: ClassVar[dict[str, Any]] = DEFAULTS
    sampler_family: ClassVar[type[Sampler]] = PrioritySampler
    _keeps_facts: ClassVar[bool] = True

    def _configure(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        self._settings = AdvancedSettings.of(cfg)
        self._beta = self._settings.beta
        self._skipped_updates = 0
        return spread(cfg)

    def _start_facts(self) -> None:
        self._use_facts(RowFacts(self._capacity))
        if self._settings.rows_leave_early and self._storage is not None:
            self._storage.keep_marks()

    def _counters(self) -> dict[str, int]:
        return {**super()._counters(), "next_unique_id": self._facts.next_id}

    def _on_recovered(self, state: Mapping[str, int]) -> None:
        # So that rows of an earlier process get the ids that they had.
        self._facts.renumber(state.get("next_unique_id", self.push_count))

    # Facts --------------------------------------------------------------------------------
    @property
    def alpha(self) -> float:
        """The exponent of priorities."""
        return float(getattr(self._sampler, "alpha", self._settings.alpha))

    @property
    def beta(self) -> float:
        """The exponent of the importance weights of the next sample; settable."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ConfigError(f"beta must be in [0, 1], found {value}", path="beta")
        self._beta = float(value)

    @property
    def skipped_updates(self) -> int:
        """Updated priorities that came for rows which had left."""
        return self._skipped_updates

    def _new_sample_monitor(self, tb_logger: Any) -> SampleMonitor:
        return SampleMonitor(self.instance_name, *self._settings.monitored, tb_logger=tb_logger)

    def _count(self) -> int:
        return self._facts.live

    # Writing ------------------------------------------------------------------------------
    def _split(self, rows: Rows) -> tuple[Rows, Arrivals]:
        return take_apart(rows)

    def _on_stored(self, where: Where, facts: Arrivals, first: int) -> None:
        self._facts.next_id += first
        iters = facts.iters
        self._facts.arrive(where, iters[first:] if first and len(iters) > 1 else iters)
        if self._staleness is not None:
            self._staleness.arrive(where)
        sampler = cast(PrioritySampler, self._sampler)
        if facts.priorities is None:
            sampler.assign(where, sampler.max_priority)
            return
        priorities = facts.priorities[first:]
        # Each row without a priority gets the largest there was before this push.
        known = np.where(np.isnan(priorities), sampler.max_priority, priorities)
        sampler.assign(where, np.maximum(known, LEAST_PRIORITY))

    def _remove(self, where: Where, reason: str) -> None:
        where = self._living(where)
        super()._remove(where, reason)
        self._facts.leave(where)
        if reason != "overwritten":
            # What overwrites a row is assigned a priority, and has no mark, anyway.
            cast(PrioritySampler, self._sampler).withdraw(where)
            self._storage.mark(where, _LEFT)  # type: ignore[union-attr]

    def _on_marked(self, where: NDArray[np.int64], marks: NDArray[np.int64]) -> None:
        self._facts.set_uses(where, marks.clip(0))
        left = where[marks == _LEFT]
        self._facts.leave(left)
        cast(PrioritySampler, self._sampler).withdraw(left)
        self._limiter.on_remove(len(left))
        self._left["used_up"] += len(left)  # or stale: why is not kept

    def _use_up(self, where: NDArray[np.int64], uses: NDArray[np.int64]) -> None:
        """Let those rows go that were sampled often enough, and keep the uses of the others.

        Args:
            where: Positions of living rows; of equal ones the last counts.
            uses: int64[n].
        """
        self._storage.mark(where, uses)  # type: ignore[union-attr]
        used_up = np.unique(where[uses >= self._settings.max_use])
        if len(used_up):
            self._remove(used_up[np.argsort(self._facts.ids(used_up))], "used_up")

    def _living(self, where: Where) -> Where:
        return self._facts.living(where) if self._rows_leave_early else where

    def _empty(self) -> None:
        before = self._pushed_before_clear
        super()._empty()
        # Unlike that of the plain buffer, this count goes on.
        self._pushed_before_clear = before

    def _forget(self) -> None:
        self._facts.clear()
        self._use_facts(self._facts)

    def _use_facts(self, facts: RowFacts, some_left: bool = False) -> None:
        self._facts = facts
        # Of a state, some may have left under other settings.
        self._rows_leave_early = self._settings.rows_leave_early or some_left
        self._staleness = None
        if self._settings.max_staleness < math.inf:
            self._staleness = Staleness(facts)

    def clear(self) -> None:
        """Drop all rows; ``push_count`` and the ids go on, the largest priority is 1 again.

        Raises:
            BufferClosedError: the buffer is closed.
        """
        super().clear()

    def update(self, info: Mapping[str, Any]) -> None:
        """Take over the priorities of sampled rows.

        Args:
            info: ``priority`` (numbers >= 0), ``replay_unique_id`` and ``replay_buffer_idx`` as
                they were sampled: lists, arrays or tensors of equal length. Without ``priority``
                nothing happens. Rows that have left are skipped and counted; of several
                priorities for a row the last counts. 1e-5 is added to each.

        Raises:
            InvalidPriorityError: one of them is malformed; no priority was taken over.
            BufferClosedError: the buffer is closed.
        """
        given = info.get("priority")
        if given is None:
            return
        priorities = read_priorities(given)
        ids = read_numbers(info, "replay_unique_id", len(priorities))
        where = read_numbers(info, "replay_buffer_idx", len(priorities))
        with self._lock:
            if self._closed:
                self._check_open()
            where, priorities = self._facts.known(where, ids, priorities, LEAST_PRIORITY)
            if len(where):
                cast(PrioritySampler, self._sampler).assign(where, priorities)
            self._skipped_updates += len(ids) - len(where)

    # Sampling -----------------------------------------------------------------------------
    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        timeout_s: float | None = None,
    ) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows drawn by priority, as the caller's own copies.

        Each row carries ``replay_unique_id``, ``replay_buffer_idx``, ``IS`` (its importance
        weight, in (0, 1]), ``priority``, ``use`` (times sampled, this one included) and
        ``staleness`` (iterations; -1 where unknown). A row may come more than once.

        Args:
            size: Rows to draw, >= 0.
            cur_learner_iter: Iteration of the learner, for staleness.
            sample_range: Draw only among these, by age: ``slice(-10, None)`` are the 10 newest.
            timeout_s: Seconds to wait until the rows are there; None: not at all.

        Returns:
            A SampleBatch, or a list from object storage; ``[]`` for size 0; None where there
            are too few rows, or the limiter does not admit the sample (yet).

        Raises:
            ConfigError: the size is negative (also a ValueError).
            ConfigTypeError: the size is no integer, or the range no slice.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        size = checked_size(size)
        check_range(sample_range)
        if size == 0:
            return self._no_rows()
        return self._serve(size, timeout_s, self._draw, size, cur_learner_iter, sample_range)

    def _has_rows(self, size: int, learner_iter: int, sample_range: slice | None) -> bool:
        """Let stale rows go; return whether there are enough of the others."""
        if self._staleness is not None:
            stale = self._staleness.take(math.floor(learner_iter - self._settings.max_staleness))
            if len(stale):
                self._remove(stale, "stale")
                if not self._limiter.can_sample(size):
                    return False  # it was asked before they left
        count = self._facts.live
        if count < size * self._settings.rows_per_sampled:
            return False
        return sample_range is None or len(range(*sample_range.indices(count))) > 0

    def _draw(
        self, size: int, learner_iter: int, sample_range: slice | None
    ) -> SampleBatch | list[Any] | None:
        if not self._has_rows(size, learner_iter, sample_range):
            return None
        sampler = cast(PrioritySampler, self._sampler)
        among = None if sample_range is None else self._by_age(sample_range)
        where = sampler.draw(size, among)
        # At once, while what the draw read is still in the nearest cache.
        weights = sampler.importance(where, self._beta)
        batch: SampleBatch | list[Any] = self._take(where)
        ids, uses, staleness = self._facts.serve(where, learner_iter)
        added: dict[str, NDArray[Any]] = {
            "replay_unique_id": ids,
            "replay_buffer_idx": where,
            "IS": weights,
            "priority": sampler.priorities(where),
            "use": uses,
            "staleness": staleness,
        }
        if self._sample_monitor.is_next():
            seen = {key: added[key] for key in ("use", "priority", "staleness")}
            seen["age"] = self._facts.next_id - 1 - ids
            self._look_at(seen, size)
        if self._settings.max_use < math.inf:
            self._use_up(where, uses)
        self._beta = min(1.0, self._beta + self._settings.beta_step)
        if isinstance(batch, SampleBatch):
            return SampleBatch.trusted({**batch.columns, **added}, size)
        values = zip(*(column.tolist() for column in added.values()), strict=True)
        for row, facts in zip(batch, values, strict=True):
            row.update(zip(added, facts, strict=True))
        return batch

    def _by_age(self, sample_range: slice) -> NDArray[np.int64]:
        count = self._remover.count
        if self._facts.live < count:
            living = cast(NDArray[np.int64], self._living(self._remover.oldest_first()))
            return living[sample_range]
        return self._remover.by_age(np.arange(*sample_range.indices(count), dtype=np.int64))

    # Keeping ------------------------------------------------------------------------------
    def _saved_facts(self, where: NDArray[np.int64]) -> FactColumns:
        priorities = cast(PrioritySampler, self._sampler).priorities(where)
        return {"priority": priorities, "use": self._facts.uses(where)}

    def _push_loaded(self, rows: Rows, facts: FactColumns) -> None:
        n = min(len(rows), self._capacity)
        # A save of another kind of buffer, or of an earlier version, has not all of these.
        uses = facts.get("use", np.zeros(len(rows), np.int64))[-n:]
        if "priority" in facts:
            rows = _with_priorities(rows, facts["priority"])
        with self._change():
            self._insert(rows, len(rows))
            count = self._remover.count
            where = self._remover.by_age(np.arange(count - n, count))
            self._facts.set_uses(where, uses)
            if self._settings.max_use < math.inf:
                self._use_up(where, uses)

    def _extra_state(self) -> dict[str, Any]:
        return {**self._facts.state_dict(self._remover.count), "beta": self._beta}

    def _check_extra_state(
        self, state_dict: Mapping[str, Any], sampler: Sampler
    ) -> Callable[[], None]:
        rows = state_dict["valid_count"]
        facts = RowFacts.of_state(state_dict, self._capacity, rows)
        beta = state_dict.get("beta")
        if not (isinstance(beta, float) and 0 <= beta <= 1):
            raise CheckpointCorruptError(f"beta is {beta!r}; expected a number in [0, 1]")
        positions = np.arange(rows, dtype=np.int64)
        living = positions[facts.ids(positions) != NOBODY]
        sampler = cast(PrioritySampler, sampler)
        if sampler.drawable != len(living) or not np.all(sampler.priorities(living) > 0):
            raise CheckpointCorruptError("the priorities and the rows of the state do not match")

        def apply() -> None:
            self._use_facts(facts, some_left=facts.live < rows)
            if self._staleness is not None:
                self._staleness.rebuild()
            self._beta = beta
            # The base counted those that had left already as pushed; why is not in the state.
            self._left["used_up"] += rows - facts.live

        return apply

    def _let_go(self) -> None:
        where = self._remover.oldest_first()
        if len(where):
            self._storage.mark(where, _LEFT)  # type: ignore[union-attr]
            living = cast(NDArray[np.int64], self._living(where))
            self._use_up(living, self._facts.uses(living))


def _with_priorities(rows: Rows, priorities: NDArray[Any]) -> Rows:
    if isinstance(rows, SampleBatch):
        return rows.with_columns(priority=priorities)
    pairs = zip(rows, priorities.tolist(), strict=True)
    return [{**row, "priority": priority} for row, priority in pairs]
