"""The base class of all replay buffers: five parts behind one lock."""

from __future__ import annotations

import copy
import logging
import os
import secrets
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Section
from dingsdk.data import SampleBatch
from dingsdk.data.columns import mismatch
from dingsdk.errors import (
    BufferClosedError,
    BufferFullError,
    CheckpointCorruptError,
    ConfigError,
    NotSavableError,
    SchemaMismatchError,
    wrong_type,
)
from dingsdk.runtime.deadline import Closing, checked_timeout
from dingsdk.worker.replay_buffer import persistence
from dingsdk.worker.replay_buffer.config import (
    PATH,
    BufferSection,
    PartFactory,
    check_order,
    class_of_part,
    memory_for,
)
from dingsdk.worker.replay_buffer.interface import BufferStats, IBuffer, RowListener
from dingsdk.worker.replay_buffer.limiter import MinSizeLimiter
from dingsdk.worker.replay_buffer.listeners import Listeners, RemoveFunction
from dingsdk.worker.replay_buffer.metrics import SampleMonitor, ThroughputMonitor
from dingsdk.worker.replay_buffer.origins import Origins
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.sampler.uniform import UniformSampler
from dingsdk.worker.replay_buffer.state import (
    ColumnCopy,
    RowCopy,
    TableSnapshot,
    check_state,
    rows_of,
    wrong_data,
)
from dingsdk.worker.replay_buffer.storage import Rows, Storage, Where, suits_arrays

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.row_metadata import RowMetadata
    from dingsdk.worker.replay_buffer.storage.arrays import Layout

_Found = TypeVar("_Found")
_log = logging.getLogger(__name__)

_REASONS = ("cleared", "stale", "used_up")
"""The reasons for which rows leave without being overwritten."""
_NO_FACTS: Mapping[str, NDArray[Any]] = {}
_ROWS_AT_ONCE = 1 << 16
"""Rows per piece when all stored rows are read."""


