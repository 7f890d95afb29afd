"""The experience of one learner task: a buffer of metadata, and the leased batches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferFullError,
    DingError,
    ProtocolError,
    SamplesLostError,
)
from dingsdk.runtime.deadline import close_in_time
from dingsdk.worker.coordinator.payload_ledger import PayloadLedger, filled
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.replay_buffer.pace import EpisodePace
from dingsdk.worker.sample_counts import EVICTIONS, SampleCounts

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.on_policy import Admission

REDRAWS = 32
"""How often rows of lost payloads are drawn again before the learner has to wait: enough if one in
ten payloads can be read."""


def metadata_config(buffer_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a replay buffer's config, changed for a buffer that holds metadata only.

    The settings for storing rows apply to the learner, which holds the rows; the step data store
    deletes their files.
    """
    own = {"storage": {"type": "array"}, "deepcopy": False, "enable_track_used_data": False}
    return {**buffer_cfg, **own}


class PolicyLag(NamedTuple):
    """How many policy versions old samples were when they were trained on.

    Attributes:
        mean: Mean lag of all rows trained on so far.
        p99: The lag that 99 % of these rows did not exceed.
        largest: Largest lag of any row.
    """

    mean: float
    p99: int
    largest: int


class Lease(NamedTuple):
    """A batch of ``rows`` leased to a learner that asked for it at ``train_iter``."""

    rows: int
    pinned: set[int]
    train_iter: int

    @classmethod
    def of(cls, columns: Mapping[str, Any], train_iter: int) -> Lease:
        """Return the lease of a batch by its columns; padding rows do not count."""
        numbers = columns["payload"]
        mask = columns.get("mask")
        rows = np.count_nonzero(mask) if mask is not None and mask.ndim == 2 else numbers.size
        return cls(int(rows), set(numbers.reshape(-1).tolist()), train_iter)


def episodes_of(meta: Mapping[str, Any]) -> int:
    """Return how many episodes ended in a payload; a collector that does not say it sends one."""
    return int(meta.get("episodes", 1))


