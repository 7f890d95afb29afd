"""The rules of limiters."""

from __future__ import annotations

from typing import Any, Final

from dingsdk.errors import CheckpointCorruptError
from dingsdk.testing.expect import expect, expect_equal, raises
from dingsdk.testing.part_rules.bench import PartBench, PartContract
from dingsdk.testing.runner import RuleBook, collect, needs

_PUSH, _BATCH = 4, 8
_MOST_ROWS = 100_000
"""Number of rows after which any limiter admits a sample."""


def _run(limiter: Any, turns: int) -> list[tuple[bool, bool]]:
    """Push and sample when admitted; return for each turn whether each was admitted."""
    found = []
    for _ in range(turns):
        pushes = limiter.can_insert(_PUSH)
        if pushes:
            limiter.on_insert(_PUSH)
        samples = limiter.can_sample(_BATCH)
        if samples:
            limiter.on_sample(_BATCH)
        found.append((pushes, samples))
    return found


def rule_01_counts_are_of_rows(bench: PartBench) -> None:
    """``inserts`` and ``samples`` count rows; ``reset`` sets them and ``size`` to 0.

    A push adds its rows to ``size`` too. The buffer sets ``size`` after rows have left.
    """
    limiter = bench.part()
    limiter.on_insert(3)
    limiter.on_insert(2)
    limiter.on_sample(4)
    counts = limiter.inserts, limiter.samples, limiter.size
    expect_equal(counts, (5, 4, 5), "inserts, samples and size")
    limiter.size = 2
    expect_equal((limiter.inserts, limiter.size), (5, 2), "inserts and size after rows left")
    limiter.reset()
    counts = limiter.inserts, limiter.samples, limiter.size
    expect_equal(counts, (0, 0, 0), "inserts, samples and size after reset()")


def rule_02_new_buffer_takes_rows_and_gives_none(bench: PartBench) -> None:
    """While the buffer is empty, pushes of any size are admitted, and samples are not.

    This applies again after ``reset``.
    """
    limiter = bench.part()
    for what in ("of a new buffer", "after reset()"):
        expect(limiter.can_insert(1) and limiter.can_insert(10_000), f"no push {what}")
        sampled = limiter.can_sample(1) or limiter.can_sample(_BATCH)
        expect(not sampled or limiter.min_size < 1, f"a sample {what}")
        _run(limiter, 50)
        limiter.reset()


def rule_04_pushes_and_samples_never_block_each_other(bench: PartBench) -> None:
    """At any time a push or a sample is admitted, or one will be after some time.

    Unless the limiter is ``timed``, ``can_insert`` and ``can_sample`` give the same results until
    rows are pushed or sampled. This is checked with pushes of 4 rows and batches of 8. Use settings
    that admit such sizes.
    """
    for prefers_push in (True, False):
        limiter = bench.part()
        for turn in range(200):
            pushes, samples = limiter.can_insert(_PUSH), limiter.can_sample(_BATCH)
            again = limiter.can_insert(_PUSH), limiter.can_sample(_BATCH)
            is_same = bench.has("timed") or again == (pushes, samples)
            expect(is_same, f"answers to the same questions: {again}, before {pushes, samples}")
            if not pushes and not samples:
                soon_s = limiter.retry_after_s()
                expect(soon_s is not None, f"push and sample were both refused in turn {turn}")
                break
            if pushes and (prefers_push or not samples):
                limiter.on_insert(_PUSH)
            else:
                limiter.on_sample(_BATCH)


def rule_05_state_gives_the_same_answers(bench: PartBench) -> None:
    """A limiter that loads a state gives the same answers as its source; the buffer sets ``size``.

    A state that has only the counts, such as that of another limiter, is accepted too.
    """
    old, new = bench.part(), bench.part()
    _run(old, 15)
    _run(new, 3)
    state = old.state_dict()
    new.load_state_dict(state)
    new.size = old.size
    expect_equal((new.inserts, new.samples), (old.inserts, old.samples), "counts of a state")
    expect_equal(_run(new, 20), _run(old, 20), "what is admitted after a state was loaded")
    new.load_state_dict({"inserts": 7, "samples": 3})
    expect_equal((new.inserts, new.samples), (7, 3), "counts of another limiter's state")