class Contents:
    """The five parts of a table, and what changes several of them at once.

    Every method is called under the lock of the table. A push has two steps. *Prepare* may raise,
    and changes nothing: the metadata removes keys that are not stored, the sampler and the
    listeners check the rows, the storage accepts them. *Commit* cannot fail: the remover assigns
    positions, the storage writes, then metadata, sampler and limiter are updated.

    Args:
        factory: Makes remover, limiter and sampler.
        metadata: Stores facts about the rows; None if the kind of buffer needs none.
        make_storage: Makes a storage of a type, or of the type in the config if that is None.
        listeners: Told of rows that are added or leave.

    Attributes:
        storage: None before the first push, if that decides its type.
        count: Rows that have not left.
        pushed: Rows added so far.
        left: Rows that left without being overwritten, by reason.
        lacks_rows: Whether the limiter admitted the latest sample, but there were too few rows for
            it. The next push is admitted then whatever the limiter says, as it would wait for that
            sample.
        history: Random name of the time since the table was made, cleared or loaded a state.
        origins: Counts the rows of each payload that leave, if the table is the home of a buffer.
        copies: Copies of columns and rows, for saves under way.
        plain_layout: What a push writes to if it calls no other part than the remover and the
            limiter; None if it calls others too, or there is no row yet.
        checks_draws: Whether to check what the sampler draws: a plugin's sampler could draw
            positions that hold no row, so uninitialised memory.
    """

    def __init__(
        self,
        factory: PartFactory,
        metadata: RowMetadata | None,
        make_storage: Callable[[str | None], Storage],
        listeners: Listeners,
    ) -> None:
        self.factory, self.metadata, self.listeners = factory, metadata, listeners
        self.remover, self.limiter = factory.remover(), factory.limiter()
        self.sampler = factory.sampler()
        self.storage: Storage | None = None
        self._make_storage = make_storage
        self.count = self.pushed = 0
        self.left = dict.fromkeys(_REASONS, 0)
        self.lacks_rows = False
        self.history = secrets.token_hex(16)
        self.origins: Origins | None = None
        self.copies: tuple[ColumnCopy | RowCopy, ...] = ()
        self.choose_push_path()

    def new_storage(self, kind: str | None = None) -> Storage:
        """Return a storage of the type ``kind``, or of the type in the config."""
        storage = self._make_storage(kind)
        if storage.needs_fifo:
            remover = self.factory.full["remover"]["type"]
            check_order(self.remover.is_fifo, "this storage", remover, f"{PATH}.remover.type")
        return storage

    def choose_push_path(self) -> None:
        """Set ``plain_layout`` and ``checks_draws``; called after parts or listeners change."""
        self.checks_draws = not type(self.sampler).__module__.startswith("dingsdk.")
        is_plain = (
            type(self.sampler) is UniformSampler
            and type(self.limiter) is MinSizeLimiter
            and not (self.metadata or self.listeners.all or self.copies)
            and self.origins is None
        )
        storage = self.storage if is_plain else None
        self.plain_layout = None if storage is None else storage.layout

    def can_insert(self, n: int) -> bool:
        """Whether ``n`` more rows are admitted now."""
        return self.limiter.can_insert(n) or self.lacks_rows

    def insert_plain(self, layout: Layout, rows: Any, n: int) -> None:
        """Do the same as :meth:`insert` in 0.8 of its time, for rows that fit ``plain_layout``."""
        where, _ = self.remover.allot(n)
        if type(rows) is SampleBatch:
            layout.put(where, rows.columns)
        else:
            layout.put_row(where.start if type(where) is slice else int(where[0]), rows)
        self.pushed += n
        limiter, count = self.limiter, self.count
        limiter.inserts += n
        if count < self.remover.capacity:
            self.count = limiter.size = min(count + n, self.remover.capacity)

    def insert(self, rows: Any, n: int) -> None:
        """Store ``n`` rows (a dict is one), or raise and change nothing."""
        # Prepare: may raise, changes nothing.
        given, accepted, metadata = rows, None, self.metadata
        layout: Layout | None = None
        try:
            rows, facts = [rows] if type(rows) is dict else rows, None
            if metadata is not None:
                rows, facts = metadata.prepare(rows)
            self.sampler.check(rows)
            for listener in self.listeners.all:
                listener.check(rows)
            storage = self.storage
            if storage is None:
                storage = self.new_storage("array" if suits_arrays(rows) else "object")
            # Making a batch of a row takes 15 us, writing it into the columns 1 us.
            if type(given) is dict and (layout := storage.layout) and not layout.fits_row(rows[0]):
                layout = None
            if layout is None:
                accepted = storage.accept(rows)
        except RecursionError as error:
            found = "a row that is nested too deeply, or contains itself"
            raise mismatch("a push", "", "rows", found) from error
        if not self.pushed:
            self._check_columns(rows)
        self.storage = storage
        if n > self.remover.capacity:
            # Each piece replaces the previous one. All rows were checked, so none is refused.
            for start in range(0, n, self.remover.capacity):
                piece = given[start : start + self.remover.capacity]
                self.insert(piece, len(piece))
            return

        # Commit: cannot fail.
        where, replaced = self.remover.allot(n)
        if replaced is not None:
            self._note_left(replaced, "overwritten")
        if self.origins is not None:
            self.origins.insert(where)
        if layout is not None:
            layout.put_row(where.start if type(where) is slice else int(where[0]), rows[0])
        else:
            storage.put(where, accepted)
        if not self.count:
            self.choose_push_path()  # the first rows make the columns
        self.pushed += n
        count = self.count + n
        self.count = count if count < self.remover.capacity else self.remover.capacity
        priorities = None
        if metadata is not None and facts is not None:
            metadata.insert(where, facts)
            self.count, priorities = metadata.live, facts.priorities
        self.sampler.on_insert(where, rows, priorities)
        for each in self.copies:
            each.note(where)
        if self.listeners.all:
            self.listeners.on_insert(rows)
        self.limiter.on_insert(n)
        self.limiter.size = self.count
        self.lacks_rows = False

    def _check_columns(self, rows: Any) -> None:
        """Refuse the first rows if a part needs a column that they lack."""
        found = rows if type(rows) is dict else getattr(rows, "columns", rows[0])
        for name in (*self.sampler.needs_columns, *self.remover.needs_columns):
            if isinstance(found, Mapping) and name not in found:
                needed = f"the column {name!r}, which the replay buffer needs"
                raise mismatch("a push", name, needed, f"the columns {', '.join(found)}")

    def insert_saved(self, rows: Rows, facts: Mapping[str, NDArray[Any]]) -> None:
        """Store rows of a saved buffer, and those of their facts that the metadata has."""
        metadata, n = self.metadata, len(rows)
        self.insert(rows if metadata is None else metadata.with_facts(rows, facts), n)
        if "use" in facts and metadata is not None:
            count, n = self.remover.count, min(n, self.remover.capacity)
            where = self.remover.by_age(np.arange(count - n, count))
            metadata.set_uses(where, facts["use"][-n:])
            self.use_up(where)

    def track_origins(self) -> Origins:
        """Count the rows of each payload that leave from now on; there must be no rows yet.

        Raises:
            ConfigError: there is not enough memory.
        """
        with memory_for(self.remover.capacity):
            self.origins = Origins(self.remover.capacity, notes_rows=self.limits_uses)
        self.choose_push_path()
        return self.origins

    @property
    def limits_uses(self) -> bool:
        """Whether rows leave after a number of uses."""
        return self.metadata is not None and self.metadata.limits_uses

    def _note_left(self, where: Where, reason: str) -> None:
        """Note for listeners and origins that the rows at positions, oldest first, leave."""
        departures, storage = self.listeners.departures, self.storage
        if departures is not None and storage is not None:
            living = self.living_at(where)
            if isinstance(living, slice) or len(living):
                departures.append((storage.take(living), reason))
        if self.origins is not None:
            self.origins.remove(where, reason)

    def remove(self, where: NDArray[np.int64], reason: str) -> None:
        """Remove rows (positions oldest first) that leave without replacement."""
        self._note_left(where, reason)
        cast("RowMetadata", self.metadata).remove(where)
        self.sampler.on_remove(where)
        for each in self.copies:
            each.note(where)
        self.left[reason] += len(where)
        self.limiter.size = self.count = self.count - len(where)

    def use_up(self, where: NDArray[np.int64]) -> None:
        """Remove those of the rows that were sampled ``max_use`` times."""
        used_up = cast("RowMetadata", self.metadata).used_up(where)
        if len(used_up):
            self.remove(used_up, "used_up")

    def living(self) -> Iterator[NDArray[np.int64]]:
        """Return the positions of all rows that have not left early, oldest first, in pieces."""
        count = self.remover.count
        for start in range(0, count, _ROWS_AT_ONCE):
            ages = np.arange(start, min(start + _ROWS_AT_ONCE, count), dtype=np.int64)
            living = cast("NDArray[np.int64]", self.living_at(self.remover.by_age(ages)))
            if len(living):
                yield living

    def living_at(self, where: Where) -> Where:
        """Return those of the positions whose rows have not left early."""
        return where if self.metadata is None else self.metadata.living(where)

    def clear(self) -> None:
        """Remove all rows, and the schema that the first rows set."""
        if self.listeners.departures is not None or self.origins is not None:
            for where in self.living():
                self._note_left(where, "cleared")
        self.left["cleared"] += self.count
        self.count = 0
        self.plain_layout = None
        self.history = secrets.token_hex(16)
        if self.factory.chooses_storage:
            self.storage = None
        elif self.storage is not None:
            self.storage.clear()
        self.remover.clear()
        self.sampler.clear()
        self.limiter.reset()
        if self.metadata is not None:
            self.metadata.clear()

    def close(self) -> None:
        """Remove all rows, and release the storage."""
        self.clear()
        if self.storage is not None:
            self.storage.close()
        self.storage = None

    def restored(
        self, saved: Mapping[str, Any], count: int, pieces: Callable[[], Iterable[Rows]]
    ) -> Contents:
        """Return new parts with a saved state of ``count`` rows; needs no lock.

        Raises:
            CheckpointVersionError, CheckpointCorruptError: the state is wrong.
        """
        check_state(saved, self.remover.capacity)
        new = Contents(self.factory, None, self._make_storage, self.listeners)
        new.remover.load_state_dict(saved["remover"])
        new.limiter.load_state_dict(saved["limiter"])
        new.sampler.load_state_dict(saved["sampler"])
        kind, held = saved["storage"], new.remover.count
        if count != held or (kind is None) != (count == 0):
            raise CheckpointCorruptError(
                f"the buffer state has {count} rows, counts {held}, and its storage is {kind!r}"
            )
        if self.metadata is not None:
            new.metadata = self.metadata.restored(saved["metadata"], count)
        for key, value in new.computed().items():
            if saved.get(key) != value:
                raise CheckpointCorruptError(
                    f"{key} is {saved.get(key)!r}, but the parts of the state give {value!r}"
                )
        if kind is not None or not self.factory.chooses_storage:
            new.storage = new.new_storage(kind if self.factory.chooses_storage else None)
        first = 0
        for rows in pieces():
            where = new.remover.by_age(np.arange(first, first + len(rows), dtype=np.int64))
            first += len(rows)
            if new.storage is not None:
                new.storage.put(where, new.storage.accept(rows))
            new.sampler.on_restore(where, rows)
            for listener in self.listeners.all:
                listener.check(rows)
        new.count = held if new.metadata is None else new.metadata.live
        return new

    def replace(self, new: Contents) -> None:
        """Remove all rows, and continue with the parts of :meth:`restored`.

        Its rows count as pushed now, so that totals add up.
        """
        self.close()
        self.storage, self.remover, self.limiter = new.storage, new.remover, new.limiter
        self.metadata, self.sampler = new.metadata, new.sampler
        self.choose_push_path()
        held = self.remover.count
        self.pushed += held
        self.limiter.size = self.count = new.count
        self.left["used_up"] += held - self.count  # a state does not tell why rows left early
        for where in self.living() if self.listeners.all else ():
            self.listeners.on_insert(cast("Storage", self.storage).take(where))
        if self.metadata is not None and held:
            # Remove rows that are used up under the settings of this buffer.
            for where in list(self.living()):
                self.use_up(where)

    def computed(self) -> dict[str, Any]:
        """Return the entries of a state that are computed from the parts."""
        remover, metadata, held = self.remover, self.metadata, self.remover.count
        newest = remover.by_age(np.arange(held - 1, held, dtype=np.int64)) if held else [-1]
        tail = (int(newest[0]) + 1) % remover.capacity
        ids = {"next_unique_id": metadata.next_id} if metadata is not None else {}
        return {"tail": tail, "valid_count": held, **ids}