class Experience:
    """A replay buffer of (payload, row) pairs, in columns. The caller locks.

    The buffer is of the type that the config names. It holds only these numbers, priorities if its
    type has them, and the sample columns that it needs. The rows themselves stay in the step data
    store and with the learner.

    Attributes:
        columns: Columns of samples that each payload's announcement must include.
        trainings: How often a learner trains on each batch that it leases.
        trained_rows: Number of rows trained on in total; repeated rows count again.
    """

    trainings = 1
    pace: EpisodePace | None = None
    admission: Admission | None = None
    """Limits how much collectors collect, if the age of rows is bounded (on-policy)."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.columns: tuple[str, ...] = buffer.columns_needed()
        self.ledger = PayloadLedger()
        self.trained_rows = 0
        self._leases: dict[str, list[Lease]] = {}
        self._lost: dict[int, str] = {}
        """Payloads that cannot be read, with the reason. Their rows are never leased again; when
        the buffer overwrites them, they count as evicted for that reason."""
        buffer.add_remove_listener(self._on_removed)

    @property
    def collects(self) -> int:
        """On-policy: number of trainings, past or waiting, that have all their rows; otherwise
        0."""
        return 0

    @property
    def is_in_collect(self) -> bool:
        """On-policy: whether the next training has some of its rows, or rows to come, but not all;
        otherwise False."""
        return False

    def push(self, meta: Mapping[str, Any], envstep: int) -> bool:
        """Acknowledge a payload: all its rows become samples. Return False for a repeat."""
        rows = int(meta["rows"])
        own = {name: self._column(meta, name) for name in self.columns}
        announced = meta.get("columns") or {}
        if "priority" in announced:
            own["priority"] = self._column(meta, "priority").astype(np.float64)
        versions = filled(rows, int(meta["policy_iter"]))
        if "collect_iter" in announced:
            versions = self._column(meta, "collect_iter")
            if versions.dtype.kind not in "iu" or not versions.size:
                raise ProtocolError(
                    f"payload {meta['data_id']!r} came with a collect_iter of {versions.dtype}"
                    f"{list(versions.shape)}; it must be an integer for each row",
                    where="metadata",
                )
            versions = versions.reshape(rows, -1).min(axis=1)
        number = self.ledger.add(str(meta["data_id"]), rows, meta.get("digest"))
        if number is None:
            return False
        columns: dict[str, Any] = {
            **own,
            "payload": filled(rows, number),
            "row": np.arange(rows, dtype=np.int64),
            "collect_iter": versions.astype(np.int64, copy=False),
        }
        try:
            self._push(SampleBatch.trusted(columns, rows), envstep)
        except BufferFullError:
            # A limiter that depends on the clock admitted the payload before, and it was
            # acknowledged then.
            self._push_again(SampleBatch.trusted(columns, rows))
        except DingError:
            self.ledger.withdraw(number)
            raise
        if self.pace is not None and self.buffer.can_sample(self.pace.batch_size):
            self.pace.episodes += episodes_of(meta)
        return True

    def knows(self, data_id: str) -> bool:
        """Return whether a payload was announced before."""
        return self.ledger.knows(data_id)

    def live_ids(self) -> Collection[str]:
        """Return the ids of payloads that may still be read."""
        return self.ledger.numbers.keys()

    def can_push(self, rows: int) -> bool:
        """Return whether the buffer admits a payload of ``rows`` rows now."""
        if not self.buffer.can_push(rows):
            return False
        pace = self.pace
        # If no batch can be drawn, the learner waits for more rows.
        return pace is None or pace.may_push or not self.buffer.can_sample(pace.batch_size)

    def can_sample(self, batch_size: int) -> bool:
        """Return whether there are rows for a batch, and it may be trained on now."""
        if self.pace is not None and not self.pace.may_draw:
            return False
        return bool(self.buffer.can_sample(batch_size))

    def lease(
        self, state: TaskState, batch_size: int, batches: int, train_iter: int
    ) -> dict[str, Any] | None:
        """Draw up to ``batches`` batches for a learner; return None if no batch is available.

        Their payloads are pinned until ``settle``.
        """
        drawn: list[dict[str, Any]] = []
        while len(drawn) < batches and self.can_sample(batch_size):
            columns = self._draw(batch_size, train_iter)
            if columns is None:
                break
            drawn.append(columns)
            if self.pace is not None:
                self.pace.batches += 1
        if not drawn:
            return None
        leases = [Lease.of(columns, train_iter) for columns in drawn]
        for lease in leases:
            self.ledger.pin(lease.pinned)
        self._leases.setdefault(state.task_id, []).extend(leases)
        fresh = set().union(*(lease.pinned for lease in leases)) - state.announced
        state.announced |= fresh
        names = {number: self.ledger.name(number) for number in fresh}
        digests = {name: self.ledger.digest(number) for number, name in names.items()}
        dropped, state.dropped = state.dropped, []
        kept = {each: self.ledger.kept_rows(each) for each in fresh}
        kept |= state.kept
        state.kept = {}
        return {
            "batches": drawn,
            "payloads": {name: number for number, name in names.items()},
            "digests": {name: digest for name, digest in digests.items() if digest is not None},
            "dropped": dropped,
            "kept": [(each, rows) for each, rows in kept.items() if rows is not None],
        }

    def settle(self, state: TaskState, info: Mapping[str, Any] | None = None) -> bool:
        """End the leases of a learner, and store its new priorities; False if it had no leases.

        The newest ``batches_left`` leases of the info continue: their batches are not trained on
        yet.
        """
        leases = self._leases.pop(state.task_id, [])
        left = 0 if info is None else int(info.get("batches_left", 0))
        done = max(0, len(leases) - left)
        if info is not None and leases[done:]:
            now = int(info["learner_step"])
            self._leases[state.task_id] = [each._replace(train_iter=now) for each in leases[done:]]
        leases = leases[:done]
        for lease in leases:
            self.ledger.unpin(lease.pinned)
        if info is None:
            return bool(leases)
        lost = {int(number): str(reason) for number, reason in info["lost_payloads"]}
        for number, reason in lost.items():
            self._give_up(number, reason)
        # The learner skipped batches with lost payloads; when it ended, it skipped the last ones.
        whole = [each for each in leases if lost.keys().isdisjoint(each.pinned)]
        updates = max(0, int(info["learner_step"]) - leases[0].train_iter) if leases else 0
        self.trained_rows += self.trainings * sum(each.rows for each in whole[:updates])
        if info.get("priority_info"):
            self.buffer.update(info["priority_info"])
        return bool(leases)

    def rejoin(self, state: TaskState, known: Iterable[int]) -> None:
        """Record the payload numbers that an earlier coordinator sent to a learner."""
        told, live = set(known), set(self.ledger.numbers.values())
        state.announced, state.dropped = told & live, sorted(told - live)
        found = {number: self.ledger.kept_rows(number) for number in state.announced}
        state.kept = {number: rows for number, rows in found.items() if rows is not None}

    def readable(self, known: Collection[int] = ()) -> list[str]:
        """Return the ids of payloads with rows to lease, except payload numbers in ``known``."""
        return [
            name
            for name, number in self.ledger.numbers.items()
            if number not in known and number not in self._lost and self.ledger.rows_left(number)
        ]

    def give_up_missing(self, names: Iterable[str]) -> None:
        """Never lease rows of these payloads again; unknown names are ignored."""
        for name in names:
            number = self.ledger.numbers.get(name)
            if number is not None:
                self._give_up(number, "missing")
        if self._lost and not self.readable():
            self.buffer.clear()  # no row in it can be drawn; make room for new ones

    def take_garbage(self, states: Iterable[TaskState]) -> list[str]:
        """Return the ids of payloads that nobody needs.

        The next message to each learner names them, and the rows of other payloads that it may
        free.
        """
        garbage = self.ledger.take_garbage()
        kept = self.ledger.free_rows()
        if garbage or kept:
            for state in states:
                known = state.announced & garbage.keys()
                state.announced -= known
                state.dropped.extend(known)
                state.kept |= {number: kept[number] for number in state.announced & kept.keys()}
                for number in known & state.kept.keys():
                    del state.kept[number]
        return list(garbage.values())

    def count_rows(self) -> int:
        """Return the number of rows in the buffer."""
        return int(self.buffer.count())

    def counts(self) -> SampleCounts:
        """Return the sample counts, without samples that wait for room in the buffer."""
        ledger, evicted = self.ledger, dict(self.ledger.evicted_rows)
        acked = ledger.acked_rows
        return SampleCounts(acked, acked, self.trained_rows, self.count_rows(), evicted)

    def state_dict(self) -> dict[str, Any]:
        """Return buffer, payloads, leases and lost payloads as plain data."""
        leases = {
            task_id: [(each.rows, each.train_iter, np.array(sorted(each.pinned))) for each in found]
            for task_id, found in self._leases.items()
        }
        return {
            "buffer": self.buffer.state_dict(),
            "ledger": self.ledger.state_dict(),
            "leases": leases,
            "trained_rows": self.trained_rows,
            "lost": list(self._lost.items()),
            "pace": None if self.pace is None else [self.pace.episodes, self.pace.batches],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict`` into this new experience.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: it is of another buffer.
        """
        self.buffer.load_state_dict(state["buffer"])
        self.ledger.load_state_dict(state["ledger"])
        self._lost = {int(number): str(reason) for number, reason in state["lost"]}
        self.trained_rows = int(state["trained_rows"])
        if self.pace is not None and state.get("pace") is not None:
            self.pace.episodes, self.pace.batches = map(int, state["pace"])
        self._leases = {
            task_id: [Lease(rows, set(pins.tolist()), at) for rows, at, pins in found]
            for task_id, found in state["leases"].items()
        }
        for lease in (each for found in self._leases.values() for each in found):
            self.ledger.pin(lease.pinned)

    def check(self, running: Collection[str] | None = None) -> None:
        """Raise SamplesLostError if acknowledged samples are missing and not counted as evicted.

        ``running`` are the ids of the tasks that may have leases; None: any task.
        """
        if running is not None and not self._leases.keys() <= set(running):
            raise SamplesLostError(
                f"tasks {sorted(self._leases)} have leases, and {sorted(running)} run"
            )
        leased: Counter[int] = Counter()
        for lease in itertools.chain.from_iterable(self._leases.values()):
            leased.update(lease.pinned)
        self.ledger.check(self.count_rows(), leased)

    def close(self) -> None:
        """Close the buffer, but wait only a limited time for it."""
        close_in_time(self.buffer.close, "policy.other.replay_buffer")

    def _draw(self, batch_size: int, train_iter: int) -> dict[str, Any] | None:
        """Sample a batch without lost payloads; draw again up to ``REDRAWS`` times for that."""
        kept: SampleBatch | None = None
        for _ in range(1 + REDRAWS):
            sample = self.buffer.sample(batch_size, cur_learner_iter=train_iter)
            if sample is None:
                return None
            sample = _located(sample, self.columns)
            if self._lost:
                is_lost = np.isin(sample.columns["payload"], list(self._lost))
                good = np.flatnonzero(~is_lost.reshape(len(sample), -1).any(axis=1))
                sample = sample.take(good)
            kept = sample if kept is None else SampleBatch.concat([kept, sample])
            if len(kept) >= batch_size:
                return dict(kept.columns if len(kept) == batch_size else kept[:batch_size].columns)
        return None

    def _push(self, batch: SampleBatch, envstep: int) -> None:
        self.buffer.push(batch, envstep)

    def _push_again(self, rows: Any) -> None:
        self.buffer.load_state_dict({"data": rows})

    def _column(self, meta: Mapping[str, Any], name: str) -> NDArray[Any]:
        column = (meta.get("columns") or {}).get(name)
        if not isinstance(column, np.ndarray) or column.shape[:1] != (int(meta["rows"]),):
            raise ProtocolError(
                f"payload {meta['data_id']!r} came without the column {name!r} of its rows",
                where="metadata",
            )
        return column

    def _on_removed(self, removed: Any, reason: str) -> None:
        payloads, rows = removed.columns["payload"], removed.columns["row"]
        lost = self._lost.keys() & set(payloads.tolist()) if self._lost else ()
        for number in lost:
            mine = payloads == number
            self.ledger.evict(payloads[mine], rows[mine], self._lost[number])
            payloads, rows = payloads[~mine], rows[~mine]
            if not self.ledger.rows_left(number):
                del self._lost[number]
        self.ledger.evict(payloads, rows, reason)

    def _give_up(self, number: int, reason: str) -> None:
        if self.ledger.rows_left(number):
            self._lost.setdefault(number, reason)


