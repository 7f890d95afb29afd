"""The rules of removers."""

from __future__ import annotations

from typing import Final

import numpy as np

from dingsdk.testing.expect import expect, expect_equal
from dingsdk.testing.part_rules.bench import CAPACITY, PartBench, PartContract
from dingsdk.testing.runner import RuleBook, collect, needs


@needs("ages")
def rule_09_newer_counts_the_rows_that_came_after(bench: PartBench) -> None:
    """``newer`` returns for each position how many rows were added after the row there."""
    remover = bench.part()
    for n in (3, 4, 1, 2, CAPACITY, 5):
        remover.allot(n)
        ages = np.arange(remover.count, dtype=np.int64)
        found = remover.newer(np.arange(CAPACITY)[remover.by_age(ages)])
        expect_equal(found.tolist(), ages[::-1].tolist(), "rows that came after each, by age")


@needs("random")
def rule_10_seed_decides_which_rows_leave(bench: PartBench) -> None:
    """The same seed removes the same rows, another seed removes others; ``is_fifo`` is False."""
    removers = [bench.part(seed=seed) for seed in (5, 5, 6)]
    one, two, other = (
        [np.arange(CAPACITY)[remover.allot(3)[0]].tolist() for _ in range(12)]
        for remover in removers
    )
    expect_equal(two, one, "positions with one seed")
    expect(other != one, "another seed removed the same rows")
    expect(not type(removers[0]).is_fifo, "is_fifo is True")


def rule_11_buffer_with_it_follows_the_rules(bench: PartBench) -> None:
    """A buffer that uses the remover follows the rules of buffers."""
    order = {"fifo"} if bench.has("fifo") else set()
    capabilities = {"parts", "saves", "distinct", "ages", "columns", *order}
    bench.expect_rules_of_buffers("remover", "naive", capabilities)


REMOVER_BOOK: Final = RuleBook(
    collect(__name__),
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
