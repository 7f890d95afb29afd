"""Converts train samples that are lists, or dicts with lists in them, to columns and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dingsdk.data.columns import rows_to_columns, stack_values
from dingsdk.data.pytree import part_of
from dingsdk.data.sample_batch import SampleBatch

LIST = "[]"
"""Key of a dict that represents a list. In its columns, the second dimension is the list's."""


def pack_samples(samples: SampleBatch | Sequence[Any]) -> SampleBatch:
    """Return samples as columns; ``unpack_samples`` returns the same samples again.

    Samples are dicts or lists, which contain dicts, lists, numbers, arrays and tensors. A list of
    numbers becomes an array, as in ``SampleBatch.from_rows``.

    Raises:
        SchemaMismatchError: samples differ in keys, shapes, dtypes or the lengths of their lists.
    """
    if isinstance(samples, SampleBatch):
        return samples
    return SampleBatch.from_rows([_packed(sample) for sample in samples])


def has_lists(columns: Mapping[str, Any]) -> bool:
    """Return whether columns were packed from samples that are lists or contain lists."""
    return any(
        key == LIST or (isinstance(value, dict) and has_lists(value))
        for key, value in columns.items()
    )


def unpack_samples(batch: SampleBatch) -> list[Any]:
    """Return packed samples with their lists; arrays and numbers become tensors.

    The tensors share the batch's memory. If a sample is a list, columns that were added to the
    batch next to it are left out.
    """
    tensors = batch.tensors()
    return [_unpacked(tensors, row) for row in range(len(batch))]


def _packed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _packed(item) for key, item in value.items()}
    if not isinstance(value, list) or not value or isinstance(value[0], bool | int | float):
        return value
    items = [_packed(item) for item in value]
    is_nested = isinstance(items[0], Mapping)
    return {LIST: rows_to_columns(items, LIST) if is_nested else stack_values(LIST, items)}


def _unpacked(node: Any, row: int) -> Any:
    if not isinstance(node, dict):
        return node[row]
    if LIST not in node:
        return {key: _unpacked(value, row) for key, value in node.items()}
    items = part_of(node[LIST], row)
    return [_unpacked(items, step) for step in range(_length(items))]


def _length(node: Any) -> int:
    while isinstance(node, dict):
        node = next(iter(node.values()))
    return len(node)
