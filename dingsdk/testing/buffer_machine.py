"""Compares a replay buffer with a simple model in random sequences of calls."""

from __future__ import annotations

import math
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dingsdk.data import SampleBatch
from dingsdk.testing.buffer_bench import BufferBench, number_of, numbers_of, spoil
from dingsdk.testing.buffer_rules import BUFFER_BOOK
from dingsdk.testing.expect import expect, expect_equal
from dingsdk.testing.runner import PATIENCE_S
from dingsdk.worker.replay_buffer import IBuffer

_PRIORITIES = (0.01, 0.5, 1.0, 4.0, 30.0)
_Step = TypeVar("_Step", bound=Callable[..., Any])


def _only(capability: str) -> Callable[[_Step], _Step]:
    return precondition(lambda self: capability in self.capabilities)


class BufferMachine(RuleBasedStateMachine):
    """A Hypothesis state machine that pushes, samples, updates, saves, loads and clears.

    After every call the buffer must have the same rows as the model: the numbers of the rows that
    were pushed last, with their priorities and uses. A subclass makes the buffer; its ``TestCase``
    is the test. The buffer must drop its oldest rows first (``fifo``).

    Example:
        >>> class Machine(BufferMachine):
        ...     capabilities = frozenset({"columns", "distinct", "fifo"})
        ...     def make_buffer(self, cfg):
        ...         return MyBuffer(cfg)
        >>> TestMyBuffer = Machine.TestCase

    Attributes:
        capabilities: Which of ``BUFFER_BOOK`` the buffer has.
    """

    capabilities: ClassVar[Collection[str]] = frozenset()

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        """Return a new buffer with these settings."""
        raise NotImplementedError(f"{type(self).__name__}.make_buffer(cfg) is missing")

    @initialize(
        capacity=st.integers(1, 9), seed=st.integers(0, 3), max_use=st.sampled_from([2, math.inf])
    )
    def start(self, capacity: int, seed: int, max_use: float) -> None:
        BUFFER_BOOK.applying(self.capabilities)  # raises for an unknown capability
        if "fifo" not in self.capabilities:
            raise ValueError("the model drops the oldest rows first; the buffer lacks 'fifo'")
        self.folder = tempfile.TemporaryDirectory(prefix="dingsdk-machine-")
        self.bench = BufferBench(
            self.make_buffer, Path(self.folder.name), self.capabilities, PATIENCE_S
        )
        self.capacity = capacity
        self.max_use = max_use if self.bench.has("priorities") else math.inf
        limit = {"max_use": max_use} if self.max_use < math.inf else {}
        self.cfg: dict[str, Any] = {"replay_buffer_size": capacity, "seed": seed, **limit}
        # The position of a row that was used up stays empty until the ring overwrites it.
        self.ring: deque[int] = deque(maxlen=capacity)
        self.priority: dict[int, float] = {}
        self.used: Counter[int] = Counter()
        self.largest = 1.0
        self.pushed = self.next_number = 0
        self.facts: dict[int, tuple[int, int]] = {}
        self.buffer = self.bench.buffer(**self.cfg)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            with self.folder, self.bench:
                pass

    def is_here(self, number: int) -> bool:
        """Whether a row of the ring is not used up."""
        return self.used[number] < self.max_use

    @property
    def rows(self) -> list[int]:
        """The numbers of the rows that the buffer must hold, oldest first."""
        return list(filter(self.is_here, self.ring))

    def new_rows(self, n: int) -> tuple[list[int], list[Any]]:
        """Return numbers and new rows; neighbours share arrays, as rows of a trajectory may do."""
        numbers = list(range(self.next_number, self.next_number + n))
        self.next_number += n
        rows = self.bench.rows(*numbers)
        for row, after in () if self.bench.has("episodes") else pairwise(rows):
            row["next_obs"] = after["obs"]
        return numbers, rows

    def push(self, numbers: list[int], data: Any, priorities: Sequence[float | None] = ()) -> None:
        self.buffer.push(data, 0)
        self.ring.extend(numbers)
        self.pushed += len(numbers)
        for at, number in enumerate(numbers):
            # The buffer splits a push of more rows than the capacity.
            if at % self.capacity == 0:
                largest = self.largest
            known = priorities[at] if priorities else None
            self.priority[number] = largest if known is None else known
            self.largest = max(self.largest, self.priority[number])

    @rule(n=st.integers(0, 25), form=st.sampled_from(["list", "batch", "row"]))
    def push_rows(self, n: int, form: str) -> None:
        numbers, rows = self.new_rows(n)
        if n == 0 or form == "list" or self.bench.has("episodes"):
            self.push(numbers, rows)
            spoil(rows)
        elif form == "batch":
            batch = SampleBatch.from_rows(rows)
            self.push(numbers, batch)
            spoil(batch)
        else:
            for number, row in zip(numbers, rows, strict=True):
                self.push([number], row)

    @_only("priorities")
    @rule(priorities=st.lists(st.sampled_from([None, *_PRIORITIES]), max_size=12))
    def push_with_priorities(self, priorities: list[float | None]) -> None:
        numbers, rows = self.new_rows(len(priorities))
        pairs = zip(rows, priorities, strict=True)
        self.push(numbers, [{**row, "priority": value} for row, value in pairs], priorities)

    @rule(size=st.integers(0, 12))
    def sample(self, size: int) -> None:
        self.check_sample(size)
        self.check_sample(min(size, len(self.rows)))

    def check_sample(self, size: int) -> None:
        rows = self.rows
        found = self.bench.sample(self.buffer, size)
        if size == 0 or size > len(rows):
            expect_equal(found, [] if size == 0 else None, f"a sample of {size} of {rows}")
            return
        numbers = numbers_of(found)
        expect_equal(len(numbers), size, "rows of a batch")
        expect(set(numbers) <= set(rows), f"rows {numbers} were drawn of {rows}")
        if self.bench.has("distinct"):
            expect_equal(len(set(numbers)), size, f"distinct rows of {numbers}")
        if self.bench.has("priorities"):
            self.check_facts(found)
        spoil(found)

    def check_facts(self, found: Any) -> None:
        for row in found:
            number = number_of(row)
            self.used[number] += 1
            facts = int(row["replay_unique_id"]), int(row["replay_buffer_idx"])
            expect_equal(self.facts.setdefault(number, facts), facts, "id and position of a row")
            expect_equal(int(row["use"]), self.used[number], f"use of row {number}")
            expect(0 < float(row["IS"]) <= 1, f"IS is {row['IS']}")
            close = math.isclose(float(row["priority"]), self.priority[number], rel_tol=1e-3)
            expect(close, f"priority {row['priority']} of {number}, not {self.priority[number]}")
        ids = [unique for unique, _ in self.facts.values()]
        expect_equal(len(set(ids)), len(ids), f"ids of the rows {self.facts}")

    @_only("priorities")
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        if not self.facts:
            return
        recent = sorted(self.facts)[-2 * self.capacity :]
        pairs = st.tuples(st.sampled_from(recent), st.sampled_from(_PRIORITIES))
        changes = data.draw(st.lists(pairs, max_size=6))
        info = {
            "replay_unique_id": [self.facts[number][0] for number, _ in changes],
            "replay_buffer_idx": [self.facts[number][1] for number, _ in changes],
            "priority": [priority for _, priority in changes],
        }
        self.buffer.update(info)
        for number, priority in changes:
            if number in self.rows:
                self.priority[number] = priority
                self.largest = max(self.largest, priority)
        self.check_sample(len(self.rows))

    # Only after some pushes; otherwise most calls would be made on an empty buffer.
    @precondition(lambda self: self.pushed > self.capacity // 2)
    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.ring.clear()
        self.largest = 1.0
        self.pushed = self.buffer.push_count  # ``clear`` resets it in some kinds of buffers only

    @rule()
    def move_to_another_buffer(self) -> None:
        self.replace_buffer(lambda new: new.load_state_dict(self.buffer.state_dict()))

    @_only("saves")
    @rule()
    def save_and_load(self) -> None:
        folder = str(Path(self.folder.name) / "rows")
        self.buffer.save_data(folder)
        self.replace_buffer(lambda new: new.load_data(folder))
        self.pushed = len(self.rows)

    def replace_buffer(self, load: Callable[[Any], None]) -> None:
        """Continue with a buffer of another seed that ``load`` has loaded."""
        new = self.bench.buffer(**{**self.cfg, "seed": self.cfg["seed"] + 10})
        load(new)
        self.buffer.close()
        self.buffer = new

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "buffer"):
            return
        expect_equal(self.buffer.count(), len(self.rows), "count()")
        expect_equal(self.buffer.push_count, self.pushed, "push_count")
        found = list(filter(self.is_here, self.bench.contents(self.buffer)))
        expect_equal(found, self.rows, "rows, oldest first")
        if not self.bench.has("priorities"):  # with priorities a sample would use rows up
            self.check_sample(len(self.rows))
        if self.bench.has("parts"):
            stats = self.buffer.stats()
            expect_equal(stats.pushed, stats.left + stats.count, "rows that came")
