"""Random faults of a coordinator's payloads and their home: no acknowledged row is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, ClassVar

import msgspec
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from dingsdk.data import SampleBatch
from dingsdk.errors import DataMissingError
from dingsdk.worker import create_buffer
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.replay_buffer.home import TableHome


class PayloadMachine(RuleBasedStateMachine):
    """Two collectors, a coordinator and a learner; the last two may be lost at any time.

    What a home did is taken from the listeners of its buffer and from what it loaded. The
    coordinator must know it as soon as a report of the home has arrived.
    """

    cfg: ClassVar[dict[str, Any]] = {"type": "naive", "replay_buffer_size": 20, "seed": 0}

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, SampleBatch] = {}
        self.rows: dict[str, int] = {}  # acknowledged, in order
        self.sent = [0, 0]  # rows of each collector
        self.inserted: set[str] = set()  # as reported, by any home
        self.evicted: dict[str, Counter[str]] = {}  # as reported, of the present home or for good
        self.payloads = LivePayloads(8)
        self.learner_is_lost()

    @rule()
    def learner_is_lost(self) -> None:
        self.payloads.restart()
        self.evicted = {name: each for name, each in self.evicted.items() if self.is_gone(name)}
        self.loaded: set[str] = set()
        self.left: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.old_reports: list[dict[str, Any]] = []
        buffer: Any = create_buffer(self.cfg)
        self.home = TableHome(buffer, self.load, counts=self.payloads.home_counts)
        buffer.add_remove_listener(self.note_left)

    def is_gone(self, name: str) -> bool:
        return name in self.evicted and self.evicted[name].total() == self.rows[name]

    def load(self, name: str, digest: str | None) -> SampleBatch:
        if name not in self.store:
            self.left[name] = Counter(missing=self.rows[name])
            raise DataMissingError(name, data_id=name)
        assert name not in self.loaded, "inserted twice"
        self.loaded.add(name)
        return self.store[name]

    def note_left(self, rows: Any, reason: str) -> None:
        for row in rows:
            self.left[f"{row['stream']}-{row['payload']}"][reason] += 1

    @rule(stream=st.integers(0, 1), rows=st.integers(1, 24))
    def push(self, stream: int, rows: int) -> None:
        first = self.sent[stream]
        self.sent[stream] += rows
        name = f"{stream}-{first}"
        columns = {"stream": np.full(rows, stream), "payload": np.full(rows, first)}
        self.store[name] = SampleBatch({**columns, "number": np.arange(first, first + rows)})
        self.rows[name] = rows
        assert self.announce_to_coordinator(name)

    def announce_to_coordinator(self, name: str) -> bool:
        return self.payloads.push({"data_id": name, "rows": self.rows[name], "policy_iter": 0}, 0)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), vanishes=st.booleans())
    def payload_is_announced_again_or_vanishes(self, data: st.DataObject, vanishes: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        assert not self.announce_to_coordinator(name)
        if vanishes:
            self.store.pop(name, None)

    @rule(times=st.integers(0, 2), batches=st.integers(0, 2), loses_report=st.booleans())
    def learn(self, times: int, batches: int, loses_report: bool) -> None:
        news = self.payloads.take_news() if times else []
        for _ in range(times):
            self.home.announce(news)
        for _ in range(batches):
            self.home.sample(4, 0)
        if loses_report:
            self.home.report()

    @rule(deletes=st.booleans())
    def report(self, deletes: bool) -> None:
        """Let a report arrive, with all earlier ones of this home again."""
        found = self.home.report(self.payloads.confirmed)
        self.old_reports += found["reports"]
        info = {**found, "reports": self.old_reports, "is_idle": False, "trained_rows": 0}
        self.payloads.settle(info)
        self.inserted |= self.loaded
        self.evicted |= {name: Counter(each) for name, each in self.left.items()}
        self.look()
        for name in self.payloads.take_garbage() if deletes else ():
            assert self.is_gone(name), "a live payload is deleted"
            self.store.pop(name, None)

    @rule(has_taken_news=st.booleans())
    def coordinator_is_lost(self, has_taken_news: bool) -> None:
        if has_taken_news:
            self.payloads.take_news()
        state = msgspec.json.decode(msgspec.json.encode(self.payloads.state_dict()))
        self.payloads = LivePayloads(8)
        self.payloads.load_state_dict(state)
        self.report(deletes=False)
        self.payloads.rejoin(self.home.known_ids())

    def look(self) -> None:
        self.payloads.recounted().check()
        assert self.payloads.counts().evicted == sum(self.evicted.values(), Counter())
        assert [*self.payloads.live_ids()] == [each for each in self.rows if not self.is_gone(each)]
        assert self.payloads.home_counts is not None
        inserts = sum(self.rows[name] for name in self.inserted)
        assert self.payloads.home_counts["limiter"]["inserts"] == inserts
        data = self.home.buffer.state_dict().get("data") or {"stream": [], "number": []}
        numbers = list(zip(data["stream"], data["number"], strict=True))
        for found in ([int(n) for each, n in numbers if each == stream] for stream in (0, 1)):
            assert found == sorted(set(found)), "rows out of order, or twice"
        left = sum(each.total() for name, each in self.evicted.items() if name in self.loaded)
        assert self.home.count() == sum(self.rows[name] for name in self.loaded) - left

    def teardown(self) -> None:
        self.coordinator_is_lost(has_taken_news=True)
        self.learn(times=1, batches=1, loses_report=False), self.report(deletes=True)
        evicted = self.payloads.counts().evicted
        assert self.home.count() + sum(evicted.values()) == sum(self.rows.values())


class UsedUpMachine(PayloadMachine):
    cfg: ClassVar[dict[str, Any]] = {**PayloadMachine.cfg, "type": "advanced", "max_use": 2}


TestNaive, TestUsedUp = PayloadMachine.TestCase, UsedUpMachine.TestCase
SETTINGS = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestNaive.settings = TestUsedUp.settings = SETTINGS
