"""The payloads of a replay buffer, whose rows are in the process of its learner."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from dingsdk.errors import ConflictError, ProtocolError
from dingsdk.worker.replay_buffer.home import Announcement, HomeReport
from dingsdk.worker.sample_counts import EVICTIONS, SampleCounts

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.admission import Admission

PAYLOAD_ROWS = 32
"""Least rows of a payload: announcing rows one by one would take longer than training on them."""
LEAST_AHEAD_ROWS = 4 * PAYLOAD_ROWS
"""Rows by which collectors may always be ahead of the home. A fast learner trains on half of them
between two exchanges; then the other half is announced, and it does not wait."""
MOST_ANNOUNCED = 4096
"""Most payloads that one message announces to a home, so that it is never too large."""
RETIRED_KEPT = 65_536
"""Payloads that are recognised after their deletion: longer than any message takes to arrive."""
RETIRED_SAVED = 4096
"""Deleted payloads in a saved state: workers may announce the newest ones again at once."""


def episodes_of(meta: Mapping[str, Any]) -> int:
    """Return how many episodes ended in a payload; a collector that does not say it sends one."""
    return int(meta.get("episodes", 1))


@dataclass(slots=True)
class Payload:
    """A payload that the home may need.

    Attributes:
        left: By reason: the rows that the home had and has no longer.
    """

    rows: int
    digest: str | None
    env_steps: int
    episodes: int
    is_inserted: bool = False
    left: Counter[str] = field(default_factory=Counter)


class LivePayloads:
    """Passes announcements on to the home of a buffer, and deletes what the home needs no more.

    A payload is live from its acknowledgement until the home reports that all its rows have left.
    While the journal lacks facts (``is_behind``), the home is told nothing and nothing is deleted:
    a coordinator that is restarted then would not know of it. The caller locks.

    Args:
        ahead_rows: Rows that may wait for the home before collectors have to.

    Attributes:
        trained_rows: Number of rows trained on in total; repeated rows count again.
        is_behind: Returns whether the journal lacks facts; without a journal it never does.
        confirmed: Number of the newest report of the home that was processed.
        is_idle: Whether the home had nothing to train on when it answered last.
        home_counts: The newest ``counts()`` of the home.
        admission: Limits how much collectors collect, if the age of rows is bounded (on-policy).
        collects: On-policy: number of trainings, past or waiting, that have all their rows;
            otherwise 0.
        is_in_collect: On-policy: whether the next training has some of its rows, or rows to come,
            but not all; otherwise False.
    """

    admission: Admission | None = None
    collects = 0
    is_in_collect = False

    def __init__(self, ahead_rows: float) -> None:
        self._ahead_rows = max(ahead_rows, LEAST_AHEAD_ROWS)
        self._live: dict[str, Payload] = {}
        self._retired: dict[str, None] = {}  # in the order of their deletion
        self._news: dict[str, None] = {}
        """Ids of the payloads that the home has not been told, in order of arrival."""
        self._waiting_rows = 0
        self._evicted: Counter[str] = Counter()
        self._acked_rows = 0
        self._garbage: list[str] = []
        self._earlier_trained_rows = 0
        self._count = 0
        self.dataset_rows = 0
        """Rows of a data set that the home holds; nothing is announced to it then."""
        self.trained_rows = 0
        self.is_idle = False
        self.confirmed = 0
        self.home_counts: Mapping[str, Any] | None = None
        self.is_behind: Callable[[], bool] = lambda: False

    @property
    def has_news(self) -> bool:
        """Whether the home can be told something now."""
        return self._has_news and not self.is_behind()

    @property
    def _has_news(self) -> bool:
        """Whether there are announcements that the home has not had."""
        return bool(self._news)

    @property
    def to_confirm(self) -> int:
        """Number of the newest report that the home need not repeat."""
        return 0 if self.is_behind() else self.confirmed

    def for_new_home(self) -> dict[str, Any]:
        """Return what a new home must know: the ``counts`` of the earlier one, and its training."""
        return {"counts": self.home_counts or None, "trained_rows": self.trained_rows}

    def knows(self, data_id: str) -> bool:
        """Return whether a payload was announced before."""
        return data_id in self._live or data_id in self._retired

    def live_ids(self) -> Collection[str]:
        """Return the ids of the live payloads, in order of arrival."""
        return self._live.keys()

    def push(self, meta: Mapping[str, Any], envstep: int) -> bool:
        """Add an announcement; return False for a repeat.

        Raises:
            ProtocolError: the payload has no rows.
            ConflictError: it was announced before with other rows or another digest.
        """
        data_id, rows, digest = str(meta["data_id"]), int(meta["rows"]), meta.get("digest")
        if rows < 1:
            raise ProtocolError(f"payload {data_id!r} has {rows} rows", where="metadata")
        known = self._live.get(data_id)
        if known is not None and (
            known.rows != rows or not (None in (known.digest, digest) or known.digest == digest)
        ):
            raise ConflictError(
                f"payload {data_id!r} has {known.rows} rows and digest {known.digest}, not "
                f"{rows} and {digest}; ids are used once",
                data_id=data_id,
            )
        if self.knows(data_id):
            if known is None:  # it was stored again, and nobody would read it
                self._garbage.append(data_id)
            return False
        self._live[data_id] = Payload(rows, digest, envstep, episodes_of(meta))
        self._news[data_id] = None
        self._acked_rows += rows
        self._waiting_rows += rows
        return True

    def can_push(self, rows: int) -> bool:
        """Return whether collectors are not too far ahead of the home."""
        return not self._waiting_rows or self._waiting_rows + rows <= self._ahead_rows

    @property
    def can_train(self) -> bool:
        """Whether the home may have a batch to train on, now or after its next announcements."""
        return not self.is_idle or bool(self._news)

    def take_news(self, limit: int = MOST_ANNOUNCED) -> list[dict[str, Any]]:
        """Return up to ``limit`` announcements that the home has not had, in order of arrival."""
        if not self.has_news:
            return []
        names = list(itertools.islice(self._news, limit))
        for name in names:
            del self._news[name]
        if names:
            self.is_idle = False  # until its answer, the home may have a batch of these rows
        return [msgspec.to_builtins(self._announcement(name)) for name in names]

    def _announcement(self, name: str, training: int = 0) -> Announcement:
        found = self._live[name]
        facts = (found.rows, found.digest, found.env_steps, found.episodes, found.is_inserted)
        return Announcement(name, *facts, training)

    def restart(self) -> None:
        """Announce all live payloads again, to a new home."""
        self._news = dict.fromkeys(self._live)
        self.confirmed = 0
        self.is_idle = False
        self._earlier_trained_rows = self.trained_rows
        for payload in self._live.values():
            self._evicted.subtract(payload.left)
            payload.left.clear()

    def rejoin(self, known: Iterable[str]) -> None:
        """Announce the payloads that are not among ``known`` to a home that has kept its rows."""
        had = set(known)
        self._news = dict.fromkeys(name for name in self._live if name not in had)

    def _note(self, report: HomeReport) -> None:
        for name in report.inserted:
            if (payload := self._live.get(name)) is not None and not payload.is_inserted:
                payload.is_inserted = True
                self._waiting_rows -= payload.rows
        for name, reason in report.lost:
            if (payload := self._live.get(name)) is not None:
                if not payload.is_inserted:
                    self._waiting_rows -= payload.rows
                self._leave(name, payload, reason, payload.rows - payload.left.total())
        for name, reason, rows in report.left:
            if (payload := self._live.get(name)) is not None:
                self._leave(name, payload, reason, rows)

    def _leave(self, name: str, payload: Payload, reason: str, rows: int) -> None:
        payload.left[reason] += rows
        self._evicted[reason] += rows
        if payload.left.total() >= payload.rows:
            del self._live[name]
            self._news.pop(name, None)
            self._retired[name] = None
            self._garbage.append(name)
            if len(self._retired) > RETIRED_KEPT:
                del self._retired[next(iter(self._retired))]

    def settle(self, info: Mapping[str, Any]) -> bool:
        """Process what the home reports with an answer; return whether to record it."""
        before = self.confirmed
        for each in info["reports"]:
            report = msgspec.convert(each, HomeReport)
            if report.number > self.confirmed:  # else it was processed before
                self.confirmed = report.number
                self._note(report)
        self.is_idle = bool(info["is_idle"])
        self.trained_rows = self._earlier_trained_rows + int(info["trained_rows"])
        self.home_counts = dict(info["counts"])
        self._count = int(info["count"])
        self.dataset_rows = int(info.get("dataset_rows") or 0)
        # Without payloads, the journal would not know how far the training is.
        return self.confirmed > before or self.dataset_rows > 0

    def take_garbage(self) -> list[str]:
        """Return the ids of payloads to delete now."""
        if self.is_behind():
            return []
        garbage, self._garbage = self._garbage, []
        return garbage

    def count(self) -> int:
        """Return how many samples the buffer holds, as its home reported last."""
        return self._count

    def counts(self) -> SampleCounts:
        """Return the sample counts, without samples that wait for room."""
        acked, evicted = self._acked_rows + self.dataset_rows, dict(+self._evicted)
        live = acked - self._evicted.total()
        return SampleCounts(acked, acked, self.trained_rows, live, evicted)

    def recounted(self) -> SampleCounts:
        """Return the sample counts, with the live rows as counted in the live payloads."""
        return replace(self.counts(), live=self.count_live())

    def count_live(self) -> int:
        """Count the rows of the live payloads that have not left, and those of a data set."""
        announced = sum(each.rows - each.left.total() for each in self._live.values())
        return announced + self.dataset_rows

    def state_dict(self) -> dict[str, Any]:
        """Return all counts and live payloads as plain data."""
        return {
            "live": [
                [
                    *msgspec.structs.astuple(self._announcement(name))[:-1],
                    dict(payload.left),
                ]
                for name, payload in self._live.items()
            ],
            "retired": list(self._retired)[-RETIRED_SAVED:],
            "evicted": dict(self._evicted),
            "acked_rows": self._acked_rows,
            "trained_rows": self.trained_rows,
            "earlier_trained_rows": self._earlier_trained_rows,
            "confirmed": self.confirmed,
            "home_counts": None if self.home_counts is None else dict(self.home_counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``.

        Raises:
            AttributeError, LookupError, TypeError, ValueError: it is not such a state.
        """
        for name, *facts, left in state["live"]:
            payload = Payload(*facts)
            payload.left.update({str(key): int(count) for key, count in left.items()})
            self._live[str(name)] = payload
        self._retired = dict.fromkeys(map(str, state["retired"]))
        self._evicted = Counter(state["evicted"])
        self._acked_rows, self.trained_rows = state["acked_rows"], state["trained_rows"]
        self.confirmed = int(state["confirmed"])
        self.home_counts = state["home_counts"]
        self._news = {name: None for name, each in self._live.items() if not each.is_inserted}
        self._waiting_rows = sum(each.rows for each in self._live.values() if not each.is_inserted)
        self._earlier_trained_rows = state["earlier_trained_rows"]
        # The earlier coordinator may have stopped before it deleted the newest ones.
        self._garbage = list(self._retired)


