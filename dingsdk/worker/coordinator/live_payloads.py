"""The payloads of a replay buffer whose rows are in its home, the process of its learner."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dingsdk.errors import CheckpointCorruptError, ConflictError, ProtocolError, SamplesLostError
from dingsdk.worker.coordinator.experience import Experience, episodes_of
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.replay_buffer.home import Announcement, HomeReport
from dingsdk.worker.sample_counts import SampleCounts

PAYLOAD_ROWS = 32
"""Least rows of a payload: announcing rows one by one would take longer than training on them."""
LEAST_AHEAD_ROWS = 2 * PAYLOAD_ROWS
"""Rows by which collectors may always be ahead of the home: what a fast learner trains on between
two exchanges."""
RETIRED_KEPT = 65_536
"""Payloads that are recognised after their deletion: longer than any message takes to arrive."""


@dataclass(slots=True)
class _Payload:
    """``left`` counts by reason the rows that the home had and has no longer."""

    rows: int
    digest: str | None
    env_steps: int
    episodes: int
    is_inserted: bool = False
    left: Counter[str] = field(default_factory=Counter)


class LivePayloads(Experience):
    """Passes announcements on to the home of a buffer, and deletes what the home needs no more.

    A payload is live from its acknowledgement until the home reports that all its rows have left.
    The caller locks.

    Args:
        ahead_rows: Rows that may wait for the home before collectors have to.
    """

    def __init__(self, ahead_rows: int) -> None:
        super().__init__(_NoBuffer())
        self._ahead_rows = max(ahead_rows, LEAST_AHEAD_ROWS)
        self._live: dict[str, _Payload] = {}
        self._retired: dict[str, None] = {}  # in the order of their deletion
        self._news: dict[str, None] = {}
        """Ids of the payloads that the home has not been told, in order of arrival."""
        self._waiting_rows = 0
        self._evicted: Counter[str] = Counter()
        self._acked_rows = 0
        self._garbage: list[str] = []
        self._earlier_trained_rows = 0
        self.is_idle = False
        """Whether the home had nothing to train on when it answered last."""
        self.confirmed = 0
        """Number of the newest report of the home that was processed."""
        self.home_counts: Mapping[str, Any] | None = None
        """The newest ``counts()`` of the home."""

    @property
    def has_news(self) -> bool:
        """Whether there are announcements that the home has not had."""
        return bool(self._news)

    def knows(self, data_id: str) -> bool:
        """Return whether a payload was announced before."""
        return data_id in self._live or data_id in self._retired

    def live_ids(self) -> Collection[str]:
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
        if known is not None and (known.rows, known.digest) != (rows, digest):
            raise ConflictError(
                f"payload {data_id!r} has {known.rows} rows and digest {known.digest}, not "
                f"{rows} and {digest}; ids are used once",
                data_id=data_id,
            )
        if self.knows(data_id):
            return False
        self._live[data_id] = _Payload(rows, digest, envstep, episodes_of(meta))
        self._news[data_id] = None
        self._acked_rows += rows
        self._waiting_rows += rows
        return True

    def can_push(self, rows: int) -> bool:
        """Return whether collectors are not too far ahead of the home."""
        return not self._waiting_rows or self._waiting_rows + rows <= self._ahead_rows

    def can_sample(self, batch_size: int) -> bool:
        """Return whether the home may have a batch to train on."""
        return not self.is_idle or bool(self._news)

    def take_news(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return announcements that the home has not had, in order of arrival."""
        names = list(self._news)[:limit]
        for name in names:
            del self._news[name]
        return [msgspec.to_builtins(self._announcement(name)) for name in names]

    def _announcement(self, name: str) -> Announcement:
        found = self._live[name]
        facts = (found.rows, found.digest, found.env_steps, found.episodes, found.is_inserted)
        return Announcement(name, *facts)

    def restart(self) -> None:
        """Announce all live payloads again, to a new home."""
        self._news = dict.fromkeys(self._live)
        self.confirmed, self.is_idle = 0, False
        self._earlier_trained_rows = self.trained_rows
        for payload in self._live.values():
            self._evicted.subtract(payload.left)
            payload.left.clear()

    def rejoin(self, state: TaskState, known: Iterable[Any]) -> None:
        """Announce the payloads that are not among ``known`` to a home that has kept its rows."""
        had = set(map(str, known))
        self._news = dict.fromkeys(name for name in self._live if name not in had)

    def note_reports(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Process reports of the home in order; those that were processed before are ignored."""
        for each in reports:
            report = msgspec.convert(each, HomeReport)
            if report.number > self.confirmed:
                self.confirmed = report.number
                self._note(report)

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

    def _leave(self, name: str, payload: _Payload, reason: str, rows: int) -> None:
        payload.left[reason] += rows
        self._evicted[reason] += rows
        if payload.left.total() >= payload.rows:
            del self._live[name]
            self._retired[name] = None
            self._garbage.append(name)
            if len(self._retired) > RETIRED_KEPT:
                del self._retired[next(iter(self._retired))]

    def settle(self, state: TaskState, info: Mapping[str, Any] | None = None) -> bool:
        """Process what the home reports with an answer."""
        if info is not None:
            self.note_reports(info["reports"])
            self.is_idle = bool(info["is_idle"])
            self.trained_rows = self._earlier_trained_rows + int(info["trained_rows"])
            self.home_counts = dict(info["counts"])
            self.buffer.rows = int(info["count"])
        return False

    def take_garbage(self, states: Iterable[TaskState]) -> list[str]:
        garbage, self._garbage = self._garbage, []
        return garbage

    def readable(self, known: Collection[int] = ()) -> list[str]:
        return []  # the home finds out when it loads them

    def give_up_missing(self, names: Iterable[str]) -> None:
        pass

    def count_rows(self) -> int:
        return self._acked_rows - self._evicted.total()

    def counts(self) -> SampleCounts:
        acked, evicted = self._acked_rows, dict(+self._evicted)
        return SampleCounts(acked, acked, self.trained_rows, self.count_rows(), evicted)

    def check(self, running: Collection[str] | None = None) -> None:
        """Raise SamplesLostError unless the live payloads have all rows that were not evicted."""
        live = sum(each.rows - each.left.total() for each in self._live.values())
        if live != self.count_rows():
            raise SamplesLostError(
                f"{self._acked_rows} rows acknowledged, {live} in live payloads, "
                f"{self._evicted.total()} evicted",
                acknowledged=self._acked_rows,
                live=live,
                evicted=dict(self._evicted),
            )

    def state_dict(self) -> dict[str, Any]:
        """Return all counts and live payloads as plain data."""
        return {
            "live": [
                [name, *msgspec.structs.astuple(self._announcement(name))[1:], dict(each.left)]
                for name, each in self._live.items()
            ],
            "retired": list(self._retired)[-4096:],
            "evicted": dict(self._evicted),
            "acked_rows": self._acked_rows,
            "trained_rows": self.trained_rows,
            "confirmed": self.confirmed,
            "home_counts": None if self.home_counts is None else dict(self.home_counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``.

        Raises:
            CheckpointCorruptError: it is not such a state.
        """
        try:
            for name, rows, digest, env_steps, episodes, is_inserted, left in state["live"]:
                payload = _Payload(int(rows), digest, int(env_steps), int(episodes), is_inserted)
                payload.left.update({str(key): int(count) for key, count in left.items()})
                self._live[str(name)] = payload
            self._retired = dict.fromkeys(map(str, state["retired"]))
            self._evicted = Counter(state["evicted"])
            self._acked_rows, self.trained_rows = state["acked_rows"], state["trained_rows"]
            self.confirmed, self.home_counts = int(state["confirmed"]), state["home_counts"]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointCorruptError(f"these are no live payloads: {error}") from error
        self._news = {name: None for name, each in self._live.items() if not each.is_inserted}
        self._waiting_rows = sum(each.rows for each in self._live.values() if not each.is_inserted)
        self._earlier_trained_rows = self.trained_rows


class _NoBuffer:
    """Stands for the buffer, which another process holds; ``rows`` is its last reported fill."""

    rows = 0

    def columns_needed(self) -> tuple[str, ...]:
        return ()

    def add_remove_listener(self, listener: Any) -> None:
        pass

    def count(self) -> int:
        return self.rows

    def close(self) -> None:
        pass


def uses_home(cfg: Mapping[str, Any]) -> bool:
    """Return whether the learner's process holds the rows of its buffer."""
    if not os.environ.get("DINGSDK_HOME") or cfg["policy"].get("on_policy"):
        return False
    return (cfg["system"].get("replay") or {}).get("type") != "server"
