"""What the columns of a buffer look like, how new rows are compared with them and copied in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import join_key, leaves
from dingsdk.data.sample_batch import take_rows
from dingsdk.errors import SchemaMismatchError
from dingsdk.worker.replay_buffer.remover import Where

_VIEWED_FORMATS = frozenset("?bBhHiIlLqQfd")
"""Formats that a memoryview can assign numbers to."""
_Array = np.ndarray  # a row is compared with it column by column


class Level:
    """The columns of one dict, laid out so that a push looks at each as briefly as it can.

    A push of 64 small rows, or of one, takes 1 to 2 us in all: looking attributes up costs more
    than copying. One loop over tuples was the quickest form of comparison, and assigning to a
    memoryview of one dimension takes half the time of assigning to an array (0.13 and 0.25 us on
    2 cores, Python 3.11, numpy 2.4).

    A column is an array, or has of one ``shape``, ``dtype``, ``ndim``, assignment and ``take``.
    """

    __slots__ = (
        "_arrays",
        "_children",
        "_deep",
        "_fields",
        "_flat",
        "_gathers",
        "_number_targets",
        "_numbers",
        "_takes_rows",
        "_targets",
        "_value_targets",
        "_values",
    )

    def __init__(self, columns: dict[str, Any]) -> None:
        self._fields = len(columns)
        self._arrays = [(key, v) for key, v in columns.items() if type(v) is not dict]
        self._children = [(key, Level(v)) for key, v in columns.items() if type(v) is dict]
        flat = [(key, array) for key, array in self._arrays if array.ndim == 1]
        deep = [(key, array) for key, array in self._arrays if array.ndim > 1]
        # What batches and single rows are compared with.
        self._deep = [(key, array.dtype, array.shape) for key, array in deep]
        self._flat = [(key, array.dtype) for key, array in flat]
        self._values = [(key, array.dtype, array.shape[1:]) for key, array in deep]
        self._numbers = [(key, v.dtype.type, *_number_check(v.dtype)) for key, v in flat]
        self._takes_rows = all(isinstance(_flat_view(array), memoryview) for _, array in flat)
        self._gathers = [(key, _gather_of(array)) for key, array in self._arrays]
        # Where they go; small values have a width, that of their row in a flat view.
        self._targets = [(key, _flat_view(v) if v.ndim == 1 else v) for key, v in self._arrays]
        self._number_targets = [(key, _flat_view(array)) for key, array in flat]
        self._value_targets = [(key, *_value_target(array)) for key, array in deep]

    # Batches ------------------------------------------------------------------------------
    def fits(self, new: dict[str, Any]) -> bool:
        """Whether columns of equal length have the same names, shapes and dtypes as ours."""
        if len(new) != self._fields:
            return False
        try:
            # A dtype that was pickled is equal to ours, but not the same object.
            for key, dtype, shape in self._deep:
                column = new[key]
                if column.dtype is not dtype and column.dtype != dtype:
                    return False
                if column.shape != shape and not self._fits_in_length(key, column.shape):
                    return False
            for key, dtype in self._flat:
                column = new[key]
                if column.dtype is not dtype and column.dtype != dtype:
                    return False
                if column.ndim != 1:
                    return False
            for key, level in self._children:
                column = new[key]
                if type(column) is not dict or not level.fits(column):
                    return False
        except (KeyError, AttributeError):  # a dict, where an array belongs, has no dtype
            return False
        return True

    def _fits_in_length(self, key: str, shape: tuple[int, ...]) -> bool:
        """Whether a shape differs from ours in its length alone; batches like it come next."""
        if shape[1:] != dict(self._arrays)[key].shape[1:]:
            return False
        self._deep = [
            (name, array.dtype, (shape[0], *array.shape[1:]))
            for name, array in self._arrays
            if array.ndim > 1
        ]
        return True

    def put(self, where: Where, new: dict[str, Any]) -> None:
        """Write rows that fit to positions."""
        if type(where) is slice:
            try:
                for key, target in self._targets:
                    target[where] = new[key]
            except ValueError:
                self._assign(where, new)
        else:
            self._assign(where, new)
        for key, level in self._children:
            level.put(where, new[key])

    def take(self, where: NDArray[np.int64]) -> dict[str, Any]:
        """Gather rows into new columns; positions ``[B, T]`` give columns ``[B, T, ...]``."""
        columns: dict[str, Any] = {key: gather(where, 0) for key, gather in self._gathers}
        for key, level in self._children:
            columns[key] = level.take(where)
        return columns

    # Single rows --------------------------------------------------------------------------
    def fits_row(self, row: dict[str, Any]) -> bool:
        """Whether a row can be written as it is: same arrays, and numbers that fit.

        False may also mean that it needs a closer look, as for tensors, NaN and infinities.
        """
        if len(row) != self._fields or not self._takes_rows:
            return False
        try:
            for key, dtype, shape in self._values:
                value = row[key]
                if type(value) is not _Array or value.shape != shape:
                    return False
                if value.dtype is not dtype and value.dtype != dtype:
                    return False
            for key, own, types, low, high in self._numbers:
                value = row[key]
                kind = type(value)
                # Comparing numpy's scalars takes 0.5 us; those of the column's type all fit.
                if kind is not own and (kind not in types or not low <= value <= high):
                    return False
            for key, level in self._children:
                value = row[key]
                if type(value) is not dict or not level.fits_row(value):
                    return False
        except KeyError:
            return False
        return True

    def put_row(self, position: int, row: dict[str, Any]) -> None:
        """Write a row that fits to a position."""
        try:
            for key, target, width in self._value_targets:
                if width:
                    start = position * width
                    target[start : start + width] = row[key]
                else:
                    target[position] = row[key]
            for key, target in self._number_targets:
                target[position] = row[key]
        except ValueError:
            self._assign(position, row)
        for key, level in self._children:
            level.put_row(position, row[key])

    def _assign(self, where: Where | int, new: dict[str, Any]) -> None:
        # The way of arrays, which takes everything: memoryviews refuse the same dtype by
        # another name (int64 is both long and long long).
        for key, array in self._arrays:
            array[where] = new[key]


def row_bytes(column: Any) -> int:
    """Return the bytes of one row of a column, an array or what stands for one."""
    return int(math.prod(column.shape[1:]) * column.dtype.itemsize)


def _gather_of(array: Any) -> Callable[[NDArray[np.int64], int], NDArray[Any]]:
    """Return the quickest way to gather rows: the array's own method, where it copies nothing."""
    if not isinstance(array, np.ndarray) or array.flags.c_contiguous:
        gather: Callable[[NDArray[np.int64], int], NDArray[Any]] = array.take
        return gather
    return lambda where, axis: take_rows(array, where)


