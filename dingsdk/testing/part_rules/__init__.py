"""The rules of the parts of a replay buffer; each part is checked without a buffer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dingsdk.testing.part_rules import limiters, removers, samplers, storages
from dingsdk.testing.part_rules.bench import MakePart, PartBench
from dingsdk.testing.runner import Contract, ContractReport, RuleBook, book_of, collect

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
            "own_law": "Its draws follow a law of their own, which its author tests.",
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
    return book_of(PART_RULES, kind).check(make, **options)


class StorageContract(Contract):
    """Contract tests of a storage; see ``PART_RULES["storage"].known_capabilities``."""

    book = PART_RULES["storage"]
    maker = "make_part"

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        """Return a fresh part. Rules may call it more than once.

        Args:
            capacity: Maximum number of rows of the buffer.
            seed: Seed of its random numbers.
            folder: Folder for its files; a durable storage opens the rows that are in it.
        """
        raise self._missing("make_part(...)")


class SamplerContract(StorageContract):
    """Contract tests of a sampler; see ``PART_RULES["sampler"].known_capabilities``."""

    book = PART_RULES["sampler"]


class RemoverContract(StorageContract):
    """Contract tests of a remover; see ``PART_RULES["remover"].known_capabilities``."""

    book = PART_RULES["remover"]


class LimiterContract(StorageContract):
    """Contract tests of a limiter; see ``PART_RULES["limiter"].known_capabilities``."""

    book = PART_RULES["limiter"]
