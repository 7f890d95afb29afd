"""The parts of a replay buffer behind one lock: totals, limits, serving, waiting, closing."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from dingsdk.errors import BufferClosedError, ConfigError
from dingsdk.worker.replay_buffer.gate import Gate
from dingsdk.worker.replay_buffer.interface import BufferStats, IBuffer
from dingsdk.worker.replay_buffer.limiter import Limiter
from dingsdk.worker.replay_buffer.parts import Parts
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.storage import Rows, Storage
from dingsdk.worker.replay_buffer.used_data import UsedData
from dingsdk.worker.replay_buffer.watching.listeners import REASONS, RemoveListeners
from dingsdk.worker.replay_buffer.watching.samples import SampledStats, SampleMonitor
from dingsdk.worker.replay_buffer.watching.throughput import ThroughputMonitor

_log = logging.getLogger(__name__)


class BufferCore(IBuffer):
    """Storage x sampler x remover x limiter behind one lock.

    Every operation is one critical section. Remove listeners and logging run after it, in the
    thread that caused the removal, so they may call the buffer. A subclass draws in
    :meth:`_serve`.

    Attributes:
        used_data: Deletes the files that rows name once these left, where the config says
            ``enable_track_used_data``; else None. Lease there what is still being read.
    """

    config: ClassVar[dict[str, Any]] = {
        "replay_buffer_size": 10000,
        "deepcopy": False,
        "enable_track_used_data": False,
        "data_root": None,
        "periodic_thruput_seconds": 60,
        "seed": None,
        "storage": {"type": "auto"},
        "sampler": {"type": "uniform"},
        "remover": {"type": "fifo"},
        "limiter": {"type": "min_size", "min_size": 1},
    }

    sampler_family: ClassVar[type[Sampler]] = Sampler
    """What the sampler of this kind of buffer has to be."""
    parts_type: ClassVar[type[Parts]] = Parts
    """What makes its parts from the config."""

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
    ) -> None:
        self.exp_name = exp_name
        self.instance_name = instance_name
        self._parts = self.parts_type(
            self.default_config(), self._configure(cfg), self.sampler_family
        )
        self._capacity = self._parts.capacity
        self._remover = self._parts.remover()
        self._use_limiter(self._parts.limiter())
        self._use_sampler(self._parts.sampler())
        self._use_storage(None if self._parts.chooses_storage else self._parts.storage())
        self._monitor = ThroughputMonitor(instance_name, self._parts.period_s, tb_logger)
        self._sample_monitor = self._new_sample_monitor(tb_logger)
        self._report_due = False
        self._gate = Gate()
        self._lock = self._gate.lock
        self._listeners = RemoveListeners(instance_name)
        root = self._parts.data_root
        self.used_data = UsedData(root) if root is not None else None
        if self.used_data is not None:
            self._listeners.add(self.used_data.on_removed)
        self._closed = False
        self._pushed = self._sampled = self._pushed_before_clear = 0
        self._left = dict.fromkeys(REASONS, 0)
        self._begin()

    def _configure(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read what this kind of buffer needs of the config; return what the parts get.

        Raises:
            ConfigError, ConfigTypeError: a value that cannot work.
        """
        return cfg

    def _begin(self) -> None:
        """Do what is left to do when all parts are there."""

    def _use_storage(self, storage: Storage | None) -> None:
        self._storage = storage
        self._commits = storage is not None and type(storage).commit is not Storage.commit

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

    def sampled_stats(self) -> SampledStats:
        """Return what the rows of the latest samples were like, such as their age, and rates."""
        with self._lock:
            return self._sample_monitor.stats(self._pushed, self._sampled)

    def _new_sample_monitor(self, tb_logger: Any) -> SampleMonitor:
        return SampleMonitor(self.instance_name, tb_logger=tb_logger)

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

    # Serving ------------------------------------------------------------------------------
    def _serve(
        self,
        size: int,
        timeout_s: float | None,
        draw: Callable[..., Rows | None],
        *args: Any,
    ) -> Rows | None:
        """Draw in one critical section, once that is possible.

        Args:
            size: Rows that it takes, >= 1.
            timeout_s: Seconds to wait for it; None: not at all.
            draw: Returns the batch, or None where there are too few rows; it may remove some.
                Called when the limiter admits the sample.
            args: What it is called with.
        """
        with self._lock:
            if self._closed:
                self._check_open()
            batch = draw(*args) if self._limiter.can_sample(size) else None
            if batch is None and timeout_s is not None:
                batch = self._wait_to_draw(size, timeout_s, draw, *args)
            if batch is not None:
                self._limiter.on_sample(size)
                self._sampled += size
                if self._gate.waiting:
                    self._gate.wake()
            departures = self._listeners.collect() if self._listeners.untold else None
        if departures:
            self._listeners.tell(departures)
        if batch is None:
            _log.debug("%s cannot give %d of %d rows", self.instance_name, size, self.count())
        if self._report_due:
            self._report_due = False
            self._sample_monitor.report(self.sampled_stats(), self._pushed)
        if monotonic() >= self._monitor.next_report_s:
            self._monitor.report(self.stats())
        return batch

    def _wait_to_draw(
        self, size: int, timeout_s: float, draw: Callable[..., Rows | None], *args: Any
    ) -> Rows | None:
        batch: Rows | None = None

        def has_drawn() -> bool:
            nonlocal batch
            batch = draw(*args) if self._limiter.can_sample(size) else None
            return batch is not None

        self._wait_for(has_drawn, timeout_s)
        return batch

    def _look_at(self, facts: Mapping[str, NDArray[Any]], size: int) -> None:
        """Take in what the rows being drawn are like; worth calling where the monitor says so."""
        self._report_due = self._sample_monitor.record(facts, self._pushed, self._sampled + size)

    def _take(self, where: Where) -> Rows:
        assert self._storage is not None
        return self._present(self._storage.take(where))

    def _present(self, rows: Rows) -> Rows:
        """Return rows that were taken out of the storage in the form in which they are given."""
        return rows

    def _no_rows(self) -> list[Any]:
        """Return the sample of size 0, which an open buffer can always give."""
        with self._lock:
            self._check_open()
        return []

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock of an open buffer; then wake who waits, and tell of the rows that left."""
        with self._lock:
            self._check_open()
            yield
            self._gate.wake()
            departures = self._listeners.collect()
        self._listeners.tell(departures)

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

    @abstractmethod
    def _empty(self) -> None:
        """Drop all rows."""

    def close(self) -> None:
        """Drop all rows, wake whoever waits, and refuse further use; idempotent.

        Rows that lie on disk stay there, for a buffer that reopens them.
        """
        with self._lock:
            if self._closed:
                return
            if not self._commits:
                self._empty()
            self._closed = True
            if self._storage is not None:
                self._storage.close()
            self._storage = None
            self._gate.wake()
            departures = self._listeners.collect()
        self._listeners.tell(departures)
        if self.used_data is not None:
            self.used_data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