def _flat_view(array: Any) -> Any:
    """Return the array as a memoryview of one dimension, or itself if it has no such form."""
    if not isinstance(array, np.ndarray):
        return array
    if array.flags.c_contiguous and array.size and array.dtype.isnative:
        view = memoryview(array.reshape(-1))  # type: ignore[arg-type]
        if view.format in _VIEWED_FORMATS:
            return view
    return array


def _value_target(array: NDArray[Any]) -> tuple[Any, int]:
    """Return where the values of single rows go, and their width if that is a memoryview."""
    view = _flat_view(array) if array.ndim == 2 else array
    return view, array.shape[1] if isinstance(view, memoryview) else 0


def _number_check(dtype: np.dtype[Any]) -> tuple[frozenset[type], Any, Any]:
    """Return the types, and the range, of the numbers that a column takes unconverted."""
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return frozenset({int, np.int64}), int(whole.min), int(whole.max)
    if dtype.kind == "f":
        widest = float(np.finfo(dtype).max)
        return frozenset({int, float, np.float64}), -widest, widest
    return frozenset({bool, np.bool_}), False, True


def convert(
    stored: dict[str, Any], new: dict[str, Any], prefix: str, strict: bool
) -> dict[str, Any]:
    """Return new columns in the stored dtypes.

    Args:
        stored: The columns that there are.
        new: The columns to bring into their form.
        prefix: Dotted name of the dict that they are in.
        strict: Whether another dtype is refused even where converting it loses only precision.

    Raises:
        SchemaMismatchError: for the first column that does not fit.
    """
    if stored.keys() != new.keys():
        missing, extra = stored.keys() - new.keys(), new.keys() - stored.keys()
        odd = sorted(missing or extra)[0]
        what = "is missing" if missing else "is new"
        raise _mismatch(join_key(prefix, odd), what, sorted(stored), sorted(new))
    columns: dict[str, Any] = {}
    for key, column in stored.items():
        name, other = join_key(prefix, key), new[key]
        if isinstance(column, dict) or isinstance(other, dict):
            if not (isinstance(column, dict) and isinstance(other, dict)):
                kinds = ["dict" if isinstance(c, dict) else "array" for c in (column, other)]
                raise _mismatch(name, "changed its kind", kinds[0], kinds[1])
            columns[key] = convert(column, other, name, strict)
        elif other.shape[1:] != column.shape[1:]:
            shapes = list(column.shape[1:]), list(other.shape[1:])
            raise _mismatch(name, "changed its shape", *shapes)
        elif other.dtype == column.dtype:
            columns[key] = other
        elif strict or not np.can_cast(other.dtype, column.dtype, casting="same_kind"):
            raise _mismatch(name, "changed its dtype", str(column.dtype), str(other.dtype))
        else:
            columns[key] = _cast(name, other, column.dtype)
    return columns


def _cast(name: str, new: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert numbers to a dtype of their kind, refusing those outside its range."""
    if dtype.kind in "iu" and new.dtype.kind in "iu" and new.size:
        low, high, limits = int(new.min()), int(new.max()), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            range_ = f"{dtype} ({limits.min} to {limits.max})"
            raise _mismatch(name, "left its range", range_, low if low < limits.min else high)
    try:
        with np.errstate(over="raise"):
            return new.astype(dtype)
    except FloatingPointError as error:
        raise _mismatch(name, "left its range", f"numbers of {dtype}", "larger ones") from error


def check_pair(columns: Mapping[str, Any], name: str) -> None:
    """Refuse rows that have no ``name``, or no ``next_<name>`` that looks the same.

    Raises:
        SchemaMismatchError: names the key.
    """
    for key in (name, f"next_{name}"):
        if key not in columns:
            raise SchemaMismatchError(
                f"storage.next_of is {name!r}, but the rows have no column {key!r}; they have "
                f"{sorted(columns)}",
                key=key,
                expected=key,
                found=sorted(columns),
            )
    forms = [
        # Under a name of their own, as leaves() wants a dict.
        {key: (array.shape[1:], str(array.dtype)) for key, array in leaves({name: columns[column]})}
        for column in (name, f"next_{name}")
    ]
    if forms[0] != forms[1]:
        raise SchemaMismatchError(
            f"storage.next_of is {name!r}, but 'next_{name}' differs from it: {forms[1]} is not "
            f"{forms[0]}",
            key=f"next_{name}",
            expected=forms[0],
            found=forms[1],
        )


def _mismatch(key: str, what: str, expected: Any, found: Any) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"column {key!r} {what}: the buffer holds {expected}, the push has {found}; all rows of "
        "a buffer need the same columns (storage.type: object takes any)",
        key=key,
        expected=expected,
        found=found,
    )