class Table(IBuffer, Closing):
    """Storage, sampler, remover, limiter and row metadata behind one lock.

    After ``os.fork``, the child has a copy that works on its own; it is closed if a thread was
    using the table during the fork. Use a table whose rows are on disk in one process only.

    Every operation is one critical section. After it, in the same thread, listeners are called
    for removed rows and logs are written. The listeners may call the buffer.
    """

    Config: ClassVar[type[Section]] = BufferSection

    needs_fifo: ClassVar[bool] = False
    """Whether this kind of buffer needs rows to leave in the order in which they came."""
    clear_resets_push_count: ClassVar[bool] = True
    _why_closed = "is closed"

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
    ) -> None:
        self.exp_name = exp_name
        self.instance_name = instance_name
        factory = PartFactory(self.Config, cfg)
        # Checked before the sections are changed, so that errors name the keys of the user.
        self.check_config(factory.full, "")
        factory.full = self._configured(factory.full)
        # Complete already, and checked when the factory was made.
        self._cfg = cast(Any, msgspec.convert(factory.full, self.Config))
        self._capacity = factory.capacity
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False
        self._sampled = self._pushed_before_clear = 0
        self._listeners = Listeners(instance_name)
        seconds = self._cfg.periodic_thruput_seconds
        self._throughput = ThroughputMonitor(instance_name, seconds, tb_logger)
        self._sample_monitor = self._new_sample_monitor(tb_logger)
        with memory_for(self._capacity):
            metadata = self._new_metadata()
            self._contents = Contents(factory, metadata, self._new_storage, self._listeners)
        if not factory.chooses_storage:
            self._contents.storage = self._contents.new_storage()
        if self._cfg.enable_track_used_data:
            from dingsdk.worker.replay_buffer.used_data import UsedData

            self.add_listener(UsedData(self._cfg.data_root))
        _tables.add(self)

    @classmethod
    def sampler_family(cls) -> type[Sampler]:
        """Return the class that the sampler must be an instance of."""
        return Sampler

    @classmethod
    def check_config(cls, section: Mapping[str, Any], path: str) -> None:
        """Check that the sampler and the remover fit this kind of buffer.

        Raises:
            ConfigError: they do not.
        """

        sampler, kind, key = class_of_part(section, "sampler", path)
        family = cls.sampler_family()
        if isinstance(sampler, type) and not issubclass(sampler, family):
            raise ConfigError(
                f"{key} {kind!r} is no {family.__name__}, which this type of buffer draws with; "
                "choose another sampler or buffer type",
                path=key,
            )
        if cls.needs_fifo:
            remover, kind, key = class_of_part(section, "remover", path)
            check_order(getattr(remover, "is_fifo", True), f"type {section['type']}", kind, key)

    @classmethod
    def _configured(cls, full: dict[str, Any]) -> dict[str, Any]:
        """Return the config with keys of this kind of buffer replaced by settings of its parts."""
        return full

    def _new_metadata(self) -> RowMetadata | None:
        """Return what stores facts about the rows; None if the kind of buffer needs none."""
        return None

    def _new_sample_monitor(self, tb_logger: Any) -> SampleMonitor:
        return SampleMonitor(self.instance_name, tb_logger=tb_logger)

    def _new_storage(self, kind: str | None = None) -> Storage:
        """Create a storage of the type ``kind``, or of the type in the config."""
        return self._contents.factory.storage(kind)

    @property
    def replay_buffer_size(self) -> int:
        return self._capacity

    @property
    def push_count(self) -> int:
        """Rows pushed since the buffer was made or cleared, overwritten ones included."""
        return self._contents.pushed - self._pushed_before_clear

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def count(self) -> int:
        """Return how many rows the buffer holds; 0 once it is closed."""
        return 0 if self._closed else self._contents.count

    def stats(self) -> BufferStats:
        """Return consistent totals since the buffer was made."""
        with self._lock:
            contents = self._contents
            pushed, count, left = contents.pushed, contents.count, contents.left
            return BufferStats(
                pushed=pushed,
                sampled=self._sampled,
                overwritten=pushed - count - sum(left.values()),
                count=count,
                capacity=self._capacity,
                **left,
            )

    def sampled_stats(self) -> dict[str, float]:
        """Return mean, least and greatest values over the rows of the latest recorded samples.

        Returns:
            ``age_mean``, ``age_min``, ``age_max`` (rows pushed after a row), and the same of
            ``use`` (times sampled), ``priority`` and ``staleness`` (learner iterations, where they
            are known), if the kind of buffer records them.
        """
        with self._lock:
            return self._sample_monitor.stats()

    def can_push(self, n: int) -> bool:
        """Whether the limiter admits ``n`` more rows now."""
        n = checked_size(n, "a number of rows")
        with self._lock:
            self._check_open()
            return self._contents.can_insert(n)

    def can_sample(self, n: int) -> bool:
        """Whether ``n`` distinct rows could be sampled now."""
        n = checked_size(n)
        with self._lock:
            self._check_open()
            return self._contents.limiter.can_sample(n) and n <= self._contents.count

    def change_limiter(self, cfg: Mapping[str, Any]) -> None:
        """Replace the limiter, or its settings, and keep its counters; safe while in use.

        Raises:
            UnknownTypeError, UnknownKeyError, ConfigError: ``cfg`` is not a valid ``limiter``
                section; the old limiter is kept.
        """
        limiter = self._contents.factory.limiter(cfg)
        with self._lock:
            self._check_open()
            contents = self._contents
            limiter.load_state_dict(contents.limiter.state_dict())
            limiter.size = contents.count
            contents.limiter = limiter
            contents.choose_push_path()
            self._changed.notify_all()

    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add rows; a full buffer overwrites the rows that the remover chooses (the oldest).

        Pushed data is copied and never written to. The first push decides what the buffer
        holds (``storage.type: auto``): columns for SampleBatch and dicts of numbers and arrays,
        objects otherwise.

        Args:
            data: A SampleBatch or a list (many rows), or anything else (one row, a tuple
                included). If there are more rows than the capacity, the newest stay.
            cur_collector_envstep: Env steps collected so far.
            timeout_s: Seconds to wait for the limiter to admit the rows; None: do not wait.

        Raises:
            ConfigError, ConfigTypeError: the timeout is NaN or not a number; nothing was pushed.
            SchemaMismatchError: a row does not fit the stored rows; nothing was pushed.
            BufferFullError: the limiter did not admit the rows; nothing was pushed. The default
                limiter admits everything.
            BufferClosedError: the buffer is closed, or was closed during the wait.
        """
        # A dict is one row; making a batch of it would take ten times as long as storing it.
        kind = type(data)
        if kind is SampleBatch:
            rows, n = data, data.length
        elif kind is dict:
            rows, n = data, 1
        elif isinstance(data, (SampleBatch, list)):
            rows, n = data, len(data)
        else:
            rows, n = [data], 1
        with self._lock:
            contents = self._contents
            if (
                (layout := contents.plain_layout) is not None
                and 0 < n <= contents.count
                and (
                    (kind is SampleBatch and layout.fits(data.columns))
                    or (kind is dict and layout.fits_row(data))
                )
            ):
                contents.insert_plain(layout, data, n)
                departures = None
            else:
                if timeout_s is not None:
                    timeout_s = checked_timeout(timeout_s)
                if self._closed:
                    self._check_open()
                if n == 0:
                    return
                if not contents.can_insert(n):
                    self._wait_to_insert(n, timeout_s)
                contents.insert(rows, n)
                departures = listeners.take() if (listeners := self._listeners).departures else None
            if self._waiting:
                self._changed.notify_all()
        if departures:
            self._listeners.on_remove(departures)
        if monotonic() >= self._throughput.next_report_s:
            self._throughput.report(self.stats())

    def end_trajectory(self) -> None:
        with self._lock:
            self._check_open()
            self.end_newest_trajectory()

    def end_newest_trajectory(self) -> None:
        """As :meth:`end_trajectory`, for callers that hold the lock, such as listeners."""
        self._contents.sampler.end_trajectory()

    def _wait_to_insert(self, n: int, timeout_s: float | None) -> None:
        waited_s, can_insert = timeout_s or 0.0, self._contents.can_insert
        if timeout_s is None or not self._wait_for(lambda: can_insert(n) or None, timeout_s):
            raise BufferFullError(
                f"{self.instance_name}: its limiter does not admit {n} more rows before "
                f"more were sampled (waited {waited_s:g} s); push again later",
                rows=n,
                waited_s=waited_s,
            )

    def push_unlimited(
        self, rows: Rows, *, is_counted: bool = False, facts: Mapping[str, NDArray[Any]] = _NO_FACTS
    ) -> None:
        """Push rows without asking the limiter.

        Args:
            rows: The rows.
            is_counted: Whether the limiter has counted them before.
            facts: Facts about the rows in a saved buffer, which the metadata keeps if it has them.
        """
        with self._change():
            limiter = self._contents.limiter
            counts = limiter.state_dict()
            if len(rows):
                self._contents.insert_saved(rows, facts)
            if is_counted:
                limiter.load_state_dict(counts)

    @abstractmethod
    def sample(self, *args: Any, **kwargs: Any) -> SampleBatch | list[Any] | None:
        """Return rows as the caller's own copies; subclasses define how rows are drawn."""

    def _serve(
        self, size: int, timeout_s: float | None, draw: Callable[..., Rows | None], *args: Any
    ) -> Rows | None:
        """Draw a batch in one critical section.

        Args:
            size: Rows to draw, as the limiter counts them.
            timeout_s: Seconds to wait until the draw is possible; None: do not wait.
            draw: Called when the limiter admits the sample; returns the batch, or None if there
                are too few rows.
            args: Arguments of ``draw``.
        """

        def attempt() -> Rows | None:
            contents = self._contents
            if not contents.limiter.can_sample(size):
                return None
            batch, lacked_rows = draw(*args), contents.lacks_rows
            contents.lacks_rows = batch is None
            if contents.lacks_rows and not lacked_rows and self._waiting:
                self._changed.notify_all()  # a push may wait
            return batch

        if timeout_s is not None:
            timeout_s = checked_timeout(timeout_s)
        with self._lock:
            if self._closed:
                self._check_open()
            if size == 0:
                return []
            batch = attempt()
            if batch is None and timeout_s is not None:
                batch = self._wait_for(attempt, timeout_s)
            if batch is not None:
                self._contents.limiter.on_sample(size)
                self._sampled += size
                if self._waiting:
                    self._changed.notify_all()
            departures = listeners.take() if (listeners := self._listeners).departures else None
        if departures:
            listeners.on_remove(departures)
        if batch is None:
            _log.debug("%s cannot give %d of %d rows", self.instance_name, size, self.count())
        if self._sample_monitor.report_due:
            self._sample_monitor.report(self.sampled_stats(), self._contents.pushed)
        if monotonic() >= self._throughput.next_report_s:
            self._throughput.report(self.stats())
        return batch

    def _wait_for(self, attempt: Callable[[], _Found], timeout_s: float) -> _Found | None:
        """Call ``attempt`` until it gives a result or time is over; release the lock to wait."""
        deadline = monotonic() + timeout_s
        # Asking the limiter may have changed what it admits: wake other threads to try again.
        self._changed.notify_all()
        self._waiting += 1
        try:
            while (found := attempt()) is None:
                rest_s = deadline - monotonic()
                if rest_s <= 0:
                    return None
                # The limiter's answer may change with time alone.
                soon_s = self._contents.limiter.retry_after_s()
                self._changed.wait(rest_s if soon_s is None else min(rest_s, max(soon_s, 0.001)))
                self._check_open()
            return found
        finally:
            self._waiting -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise BufferClosedError(
                f"{self.instance_name} {self._why_closed}; make a new buffer",
                what=self.instance_name,
            )

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock of an open buffer; then wake waiting threads and call listeners."""
        with self._lock:
            self._check_open()
            yield
            self._changed.notify_all()
            departures = self._listeners.take()
        self._listeners.on_remove(departures)

    def add_listener(self, listener: RowListener) -> None:
        """Call a listener for the stored rows, and for all rows that are added or leave later."""
        with self._lock:
            contents = self._contents
            for where in contents.living():
                listener.on_insert(cast("Storage", contents.storage).take(where))
            self._listeners.add(listener)
            contents.choose_push_path()

    @contextmanager
    def locked(self) -> Iterator[Contents]:
        """Hold the lock of the buffer, and yield its parts; also if the buffer is closed."""
        with self._lock:
            yield self._contents

    def add_remove_listener(self, listener: Callable[[Any, str], None]) -> None:
        """Call ``listener(rows, reason)`` for rows that left; see :class:`RowListener`."""
        self.add_listener(RemoveFunction(listener))

    def clear(self) -> None:
        """Drop all rows, and the schema that the first rows set."""
        with self._change():
            self._contents.clear()
            if self.clear_resets_push_count:
                self._pushed_before_clear = self._contents.pushed

    def start(self) -> None:
        """Do nothing, as the buffer runs no thread; kept for code written for DI-engine."""

    def close(self) -> None:
        """Drop all rows, wake waiting threads, and refuse further use; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._contents.close()
            self._closed = True
            self._changed.notify_all()
            departures = self._listeners.take()
        self._listeners.on_remove(departures)
        for listener in self._listeners.all:
            listener.on_close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise NotSavableError(
            f"{self.instance_name} cannot be copied or pickled; make another buffer and give it "
            "state_dict() of this one, or let other processes use it through a "
            "dingsdk.ReplayServer",
            path="",
            found=type(self).__name__,
        )

    @contextmanager
    def snapshot(self) -> Iterator[TableSnapshot]:
        """Hold the buffer's lock, and yield a view that reads the buffer."""
        with self._lock:
            self._check_open()
            entries = {"push_count": self.push_count, **self._extra_state()}
            yield TableSnapshot(self._contents, entries)

    @contextmanager
    def copies(self) -> Iterator[tuple[ColumnCopy, RowCopy | None]]:
        """Yield copies of the columns of sampler and metadata, and of rows if they need a copy.

        The copies are told of changes. Rows that only leave oldest first are copied in order.
        """
        contents = self._contents
        with self._lock:
            self._check_open()
            remover = contents.remover
            columns = ColumnCopy(contents.sampler, contents.metadata, remover.count)
            rows = None if remover.is_fifo else RowCopy(remover.capacity)
            made: tuple[ColumnCopy | RowCopy, ...] = (columns,) if rows is None else (columns, rows)
            contents.copies = (*contents.copies, *made)
            contents.choose_push_path()
        try:
            yield columns, rows
        finally:
            with self._lock:
                contents.copies = tuple(each for each in contents.copies if each not in made)
                contents.choose_push_path()

    def restore(
        self,
        saved: Mapping[str, Any],
        count: int,
        pieces: Callable[[], Iterable[Rows]],
        *,
        as_pushed: bool = False,
    ) -> bool:
        """Replace all rows and the state, or raise and change nothing.

        Args:
            saved: The state; its ``data`` is not used.
            count: Number of rows of the state.
            pieces: Returns the rows in pieces, oldest first.
            as_pushed: Whether the rows count as pushed now; then the table must be empty.

        Returns:
            Whether the state was restored. False if ``as_pushed`` and another thread pushed first.

        Raises:
            CheckpointVersionError, CheckpointCorruptError: the state is wrong.
        """
        # New parts are made first, so that a wrong state changes nothing.
        contents, new = self._contents, self._contents.restored(saved, count, pieces)
        with self._change():
            if as_pushed and contents.count:
                return False
            self._load_extra_state(saved, new.sampler, new.metadata)
            push_count = self.push_count + new.count if as_pushed else saved["push_count"]
            self._pushed_before_clear = contents.pushed + count - push_count
            contents.replace(new)
        return True

    def save_data(self, file: str) -> None:
        """Write all rows, oldest first, into the folder ``file`` (made with its parents).

        The state that future samples depend on is written to the same folder. ``manifest.json``,
        which lists the files with their digests, is replaced last: a reader sees either the old
        rows or the new ones. Saving to the same folder again reuses files that are still valid.

        Raises:
            RunFolderError: the folder cannot be written.
            StorageFullError: there is no room now (disk full, over quota, no descriptors left).
            SchemaMismatchError: object storage, or the state of a part, holds something other than
                numbers, text, arrays and tensors in dicts and lists; facts ``key`` and ``row``.
        """
        with self._lock:
            self._check_open()  # before there is a folder
        persistence.save(file, self)

    def load_data(self, file: str) -> None:
        """Push all rows of a folder that :meth:`save_data` wrote; the limiter is not asked.

        If the buffer is empty and has the same type, capacity, sampler and remover as the saved
        one, it continues where the saved one stopped: it restores the positions of the rows, the
        random state and everything else in :meth:`state_dict`, so the next samples are the same.
        Only ``push_count`` differs: the loaded rows count as pushed now. Any other buffer, or one
        whose sampler refuses the state (a different ``alpha``), pushes the rows as new rows.

        Raises:
            CheckpointMissingError: the folder holds no saved rows.
            CheckpointCorruptError, CheckpointVersionError: the folder was altered, or written by
                a version that this one does not read; nothing was pushed.
            SchemaMismatchError: the rows do not fit the rows in the buffer; nothing was pushed.
        """
        persistence.load_into(self, file)

    def resume_data(self, file: str) -> None:
        """Replace all rows and the state by those that :meth:`save_data` wrote.

        Unlike :meth:`load_data`, it restores ``push_count`` too, and never pushes rows as new.

        Raises:
            CheckpointMissingError, CheckpointCorruptError: as for :meth:`load_data`.
            CheckpointVersionError: the saved buffer has another type, capacity, sampler or remover.
        """
        persistence.resume(self, file)

    def state_dict(self) -> dict[str, Any]:
        """Return a consistent copy of rows, counters and random state.

        Keys: ``version``, ``capacity``, ``storage`` (``array``, ``object`` or None if empty),
        ``data`` (columns or a list, oldest first), ``tail`` (the position after the newest row),
        ``valid_count``, ``push_count``, one for each part (``sampler``, ``remover``, ``limiter``,
        ``metadata``), and the keys that a kind of buffer adds.
        """
        with self.snapshot() as now:
            rows = now.rows(now.first, now.last)
            data = rows.columns if isinstance(rows, SampleBatch) else rows
            return {**now.state(None), "data": data}

    def load_state_dict(self, state_dict: Mapping[str, Any], deepcopy: bool = False) -> None:
        """Restore a state, so that the next samples are the same as from the saved buffer.

        If ``data`` is the only key (rows or columns, such as demonstrations), its rows are pushed
        instead.

        Args:
            state_dict: A state that :meth:`state_dict` returned; never written to, and not kept.
            deepcopy: Whether to also copy the arrays and objects in the dicts and lists of a row,
                which object storage shares otherwise.

        Raises:
            CheckpointVersionError: the state has another version or capacity.
            CheckpointCorruptError: a part is missing or contradicts the others.
            ConfigError, StorageFullError: there is no room for the rows. After any error the
                buffer is unchanged.
        """
        given: Any = state_dict
        if not isinstance(given, Mapping):
            found = type(given).__name__
            raise CheckpointCorruptError(f"a buffer state is a mapping, found {found}")
        data = given.get("data")
        rows = rows_of(copy.deepcopy(data) if deepcopy else data)
        if set(state_dict) == {"data"}:
            self.push_unlimited(rows)
            return
        try:
            self.restore(state_dict, len(rows), lambda: [rows] if len(rows) else [])
        except SchemaMismatchError as error:
            raise wrong_data(error) from error

    def _extra_state(self) -> dict[str, Any]:
        """Return the entries that this kind of buffer adds to the state."""
        return {}

    def _load_extra_state(
        self, state: Mapping[str, Any], sampler: Sampler, metadata: RowMetadata | None
    ) -> None:
        """Restore the extra entries of a state, or raise a CheckpointError and change nothing.

        The new sampler and metadata have already loaded their entries.
        """