class EpisodeExperience(Experience):
    """The experience for a buffer of whole episodes: each payload is one episode."""

    def can_push(self, rows: int) -> bool:
        """Return whether the buffer admits one more episode now."""
        return super().can_push(1)

    def count_rows(self) -> int:
        """Return the number of rows of all episodes in the buffer."""
        return sum(self.buffer.episode_len)

    def _push(self, batch: SampleBatch, envstep: int) -> None:
        self.buffer.push([batch], envstep)

    def _push_again(self, rows: Any) -> None:
        super()._push_again([rows])

    def _draw(self, batch_size: int, train_iter: int) -> dict[str, Any] | None:
        """Sample episodes; return their concatenated rows, and the ``lengths`` of the episodes."""
        kept: list[SampleBatch] = []
        for _ in range(1 + REDRAWS):
            episodes = self.buffer.sample(batch_size, cur_learner_iter=train_iter)
            if episodes is None:
                return None
            kept += [each for each in episodes if int(each.columns["payload"][0]) not in self._lost]
            if len(kept) >= batch_size:
                lengths = np.array([len(each) for each in kept[:batch_size]])
                joined = _located(SampleBatch.concat(kept[:batch_size]), self.columns)
                return {**joined.columns, "lengths": lengths}
        return None

    def _on_removed(self, removed: Any, reason: str) -> None:
        super()._on_removed(SampleBatch.concat(removed), reason)


