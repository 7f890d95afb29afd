"""The rules of the parts of a replay buffer; each part is checked without a buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dingsdk.testing.part_rules import limiters, removers, samplers, storages
from dingsdk.testing.part_rules.bench import MakePart, PartBench
from dingsdk.testing.rule import ContractReport, RuleBook, collect

PART_RULES: Final[Mapping[str, RuleBook[MakePart]]] = {
    "storage": RuleBook(
        collect(storages),
        {
            "columns": "Rows are dicts of numbers and arrays, returned as SampleBatch.",
            "objects": "A row may be any object.",
            "grids": "`take_grid` gives columns.",
            "any_order": "Rows may leave in any order; without it the oldest leave first.",
            "durable": "Rows stay in the folder when the storage is closed.",
        },
        PartBench,
    ),
    "sampler": RuleBook(
        collect(samplers),
        {
            "rows": "A `RowSampler`: it draws single rows, all equally likely.",
            "distinct": "All pairs of rows are equally likely to be in a batch.",
            "priorities": "A `PrioritySampler`: it draws single rows by their priority.",
            "proportional": "A row's share of the draws is `priority ** alpha`.",
            "sequences": "A `SequenceSampler`: it draws runs of consecutive rows.",
        },
        PartBench,
    ),
    "remover": RuleBook(
        collect(removers),
        {
            "fifo": "The oldest rows leave first, and their positions are used in that order.",
            "ages": "`newer` returns how many rows were added after others.",
            "random": "Which rows leave depends on the seed.",
        },
        PartBench,
    ),
    "limiter": RuleBook(
        collect(limiters),
        {
            "min_size": "`min_size` rows have to be there before any is sampled.",
            "bounded": "Pushes wait for samples.",
            "timed": "Passing time may admit what was refused; `retry_after_s` says when.",
        },
        PartBench,
    ),
}
"""The rules and the optional capabilities for each kind of part."""


def check_part(kind: str, make: MakePart, **options: Any) -> ContractReport:
    """Check a part of a replay buffer against every rule for its kind, as ``RuleBook.check``.

    Args:
        kind: ``storage``, ``sampler``, ``remover`` or ``limiter``.
        make: ``make(capacity, seed, folder)`` returns a new part. ``folder`` is for its files; a
            durable storage opens the rows that are in it.
        options: ``capabilities``, from ``PART_RULES[kind].known_capabilities``, and ``patience_s``.
    """
    return PART_RULES[kind].check(make, **options)
