"""Compares a replay buffer with a simple model in random sequences of calls."""

from __future__ import annotations

import math
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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


class BufferModel:
    """A model of a buffer: the numbers of its rows, and their priorities and uses.

    Args:
        capacity: Capacity of the buffer.
        max_use: Number of samples after which a row leaves.
        max_staleness: Number of iterations after which a row leaves.

    Attributes:
        pushed: Number of rows pushed since the model was made or cleared.
        priority: Row number -> priority, for all rows ever pushed.
        used: Row number -> how often it was sampled.
        collected: Row number -> iteration in which the row was collected.
    """

    def __init__(
        self, capacity: int, max_use: float = math.inf, max_staleness: float = math.inf
    ) -> None:
        self.capacity = capacity
        self.max_use, self.max_staleness = max_use, max_staleness
        self.pushed = 0
        self.priority: dict[int, float] = {}
        self.used: Counter[int] = Counter()
        self.collected: dict[int, int] = {}
        # The position of a row that left early stays empty until the ring overwrites it.
        self._ring: deque[int] = deque(maxlen=capacity)
        self._stale: set[int] = set()
        self._largest = 1.0
        self._next = 0

    def fresh(self, n: int) -> list[int]:
        """Return the next ``n`` row numbers."""
        self._next += n
        return list(range(self._next - n, self._next))

    def is_here(self, number: int) -> bool:
        """Whether a row of the ring is still there: neither used up nor stale."""
        return self.used[number] < self.max_use and number not in self._stale

    @property
    def rows(self) -> list[int]:
        """The rows in the buffer, oldest first."""
        return list(filter(self.is_here, self._ring))

    def push(
        self,
        numbers: list[int],
        gone: Collection[int] | None = None,
        priorities: Sequence[float | None] = (),
    ) -> list[int]:
        """Add rows; return the rows that leave, oldest first.

        Args:
            numbers: Numbers of the new rows.
            gone: The rows that left the buffer, if any may leave; None if the oldest leave.
            priorities: Priorities of the new rows; None or missing for the default.
        """
        everything = [*self.rows, *numbers]
        if gone is None:
            self._ring.extend(numbers)
        else:
            self._ring = deque((n for n in everything if n not in gone), self.capacity)
        self.pushed += len(numbers)
        given = dict(zip(numbers, priorities, strict=False))
        for at, number in enumerate(numbers):
            # The buffer splits a push of more rows than the capacity.
            if at % self.capacity == 0:
                largest = self._largest
            known = given.get(number)
            self.priority[number] = largest if known is None else known
            self._largest = max(self._largest, self.priority[number])
        return [number for number in everything if number not in self._ring]

    def age(self, iteration: int) -> None:
        """Drop the rows that are stale in an iteration of the learner."""
        for number in self.rows:
            if iteration - self.collected.get(number, iteration) >= self.max_staleness:
                self._stale.add(number)

    def clear(self) -> list[int]:
        """Drop all rows; return them, oldest first."""
        gone = self.rows
        self._ring.clear()
        self.pushed = 0
        self._largest = 1.0
        return gone

    def update(self, priorities: Iterable[tuple[int, float]]) -> None:
        """Set the priorities of rows; ignores rows that are not in the buffer."""
        for number, priority in priorities:
            if number in self.rows:
                self.priority[number] = priority
                self._largest = max(self._largest, priority)

    def weights(self, alpha: float, beta: float) -> dict[int, float]:
        """Return the importance weight of each row."""
        mass = {number: self.priority[number] ** alpha for number in self.rows}
        least = min(mass.values())
        return {number: (value / least) ** -beta for number, value in mass.items()}


_CLOSE = 1e-3
_Step = TypeVar("_Step", bound=Callable[..., Any])


def _only(capability: str) -> Callable[[_Step], _Step]:
    return precondition(lambda self: capability in self.capabilities)


