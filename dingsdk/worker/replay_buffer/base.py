"""What the replay buffers share: pushing, removing, waiting, closing, keeping."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from dingsdk.data import SampleBatch
from dingsdk.errors import BufferClosedError, BufferFullError, ConfigError
from dingsdk.worker.replay_buffer import persistence, state
from dingsdk.worker.replay_buffer.interface import BufferStats, IBuffer
from dingsdk.worker.replay_buffer.monitor import ThroughputMonitor
from dingsdk.worker.replay_buffer.parts import Parts
from dingsdk.worker.replay_buffer.storage import Rows, Storage, suits_arrays

RemoveListener = Callable[[Rows, str], None]
"""Called with rows that left, oldest first, and why: ``overwritten`` or ``cleared``."""

_log = logging.getLogger(__name__)


class ReplayBuffer(IBuffer):
    """Storage x remover x limiter behind one lock; subclasses add how to sample.

    Every operation is one critical section. Remove listeners and logging run after it, in the
    thread that caused the removal, so they may call the buffer.
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

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
    ) -> None:
        self.exp_name = exp_name
        self.instance_name = instance_name
        self._parts = Parts(self.default_config(), cfg)
        self._capacity = self._parts.capacity
        self._remover = self._parts.remover()
        self._limiter = self._parts.limiter()
        self._sampler = self._parts.sampler()
        self._storage = None if self._parts.chooses_storage else self._parts.storage()
        self._monitor = ThroughputMonitor(instance_name, self._parts.period_s, tb_logger)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._listeners: list[RemoveListener] = []
        self._closed = False
        self._pushed = self._sampled = self._overwritten = self._cleared = 0
        self._pushed_before_clear = 0

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
        return 0 if self._closed else self._remover.count

    def stats(self) -> BufferStats:
        """Return consistent totals since the buffer was made."""
        with self._lock:
            return BufferStats(
                pushed=self._pushed,
                sampled=self._sampled,
                overwritten=self._overwritten,
                cleared=self._cleared,
                count=self.count(),
                capacity=self._capacity,
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
            return self._limiter.can_sample(n) and n <= self._remover.count

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

    # Writing ------------------------------------------------------------------------------
    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add rows, overwriting the oldest of a full buffer.

        What is pushed is copied and never written to. The first push decides what the buffer
        holds (``storage.type: auto``): columns for SampleBatch and dicts of numbers and arrays,
        objects otherwise.

        Args:
            data: A SampleBatch or a list (many rows), or anything else (one row, a tuple
                included). Of more rows than the capacity, the newest stay.
            cur_collector_envstep: Env steps collected so far; unused here.
            timeout_s: Seconds to wait for the limiter to admit the rows; None: not at all.

        Raises:
            SchemaMismatchError: a row does not fit those before; nothing was pushed.
            BufferFullError: the limiter did not admit the rows; nothing was pushed. The default
                limiter admits everything.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        rows = data if isinstance(data, (SampleBatch, list)) else [data]
        n = len(rows)
        with self._lock:
            if self._closed:
                self._check_open()
            if n == 0:
                return
            if not self._limiter.can_insert(n):
                self._wait_to_insert(n, timeout_s)
            gone = self._insert(rows, n)
            if self._waiting:
                self._changed.notify_all()
        if gone is not None:
            self._tell_listeners(gone, "overwritten")
        if self._monitor.is_due():
            self._monitor.report(self.stats())

    def _insert(self, rows: SampleBatch | list[Any], n: int) -> list[Rows] | None:
        """Store rows; return what left if there is anyone to tell."""
        storage = self._storage
        if storage is None:
            storage = self._parts.storage("array" if suits_arrays(rows) else "object")
        # From here on nothing fails: either all rows are in, or none and nothing changed.
        accepted = storage.accept(rows)
        self._storage = storage
        surplus = n - self._capacity
        where, leaving = self._remover.allot(n if surplus <= 0 else self._capacity)
        gone = None
        if leaving is not None:
            if self._listeners:
                gone = [storage.take(leaving)]
            removed = leaving.stop - leaving.start if isinstance(leaving, slice) else len(leaving)
            self._overwritten += removed
            self._limiter.on_remove(removed)
        if surplus > 0:
            # Rows that are overtaken within one push were in the buffer for no time at all.
            if self._listeners:
                gone = [*(gone or ()), _own_copy(accepted[:surplus])]
            accepted = accepted[surplus:]
            self._overwritten += surplus
            self._limiter.on_remove(surplus)
        storage.put(where, accepted)
        self._pushed += n
        self._limiter.on_insert(n)
        return gone

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
            gone = self._empty()
            self._changed.notify_all()
        self._tell_listeners(gone, "cleared")

    def _empty(self) -> list[Rows]:
        count = self._remover.count
        gone: list[Rows] = []
        if count and self._storage is not None and self._listeners:
            gone.append(self._storage.take(self._remover.oldest_first()))
        if self._parts.chooses_storage:
            self._storage = None
        elif self._storage is not None:
            self._storage.clear()
        self._remover.clear()
        self._limiter.reset()
        self._cleared += count
        self._pushed_before_clear = self._pushed
        return gone

    def add_remove_listener(self, listener: RemoveListener) -> None:
        """Call ``listener(rows, reason)`` whenever rows leave, after each such operation.

        It gets a copy of the rows, oldest first (a SampleBatch, or a list for object storage),
        and ``"overwritten"`` or ``"cleared"`` (also for :meth:`close` and a loaded state). It
        runs outside the buffer's lock; what it raises is logged and goes no further.
        """
        with self._lock:
            self._listeners.append(listener)

    def _tell_listeners(self, gone: Sequence[Rows], reason: str) -> None:
        for rows in gone:
            for listener in tuple(self._listeners):
                try:
                    listener(rows, reason)
                except Exception:
                    # The rows have left; failing the push that replaced them undoes nothing.
                    _log.exception("%s: a remove listener failed", self.instance_name)

    # Waiting and closing ------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._closed:
            raise BufferClosedError(
                f"{self.instance_name} is closed; make a new buffer", what=self.instance_name
            )

    def _wait_for(self, is_ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait, holding the lock only to look, until ready or the time is over."""
        if timeout_s is None:
            return False
        deadline = time.monotonic() + timeout_s
        # A limiter may widen its bounds on being asked: let the other side look again.
        if self._waiting:
            self._changed.notify_all()
        self._waiting += 1
        try:
            while not is_ready():
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return False
                self._changed.wait(rest)
                self._check_open()
            return True
        finally:
            self._waiting -= 1

    def start(self) -> None:
        """Do nothing: the buffer runs no thread. Kept for callers of the reference."""

    def close(self) -> None:
        """Drop all rows, wake whoever waits, and refuse further use; idempotent."""
        with self._lock:
            if self._closed:
                return
            gone = self._empty()
            self._closed = True
            self._storage = None
            self._changed.notify_all()
        self._tell_listeners(gone, "cleared")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Keeping ------------------------------------------------------------------------------
    def save_data(self, file: str) -> None:
        """Write all rows, oldest first, into the folder ``file`` (made with its parents).

        Columns become ``.npy`` files and objects lines of JSON, listed with their checksums in
        ``manifest.json``, which is replaced last: a reader sees the old rows or the new.

        Raises:
            RunFolderError: the folder cannot be written.
            SchemaMismatchError: object storage holds something other than JSON values and
                numeric arrays; names where.
            BufferClosedError: the buffer is closed.
        """
        with self._lock:
            self._check_open()
            rows = self._contents()
        persistence.save_rows(file, rows)

    def load_data(self, file: str) -> None:
        """Push all rows of a folder that :meth:`save_data` wrote; no limiter is asked.

        Raises:
            CheckpointMissingError: there is no such folder.
            CheckpointCorruptError, CheckpointVersionError: it was altered, or written by a
                version that this one does not read; nothing was pushed.
            SchemaMismatchError: its rows do not fit those in the buffer; nothing was pushed.
            BufferClosedError: the buffer is closed.
        """
        rows = persistence.load_rows(file)
        self._push_unlimited(rows)

    def _push_unlimited(self, rows: Rows) -> None:
        with self._lock:
            self._check_open()
            gone = self._insert(rows, len(rows)) if len(rows) else None
            self._changed.notify_all()
        self._tell_listeners(gone or (), "overwritten")

    def _contents(self) -> Rows:
        if self._storage is None or self._remover.count == 0:
            return []
        return self._storage.take(self._remover.oldest_first())

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of rows, counters and random state, taken at one moment.

        Keys: ``version``, ``capacity``, ``storage`` (``array``, ``object`` or None if empty),
        ``data`` (columns or a list, oldest first), ``tail``, ``valid_count``, ``push_count``,
        ``sampler``, ``limiter``.

        Raises:
            BufferClosedError: the buffer is closed.
        """
        with self._lock:
            self._check_open()
            return {
                **state.describe_rows(self._contents()),
                "version": state.VERSION,
                "capacity": self._capacity,
                **self._remover.state_dict(),
                "push_count": self.push_count,
                "sampler": self._sampler.state_dict(),
                "limiter": self._limiter.state_dict(),
            }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, so that the next samples are those of its buffer.

        A state of ``data`` alone (demonstrations: rows, or columns) is pushed instead.

        Raises:
            CheckpointVersionError: it has another version or capacity.
            CheckpointCorruptError: a part is missing or contradicts the others. In all cases of
                an error the buffer is unchanged.
            BufferClosedError: the buffer is closed.
        """
        if set(state_dict) == {"data"}:
            self._push_unlimited(state.rows_of(state_dict["data"]))
            return
        rows = state.check(state_dict, self._capacity)
        # All parts are made aside, so that a wrong one changes nothing.
        parts = self._parts
        remover, limiter, sampler = parts.remover(), parts.limiter(), parts.sampler()
        remover.load_state_dict(state_dict)
        limiter.load_state_dict(state_dict["limiter"])
        sampler.load_state_dict(state_dict["sampler"])
        state.check_count(rows, remover.count)
        storage: Storage | None = None
        if not parts.chooses_storage:
            storage = parts.storage()
        elif len(rows):
            storage = parts.storage(state_dict["storage"])
        if storage is not None and len(rows):
            state.fill(storage, remover, rows)
        with self._lock:
            self._check_open()
            gone = self._empty()
            self._remover, self._limiter, self._sampler = remover, limiter, sampler
            self._storage = storage
            # The rows of the state count as pushed here, so that totals keep adding up.
            self._pushed += len(rows)
            self._pushed_before_clear = self._pushed - state_dict["push_count"]
            self._changed.notify_all()
        self._tell_listeners(gone, "cleared")


def _own_copy(accepted: Rows) -> Rows:
    # Accepted objects are copies already; accepted columns are the caller's.
    return accepted.copy() if isinstance(accepted, SampleBatch) else accepted
