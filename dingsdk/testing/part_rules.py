"""The rules of the parts of a replay buffer; each part is checked without a buffer.

The rules of a kind are the functions whose names begin with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from dingsdk.errors import CheckpointCorruptError, error_text
from dingsdk.plugins import default_manager
from dingsdk.plugins.registry import transaction
from dingsdk.testing.buffer_bench import make_row, numbers_of
from dingsdk.testing.buffer_rules import BUFFER_BOOK
from dingsdk.testing.expect import RuleBroken, expect, expect_alike, expect_equal, raises
from dingsdk.testing.runner import (
    Contract,
    ContractError,
    ContractReport,
    RuleBench,
    RuleBook,
    book_of,
    collect,
    needs,
)
from dingsdk.worker.factory import create_buffer
from dingsdk.worker.replay_buffer.sampler import check_ranks

CAPACITY = 8
MakePart = Callable[..., Any]
"""``make(capacity, seed, folder)`` returns a new part; a priority sampler also gets ``alpha=``."""


class PartBench(RuleBench[MakePart]):
    """The bench of a part: makes parts, and closes them at the end."""

    def build(self) -> Any:
        return self.part()

    def part(self, capacity: int = CAPACITY, seed: int = 0, **settings: Any) -> Any:
        """Return a new part with a new folder."""
        return self.keep(self._make(capacity, seed, self.new_folder(), **settings))

    def expect_rules_of_buffers(
        self, kind: str, buffer: str, capabilities: Collection[str]
    ) -> None:
        """Expect a buffer that is made with the part to follow the rules of buffers.

        Args:
            kind: ``storage``, ``sampler`` or ``remover``.
            buffer: Type of the buffer.
            capabilities: The capabilities of the buffer, of ``BUFFER_CAPABILITIES``.
        """

        key = f"part under test {id(self)}"

        def made(cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> Any:
            settings = {name: cfg[name] for name in config if name in cfg and name != "type"}
            return self.part(capacity, 0 if seed is None else int(seed), **settings)

        config = {"type": key, **({"alpha": None} if "priorities" in capabilities else {})}
        made.config = config  # type: ignore[attr-defined]
        registry = default_manager().registry(f"{kind}s")
        with transaction("the rules") as changes:
            registry.register(key, made)
        self.exits.callback(changes.roll_back)

        def make(cfg: Mapping[str, Any]) -> Any:
            return create_buffer({"type": buffer, kind: {"type": key}, **cfg})

        make.needs_columns = getattr(self.part(), "needs_columns", ())  # type: ignore[attr-defined]
        try:
            BUFFER_BOOK.check(make, capabilities=capabilities, patience_s=self.patience_s)
        except ContractError as error:
            first, *others = (each for each in error.facts["report"].results if each.error)
            text = f"{first.rule.number}, {first.rule.title}: {error_text(first.error)}"
            more = ", ".join(str(each.rule.number) for each in others) or "none"
            raise RuleBroken(f"buffers break their rule {text} (others: {more})") from error


class PartContract(Contract):
    """Base class of the contract tests of the parts of a buffer.

    ``make_part(capacity, seed, folder)`` returns a new part for at most ``capacity`` rows, with a
    folder for its files.
    """

    maker = "make_part(capacity, seed, folder)"


def _put(storage: Any, where: Any, numbers: Sequence[int], there: dict[int, int]) -> None:
    """Put rows of these numbers to positions, and record them in ``there``."""
    storage.put(where, storage.accept([make_row(number) for number in numbers]))
    there.update(zip(np.arange(CAPACITY)[where].tolist(), numbers, strict=True))


def _expect_rows(storage: Any, there: Mapping[int, int], what: str) -> None:
    found = numbers_of(storage.take(np.array([*there], np.int64)))
    expect_equal(found, [*there.values()], f"rows by position {what}")


def storage_rule_09_ring_is_loaded_in_pieces(bench: PartBench) -> None:
    """The rows of a ring may be put in pieces, starting at any position."""
    storage = bench.part()
    there: dict[int, int] = {}
    for number, where in enumerate((slice(3, 5), slice(5, 7), np.array([7, 0]), slice(1, 3))):
        _put(storage, where, (2 * number, 2 * number + 1), there)
    _expect_rows(storage, there, "of a loaded ring")
    _put(storage, np.array([3, 4]), (20, 21), there)
    _expect_rows(storage, there, "of a loaded ring, after a push")


@needs("any_order")
def storage_rule_13_rows_leave_in_any_order(bench: PartBench) -> None:
    """Any positions may be replaced, in any order."""
    storage, rng = bench.part(), np.random.default_rng(0)
    there: dict[int, int] = {}
    _put(storage, slice(0, CAPACITY), range(CAPACITY), there)
    for first in range(20, 80, 3):
        where = rng.permutation(CAPACITY)[:3]
        _put(storage, where, range(first, first + 3), there)
        _expect_rows(storage, there, f"after rows were put to {where}")


def storage_rule_15_buffer_with_it_follows_the_rules(bench: PartBench) -> None:
    """A buffer that uses the storage follows the rules of buffers."""
    also = {name for name in ("columns", "objects") if bench.has(name)}
    capabilities = {"fifo", "parts", "saves", "distinct", "ages", *also}
    bench.expect_rules_of_buffers("storage", "naive", capabilities)


STORAGE_BOOK: Final = RuleBook(
    collect(__name__, "storage_"),
    {
        "columns": "Rows are dicts of numbers and arrays, returned as SampleBatch.",
        "objects": "A row may be any object.",
        "any_order": "Rows may leave in any order; without it the oldest leave first.",
    },
    PartBench,
)


class StorageContract(PartContract):
    """Contract tests of a storage; see ``PART_RULES["storage"].known_capabilities``."""

    book = STORAGE_BOOK


_FAMILIES: Final = {"rows": "naive", "priorities": "advanced", "sequences": "sequence"}
"""The family of a sampler -> the type of a buffer that uses it."""


@needs("rows", unless="own_law")
def sampler_rule_06_ranks_are_equally_likely(bench: PartBench) -> None:
    """All ranks are equally likely.

    A rank does not depend on the age of a row: in a full buffer rank 0 may be the newest row.
    """
    sampler = bench.part()
    rows = [make_row(number, False, sampler.needs_columns) for number in range(CAPACITY)]
    sampler.on_insert(np.arange(CAPACITY), rows, None)
    for size, replace in ((1, False), (3, False), (CAPACITY - 1, False), (3, True)):
        counts: Counter[int] = Counter()
        for _ in range(400):
            drawn = sampler.draw(CAPACITY, size, replace=replace)
            check_ranks(drawn, CAPACITY, size, sampler)
            counts.update(drawn.tolist())
        expect_alike(counts, CAPACITY, f"ranks in draws of {size}, replace={replace}")


def sampler_rule_15_buffer_with_it_follows_the_rules(bench: PartBench) -> None:
    """A buffer that uses the sampler follows the rules of buffers."""
    families = [family for family in _FAMILIES if bench.has(family)]
    expect(len(families) == 1, f"it declares the families {families}, not one of {[*_FAMILIES]}")
    (family,) = families
    also = {name for name in ("distinct", "proportional", "own_law") if bench.has(name)}
    own = {"ages"} if family == "rows" else {family} if family == "sequences" else {"ages", family}
    capabilities = {"fifo", "parts", "saves", "columns", *own, *also}
    bench.expect_rules_of_buffers("sampler", _FAMILIES[family], capabilities)


SAMPLER_BOOK: Final = RuleBook(
    collect(__name__, "sampler_"),
    {
        "rows": "A `RowSampler`: it draws single rows, all equally likely.",
        "distinct": "All pairs of rows are equally likely to be in a batch.",
        "priorities": "A `PrioritySampler`: it draws single rows by their priority.",
        "proportional": "A row's share of the draws is `priority ** alpha`.",
        "own_law": "Its draws follow a law of their own, which its author tests.",
        "sequences": "A `SequenceSampler`: it draws runs of consecutive rows.",
    },
    PartBench,
)


class SamplerContract(PartContract):
    """Contract tests of a sampler; see ``PART_RULES["sampler"].known_capabilities``."""

    book = SAMPLER_BOOK


@needs("ages")
def remover_rule_09_newer_counts_the_rows_that_came_after(bench: PartBench) -> None:
    """``newer`` returns for each position how many rows were added after the row there."""
    remover = bench.part()
    for n in (3, 4, 1, 2, CAPACITY, 5):
        remover.allot(n)
        ages = np.arange(remover.count, dtype=np.int64)
        found = remover.newer(np.arange(CAPACITY)[remover.by_age(ages)])
        expect_equal(found.tolist(), ages[::-1].tolist(), "rows that came after each, by age")


@needs("random")
def remover_rule_10_seed_decides_which_rows_leave(bench: PartBench) -> None:
    """The same seed removes the same rows, another seed removes others; ``is_fifo`` is False."""
    removers = [bench.part(seed=seed) for seed in (5, 5, 6)]
    one, two, other = (
        [np.arange(CAPACITY)[remover.allot(3)[0]].tolist() for _ in range(12)]
        for remover in removers
    )
    expect_equal(two, one, "positions with one seed")
    expect(other != one, "another seed removed the same rows")
    expect(not type(removers[0]).is_fifo, "is_fifo is True")


def remover_rule_11_buffer_with_it_follows_the_rules(bench: PartBench) -> None:
    """A buffer that uses the remover follows the rules of buffers."""
    order = {"fifo"} if bench.has("fifo") else set()
    capabilities = {"parts", "saves", "distinct", "ages", "columns", *order}
    bench.expect_rules_of_buffers("remover", "naive", capabilities)


REMOVER_BOOK: Final = RuleBook(
    collect(__name__, "remover_"),
    {
        "fifo": "The oldest rows leave first, and their positions are used in that order.",
        "ages": "`newer` returns how many rows were added after others.",
        "random": "Which rows leave depends on the seed.",
    },
    PartBench,
)


class RemoverContract(PartContract):
    """Contract tests of a remover; see ``PART_RULES["remover"].known_capabilities``."""

    book = REMOVER_BOOK


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


def limiter_rule_01_counts_are_of_rows(bench: PartBench) -> None:
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


def limiter_rule_02_new_buffer_takes_rows_and_gives_none(bench: PartBench) -> None:
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


def limiter_rule_04_pushes_and_samples_never_block_each_other(bench: PartBench) -> None:
    """At any time a push or a sample is admitted, or one will be after some time.

    Unless the limiter is ``timed``, ``can_insert`` and ``can_sample`` give the same results until
    rows are pushed or sampled. This is checked with pushes of 4 rows and batches of 8. Use settings
    that admit such sizes. ``retry_after_s`` is None; for ``timed`` limiters it is a number of
    seconds above 0 after some pushes and samples.
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
    limiter = bench.part()
    _run(limiter, 30)
    soon_s = limiter.retry_after_s()
    if bench.has("timed"):
        expect(soon_s is not None and 0 < soon_s < 1e6, f"retry_after_s() is {soon_s}")
    else:
        expect_equal(soon_s, None, "retry_after_s()")


