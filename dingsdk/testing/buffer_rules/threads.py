"""Rules 31 to 40: waiting, limits, listeners, totals, and many threads at once."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from dingsdk.errors import BufferClosedError, BufferFullError
from dingsdk.testing.buffer_rules.bench import (
    CAPACITY,
    BufferBench,
    Call,
    expect,
    expect_equal,
    numbers_of,
    raises,
    update_of,
)
from dingsdk.testing.runner import needs

_WAIT_S = 0.05
_EARLY_S = 0.02
"""A wait may end this much early, because clocks have a coarse resolution."""
_RATIO = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 2}


@needs("parts")
def rule_31_sample_waits_for_rows(bench: BufferBench) -> None:
    """``sample`` with ``timeout_s`` waits for rows, and returns as soon as there are enough.

    If they do not come, it returns None at its deadline, not earlier or much later. Without
    ``timeout_s`` it does not wait.
    """
    buffer = bench.buffer()
    for timeout_s in (None, 0.0, _WAIT_S):
        call = Call(partial(bench.sample, buffer, 2, timeout_s=timeout_s), "sample()")
        expect_equal(call.value(_WAIT_S + bench.patience_s), None, "a sample of an empty buffer")
        is_early = call.took_s < (timeout_s or 0.0) - _EARLY_S
        expect(not is_early, f"sample() returned after {call.took_s:.3f} s")
    call = _waiting(bench, buffer, 2)
    bench.push(buffer, 1)
    expect(not call.has_ended(_WAIT_S), "a wait for 2 rows ended with the first")
    bench.push(buffer, 2)
    expect_equal(set(numbers_of(call.value(bench.patience_s))) - {1, 2}, set(), "unexpected rows")


@needs("parts")
def rule_33_close_wakes_waiting_calls(bench: BufferBench) -> None:
    """Closing the buffer ends every wait on it with BufferClosedError."""
    buffer = bench.buffer(1, 2, 3, limiter=_RATIO)
    waits = [_waiting(bench, buffer, CAPACITY), _waiting(bench, buffer, CAPACITY)]
    waits.append(Call(lambda: _push(bench, buffer, 20 * bench.patience_s), "push()"))
    expect(not waits[-1].has_ended(_WAIT_S), "a push that the limiter refuses did not wait")
    Call(buffer.close, "close()").value(bench.patience_s)
    for call in waits:
        with raises("a wait on a closed buffer", BufferClosedError):
            call.value(bench.patience_s)


@needs("parts")
def rule_35_refused_push_raises_and_loses_nothing(bench: BufferBench) -> None:
    """A push that the limiter refuses raises BufferFullError, and may be repeated.

    With ``timeout_s`` it waits until samples make room or the time is over. Rows are never dropped
    without an error.
    """
    buffer = bench.buffer(1, 2, 3, limiter=_RATIO)
    for timeout_s in (None, 0.0, _WAIT_S):
        started = time.monotonic()
        with raises(f"a refused push, timeout_s={timeout_s}", BufferFullError):
            _push(bench, buffer, timeout_s)
        took_s = time.monotonic() - started
        expect(took_s >= (timeout_s or 0.0) - _EARLY_S, f"push() raised after {took_s:.3f} s")
        expect_equal(bench.contents(buffer), [1, 2, 3], "rows after a refused push")
        expect_equal(buffer.push_count, 3, "push_count after a refused push")
    call = Call(lambda: _push(bench, buffer, 20 * bench.patience_s), "push()")
    expect(not call.has_ended(_WAIT_S), "a push that the limiter refuses did not wait")
    for _ in range(2):
        bench.draw(buffer, 1)
    call.value(bench.patience_s)
    expect_equal(bench.contents(buffer), [1, 2, 3, 9], "rows after the wait")


@needs("parts")
def rule_36_samples_do_not_run_ahead(bench: BufferBench) -> None:
    """If the limiter requires more pushes, ``sample`` returns None, or waits for the pushes.

    With ``limiter.min_size`` nothing is sampled until the buffer has that many rows.
    """
    buffer = bench.buffer(1, limiter={**_RATIO, "min_size": 3})
    call = _waiting(bench, buffer, 1)
    bench.push(buffer, 2)
    expect(not call.has_ended(_WAIT_S), "a wait ended below min_size")
    expect_equal(bench.sample(buffer, 1), None, "a sample below min_size")
    bench.push(buffer, 3)
    expect_equal(len(numbers_of(call.value(bench.patience_s))), 1, "rows at min_size")
    taken = 1
    while bench.sample(buffer, 1) is not None:
        taken += 1
        expect(taken <= 2, "more was sampled than the rows pushed and the slack allow")
    expect_equal(taken, 2, "samples before the limiter refused one")
    call = _waiting(bench, buffer, 1)
    bench.push(buffer, 4)
    expect_equal(len(numbers_of(call.value(bench.patience_s))), 1, "rows after another push")


@needs("parts")
def rule_37_listeners_get_every_row_that_leaves(bench: BufferBench) -> None:
    """A remove listener gets every row that leaves once, oldest first, with the reason.

    The reason is ``overwritten`` or ``cleared``. ``cleared`` is for ``clear``, and for ``close``
    unless rows stay in a folder. The listener is called after the operation, and may call the
    buffer. Its errors do not reach the caller of the buffer. ``stats()`` counts these rows too.
    """
    buffer = bench.buffer()
    gone: list[int] = []
    reasons: list[str] = []
    counts: list[int] = []

    def listen(rows: Any, reason: str) -> None:
        gone.extend(numbers_of(rows))
        reasons.append(reason)
        counts.append(buffer.count())

    def fail(rows: Any, reason: str) -> None:
        if reason == "cleared":
            raise ValueError("a listener that fails")

    buffer.add_remove_listener(fail)
    buffer.add_remove_listener(listen)

    there: list[int] = []

    def expect_gone(pushed: range, reason: str, left: list[int]) -> None:
        expect_equal(gone, [n for n in (*there, *pushed) if n not in left], f"rows, {reason}")
        expect_equal(set(reasons), {reason} if gone else set(), "the reason")
        there[:] = left
        gone.clear()
        reasons.clear()

    for numbers in (range(4), range(4, 9), range(9, 9 + CAPACITY + 2)):
        bench.push(buffer, *numbers)
        left = bench.held(buffer, [*there, *numbers])
        expect_gone(numbers, "overwritten", left)
    expect_equal(counts[-1], CAPACITY, "count() as a listener sees it")
    buffer.clear()
    expect_gone(range(0), "cleared", [])
    stats = buffer.stats()
    facts = stats.pushed, stats.overwritten, stats.cleared, stats.count
    expect_equal(facts, (11 + CAPACITY, 11, CAPACITY, 0), "rows pushed, overwritten, cleared, left")
    bench.push(buffer, 50)
    buffer.close()
    expect_gone(range(50, 51), "cleared", [50] if bench.has("durable") else [])


def _waiting(bench: BufferBench, buffer: Any, size: int) -> Call[Any]:
    call = Call(lambda: bench.sample(buffer, size, timeout_s=20 * bench.patience_s), "sample()")
    expect(not call.has_ended(_WAIT_S), "a sample that cannot be served did not wait")
    return call


def _push(bench: BufferBench, buffer: Any, timeout_s: float | None) -> None:
    buffer.push(bench.batch(9), 0, timeout_s=timeout_s)


_TURNS = 60


def rule_39_threads_share_a_buffer(bench: BufferBench) -> None:
    """Threads may push, sample, update, clear, save and take states at the same time.

    No call fails, every returned row is whole and was pushed, listeners get each row that leaves
    once, and the buffer works normally afterwards.
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
                buffer.update(update_of(found, [1.0 + n % 3 for n in range(len(found))]))

    def keep() -> None:
        for turn in range(_TURNS):
            state = buffer.state_dict()
            numbers = bench.numbers_in(state)
            check(numbers, "in a state")
            # A state has all rows of a push, in their order, or none of them.
            for one, after in itertools.pairwise(numbers) if bench.has("fifo") else ():
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
        expect(not strange, f"rows {strange} were {what}, which were never pushed")

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
        expect_equal(len(gone), stats.left, "rows that listeners were called with")
        expect_equal(len(set(gone)), len(gone), "different rows that listeners were called with")


@contextlib.contextmanager
def _frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