class BufferMachine(RuleBasedStateMachine):
    """A Hypothesis state machine that pushes, samples, updates, saves, loads and clears.

    After every call the buffer must have the same rows as the model. A subclass makes the buffer;
    its ``TestCase`` is the test.

    Example:
        >>> class Machine(BufferMachine):
        ...     capabilities = frozenset({"columns", "distinct"})
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
        capacity=st.integers(1, 9),
        seed=st.integers(0, 3),
        max_use=st.sampled_from([2, math.inf]),
        max_staleness=st.sampled_from([3, math.inf]),
    )
    def start(self, capacity: int, seed: int, max_use: float, max_staleness: float) -> None:
        BUFFER_BOOK.applying(self.capabilities)  # raises for an unknown capability
        if "fifo" not in self.capabilities and "parts" not in self.capabilities:
            raise ValueError("of a buffer without 'fifo' only listeners know the rows that left")
        self.folder = tempfile.TemporaryDirectory(prefix="dingsdk-machine-")
        self.bench = BufferBench(
            self.make_buffer, Path(self.folder.name), self.capabilities, PATIENCE_S
        )
        limits: dict[str, float] = {}
        if self.bench.has("priorities"):
            limits = {"max_use": max_use, "max_staleness": max_staleness}
        self.cfg: dict[str, Any] = {
            "replay_buffer_size": capacity,
            "seed": seed,
            **{name: limit for name, limit in limits.items() if limit < math.inf},
        }
        self.iteration = 0
        self.model = BufferModel(capacity, **limits)
        self.gone: list[int] = []
        self.facts: dict[int, tuple[int, int]] = {}
        self.buffer = self.new_buffer()
        self.pushed_before = 0

    def new_buffer(self, **cfg: Any) -> Any:
        buffer = self.bench.buffer(**{**self.cfg, **cfg})
        self.listen(buffer)
        return buffer

    def listen(self, buffer: Any) -> None:
        if self.bench.has("parts"):
            buffer.add_remove_listener(lambda rows, reason: self.gone.extend(numbers_of(rows)))

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            with self.folder, self.bench:
                pass

    def rows(self, numbers: list[int]) -> list[Any]:
        """Return new rows; neighbouring rows share arrays, as rows of a trajectory may do."""
        rows = self.bench.rows(*numbers)
        if self.bench.has("episodes"):
            return rows
        for row, number in zip(rows, numbers, strict=True):
            if self.bench.has("priorities"):
                row["collect_iter"] = max(0, self.iteration - number % 3)
        for row, after in pairwise(rows):
            row["next_obs"] = after["obs"]
        return rows

    def push(self, numbers: list[int], data: Any, priorities: Sequence[float | None] = ()) -> None:
        self.gone.clear()
        self.buffer.push(data, 0)
        gone = None if self.bench.has("fifo") else self.gone
        expected = self.model.push(numbers, gone, priorities)
        iteration = self.iteration
        self.model.collected.update((n, max(0, iteration - n % 3)) for n in numbers)
        if self.bench.has("parts"):
            expect_equal(self.gone, expected, "rows that left")

    @rule(n=st.integers(0, 25), form=st.sampled_from(["list", "batch", "row"]))
    def push_rows(self, n: int, form: str) -> None:
        numbers = self.model.fresh(n)
        rows = self.rows(numbers)
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
    @rule(priorities=st.lists(st.sampled_from([None, 0.01, 0.5, 4.0, 30.0]), max_size=12))
    def push_with_priorities(self, priorities: list[float | None]) -> None:
        numbers = self.model.fresh(len(priorities))
        pairs = zip(self.rows(numbers), priorities, strict=True)
        self.push(numbers, [{**row, "priority": value} for row, value in pairs], priorities)

    @rule(size=st.integers(0, 12), iterations=st.sampled_from([0, 0, 1, 2]))
    def sample(self, size: int, iterations: int) -> None:
        self.iteration += iterations
        self.check_sample(size)
        self.check_sample(min(size, len(self.model.rows)))

    def check_sample(self, size: int) -> None:
        if size > 0 and self.model.rows:
            self.model.age(self.iteration)
        rows, weights = self.model.rows, {}
        if self.bench.has("proportional") and rows:
            weights = self.model.weights(self.buffer.alpha, self.buffer.beta)
        found = self.bench.sample(self.buffer, size, self.iteration)
        if size == 0 or size > len(rows):
            expect_equal(found, [] if size == 0 else None, f"a sample of {size} of {rows}")
            return
        numbers = numbers_of(found)
        expect_equal(len(numbers), size, "rows of a batch")
        expect(set(numbers) <= set(rows), f"rows {numbers} were drawn of {rows}")
        if self.bench.has("columns"):
            expect(isinstance(found, SampleBatch), f"a batch is a {type(found).__name__}")
        if self.bench.has("distinct"):
            expect_equal(len(set(numbers)), size, f"distinct rows of {numbers}")
        if self.bench.has("priorities"):
            self.check_facts(found, weights)
        spoil(found)

    def check_facts(self, found: Any, weights: Mapping[int, float]) -> None:
        for row in found:
            number = number_of(row)
            self.model.used[number] += 1
            facts = int(row["replay_unique_id"]), int(row["replay_buffer_idx"])
            expect_equal(self.facts.setdefault(number, facts), facts, "id and position of a row")
            expect_equal(int(row["use"]), self.model.used[number], f"use of row {number}")
            age = self.iteration - self.model.collected[number]
            expect_equal(int(row["staleness"]), age, f"staleness of row {number}")
            expect(0 < float(row["IS"]) <= 1, f"IS is {row['IS']}")
            for key, expected in (
                ("priority", self.model.priority[number]),
                ("IS", weights.get(number, float(row["IS"]))),
            ):
                close = math.isclose(float(row[key]), expected, rel_tol=_CLOSE)
                expect(close, f"{key} of row {number} is {row[key]}, not {expected}")
        ids = [unique for unique, _ in self.facts.values()]
        expect_equal(len(set(ids)), len(ids), f"ids of the rows {self.facts}")

    @_only("priorities")
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        if not self.facts:
            return
        recent = sorted(self.facts)[-2 * self.model.capacity :]
        priorities = st.sampled_from([0.01, 0.5, 1.0, 3.0, 20.0])
        pairs = st.lists(st.tuples(st.sampled_from(recent), priorities), max_size=6)
        changes = data.draw(pairs)
        info = {
            "replay_unique_id": [self.facts[number][0] for number, _ in changes],
            "replay_buffer_idx": [self.facts[number][1] for number, _ in changes],
            "priority": [priority for _, priority in changes],
        }
        self.buffer.update(info)
        self.model.update(changes)
        self.check_sample(len(self.model.rows))

    # Only after some pushes; otherwise most calls would be made on an empty buffer.
    @precondition(lambda self: self.model.pushed > self.model.capacity // 2)
    @rule()
    def clear(self) -> None:
        self.gone.clear()
        self.buffer.clear()
        expected = self.model.clear()
        if self.bench.has("parts"):
            expect_equal(self.gone, expected, "rows that left")
        # ``clear`` resets ``push_count`` of some kinds of buffers only.
        self.pushed_before = self.buffer.push_count

    @rule()
    def move_to_another_buffer(self) -> None:
        old = self.buffer
        self.buffer = self.new_buffer(seed=self.cfg["seed"] + 10)
        self.buffer.load_state_dict(old.state_dict())
        old.close()

    @_only("saves")
    @rule()
    def save_and_load(self) -> None:
        folder = str(Path(self.folder.name) / "rows")
        old = self.buffer
        old.save_data(folder)
        self.buffer = self.new_buffer(seed=self.cfg["seed"] + 10)
        self.buffer.load_data(folder)
        old.close()
        self.model.pushed = len(self.model.rows)
        self.pushed_before = 0

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "pushed_before"):
            return
        rows = self.model.rows
        expect_equal(self.buffer.count(), len(rows), "count()")
        expect_equal(self.buffer.push_count, self.pushed_before + self.model.pushed, "push_count")
        found = list(filter(self.model.is_here, self.bench.contents(self.buffer)))
        expect_equal(found, rows, "rows, oldest first")
        if not self.bench.has("priorities"):  # with priorities a sample would use rows up
            self.check_sample(len(self.model.rows))
        if self.bench.has("parts"):
            stats = self.buffer.stats()
            expect_equal(stats.pushed, stats.left + stats.count, "rows that came")