def limiter_rule_05_state_gives_the_same_answers(bench: PartBench) -> None:
    """A limiter that loads a state gives the same answers as its source; the buffer sets ``size``.

    A state that has only the counts, such as that of another limiter, is accepted too. Counts that
    are missing, negative or not integers raise CheckpointCorruptError, and nothing changes.
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
    for key in ("inserts", "samples"):
        lacking = {name: value for name, value in state.items() if name != key}
        for wrong in (lacking, {**state, key: -1}, {**state, key: 1.5}, {**state, key: "1"}):
            with raises(f"load_state_dict({wrong})", CheckpointCorruptError):
                new.load_state_dict(wrong)
    expect_equal((new.inserts, new.samples), (7, 3), "counts after refused states")


@needs("min_size")
def limiter_rule_07_samples_need_the_least_size(bench: PartBench) -> None:
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
def limiter_rule_08_pushes_wait_for_samples(bench: PartBench) -> None:
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


def limiter_rule_10_enough_rows_admit_a_sample(bench: PartBench) -> None:
    """After enough pushes a sample is admitted, at once or, if pushes are refused, after a time."""
    limiter = bench.part()
    while not limiter.can_sample(_BATCH):
        if not limiter.can_insert(_PUSH) and limiter.retry_after_s() is not None:
            break
        limiter.on_insert(_PUSH)
        expect(limiter.inserts < _MOST_ROWS, f"no sample was admitted after {_MOST_ROWS} rows")


LIMITER_BOOK: Final = RuleBook(
    collect(__name__, "limiter_"),
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


PART_RULES: Final[Mapping[str, RuleBook[MakePart]]] = {
    "storage": STORAGE_BOOK,
    "sampler": SAMPLER_BOOK,
    "remover": REMOVER_BOOK,
    "limiter": LIMITER_BOOK,
}
"""The rules and the optional capabilities for each kind of part."""


def check_part(kind: str, make: MakePart, **options: Any) -> ContractReport:
    """Check a part of a replay buffer against every rule for its kind, as ``RuleBook.check``.

    Args:
        kind: ``storage``, ``sampler``, ``remover`` or ``limiter``.
        make: ``make(capacity, seed, folder)`` returns a new part. ``folder`` is for its files.
        options: ``capabilities``, from ``PART_RULES[kind].known_capabilities``, and ``patience_s``.
    """
    return book_of(kind).check(make, **options)