_tables: weakref.WeakSet[Table] = weakref.WeakSet()


def _close_busy_tables() -> None:
    """Close the copies of tables in a forked process that were in use during the fork.

    Their rows may be half written, and the thread that holds the lock is not in this process.
    """
    for table in list(_tables):
        if table._lock.locked():
            table._lock = threading.Lock()
            table._changed = threading.Condition(table._lock)
            table._closed, table._contents.plain_layout = True, None
            table._why_closed = "was in use by another thread when this process was forked"


os.register_at_fork(after_in_child=_close_busy_tables)


def checked_size(
    size: Any, what: str = "a sample size", least: int = 0, most: int = sys.maxsize
) -> int:
    """Return an integer that is at least ``least`` and at most ``most``.

    Raises:
        ConfigTypeError: it is not an integer.
        ConfigError: it is outside of these bounds (also a ValueError).
    """
    if type(size) is int and least <= size <= most:
        return size
    is_integer = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if is_integer and least <= size <= most:
        return int(size)
    error = wrong_type(what, f"an integer from {least} to {most}", size)
    if is_integer:
        raise ConfigError(error.message, **error.facts)
    raise error


def check_range(sample_range: Any) -> None:
    """Raise ConfigTypeError if ``sample_range`` is neither None nor a slice of integers.

    A slice with a step of 0 raises ConfigError.
    """
    if sample_range is None:
        return
    try:
        sample_range.indices(0)
    except (AttributeError, TypeError) as error:
        raise wrong_type("sample_range", "a slice of integers (ages)", sample_range) from error
    except ValueError as error:
        raise ConfigError(f"sample_range: {error}", path="sample_range") from error
