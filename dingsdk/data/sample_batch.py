"""SampleBatch: training data as columns, which can also be read as rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, NoReturn, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dingsdk.data.columns import (
    as_columns,
    column_equal,
    common_length,
    join_key,
    leaves,
    map_columns,
    mismatch,
    native,
    rows_to_columns,
)
from dingsdk.errors import BatchIndexError, FrozenBatchError, SchemaMismatchError, wrong_type

_from_numpy: Callable[[NDArray[Any]], Any] | None = None


class SampleBatch(Sequence[dict[str, Any]]):
    """Named columns with one leading batch dimension, readable as a sequence of dicts.

    Columns are numpy arrays ``[batch, ...]`` of a numeric dtype, or nested dicts of them
    (nested observations). Arrays and CPU tensors are not copied: the batch shares their memory.
    Only arrays of another byte order are converted.
    Sequences of time steps are columns ``[batch, time, ...]``.

    Several threads may read a batch at the same time, but not write to it.

    Args:
        columns: A mapping of names to arrays, tensors, lists of numbers (floats become float32),
            or nested mappings of these.

    Attributes:
        columns: The columns; do not change this dict, use :meth:`with_columns`.
        length: The number of rows, as ``len()``, but 0.1 us faster.

    Raises:
        SchemaMismatchError: there are no columns, a column is not numeric, or batch dimensions
            differ; the message names the columns and their shapes.

    Example:
        >>> batch = SampleBatch({"obs": np.zeros((2, 4), np.float32), "reward": [0.0, 1.0]})
        >>> row = batch[1]
        >>> len(batch), float(row["reward"])
        (2, 1.0)
    """

    __slots__ = ("_is_plain", "_tensors", "columns", "length")

    columns: dict[str, Any]
    length: int
    _tensors: dict[str, Any] | None
    _is_plain: bool

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = as_columns(columns)
        self.length = common_length(self.columns)
        self._tensors = None
        self._is_plain = False

    @classmethod
    def trusted(cls, columns: dict[str, Any], length: int, is_plain: bool = False) -> SampleBatch:
        """Make a batch without checking the columns, for callers that made them correctly.

        Args:
            columns: Maps names to arrays ``[length, ...]`` or nested dicts of them; not copied.
            length: The batch dimension of every array.
            is_plain: Whether all columns are contiguous and writable arrays (no dicts), which torch
                can share without further checks.
        """
        batch = cls.__new__(cls)
        batch.columns = columns
        batch.length = length
        batch._tensors = None
        batch._is_plain = is_plain
        return batch

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> SampleBatch:
        """Stack dicts into a new batch with its own memory.

        Python floats (and float64 scalars) become float32, ints int64, bools bool; arrays and
        tensors keep their dtype; nested dicts become nested columns.

        Raises:
            SchemaMismatchError: no rows, or rows that differ in keys, shapes or dtypes; facts
                ``key``, ``row``, ``expected``, ``found``.
        """
        if isinstance(rows, SampleBatch):
            return rows.copy()
        rows = _listed(rows, "a batch", "row")
        return cls.trusted(rows_to_columns(rows), len(rows))

    @classmethod
    def concat(cls, batches: Iterable[SampleBatch]) -> SampleBatch:
        """Join batches with equal columns into a new batch with its own memory.

        Raises:
            SchemaMismatchError: no batches, something else, or batches that differ in keys, shapes
                or dtypes; facts ``key``, ``row`` (index of the batch), ``expected``, ``found``.
        """
        given = _listed(batches, "batches to join", "batch")
        for index, batch in enumerate(given):
            if not isinstance(batch, SampleBatch):
                hint, found = "join dicts with from_rows", type(batch).__name__
                raise mismatch(f"batch {index}", "", "a SampleBatch", found, hint, row=index)
        columns = _concat([batch.columns for batch in given], "")
        return cls.trusted(columns, sum(batch.length for batch in given))

    def keys(self) -> KeysView[str]:
        """Return the names of the top-level columns."""
        return self.columns.keys()

    @property
    def nbytes(self) -> int:
        """Size of all columns in bytes."""
        return sum(array.nbytes for _, array in leaves(self.columns))

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> SampleBatch: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | SampleBatch:
        """Return a row as a dict, or for a slice a batch of views.

        Keys of the row cannot be set; see :class:`Row`.

        Raises:
            BatchIndexError: the row is outside the batch.
            ConfigTypeError: the index is not an int or a slice. Columns are in :attr:`columns`,
                and :meth:`take` gathers rows.
        """
        if isinstance(index, slice):
            length = len(range(*index.indices(self.length)))
            return self.trusted(map_columns(lambda array: array[index], self.columns), length)
        try:
            if isinstance(index, (bool, np.bool_)):
                raise TypeError("a bool is no number here")
            position = operator.index(index)
        except TypeError as error:
            advice = "; columns are in .columns, .take(indices) gathers rows"
            what = "the index of a SampleBatch"
            raise wrong_type(what, "an int or a slice", index, advice) from error
        if not -self.length <= position < self.length:
            raise self._outside(position)
        return Row(self.columns, position % self.length)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (Row(self.columns, index) for index in range(self.length))

    def take(self, indices: ArrayLike) -> SampleBatch:
        """Gather rows into a new batch with its own memory.

        Args:
            indices: int[n], in any order; repeats are allowed, and negative ones count from the
                end.

        Raises:
            BatchIndexError: an index is outside the batch.
            SchemaMismatchError: the indices are not int[n].
        """
        try:
            wanted = np.asarray(indices)
        except ValueError as error:
            raise mismatch("take", "indices", "int[n]", str(error)) from error
        if wanted.size == 0:
            wanted = wanted.astype(np.int64)
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise mismatch("take", "indices", "int[n]", f"{wanted.dtype}{list(wanted.shape)}")
        try:
            columns = map_columns(lambda array: take_rows(array, wanted), self.columns)
        except IndexError as error:
            outside = wanted[(wanted < -self.length) | (wanted >= self.length)]
            raise self._outside(int(outside[0])) from error
        return self.trusted(columns, len(wanted))

    def _outside(self, row: int) -> BatchIndexError:
        text = f"row {row} of a batch of {self.length}"
        return BatchIndexError(text, index=row, length=self.length)

    def tensors(self) -> dict[str, Any]:
        """Return the columns as torch tensors; every call returns the same objects.

        The tensors share the batch's memory. Columns that are frozen or have negative strides are
        copied, because torch does not support them.
        """
        if self._tensors is None:
            self._tensors = _to_tensors(self.columns, self._is_plain)
        return self._tensors

    def with_columns(self, **columns: Any) -> SampleBatch:
        """Return a batch with columns added or replaced; the others are shared, not copied."""
        return type(self)({**self.columns, **columns})

    def map(self, fn: Callable[[NDArray[Any]], NDArray[Any]]) -> SampleBatch:
        """Return a batch with ``fn`` applied to every column array."""
        return type(self)(map_columns(fn, self.columns))

    def copy(self) -> SampleBatch:
        """Return a writable copy with its own memory."""
        return self.trusted(map_columns(lambda array: array.copy(), self.columns), self.length)

    def freeze(self) -> SampleBatch:
        """Make every array read-only, in place, and return this batch.

        Arrays that were passed to the constructor are the same objects: they become read-only, too.
        """
        for _, array in leaves(self.columns):
            array.flags.writeable = False
        # Tensors that were returned before still share the memory; new ones must not.
        self._tensors = None
        self._is_plain = False
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SampleBatch):
            return NotImplemented
        return column_equal(self.columns, other.columns)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        described = ", ".join(
            f"{name}: {array.dtype}{list(array.shape[1:]) or ''}"
            for name, array in leaves(self.columns)
        )
        return f"SampleBatch({self.length} rows, {described})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.columns,)


class Row(dict[str, Any]):
    """The values of one row, by column name; keys cannot be set or removed.

    Arrays are views of the batch; numbers are copies from the time of reading. Write to the columns
    of the batch in place of a row. Copies of a row (``copy``, ``dict(row)``, pickling) are plain
    dicts; setting a key in one does not change the batch.
    """

    __slots__ = ()

    def __init__(self, columns: dict[str, Any], index: int) -> None:
        super().__init__(
            (key, Row(column, index) if isinstance(column, dict) else column[index])
            for key, column in columns.items()
        )

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise FrozenBatchError(
            "a row of a batch cannot be changed: write to batch.columns, or to dict(row)",
            key=given[0] if given and isinstance(given[0], str) else "",
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def copy(self) -> dict[str, Any]:
        """Return a plain dict; its arrays are still views of the batch."""
        return {key: v.copy() if isinstance(v, Row) else v for key, v in self.items()}

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return self.copy() | dict(other)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def __eq__(self, other: object) -> bool:
        return column_equal(self, other) if isinstance(other, Mapping) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


_HINTS = {
    "NoneType": "sample() of a buffer returns None if it has too few rows",
    "dict": "SampleBatch(columns) makes a batch of a dict of columns",
}
"""What to do about a type that cannot be collated."""


def collate(batch: SampleBatch | Sequence[Any]) -> Any:
    """Return the tensors of a batch.

    For a SampleBatch, returns its tensors without a copy. A list of dicts, tensors, arrays, numbers
    or nests of these is stacked by ``torch.utils.data.default_collate`` (which converts Python
    floats to float64).

    Raises:
        SchemaMismatchError: it is no list, the list is empty, or its elements cannot be stacked.
    """
    if isinstance(batch, SampleBatch):
        return batch.tensors()
    if isinstance(batch, Mapping) or not hasattr(batch, "__getitem__"):
        expected = "a SampleBatch or a list"
        found = type(batch).__name__
        raise mismatch("collate", "", expected, found, _HINTS.get(found, ""))
    if len(batch) == 0:
        raise mismatch("a list to collate", "", ">= 1 element", 0)
    if isinstance(batch[0], SampleBatch):
        hint = "join them with SampleBatch.concat, or collate each"
        expected = "a SampleBatch or a list of dicts"
        raise mismatch("collate", "", expected, "a list of SampleBatch", hint)
    from torch.utils.data import default_collate

    try:
        return default_collate(list(batch))
    except (RuntimeError, TypeError, ValueError, KeyError, OverflowError) as error:
        expected, found = "elements of equal keys and shapes", type(batch[0]).__name__
        raise mismatch("a list to collate", "", expected, found, str(error)) from error


def _listed(given: Iterable[Any], what: str, each: str) -> list[Any]:
    """Return a list with at least one element, or raise SchemaMismatchError."""
    if not isinstance(given, Iterable):
        raise mismatch(what, "", f">= 1 {each}", type(given).__name__)
    if not (found := list(given)):
        raise mismatch(what, "", f">= 1 {each}", 0)
    return found


def _to_tensors(columns: dict[str, Any], is_plain: bool = False) -> dict[str, Any]:
    # Imported at the first call: batches can be used without torch.
    global _from_numpy
    if _from_numpy is None:
        import torch

        _from_numpy = torch.from_numpy
    if is_plain:
        return dict(zip(columns, map(_from_numpy, columns.values()), strict=True))
    tensors: dict[str, Any] = {}
    for key, column in columns.items():
        if type(column) is dict:
            tensors[key] = _to_tensors(column)
            continue
        flags = column.flags
        shareable = flags.writeable and (flags.c_contiguous or min(column.strides) >= 0)
        if not column.dtype.isnative:  # it was received, or loaded from a file
            column, shareable = native(key, column), True
        tensors[key] = _from_numpy(column if shareable else column.copy())
    return tensors


def take_rows(array: NDArray[Any], indices: NDArray[Any]) -> NDArray[Any]:
    """Gather rows of one array into a new one; indices must be integers."""
    # The method is the fastest way to gather rows (np.take adds 1.5 us per call), but it first
    # copies the whole array if that is not contiguous.
    if array.flags.c_contiguous:
        return array.take(indices, 0)
    gathered: NDArray[Any] = array[indices]
    return gathered


def _concat(parts: list[dict[str, Any]], prefix: str) -> dict[str, Any]:
    first = parts[0]
    for index, part in enumerate(parts):
        if part.keys() != first.keys():
            odd = sorted(part.keys() ^ first.keys())[0]
            raise _batch_mismatch(join_key(prefix, odd), index, sorted(first), sorted(part))
    joined: dict[str, Any] = {}
    for key, column in first.items():
        columns = [part[key] for part in parts]
        if isinstance(column, dict) and all(isinstance(other, dict) for other in columns):
            joined[key] = _concat(columns, join_key(prefix, key))
            continue
        try:
            joined[key] = np.concatenate(columns, casting="equiv")
        except (TypeError, ValueError):
            forms = [_form(other) for other in columns]
            index = next(index for index, form in enumerate(forms) if form != forms[0])
            raise _batch_mismatch(join_key(prefix, key), index, forms[0], forms[index]) from None
    return joined


def _form(column: Any) -> str:
    return "dict" if isinstance(column, dict) else f"{column.dtype}{list(column.shape[1:])}"


def _batch_mismatch(key: str, index: int, expected: Any, found: Any) -> SchemaMismatchError:
    what, hint = f"column {key!r} of batch {index}", "only batches of like columns are joined"
    return mismatch(what, key, expected, found, hint, row=index)