class ServedPayloads(LivePayloads):
    """Counts the rows that collectors insert into a replay server; the learner draws them there.

    Each insert is announced, so that the learner asks the server once more before it is idle.

    Args:
        per_insert: Rows to train on for each row that the run inserts, if other clients insert too:
            the learner may then get batches for ever. Infinite: only the run inserts.
        min_size: Rows that the buffer must hold before any of that is due.
    """

    def __init__(self, per_insert: float = math.inf, min_size: int = 0) -> None:
        super().__init__(0)
        self._figures: Mapping[str, int] = {}
        self._per_insert = per_insert
        self._due_rows = math.inf if per_insert == math.inf else -per_insert * min_size
        """Rows to train on before the learner has nothing left to do. An earlier coordinator's are
        not known."""

    @property
    def _has_news(self) -> bool:
        """True: the learner finds out by asking the server."""
        return True

    def push(self, meta: Mapping[str, Any], envstep: int) -> bool:
        """Announce an insert; the server counts the rows, and refuses repeated ones."""
        self._news[str(meta["data_id"])] = None
        self._due_rows += self._per_insert * int(meta["rows"])
        return True

    def _announcement(self, name: str, training: int = 0) -> Announcement:
        return Announcement(name, 0)

    def rejoin(self, known: Iterable[str]) -> None:
        """Do nothing: the learner may have asked the server before it had the announced rows."""

    def can_push(self, rows: int) -> bool:
        return True  # the limiter of the server has admitted them

    @property
    def can_train(self) -> bool:
        return self._due_rows > 0 and super().can_train

    def settle(self, info: Mapping[str, Any]) -> bool:
        self._figures = info["figures"] or self._figures  # none until the learner has asked
        before = self.trained_rows
        has_news = super().settle(info)
        if self._due_rows > 0:  # else the learner is ahead, and the next rows are due all the same
            self._due_rows -= self.trained_rows - before
        return has_news

    def count(self) -> int:
        return self._figures.get("count", 0)

    def counts(self) -> SampleCounts:
        """Return the sample counts; the server counts the samples of all its clients."""
        figures = self._figures
        pushed = figures.get("pushed", 0)
        evicted = {name: figures[name] for name in EVICTIONS if figures.get(name)}
        return SampleCounts(pushed, pushed, self.trained_rows, self.count(), evicted)

    def count_live(self) -> int:
        return self.count()
