"""Rules 31 to 38: waiting, limits, listeners and totals of buffers that are made of parts."""

from __future__ import annotations

import time
from typing import Any

from dingsdk.errors import BufferClosedError, BufferFullError
from dingsdk.testing.buffer_bench import CAPACITY, BufferBench, Call, expect, expect_equal, raises
from dingsdk.testing.buffer_rows import numbers_of
from dingsdk.testing.rule import needs

_WAIT_S = 0.05
_EARLY_S = 0.02
"""Clocks tick coarsely; a wait that ends this much early is still a wait."""
_RATIO = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 2}


@needs("parts")
def rule_31_sample_waits_for_rows(bench: BufferBench) -> None:
    """``sample`` with ``timeout_s`` waits for rows, and returns when they come, not at its end.

    Without it, it waits for nothing.
    """
    buffer = bench.buffer()
    at_once = Call(lambda: bench.sample(buffer, 2), "sample() without a timeout")
    expect_equal(at_once.value(bench.patience_s), None, "a sample of an empty buffer")
    call = _waiting(bench, buffer, 2)
    bench.push(buffer, 1)
    expect(not call.has_ended(_WAIT_S), "a wait for 2 rows ended with the first")
    bench.push(buffer, 2)
    expect_equal(set(numbers_of(call.value(bench.patience_s))) - {1, 2}, set(), "strange rows")


@needs("parts")
def rule_32_wait_ends_at_its_deadline(bench: BufferBench) -> None:
    """A wait for rows that do not come returns None at its deadline, not before or long after."""
    buffer = bench.buffer(1)
    for timeout_s in (0.0, _WAIT_S):
        call = Call(lambda t=timeout_s: bench.sample(buffer, 2, timeout_s=t), "sample()")  # type: ignore[misc]
        expect_equal(call.value(timeout_s + bench.patience_s), None, "a wait for nothing")
        expect(call.took_s >= timeout_s - _EARLY_S, f"sample() gave up after {call.took_s:.3f} s")


@needs("parts")
def rule_33_close_wakes_who_waits(bench: BufferBench) -> None:
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
def rule_34_min_size_is_waited_for(bench: BufferBench) -> None:
    """With ``limiter.min_size`` no sample is served before the buffer holds that many rows."""
    buffer = bench.buffer(1, 2, limiter={"type": "min_size", "min_size": 4})
    expect_equal(bench.sample(buffer, 1), None, "a sample below min_size")
    call = _waiting(bench, buffer, 1)
    bench.push(buffer, 3)
    expect(not call.has_ended(_WAIT_S), "a wait ended below min_size")
    expect_equal(bench.sample(buffer, 1), None, "a sample below min_size")
    bench.push(buffer, 4)
    expect_equal(len(numbers_of(call.value(bench.patience_s))), 1, "rows at min_size")
    bench.draw(buffer, 4)


@needs("parts")
def rule_35_refused_push_raises_and_loses_nothing(bench: BufferBench) -> None:
    """A push that the limiter does not admit raises BufferFullError, and can be done again.

    With ``timeout_s`` it waits until samples make room, or the time is over. It is never dropped
    in silence.
    """
    buffer = bench.buffer(1, 2, 3, limiter=_RATIO)
    for timeout_s in (None, 0.0, _WAIT_S):
        started = time.monotonic()
        with raises(f"a refused push, timeout_s={timeout_s}", BufferFullError):
            _push(bench, buffer, timeout_s)
        took_s = time.monotonic() - started
        expect(took_s >= (timeout_s or 0.0) - _EARLY_S, f"push() gave up after {took_s:.3f} s")
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
    """A sample for which the limiter wants more pushes is None, or waits for them."""
    buffer = bench.buffer(1, 2, 3, limiter=_RATIO)
    taken = 0
    while bench.sample(buffer, 1) is not None:
        taken += 1
        expect(taken <= 4, "more was sampled than 3 rows pushed and a slack of 2 allow")
    expect_equal(taken, 4, "samples before the limiter refused one")
    call = _waiting(bench, buffer, 1)
    bench.push(buffer, 4)
    expect_equal(len(numbers_of(call.value(bench.patience_s))), 1, "rows after another push")


@needs("parts")
def rule_37_listeners_hear_of_every_row_that_leaves(bench: BufferBench) -> None:
    """A remove listener gets every row that leaves once, oldest first, with the reason.

    That is ``overwritten``, or ``cleared`` for ``clear`` and, unless rows stay in a folder, for
    ``close``. It runs after the operation, and may call the buffer; what it raises goes no
    further.
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

    def expect_gone(numbers: range, reason: str) -> None:
        expect_equal(gone, list(numbers), f"rows that left, {reason}")
        expect_equal(set(reasons), {reason} if numbers else set(), "the reason")
        gone.clear()
        reasons.clear()

    bench.push(buffer, *range(4))
    expect_gone(range(0), "of a buffer with room")
    bench.push(buffer, *range(4, 9))
    expect_gone(range(3), "overwritten")
    expect_equal(counts[-1], CAPACITY, "count() as a listener sees it")
    bench.push(buffer, *range(9, 9 + CAPACITY + 2))
    expect_gone(range(3, 11), "overwritten")
    buffer.clear()
    expect_gone(range(11, 17), "cleared")
    bench.push(buffer, 50)
    buffer.close()
    expect_gone(range(0) if bench.has("durable") else range(50, 51), "cleared")


@needs("parts")
def rule_38_totals_add_up(bench: BufferBench) -> None:
    """``stats()`` counts rows: what was pushed is there or has left, for a counted reason."""
    buffer = bench.buffer(*range(4))
    bench.draw(buffer, 3)
    bench.push(buffer, *range(4, 9))
    buffer.clear()
    bench.push(buffer, *range(2 * CAPACITY))
    with_room = buffer.stats()
    facts = (with_room.pushed, with_room.sampled, with_room.overwritten, with_room.cleared)
    expected = (9 + 2 * CAPACITY, 3, 9 - CAPACITY + CAPACITY, CAPACITY)
    expect_equal(facts, expected, "rows pushed, sampled, overwritten and cleared")
    expect_equal((with_room.count, with_room.capacity), (CAPACITY, CAPACITY), "count, capacity")


def _waiting(bench: BufferBench, buffer: Any, size: int) -> Call[Any]:
    call = Call(lambda: bench.sample(buffer, size, timeout_s=20 * bench.patience_s), "sample()")
    expect(not call.has_ended(_WAIT_S), "a sample that cannot be served did not wait")
    return call


def _push(bench: BufferBench, buffer: Any, timeout_s: float | None) -> None:
    buffer.push(bench.batch(9), 0, timeout_s=timeout_s)
