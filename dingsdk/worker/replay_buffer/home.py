"""The home of a replay buffer: fills a table from the payloads that collectors announce."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from dingsdk.data import SampleBatch
from dingsdk.data.list_samples import has_lists, unpack_samples
from dingsdk.errors import DataCorruptError, DataMissingError
from dingsdk.worker.replay_buffer.pace import EpisodePace
from dingsdk.worker.replay_buffer.table import Table

REPORTS_KEPT = 256
"""Reports that are kept for a coordinator that restarts and did not record the newest ones."""


class Announcement(msgspec.Struct, frozen=True):
    """A payload that a collector stored and the coordinator acknowledged.

    Attributes:
        data_id: Id of the payload in the step data store.
        rows: Number of its rows (samples).
        digest: Digest of its content; None if its collector gave none.
        env_steps: Env steps of the run when it was acknowledged.
        episodes: Episodes that ended in it.
        was_inserted: Whether an earlier home has inserted it, so that the limiter has counted it.
    """

    data_id: str
    rows: int
    digest: str | None = None
    env_steps: int = 0
    episodes: int = 1
    was_inserted: bool = False

    @property
    def stream(self) -> str:
        """The id of the collector task that sent it."""
        return self.data_id.partition("-")[0]


class HomeReport(msgspec.Struct):
    """What changed in a home since its last report.

    Attributes:
        number: Running number of the report, from 1.
        inserted: Ids of the payloads whose rows were inserted.
        lost: ``(payload id, reason)`` of payloads that could not be read.
        left: ``(payload id, reason, rows)`` of rows that left the buffer.
    """

    number: int
    inserted: list[str]
    lost: list[tuple[str, str]]
    left: list[tuple[str, str, int]]

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.inserted or self.lost or self.left)


class Home:
    """Holds a buffer, and the announcements whose payloads are not in it yet.

    ``announce`` and ``reports`` may be called from any thread, the others from the thread that
    trains.

    Args:
        buffer: An empty table.
        load: Returns a payload by its id and its digest.
        pace: Limits the batches by the number of episodes.
        counts: ``counts()`` of an earlier home of this buffer, whose payloads are announced again.
    """

    def __init__(
        self,
        buffer: Table,
        load: Callable[[str, str | None], SampleBatch],
        pace: EpisodePace | None = None,
        counts: Mapping[str, Any] | None = None,
    ) -> None:
        self.buffer = buffer
        self._load = load
        self._pace = pace
        self._earlier = counts
        self._origins = buffer.track_origins()
        self._is_of_episodes = buffer.needs_order == "episode"
        self._lock = threading.Lock()
        """Guards what a report reads; a report between two parts of a push would be wrong."""
        self._keeps_order = buffer.needs_order == "sequence"
        self._stream = ""
        self._waiting: deque[Announcement] = deque()
        self.known: set[str] = set()
        """Ids of the payloads that wait or have rows in the buffer."""
        self._ids: dict[int, str] = {}  # of the payloads with rows in the buffer, by number
        self._numbers = 0
        self._inserted: list[str] = []
        self._lost: list[tuple[str, str]] = []
        self._reports: deque[HomeReport] = deque(maxlen=REPORTS_KEPT)
        self._reported = 0

    @property
    def has_waiting(self) -> bool:
        """Whether announced payloads are not in the buffer yet."""
        return bool(self._waiting)

    def announce(self, news: Iterable[Mapping[str, Any]]) -> None:
        """Add announcements, in order of arrival; those that it has had are ignored."""
        found = [msgspec.convert(each, Announcement) for each in news]
        for each in found:
            if each.data_id not in self.known:
                self.known.add(each.data_id)
                self._waiting.append(each)

    def insert_waiting(self) -> None:
        """Insert announced payloads in order, as long as the limiter admits them."""
        while self._waiting:
            first = self._waiting[0]
            if not first.was_inserted:
                self._go_on_counting()
            if not (first.was_inserted or self._can_push(first)):
                return
            self._insert(first)
            self._waiting.popleft()
        self._go_on_counting()

    def _go_on_counting(self) -> None:
        """Restore the limiter's counts, once the rows that it has counted are in the buffer."""
        if self._earlier is not None:
            self.buffer.restore_limiter(self._earlier["limiter"])
            if self._pace is not None:
                self._pace.episodes, self._pace.batches = self._earlier["pace"]
            self._earlier = None

    def _can_push(self, announced: Announcement) -> bool:
        if not self.buffer.can_push(1 if self._is_of_episodes else announced.rows):
            return False
        pace = self._pace
        # If no batch can be drawn, the learner waits for more rows.
        return pace is None or pace.may_push or not self.buffer.can_sample(pace.batch_size)

    def sample(self, size: int, train_iter: int) -> SampleBatch | list[Any] | None:
        """Return a batch; None while there is none to train on."""
        if self._pace is not None and not self._pace.may_draw:
            return None
        buffer: Any = self.buffer
        batch: SampleBatch | list[Any] | None = buffer.sample(size, cur_learner_iter=train_iter)
        if batch is not None and self._pace is not None:
            self._pace.batches += 1
        return batch

    def counts(self) -> dict[str, Any]:
        """Return what another home of the buffer needs to admit as many rows and batches."""
        pace = self._pace
        return {
            "limiter": self.buffer.limiter_counts(),
            "pace": None if pace is None else [pace.episodes, pace.batches],
        }

    def _insert(self, announced: Announcement) -> None:
        data_id = announced.data_id
        try:
            batch = self._load(data_id, announced.digest)
        except DataMissingError:
            self._lose(data_id, "missing")
            return
        except DataCorruptError:
            self._lose(data_id, "corrupt")
            return
        if self._keeps_order and announced.stream != self._stream:
            self._stream = announced.stream
            self.buffer.end_trajectory()
        rows: Any = unpack_samples(batch) if has_lists(batch.columns) else batch
        pushed = [rows] if self._is_of_episodes else rows
        with self._lock:
            self._numbers += 1
            self._ids[self._numbers] = data_id
            self._origins.current = self._numbers
            if announced.was_inserted:
                self.buffer.push_unlimited(pushed)
            else:
                self.buffer.push(pushed, announced.env_steps)
            self._inserted.append(data_id)
        pace = self._pace
        if pace is not None and self.buffer.can_sample(pace.batch_size):
            pace.episodes += announced.episodes

    def _lose(self, data_id: str, reason: str) -> None:
        with self._lock:
            self._lost.append((data_id, reason))
            self.known.discard(data_id)

    def report(self) -> None:
        """Make a report of all changes since the last one, if there are any."""
        left, touched = [], set[int]()
        with self._lock:
            for number, reason, rows in self.buffer.take_left():
                left.append((self._ids[number], reason, rows))
                touched.add(number)
            for number in touched:
                if not self._origins.stored(number):
                    self.known.discard(self._ids.pop(number))
            inserted, self._inserted = self._inserted, []
            lost, self._lost = self._lost, []
        report = HomeReport(self._reported + 1, inserted, lost, left)
        if not report.is_empty:
            self._reported += 1
            self._reports.append(report)

    def reports(self, after: int) -> list[dict[str, Any]]:
        """Return the reports with a number above ``after`` as plain data."""
        return [msgspec.to_builtins(each) for each in list(self._reports) if each.number > after]