def _located(sample: SampleBatch, columns: Iterable[str]) -> SampleBatch:
    """Return a sample of metadata without the columns that came with the payloads.

    Padding of a sequence is set to one of the sequence's own rows: rows of other payloads may be
    gone.
    """
    found = {name: column for name, column in sample.columns.items() if name not in columns}
    mask = found.get("mask")
    if mask is not None and mask.ndim == 2:
        inside = mask.argmax(axis=1)[:, None]
        for name in ("payload", "row"):
            own = np.take_along_axis(found[name], inside, axis=1)
            found[name] = np.where(mask, found[name], own)
    return SampleBatch.trusted(found, len(sample))


def open_experience(buffer: Any, pace: EpisodePace | None = None) -> Experience:
    """Return the experience for a buffer: of episodes if the buffer needs them, else of rows.

    Only an experience of rows has the ``pace``: a limiter of the other counts episodes itself.
    """
    if getattr(buffer, "needs_order", "none") == "episode":
        return EpisodeExperience(buffer)
    experience = Experience(buffer)
    experience.pace = pace
    return experience


class _ServerFigures:
    """Replaces the buffer: the last counts that its server reported.

    Attributes:
        figures: Counts of ``BufferStats``; empty before the first report.
        announced_rows: Rows that collectors have inserted.
    """

    def __init__(self) -> None:
        self.figures: Mapping[str, int] = {}
        self.announced_rows = 0

    def columns_needed(self) -> tuple[str, ...]:
        return ()  # the server has the rows themselves

    def add_remove_listener(self, listener: Callable[[Any, str], None]) -> None:
        pass  # the server counts removed rows

    def count(self) -> int:
        return self.figures.get("count", 0)

    def can_push(self, rows: int) -> bool:
        return True  # announced rows are on the server already; its limiter admitted them

    def can_sample(self, size: int) -> bool:
        # There may be rows for a batch; the learner waits for the limiter.
        return self.announced_rows >= size or self.count() >= size

    def state_dict(self) -> dict[str, int]:
        return dict(self.figures)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.figures = dict(state)

    def close(self) -> None:
        pass  # the server is closed by its own process


