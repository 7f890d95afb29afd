"""The rules of samplers."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from dingsdk.testing.buffer_bench import make_row
from dingsdk.testing.expect import expect, expect_alike
from dingsdk.testing.part_rules.bench import CAPACITY, PartBench, PartContract
from dingsdk.testing.runner import RuleBook, collect, needs

_FAMILIES: Final = {"rows": "naive", "priorities": "advanced", "sequences": "sequence"}
"""The family of a sampler -> the type of a buffer that uses it."""


@needs("rows", unless="own_law")
def rule_06_ranks_are_equally_likely(bench: PartBench) -> None:
    """All ranks are equally likely.

    A rank does not depend on the age of a row: in a full buffer rank 0 may be the newest row.
    """
    sampler = bench.part()
    rows = [make_row(number, False, sampler.needs_columns) for number in range(CAPACITY)]
    sampler.on_insert(np.arange(CAPACITY), rows, None)
    for size, replace in ((1, False), (3, False), (CAPACITY - 1, False), (3, True)):
        counts: Counter[int] = Counter()
        for _ in range(400):
            counts.update(sampler.draw(CAPACITY, size, replace=replace).tolist())
        expect_alike(counts, CAPACITY, f"ranks in draws of {size}, replace={replace}")


def rule_15_buffer_with_it_follows_the_rules(bench: PartBench) -> None:
    """A buffer that uses the sampler follows the rules of buffers."""
    families = [family for family in _FAMILIES if bench.has(family)]
    expect(len(families) == 1, f"it declares the families {families}, not one of {[*_FAMILIES]}")
    (family,) = families
    also = {name for name in ("distinct", "proportional", "own_law") if bench.has(name)}
    own = {"ages"} if family == "rows" else {family} if family == "sequences" else {"ages", family}
    capabilities = {"fifo", "parts", "saves", "columns", *own, *also}
    bench.expect_rules_of_buffers("sampler", _FAMILIES[family], capabilities)


SAMPLER_BOOK: Final = RuleBook(
    collect(__name__),
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
