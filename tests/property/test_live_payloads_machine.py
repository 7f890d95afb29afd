"""Random faults of a coordinator's payloads and their home: no acknowledged row is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, cast

import msgspec
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dingsdk.data import SampleBatch
from dingsdk.errors import DataMissingError
from dingsdk.worker import create_buffer
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.replay_buffer.home import TableHome
from dingsdk.worker.replay_buffer.table import Table

BUFFERS: dict[str, dict[str, Any]] = {
    "naive": {"type": "naive", "replay_buffer_size": 20},
    "used up": {"type": "advanced", "replay_buffer_size": 20, "max_use": 2},
}


class PayloadMachine(RuleBasedStateMachine):
    """Two collectors, a coordinator and a learner, each of which may be lost at any time.

    What a home did is taken from the buffer's listeners and from what it loaded. It is expected
    of the coordinator as soon as a report of the home has arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, SampleBatch] = {}
        self.rows: dict[str, int] = {}  # acknowledged, in order
        self.sent = [0, 0]  # rows of each collector
        self.payloads = LivePayloads(8)
        self.inserted: set[str] = set()
        self.evicted: dict[str, Counter[str]] = {}
        self.old_reports: list[dict[str, Any]] = []

    @initialize(kind=st.sampled_from(sorted(BUFFERS)))
    def begin(self, kind: str) -> None:
        self.cfg = {**BUFFERS[kind], "seed": 0}
        self.begin_home()

    def begin_home(self) -> None:
        self.payloads.restart()
        self.evicted = {
            name: each for name, each in self.evicted.items() if each.total() == self.rows[name]
        }
        self.loaded: set[str] = set()
        self.left: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.old_reports = []
        buffer = cast(Table, create_buffer(self.cfg))
        self.home = TableHome(buffer, self.load, counts=self.payloads.home_counts)
        buffer.add_remove_listener(self.note_left)

    def load(self, name: str, digest: str | None) -> SampleBatch:
        if name not in self.store:
            self.left[name] = Counter(missing=self.rows[name])
            raise DataMissingError(name, data_id=name)
        assert name not in self.loaded, "inserted twice"
        self.loaded.add(name)
        return self.store[name]

    def note_left(self, rows: Any, reason: str) -> None:
        for stream, payload in zip(rows["stream"], rows["payload"], strict=True):
            self.left[f"{stream}-{payload}"][reason] += 1

    @rule(stream=st.integers(0, 1), rows=st.integers(1, 24))
    def push(self, stream: int, rows: int) -> None:
        first = self.sent[stream]
        self.sent[stream] += rows
        name = f"{stream}-{first}"
        columns = {"stream": np.full(rows, stream), "payload": np.full(rows, first)}
        self.store[name] = SampleBatch({**columns, "number": np.arange(first, first + rows)})
        self.rows[name] = rows
        assert self.payloads.push({"data_id": name, "rows": rows, "policy_iter": 0}, 0)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def push_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        meta = {"data_id": name, "rows": self.rows[name], "policy_iter": 0}
        assert not self.payloads.push(meta, 0)

    @precondition(lambda self: self.store)
    @rule(data=st.data())
    def payload_vanishes(self, data: st.DataObject) -> None:
        del self.store[data.draw(st.sampled_from(sorted(self.store)))]

    @rule(times=st.integers(1, 2))
    def announce(self, times: int) -> None:
        news = self.payloads.take_news()
        for _ in range(times):
            self.home.announce(news)

    @rule()
    def train(self) -> None:
        self.home.sample(4, 0)

    @rule()
    def report_is_lost(self) -> None:
        self.home.report()

    @rule(deletes=st.booleans())
    def report(self, deletes: bool) -> None:
        counts = self.home.report()
        reports = [*self.old_reports, *self.home.reports(self.payloads.confirmed)]
        self.old_reports = reports
        info = {"reports": reports, "is_idle": False, "trained_rows": 0, "count": 0}
        self.payloads.settle({**info, "counts": counts, "figures": None})
        self.inserted |= self.loaded
        self.evicted |= {name: Counter(each) for name, each in self.left.items()}
        self.look()
        if deletes:
            self.delete()

    def delete(self) -> None:
        for name in self.payloads.take_garbage():
            assert self.evicted[name].total() == self.rows[name], "a live payload is deleted"
            self.store.pop(name, None)

    @rule(has_taken_news=st.booleans())
    def coordinator_is_lost(self, has_taken_news: bool) -> None:
        if has_taken_news:
            self.payloads.take_news()
        state = msgspec.json.decode(msgspec.json.encode(self.payloads.state_dict()))
        self.payloads = LivePayloads(8)
        self.payloads.load_state_dict(state)
        self.old_reports = []
        self.report(deletes=False)
        self.payloads.rejoin(self.home.known)

    @rule()
    def learner_is_lost(self) -> None:
        self.begin_home()

    def look(self) -> None:
        """Compare the coordinator and the table with what happened."""
        self.payloads.check()
        evicted: Counter[str] = sum(self.evicted.values(), Counter())
        assert self.payloads.counts().evicted == evicted
        gone = {name for name, each in self.evicted.items() if each.total() == self.rows[name]}
        assert list(self.payloads.live_ids()) == [name for name in self.rows if name not in gone]
        assert self.payloads.home_counts is not None
        inserts = sum(self.rows[name] for name in self.inserted)
        assert self.payloads.home_counts["limiter"]["inserts"] == inserts
        data = self.home.buffer.state_dict().get("data") or {"stream": [], "number": []}
        numbers = list(zip(data["stream"], data["number"], strict=True))
        for stream in (0, 1):
            found = [int(number) for each, number in numbers if each == stream]
            assert found == sorted(set(found)), "rows out of order, or twice"
        left = sum(each.total() for name, each in self.evicted.items() if name in self.loaded)
        assert len(numbers) == sum(self.rows[name] for name in self.loaded) - left

    def teardown(self) -> None:
        """Let everything arrive: all acknowledged rows are in the home or evicted."""
        if not hasattr(self, "home"):
            return
        self.payloads.rejoin(self.home.known)
        self.announce(times=1)
        self.train()
        self.report(deletes=True)
        left = sum(self.payloads.counts().evicted.values())
        assert self.home.buffer.count() + left == sum(self.rows.values())


TestPayloads = PayloadMachine.TestCase
TestPayloads.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
