"""Turn a batch, in whatever form it comes, into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dingsdk.data.row_loaders import RowLoaders
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.errors import SchemaMismatchError


def collate(batch: SampleBatch | Sequence[Any]) -> Any:
    """Return the tensors of a batch.

    A SampleBatch gives its own tensors, without a copy, and RowLoaders those of its batch. A
    list of dicts, tensors, arrays, numbers or nests of those is stacked as
    ``torch.utils.data.default_collate`` does (python floats become float64 there).

    Raises:
        SchemaMismatchError: an empty list, or elements that do not stack.
    """
    if isinstance(batch, RowLoaders):
        batch = batch.batch()
    if isinstance(batch, SampleBatch):
        return batch.tensors()
    if len(batch) == 0:
        raise SchemaMismatchError(
            "an empty list has nothing to collate", key="", expected=">= 1 element", found=0
        )
    if isinstance(batch[0], SampleBatch):
        raise SchemaMismatchError(
            "a list of SampleBatch has no single collation: join them with SampleBatch.concat, "
            "or collate each",
            key="",
            expected="a SampleBatch or a list of dicts",
            found="list of SampleBatch",
        )
    from torch.utils.data import default_collate

    try:
        return default_collate(list(batch))
    except (RuntimeError, TypeError, KeyError) as error:
        raise SchemaMismatchError(
            f"the elements of the batch do not stack: {error}",
            key="",
            expected="elements of equal keys and shapes",
            found=type(batch[0]).__name__,
        ) from error