class ServedExperience(Experience):
    """Counts the rows that collectors insert, and leases batches that the learner draws itself."""

    def __init__(self) -> None:
        self.buffer: _ServerFigures
        super().__init__(_ServerFigures())

    def push(self, meta: Mapping[str, Any], envstep: int) -> bool:
        """Count a payload; the server has already refused repeated rows."""
        self.buffer.announced_rows += int(meta["rows"])
        return True

    def lease(
        self, state: TaskState, batch_size: int, batches: int, train_iter: int
    ) -> dict[str, Any]:
        """Let a learner draw ``batches`` batches; it waits while the server has too few rows."""
        leases = [Lease(batch_size, set(), train_iter)] * batches
        self._leases.setdefault(state.task_id, []).extend(leases)
        return {"batches": [{"batch_size": batch_size}] * batches}

    def settle(self, state: TaskState, info: Mapping[str, Any] | None = None) -> bool:
        """Count the rows that were trained on, and store the server's counts."""
        if info is not None:
            self.note_figures(info.get("replay"))
        return super().settle(state, info)

    def note_figures(self, figures: Mapping[str, int] | None) -> None:
        """Store the counts that the server reported."""
        if figures is not None:
            self.buffer.figures = figures

    def counts(self) -> SampleCounts:
        """Return the sample counts; the server counts the samples of all its clients."""
        figures = self.buffer.figures
        pushed = figures.get("pushed", 0)
        evicted = {name: figures[name] for name in EVICTIONS if figures.get(name)}
        return SampleCounts(pushed, pushed, self.trained_rows, self.count_rows(), evicted)

    def check(self, running: Collection[str] | None = None) -> None:
        """Raise SamplesLostError if the server's counts do not add up."""
        self.counts().check()
