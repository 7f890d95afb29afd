"""The homes of samples: each fills from the payloads that collectors announce."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.collected import without_returns
from dingsdk.data.list_samples import has_lists, unpack_samples
from dingsdk.errors import ConfigError, DataCorruptError, DataMissingError
from dingsdk.worker.replay_buffer.interface import rows_in
from dingsdk.worker.replay_buffer.pace import EpisodePace
from dingsdk.worker.replay_buffer.table import Table

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.row_metadata import RowMetadata

Load = Callable[[str, str | None], SampleBatch]
"""Returns a payload by its id and its digest; raises DataMissingError or DataCorruptError."""
_ALL_USES = 1 << 62
"""Uses of a row that may not be used again."""
TRAINED = "trained"
"""Why the rows of an on-policy policy leave."""


class Announcement(msgspec.Struct, frozen=True):
    """A payload that a collector stored and the coordinator acknowledged.

    Attributes:
        data_id: Id of the payload in the step data store.
        rows: Number of its rows (samples).
        digest: Digest of its content; None if its collector gave none.
        env_steps: Env steps of the run when it was acknowledged.
        episodes: Episodes that ended in it.
        was_inserted: Whether an earlier home has inserted it, so that the limiter has counted it.
        training: Number of the training that it is for, if the policy is on-policy; else 0.
    """

    data_id: str
    rows: int
    digest: str | None = None
    env_steps: int = 0
    episodes: int = 1
    was_inserted: bool = False
    training: int = 0


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


class Home(ABC):
    """Where a learner's samples are: the learner gets all its batches from its home.

    ``announce`` and ``report`` may be called from any thread, the others from the thread that
    trains.

    Attributes:
        known: Ids of the announced payloads that the home still needs.
        announced: Number of announcements that it has taken.
        exchange_s: Seconds that a learner with data trains between two exchanges with its
            coordinator. Each takes about a millisecond of CPU.
        retry_s: Seconds to wait before asking again for a batch; None: until an announcement.
        dataset_rows: Rows of a data set that it holds and that no collector sends; nothing is
            announced to such a home.
        observe: ``LearnMode.observe`` of the policy, which is called with the rows of each payload:
            at most once, so not again for those that an earlier home has inserted.
    """

    exchange_s = 0.05
    retry_s: float | None = None
    dataset_rows = 0
    observe: Callable[[Any], None] | None = None

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.announced = 0
        self._waiting: deque[Announcement] = deque()
        self._lock = threading.Lock()
        """Guards what a report reads; a report between two parts of a push would be wrong."""
        self._inserted: list[str] = []
        self._lost: list[tuple[str, str]] = []
        self._reports: deque[HomeReport] = deque()
        self._reported = 0

    @property
    def is_idle(self) -> bool:
        """Whether only a push can give a batch, although the learner asks every ``retry_s``."""
        return False

    def known_ids(self) -> list[str]:
        """Return ``known``, sorted."""
        with self._lock:
            return sorted(self.known)

    def announce(self, news: Iterable[Mapping[str, Any]]) -> None:
        """Add announcements, in order of arrival; those that it has had are ignored."""
        found = [msgspec.convert(each, Announcement) for each in news]
        fresh = {each.data_id: each for each in found if each.data_id not in self.known}
        self.known.update(fresh)
        self._waiting.extend(fresh.values())  # at once, as a training needs all its payloads
        self.announced += len(fresh)

    def observe_dataset(self) -> None:  # noqa: B027, most have no data set
        """Call ``observe`` with the samples of a data set, if there is one and it was not done."""

    @abstractmethod
    def sample(self, size: int, train_iter: int) -> SampleBatch | list[Any] | None:
        """Return a batch; None while there is none to train on."""

    def rows_of(self, batch: SampleBatch | list[Any]) -> int:
        """Return how many rows a batch has."""
        return len(batch)

    def update(self, priorities: Mapping[str, Any]) -> None:  # noqa: B027, a home may have none
        """Store the priorities that training computed for sampled rows."""

    def end_batch(self, *, is_last: bool = False) -> None:  # noqa: B027, most need not know
        """Note that the learner has trained on the newest batch, and whether it is its last."""

    @abstractmethod
    def count(self) -> int:
        """Return how many samples the home holds."""

    def counts(self) -> dict[str, Any]:
        """Return what another home of the buffer needs to admit as many rows and batches."""
        return {}

    def figures(self) -> dict[str, int] | None:
        """Return the counts of ``BufferStats``, if the buffer counts the samples of the run."""
        return None

    def uses(self) -> dict[str, NDArray[np.int64]]:
        """Return how often the learner has trained on each row of payloads, by payload id.

        Only of payloads with rows that it has trained on and may train on again, here or in
        another home. An empty array means all rows, as often as allowed.
        """
        return {}

    def restore_uses(self, uses: Mapping[str, Any]) -> None:  # noqa: B027, most do not count uses
        """Continue from the ``uses`` of an earlier home, when its payloads are announced again."""

    def close(self) -> None:  # noqa: B027, most have nothing to release
        """Release everything."""

    def _take_left(self) -> list[tuple[str, str, int]]:
        """Return ``(payload id, reason, rows)`` of rows that left since the last call."""
        return []

    def report(self, confirmed: int = 0) -> dict[str, Any]:
        """Return what the coordinator must know, as plain data.

        Args:
            confirmed: Number of the newest report that is not to be repeated: the coordinator, or
                its successor, will not ask for it again.

        Returns:
            ``reports``: the later reports, the last one of all changes since the last call, if
            there are any; ``counts``: those that belong to it, of what is reported as inserted and
            no more; ``count``, ``figures`` and ``dataset_rows``.
        """
        with self._lock:
            left = self._take_left()
            inserted, self._inserted = self._inserted, []
            lost, self._lost = self._lost, []
            counts = self.counts()
            if inserted or lost or left:
                self._reported += 1
                self._reports.append(HomeReport(self._reported, inserted, lost, left))
        while self._reports and self._reports[0].number <= confirmed:
            self._reports.popleft()
        return {
            "reports": [msgspec.to_builtins(each) for each in self._reports],
            "counts": counts,
            "count": self.count(),
            "figures": self.figures(),
            "dataset_rows": self.dataset_rows,
        }

    def _loaded(self, announced: Announcement, load: Load) -> SampleBatch | None:
        """Return a payload; record that it is lost and return None if it cannot be read."""
        reason = "corrupt"
        try:
            batch = load(announced.data_id, announced.digest)
            if len(batch) == announced.rows:
                return batch
        except DataMissingError:
            reason = "missing"
        except DataCorruptError:
            pass
        with self._lock:
            self._lost.append((announced.data_id, reason))
            self.known.discard(announced.data_id)
        return None


class TableHome(Home):
    """Holds the table of a replay buffer, and the announced payloads that are not in it yet.

    Args:
        buffer: An empty table.
        load: Returns a payload by its id and its digest.
        pace: Limits the batches by the number of episodes.
        counts: ``counts()`` of an earlier home of this buffer, whose payloads are announced again.
    """

    def __init__(
        self,
        buffer: Table,
        load: Load,
        pace: EpisodePace | None = None,
        counts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.buffer = buffer
        self._load = load
        self._pace = pace
        self._is_of_episodes = buffer.draws == "episodes"
        self._keeps_order = buffer.draws == "sequences"
        self._stream = ""
        self._payloads: dict[int, Announcement] = {}  # those with rows in the buffer, by number
        self._stored: dict[int, int] = {}  # how many elements of each payload the buffer holds
        self._numbers = 0
        self._earlier_uses: dict[str, NDArray[np.int64]] = {}
        self.unobserved: list[Any] = []
        """Samples of a data set that ``observe`` was not called with."""
        with buffer.locked() as contents:
            self._origins = contents.track_origins()
            if counts is not None:
                contents.limiter.load_state_dict(counts["limiter"])
        if counts is not None and pace is not None:
            pace.episodes, pace.batches = counts["pace"]

    def observe_dataset(self) -> None:
        samples, self.unobserved = self.unobserved, []
        for each in samples if self.observe is not None else ():
            self.observe(each)  # type: ignore[misc]

    def _insert_waiting(self) -> bool:
        """Insert announced payloads in order; return False once the limiter refuses one."""
        while self._waiting:
            first = self._waiting[0]
            if not (first.was_inserted or self._can_push(first)):
                return False
            self._insert(first)
            self._waiting.popleft()
        return True

    def _can_push(self, announced: Announcement) -> bool:
        if not self.buffer.can_push(1 if self._is_of_episodes else announced.rows):
            return False
        pace = self._pace
        # If no batch can be drawn, the learner waits for more rows.
        return pace is None or pace.may_push or not self.buffer.can_sample(pace.batch_size)

    def sample(self, size: int, train_iter: int) -> SampleBatch | list[Any] | None:
        """Insert what was announced, and return a batch; None while there is none to train on.

        Raises:
            ConfigError: the limiter will never admit anything again.
        """
        buffer: Any = self.buffer
        batch: SampleBatch | list[Any] | None = None
        while batch is None:
            is_admitted = self._insert_waiting()
            if self._pace is not None and not self._pace.may_draw:
                return None
            batch = buffer.sample(size, cur_learner_iter=train_iter)
            # If rows left instead of being drawn, the limiter may admit now what it refused before.
            if batch is None and (is_admitted or not self._can_push(self._waiting[0])):
                self._check_limiter(is_admitted)
                return None
        if self._pace is not None:
            self._pace.batches += 1
        return batch

    def _check_limiter(self, is_admitted: bool) -> None:
        """Find out what ends the wait of a learner that has no batch.

        Raises:
            ConfigError: nothing does, as neither the waiting rows nor a batch are admitted.
        """
        with self.buffer.locked() as contents:
            self.retry_s = contents.limiter.retry_after_s()
            counts = contents.limiter.state_dict()
        if not is_admitted and self.retry_s is None:
            path, rows = "policy.other.replay_buffer.limiter", self._waiting[0].rows
            raise ConfigError(
                "the limiter of the replay buffer, which a parallel run may have chosen, admits "
                f"neither the next {rows} rows nor a batch, with {self.count()} samples in the "
                f"buffer and the counts {counts}; set {path} to one with "
                "more room, such as a larger error_buffer, or of another type",
                path=path,
            )

    def rows_of(self, batch: SampleBatch | list[Any]) -> int:
        return rows_in(batch, self.buffer.draws)

    def update(self, priorities: Mapping[str, Any]) -> None:
        self.buffer.update(priorities)

    def uses(self) -> dict[str, NDArray[np.int64]]:
        with self._lock:
            with self.buffer.locked() as contents:
                if not contents.limits_uses:
                    return {}
                where, numbers, rows = self._origins.stored()
                uses = cast("RowMetadata", contents.metadata).uses(where)
            # The coordinator may not know yet that rows of these left, and announce them again.
            left = {data_id for report in self._reports for data_id, _, _ in report.left}
            left |= {self._payloads[number].data_id for number, _ in self._origins.left}
            found = dict.fromkeys(left, np.empty(0, np.int64))
            order = np.argsort(numbers, kind="stable")
            each, first = np.unique(numbers[order], return_index=True)
            parts = np.split(rows[order], first[1:]), np.split(uses[order], first[1:])
            # If no row is stored, there is one empty part, of no payload.
            for number, its_rows, its_uses in zip(each.tolist(), *parts, strict=False):
                announced = self._payloads[number]
                found[announced.data_id] = np.full(announced.rows, _ALL_USES)
                found[announced.data_id][its_rows] = its_uses
        found = {name: uses for name, uses in found.items() if uses.any() or not len(uses)}
        # Once all announced payloads are inserted, the others will not be announced again.
        is_pending = self._waiting or not self.announced
        return {**self._earlier_uses, **found} if is_pending else found

    def restore_uses(self, uses: Mapping[str, Any]) -> None:
        self._earlier_uses = {name: np.asarray(each) for name, each in uses.items()}

    def count(self) -> int:
        return self.buffer.count()

    def counts(self) -> dict[str, Any]:
        pace = self._pace
        with self.buffer.locked() as contents:
            limiter = contents.limiter.state_dict()
        return {
            "limiter": limiter,
            "pace": None if pace is None else [pace.episodes, pace.batches],
        }

    def close(self) -> None:
        self.buffer.close()

    def _insert(self, announced: Announcement) -> None:
        batch = self._loaded(announced, self._load)
        if batch is None:
            self._stream = ""  # the next payload does not continue the one before this
            return
        if self._keeps_order:
            stream = announced.data_id.partition("-")[0]  # the id of the collector task
            if stream != self._stream:
                self._stream = stream
                self.buffer.end_trajectory()
        rows: Any = unpack_samples(batch) if has_lists(batch.columns) else batch
        uses = self._earlier_uses.pop(announced.data_id, None)
        if self.observe is not None and not announced.was_inserted and uses is None:
            self.observe(rows)
        rows = without_returns(rows)
        pushed = [rows] if self._is_of_episodes else rows
        with self._lock:
            self._numbers += 1
            self._payloads[self._numbers] = announced
            self._stored[self._numbers] = len(pushed)
            self._origins.begin(self._numbers)
            if uses is not None:
                uses = uses if len(uses) == len(rows) else np.full(len(rows), _ALL_USES)
                facts = {"use": uses}
                self.buffer.push_unlimited(pushed, is_counted=announced.was_inserted, facts=facts)
            elif announced.was_inserted:
                self.buffer.push_unlimited(pushed, is_counted=True)
            else:
                self.buffer.push(pushed, announced.env_steps)
            if not announced.was_inserted:
                pace = self._pace
                if pace is not None and self.buffer.can_sample(pace.batch_size):
                    pace.episodes += announced.episodes
            self._inserted.append(announced.data_id)

    def _take_left(self) -> list[tuple[str, str, int]]:
        with self.buffer.locked():
            taken = self._origins.take_left()
        left = []
        for number, reason, rows in taken:
            announced = self._payloads[number]
            # For the buffer an episode, which is a payload of its own, is one element.
            left.append(
                (announced.data_id, reason, announced.rows if self._is_of_episodes else rows)
            )
            self._stored[number] -= rows
            if not self._stored[number]:
                del self._stored[number], self._payloads[number]
                self.known.discard(announced.data_id)
        return left


class TrainingHome(Home):
    """Holds the rows of one training of an on-policy policy; each payload is for one training.

    Args:
        load: Returns a payload by its id and its digest.
        trainings: How many batches a training consists of; each batch has all rows.
    """

    exchange_s = 0.1  # during a training there is nothing to announce

    def __init__(self, load: Load, trainings: int = 1) -> None:
        super().__init__()
        self._load = load
        self._trainings = trainings
        self._batch: SampleBatch | list[Any] | None = None
        self._is_out = False
        """Whether the learner has the batch."""
        self._uses = 0
        self._rows: dict[str, int] = {}  # of the training under way, by payload id
        self._unobserved: list[SampleBatch] = []  # its payloads for ``observe``
        self._left: list[tuple[str, str, int]] = []

    def sample(self, size: int, train_iter: int) -> SampleBatch | list[Any] | None:
        """Return all rows of a training, in order of arrival; ``size`` is ignored."""
        self.end_batch()
        while self._batch is None and self._waiting:
            self._begin()
        self._is_out = self._batch is not None
        return self._batch

    def _begin(self) -> None:
        parts: list[SampleBatch] = []
        training = self._waiting[0].training
        while self._waiting and self._waiting[0].training == training:
            announced = self._waiting.popleft()
            batch = self._loaded(announced, self._load)
            if batch is not None:
                parts.append(batch)
                self._rows[announced.data_id] = len(batch)
                if self.observe is not None and not announced.was_inserted:
                    self._unobserved.append(batch)
        with self._lock:
            self._inserted += self._rows
        if any(has_lists(each.columns) for each in parts):
            self._batch = [sample for each in parts for sample in unpack_samples(each)]
        elif parts:
            self._batch = SampleBatch.concat(parts)

    def end_batch(self, *, is_last: bool = False) -> None:
        if not self._is_out:
            return
        self._is_out = False
        self._uses += 1
        if self._uses < self._trainings and not is_last:
            return
        self._batch, self._uses = None, 0
        unobserved, self._unobserved = self._unobserved, []
        for each in unobserved:
            # Only now: the rows were collected, and scaled, with the statistics from before.
            self.observe(unpack_samples(each) if has_lists(each.columns) else each)  # type: ignore[misc]
        rows, self._rows = self._rows, {}
        with self._lock:
            self._left += [(data_id, TRAINED, count) for data_id, count in rows.items()]

    def count(self) -> int:
        return sum(self._rows.values())

    def _take_left(self) -> list[tuple[str, str, int]]:
        left, self._left = self._left, []
        self.known.difference_update(data_id for data_id, _, _ in left)
        return left
