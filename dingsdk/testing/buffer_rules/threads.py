"""Rules 39 and 40: many threads at once."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dingsdk.testing.buffer_bench import BufferBench, expect, expect_equal
from dingsdk.testing.buffer_history import Operation, explains
from dingsdk.testing.buffer_rows import numbers_of
from dingsdk.testing.rule import RuleBroken

_TURNS = 60
_ROUNDS = 30


def rule_39_threads_share_a_buffer(bench: BufferBench) -> None:
    """Threads push, sample, update, clear, take states and save at the same time.

    No call fails, every row that comes out is whole and was pushed, listeners hear of each that
    leaves once, and at the end the buffer is as good as new.
    """
    capacity = 32
    buffer = bench.buffer(replay_buffer_size=capacity)
    gone: list[int] = []
    if bench.has("parts"):
        buffer.add_remove_listener(lambda rows, reason: gone.extend(numbers_of(rows)))

    def push(which: int) -> None:
        for turn in range(_TURNS):
            first = 10_000 * which + 5 * turn
            bench.push(buffer, *range(first, first + 5))

    def sample() -> None:
        for _ in range(_TURNS):
            found = bench.sample(buffer, 7)
            if found is None:
                continue
            check(numbers_of(found), "sampled")
            if bench.has("priorities"):
                keys = ("replay_unique_id", "replay_buffer_idx")
                info = {key: [int(row[key]) for row in found] for key in keys}
                buffer.update({**info, "priority": [1.0 + n % 3 for n in range(len(found))]})

    def keep() -> None:
        for turn in range(_TURNS):
            state = buffer.state_dict()
            numbers = bench.numbers_in(state)
            check(numbers, "in a state")
            # A push is in a state whole or not at all, and in its order.
            for one, after in itertools.pairwise(numbers):
                expect(after == one + 1 or one % 5 == 4, f"{after} follows {one} in a state")
            expect(len(numbers) <= capacity, f"{len(numbers)} rows in a state")
            if bench.has("saves") and turn % 20 == 19:
                buffer.save_data(str(bench.folder / "rows"))

    def meddle() -> None:
        for turn in range(_TURNS):
            count = buffer.count()
            expect(0 <= count <= capacity, f"count() is {count}")
            if turn % 20 == 19:
                buffer.clear()

    def check(numbers: list[int], what: str) -> None:
        strange = [n for n in numbers if not 0 <= n % 10_000 < 5 * _TURNS or n >= 30_000]
        expect(not strange, f"rows {strange} were {what}, which nobody pushed")

    with _frequent_switches():
        pushes = [partial(push, which) for which in range(3)]
        bench.together(*pushes, sample, sample, sample, keep, meddle)
    buffer.clear()
    bench.push(buffer, *range(90_000, 90_000 + capacity))
    expect_equal(bench.contents(buffer), list(range(90_000, 90_000 + capacity)), "rows at the end")
    if bench.has("parts"):
        stats = buffer.stats()
        expect_equal(stats.pushed, 3 * 5 * _TURNS + capacity, "rows pushed in all")
        expect_equal(stats.pushed, stats.left + stats.count, "rows in all")
        expect_equal(len(gone), stats.left, "rows that listeners heard of")
        expect_equal(len(set(gone)), len(gone), "different rows that listeners heard of")


def rule_40_concurrent_calls_have_an_order(bench: BufferBench) -> None:
    """What calls of several threads return is what they would return one after the other.

    That order respects time: a call that ended before another began comes before it.
    """
    capacity = 3
    clock = itertools.count()

    def run(do: Callable[[], Any], kind: str, numbers: tuple[int, ...]) -> Operation:
        began = next(clock)
        result = do()
        return Operation(kind, numbers, result, began, next(clock))

    with _frequent_switches():
        for number in range(_ROUNDS):
            buffer = bench.buffer(replay_buffer_size=capacity)

            def push(*numbers: int, buffer: Any = buffer) -> Operation:
                return run(partial(bench.push, buffer, *numbers), "push", numbers)

            def sample(buffer: Any = buffer) -> Operation:
                def do() -> Any:
                    found = bench.sample(buffer, 1)
                    return None if found is None else numbers_of(found)[0]

                return run(do, "sample", ())

            def look(buffer: Any = buffer) -> Operation:
                return run(lambda: tuple(bench.contents(buffer)), "look", ())

            def clear(buffer: Any = buffer) -> Operation:
                return run(buffer.clear, "clear", ())

            threads: list[list[Callable[[], Operation]]] = [
                [partial(push, 1, 2), sample, partial(push, 3)],
                [look, partial(push, 10, 11), clear if number % 2 else look],
                [sample, look, sample],
            ]
            jobs = [lambda calls=calls: [call() for call in calls] for calls in threads]
            history = [each for done in bench.together(*jobs) for each in done]
            if not explains(history, capacity):
                told = "\n".join(map(str, sorted(history, key=lambda each: each.began)))
                raise RuleBroken(f"no order of the calls explains what they returned:\n{told}")
            buffer.close()


@contextlib.contextmanager
def _frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
