"""What the replay buffers share in use: pushing, serving, removing, waiting, closing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from dingsdk.data import SampleBatch
from dingsdk.errors import BufferClosedError, BufferFullError, ConfigError
from dingsdk.worker.replay_buffer.gate import Gate
from dingsdk.worker.replay_buffer.interface import BufferStats, IBuffer
from dingsdk.worker.replay_buffer.limiter import Limiter
from dingsdk.worker.replay_buffer.listeners import REASONS, RemoveListener, RemoveListeners
from dingsdk.worker.replay_buffer.monitor import ThroughputMonitor
from dingsdk.worker.replay_buffer.parts import Parts
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.storage import Rows, suits_arrays

_log = logging.getLogger(__name__)
_Batch = TypeVar("_Batch")


class BufferCore(IBuffer):
    """Storage x sampler x remover x limiter behind one lock; subclasses add how to sample.

    Every operation is one critical section. Remove listeners and logging run after it, in the
    thread that caused the removal, so they may call the buffer.

    A subclass draws in :meth:`_serve`. One that keeps facts about rows says so in
    ``_keeps_facts`` and overrides :meth:`_split`, :meth:`_on_stored`, :meth:`_living` and
    :meth:`_forget`.
    """

    config: ClassVar[dict[str, Any]] = {
        "replay_buffer_size": 10000,
        "deepcopy": False,
        "enable_track_used_data": False,
        "periodic_thruput_seconds": 60,
        "seed": None,
        "storage": {"type": "auto"},
        "sampler": {"type": "uniform"},
        "remover": {"type": "fifo"},
        "limiter": {"type": "min_size", "min_size": 1},
    }

    sampler_family: ClassVar[type[Sampler]] = Sampler
    """What the sampler of this kind of buffer has to be."""

    _keeps_facts: ClassVar[bool] = False
    """Whether :meth:`_split` and its like are overridden, and so worth calling."""

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
    ) -> None:
        self.exp_name = exp_name
        self.instance_name = instance_name
        self._parts = Parts(self.default_config(), cfg, self.sampler_family)
        self._capacity = self._parts.capacity
        self._remover = self._parts.remover()
        self._use_limiter(self._parts.limiter())
        self._use_sampler(self._parts.sampler())
        self._storage = None if self._parts.chooses_storage else self._parts.storage()
        self._monitor = ThroughputMonitor(instance_name, self._parts.period_s, tb_logger)
        self._gate = Gate()
        self._lock = self._gate.lock
        self._listeners = RemoveListeners(instance_name)
        self._closed = False
        self._pushed = self._sampled = self._pushed_before_clear = 0
        self._left = dict.fromkeys(REASONS, 0)

    def _use_limiter(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def _use_sampler(self, sampler: Sampler) -> None:
        self._sampler = sampler
        # Telling a sampler that does not listen would cost a tenth of a small push.
        self._sampler_listens = any(
            getattr(type(sampler), name) is not getattr(Sampler, name)
            for name in ("on_insert", "on_skip", "on_remove", "check_rows")
        )

    # Facts --------------------------------------------------------------------------------
    @property
    def replay_buffer_size(self) -> int:
        """The capacity in rows."""
        return self._capacity

    @property
    def push_count(self) -> int:
        """Rows pushed since the buffer was made or cleared, overwritten ones included."""
        return self._pushed - self._pushed_before_clear

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def count(self) -> int:
        """Return how many rows the buffer holds; 0 once it is closed."""
        return 0 if self._closed else self._count()

    def _count(self) -> int:
        return self._remover.count

    def stats(self) -> BufferStats:
        """Return consistent totals since the buffer was made."""
        with self._lock:
            return BufferStats(
                pushed=self._pushed,
                sampled=self._sampled,
                count=self.count(),
                capacity=self._capacity,
                **self._left,
            )

    def can_push(self, n: int) -> bool:
        """Whether the limiter admits ``n`` more rows now."""
        with self._lock:
            self._check_open()
            return self._limiter.can_insert(n)

    def can_sample(self, n: int) -> bool:
        """Whether ``n`` distinct rows could be sampled now."""
        with self._lock:
            self._check_open()
            return self._limiter.can_sample(n) and n <= self._count()

    def check_sizes(self, batch_size: int, push_rows: int = 1) -> None:
        """Refuse, before a run, settings under which it would wait for ever.

        Args:
            batch_size: Rows of one sample.
            push_rows: Rows of one push.

        Raises:
            ConfigError: the capacity is below the batch size or the limiter's ``min_size``, or
                the limiter lets pushes and samples of these sizes block each other.
        """
        floors = ((batch_size, "the batch size"), (self._limiter.min_size, "limiter.min_size"))
        for needed, what in floors:
            if self._capacity < needed:
                raise ConfigError(
                    f"replay_buffer_size is {self._capacity}, less than {what} {needed}: nothing "
                    "could ever be sampled; make it larger",
                    path="replay_buffer_size",
                    least=needed,
                )
        self._limiter.check_sizes(push_rows, batch_size)

    def change_limiter(self, cfg: Mapping[str, Any]) -> None:
        """Put another limiter, or other settings of it, in force while others use the buffer.

        Args:
            cfg: As the ``limiter`` section of the config. Counts go on where they are.

        Raises:
            UnknownTypeError, UnknownKeyError, ConfigError: it is no limiter's config; the old one
                stays.
        """
        limiter = self._parts.limiter(cfg)
        with self._lock:
            self._check_open()
            limiter.load_state_dict(self._limiter.state_dict())
            self._use_limiter(limiter)
            self._gate.wake()

    # Writing ------------------------------------------------------------------------------
    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add rows, overwriting the oldest of a full buffer.

        What is pushed is copied and never written to. The first push decides what the buffer
        holds (``storage.type: auto``): columns for SampleBatch and dicts of numbers and arrays,
        objects otherwise.

        Args:
            data: A SampleBatch or a list (many rows), or anything else (one row, a tuple
                included). Of more rows than the capacity, the newest stay.
            cur_collector_envstep: Env steps collected so far.
            timeout_s: Seconds to wait for the limiter to admit the rows; None: not at all.

        Raises:
            SchemaMismatchError: a row does not fit those before; nothing was pushed.
            BufferFullError: the limiter did not admit the rows; nothing was pushed. The default
                limiter admits everything.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        # A dict is the hot case of a single row; a copy of 45 bytes must not make a batch first.
        single = type(data) is dict and not self._keeps_facts
        rows = data if single or isinstance(data, (SampleBatch, list)) else [data]
        n = 1 if single else len(rows)
        with self._lock:
            if self._closed:
                self._check_open()
            if n == 0:
                return
            if not self._limiter.can_insert(n):
                self._wait_to_insert(n, timeout_s)
            if single:
                self._insert_one(rows)
            else:
                self._insert(rows, n)
            if self._gate.waiting:
                self._gate.wake()
            departures = self._listeners.collect() if self._listeners.untold else None
        if departures:
            self._listeners.tell(departures)
        if monotonic() >= self._monitor.next_report_s:
            self._monitor.report(self.stats())

    def _insert(self, rows: Rows, n: int) -> None:
        """Store rows, or raise with nothing changed."""
        facts = None
        if self._keeps_facts:
            rows, facts = self._split(rows)
        if self._sampler_listens:
            self._sampler.check_rows(rows)
        storage = self._storage
        if storage is None:
            storage = self._parts.storage("array" if suits_arrays(rows) else "object")
        # From here on nothing fails: either all rows are in, or none and nothing changed.
        accepted = storage.accept(rows)
        self._storage = storage
        surplus = n - self._capacity
        where, leaving = self._remover.allot(n if surplus <= 0 else self._capacity)
        if leaving is not None:
            self._remove(leaving, "overwritten")
        if surplus > 0:
            # Rows that are overtaken within one push were in the buffer for no time at all.
            if self._listeners.active:
                overtaken = self._present(_own_copy(accepted[:surplus]))
                self._listeners.note(overtaken, "overwritten")
            if self._sampler_listens:
                self._sampler.on_skip(accepted[:surplus])
            accepted = accepted[surplus:]
            self._left["overwritten"] += surplus
            self._limiter.on_remove(surplus)
        storage.put(where, accepted)
        self._pushed += n
        self._limiter.on_insert(n)
        if self._sampler_listens:
            self._sampler.on_insert(where, accepted)
        if facts is not None:
            self._on_stored(where, facts, max(surplus, 0))

    def _insert_one(self, row: Any) -> None:
        """Store one row, or raise with nothing changed."""
        storage = self._storage
        if storage is None or self._sampler_listens:
            self._insert([row], 1)
            return
        accepted = storage.accept_one(row)
        position, leaves = self._remover.allot_one()
        if leaves:
            self._remove(slice(position, position + 1), "overwritten")
        storage.put_one(position, accepted)
        self._pushed += 1
        self._limiter.on_insert(1)

    def _remove(self, where: Where, reason: str) -> None:
        """Let go of rows at positions, oldest first; their positions are not free for it."""
        if self._keeps_facts:
            where = self._living(where)
        n = where.stop - where.start if isinstance(where, slice) else len(where)
        if self._listeners.active:
            self._listeners.note(self._take(where), reason)
        if self._sampler_listens:
            self._sampler.on_remove(where)
        self._left[reason] += n
        self._limiter.on_remove(n)

    def _wait_to_insert(self, n: int, timeout_s: float | None) -> None:
        if not self._wait_for(lambda: self._limiter.can_insert(n), timeout_s):
            raise BufferFullError(
                f"{self.instance_name}: its limiter does not admit {n} more rows before "
                f"more were sampled (waited {timeout_s or 0:g} s); push again later",
                rows=n,
                waited_s=timeout_s or 0.0,
            )

    def clear(self) -> None:
        """Drop all rows; ``push_count`` starts at 0 again, and the schema is free.

        Raises:
            BufferClosedError: the buffer is closed.
        """
        with self._lock:
            self._check_open()
            self._empty()
            self._gate.wake()
            departures = self._listeners.collect()
        self._listeners.tell(departures)

    def _empty(self) -> None:
        count = self._count()
        if self._storage is not None and self._listeners.active:
            self._listeners.note(self._present(self._contents()), "cleared")
        if self._parts.chooses_storage:
            self._storage = None
        elif self._storage is not None:
            self._storage.clear()
        self._remover.clear()
        self._sampler.clear()
        self._limiter.reset()
        self._forget()
        self._left["cleared"] += count
        self._pushed_before_clear = self._pushed

    def add_remove_listener(self, listener: RemoveListener) -> None:
        """Call ``listener(rows, reason)`` whenever rows leave, after each such operation.

        It gets a copy of the rows, oldest first (a SampleBatch, or a list for object storage),
        and why: ``"overwritten"``, ``"cleared"`` (also for :meth:`close` and a loaded state),
        ``"stale"`` or ``"used_up"``. It runs outside the buffer's lock; what it raises is logged
        and goes no further.
        """
        with self._lock:
            self._listeners.add(listener)

    def _contents(self) -> Rows:
        if self._storage is None or self._count() == 0:
            return []
        return self._storage.take(self._living(self._remover.oldest_first()))

    # For subclasses that keep facts about rows ------------------------------------------------
    def _split(self, rows: Rows) -> tuple[Rows, Any]:
        """Return the rows to store, and facts about them (or None) for :meth:`_on_stored`.

        Called before anything changed; may raise.
        """
        return rows, None

    def _on_stored(self, where: Where, facts: Any, first: int) -> None:
        """Take in the facts of rows ``first`` and later, which are stored at positions."""

    def _living(self, where: Where) -> Where:
        """Return those of some positions whose rows have not left yet."""
        return where

    def _forget(self) -> None:
        """Drop the facts of all rows."""

    # Serving ------------------------------------------------------------------------------
    def _serve(
        self,
        size: int,
        timeout_s: float | None,
        can_serve: Callable[[], bool],
        draw: Callable[[], _Batch],
    ) -> _Batch | None:
        """Draw in one critical section, once that is possible.

        Args:
            size: Rows that it takes, >= 1.
            timeout_s: Seconds to wait for it; None: not at all.
            can_serve: Whether there are rows enough; it may remove some. The limiter is asked
                besides.
            draw: Returns the batch.
        """

        def is_ready() -> bool:
            return can_serve() and self._limiter.can_sample(size)

        with self._lock:
            if self._closed:
                self._check_open()
            batch = None
            if is_ready() or self._wait_for(is_ready, timeout_s):
                batch = draw()
                self._limiter.on_sample(size)
                self._sampled += size
                if self._gate.waiting:
                    self._gate.wake()
            departures = self._listeners.collect() if self._listeners.untold else None
        if departures:
            self._listeners.tell(departures)
        if batch is None:
            _log.debug("%s cannot give %d of %d rows", self.instance_name, size, self.count())
        if monotonic() >= self._monitor.next_report_s:
            self._monitor.report(self.stats())
        return batch

    def _take(self, where: Where) -> Rows:
        assert self._storage is not None
        return self._present(self._storage.take(where))

    def _present(self, rows: Rows) -> Rows:
        """Return rows that were taken out of the storage in the form in which they are given."""
        return rows

    # Waiting and closing ------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._closed:
            raise BufferClosedError(
                f"{self.instance_name} is closed; make a new buffer", what=self.instance_name
            )

    def _wait_for(self, is_ready: Callable[[], bool], timeout_s: float | None) -> bool:
        def look() -> bool:
            self._check_open()
            return is_ready()

        # The limiter may be another one by the time it is asked.
        return self._gate.wait_for(look, timeout_s, lambda: self._limiter.retry_after_s())

    def start(self) -> None:
        """Do nothing: the buffer runs no thread. Kept for callers of the reference."""

    def close(self) -> None:
        """Drop all rows, wake whoever waits, and refuse further use; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._empty()
            self._closed = True
            self._storage = None
            self._gate.wake()
            departures = self._listeners.collect()
        self._listeners.tell(departures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _own_copy(accepted: Rows) -> Rows:
    # Accepted objects are copies already; accepted columns are the caller's.
    return accepted.copy() if isinstance(accepted, SampleBatch) else accepted
