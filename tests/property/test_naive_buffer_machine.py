"""The naive buffer against a plain deque, over both storages, through any sequence of calls."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer import NaiveReplayBuffer


def to_row(number: int) -> dict[str, object]:
    nested = {"pos": np.full(2, number, np.float32), "flag": number % 2 == 0}
    return {"id": number, "obs": nested}


def to_number(row: object) -> int:
    assert isinstance(row, dict)
    number = int(row["id"])
    assert np.array_equal(row["obs"]["pos"], [number, number])
    assert bool(row["obs"]["flag"]) == (number % 2 == 0)
    return number


class NaiveBufferMachine(RuleBasedStateMachine):
    """Rows are numbered; the model is a deque of the numbers that must be in the buffer."""

    kind: str

    @initialize(capacity=st.integers(1, 9), seed=st.integers(0, 3))
    def start(self, capacity: int, seed: int) -> None:
        self.cfg = {
            "replay_buffer_size": capacity,
            "storage": {"type": self.kind},
            "seed": seed,
        }
        self.model: deque[int] = deque(maxlen=capacity)
        self.next_number = 0
        self.pushed = 0
        self.gone: list[int] = []
        self.buffer = self.make_buffer()

    def make_buffer(self) -> NaiveReplayBuffer:
        buffer = NaiveReplayBuffer(self.cfg)
        buffer.add_remove_listener(lambda rows, reason: self.gone.extend(map(to_number, rows)))
        return buffer

    def fresh(self, n: int) -> list[int]:
        self.next_number += n
        return list(range(self.next_number - n, self.next_number))

    def check_push(self, numbers: list[int], data: object) -> None:
        everything = [*self.model, *numbers]
        self.model.extend(numbers)
        self.pushed += len(numbers)
        self.gone.clear()
        self.buffer.push(data, 0)
        assert self.gone == everything[: len(everything) - len(self.model)]

    @rule()
    def push_single(self) -> None:
        (number,) = self.fresh(1)
        self.check_push([number], to_row(number))

    @rule(n=st.integers(0, 25))
    def push_list(self, n: int) -> None:
        numbers = self.fresh(n)
        self.check_push(numbers, [to_row(number) for number in numbers])

    @rule(n=st.integers(1, 25))
    def push_batch(self, n: int) -> None:
        numbers = self.fresh(n)
        batch = SampleBatch.from_rows([to_row(number) for number in numbers])
        before = batch.copy()
        self.check_push(numbers, batch)
        assert batch == before
        # What was pushed is the caller's again: changing it changes nothing stored.
        batch.columns["id"][:] = -1
        batch.columns["obs"]["pos"][:] = -1

    @rule(size=st.integers(0, 12), replace=st.booleans())
    def sample(self, size: int, replace: bool) -> None:
        found = self.buffer.sample(size, 0, replace=replace)
        self.check_sample(found, size, list(self.model), replace)

    @rule(
        size=st.integers(1, 6),
        start=st.none() | st.integers(-10, 10),
        stop=st.none() | st.integers(-10, 10),
        step=st.sampled_from([None, 1, 2, -1]),
        replace=st.booleans(),
    )
    def sample_by_age(
        self, size: int, start: int | None, stop: int | None, step: int | None, replace: bool
    ) -> None:
        ages = slice(start, stop, step)
        found = self.buffer.sample(size, 0, sample_range=ages, replace=replace)
        self.check_sample(found, size, list(self.model)[ages], replace)

    def check_sample(self, found: object, size: int, population: list[int], replace: bool) -> None:
        enough = len(population) > 0 if replace else len(population) >= size
        if size == 0:
            assert found == []
        elif not enough:
            assert found is None
        else:
            assert isinstance(found, SampleBatch if self.kind == "array" else list)
            numbers = [to_number(row) for row in found]
            assert len(numbers) == size
            assert set(numbers) <= set(population)
            if not replace:
                assert len(set(numbers)) == size
            # What was sampled is the caller's: changing it changes nothing stored.
            for row in found:
                row["id"] = -1

    @rule()
    def clear(self) -> None:
        expected = list(self.model)
        self.gone.clear()
        self.buffer.clear()
        assert self.gone == expected
        self.model.clear()
        self.pushed = 0

    @rule()
    def move_state_to_another_buffer(self) -> None:
        old = self.buffer
        state = old.state_dict()
        self.buffer = self.make_buffer()
        self.buffer.load_state_dict(state)
        size = len(self.model) // 2
        expected, found = old.sample(size, 0), self.buffer.sample(size, 0)
        assert expected is not None
        assert found is not None
        assert list(map(to_number, expected)) == list(map(to_number, found))
        old.close()

    @precondition(lambda self: len(self.model) > 0)
    @rule(bad=st.sampled_from([None, {}]), n=st.integers(0, 3))
    def push_with_one_bad_row(self, bad: object, n: int) -> None:
        rows: list[object] = [to_row(-1) for _ in range(n)]
        try:
            self.buffer.push([*rows, bad], 0)
        except ValueError:
            return
        raise AssertionError("a bad row was taken")

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "buffer"):
            return
        assert self.buffer.count() == len(self.model)
        assert self.buffer.push_count == self.pushed
        stats = self.buffer.stats()
        assert stats.pushed == stats.overwritten + stats.cleared + stats.count
        if self.model:
            whole = self.buffer.sample(len(self.model), 0)
            assert whole is not None
            assert sorted(map(to_number, whole)) == list(self.model)


class ArrayMachine(NaiveBufferMachine):
    kind = "array"


class ObjectMachine(NaiveBufferMachine):
    kind = "object"


_SETTINGS = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestArrayStorage = ArrayMachine.TestCase
TestArrayStorage.settings = _SETTINGS
TestObjectStorage = ObjectMachine.TestCase
TestObjectStorage.settings = _SETTINGS