def rule_06_wrong_state_is_refused(bench: PartBench) -> None:
    """Counts that are missing, negative or not integers raise CheckpointCorruptError.

    The limiter does not change.
    """
    limiter = bench.part()
    _run(limiter, 5)
    before = limiter.inserts, limiter.samples
    state = limiter.state_dict()
    for key in ("inserts", "samples"):
        lacking = {name: value for name, value in state.items() if name != key}
        for wrong in (lacking, {**state, key: -1}, {**state, key: 1.5}, {**state, key: "1"}):
            with raises(f"load_state_dict({wrong})", CheckpointCorruptError):
                limiter.load_state_dict(wrong)
    expect_equal((limiter.inserts, limiter.samples), before, "counts after refused states")


@needs("min_size")
def rule_07_samples_need_the_least_size(bench: PartBench) -> None:
    """Below ``min_size`` all pushes and no samples are admitted, also after rows left."""
    limiter = bench.part()
    least = limiter.min_size
    expect(least > 1, f"min_size is {least}; test with more")
    limiter.on_insert(least - 1)
    expect(not limiter.can_sample(1), f"a sample of {least - 1} rows was admitted")
    expect(limiter.can_insert(1), f"a push to {least - 1} rows was refused")
    limiter.on_insert(1)
    expect(limiter.can_sample(1), f"a sample of {least} rows was refused")
    limiter.size = least - 1
    expect(not limiter.can_sample(1), "a sample was admitted after a row left")
    expect(limiter.can_insert(1), "a push was refused after a row left")


@needs("bounded")
def rule_08_pushes_wait_for_samples(bench: PartBench) -> None:
    """Without samples, pushes are refused after a while; after samples they are admitted again."""
    limiter = bench.part()
    pushes = 0
    # Some limiters only bound pushes after a first sample.
    while not limiter.can_sample(_BATCH):
        limiter.on_insert(_PUSH)
        expect(limiter.inserts < _MOST_ROWS, f"no sample was admitted after {_MOST_ROWS} rows")
    limiter.on_sample(_BATCH)
    while limiter.can_insert(_PUSH):
        limiter.on_insert(_PUSH)
        pushes += 1
        expect(pushes < 1000, "1000 pushes were admitted without a sample")
    refused = pushes
    while not limiter.can_insert(_PUSH):
        expect(limiter.can_sample(_BATCH), "neither push nor sample is admitted")
        limiter.on_sample(_BATCH)
        refused += 1
        expect(refused < pushes + 1000, "1000 samples admitted no push")


def rule_09_only_timed_limiters_admit_by_time(bench: PartBench) -> None:
    """``retry_after_s`` is None; for ``timed`` limiters it is a number of seconds above 0.

    For ``timed`` limiters this is checked after some pushes and samples.
    """
    limiter = bench.part()
    _run(limiter, 30)
    soon_s = limiter.retry_after_s()
    if bench.has("timed"):
        expect(soon_s is not None and 0 < soon_s < 1e6, f"retry_after_s() is {soon_s}")
    else:
        expect_equal(soon_s, None, "retry_after_s()")


def rule_10_enough_rows_admit_a_sample(bench: PartBench) -> None:
    """After enough pushes a sample is admitted, at once or, if pushes are refused, after a time."""
    limiter = bench.part()
    while not limiter.can_sample(_BATCH):
        if not limiter.can_insert(_PUSH) and limiter.retry_after_s() is not None:
            break
        limiter.on_insert(_PUSH)
        expect(limiter.inserts < _MOST_ROWS, f"no sample was admitted after {_MOST_ROWS} rows")


LIMITER_BOOK: Final = RuleBook(
    collect(__name__),
    {
        "min_size": "`min_size` rows have to be there before any is sampled.",
        "bounded": "Pushes wait for samples.",
        "timed": "Passing time may admit what was refused; `retry_after_s` says when.",
    },
    PartBench,
)


class LimiterContract(PartContract):
    """Contract tests of a limiter; see ``PART_RULES["limiter"].known_capabilities``."""

    book = LIMITER_BOOK
