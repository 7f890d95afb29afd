"""Storage of rows as columns in memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.config import PartSection
from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves, map_columns
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer.storage import Storage, Where
from dingsdk.worker.replay_buffer.storage.schema import check_pair, convert, row_bytes

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.storage.next_of import NextOf


class ArrayStorage(Storage):
    """One preallocated numpy array per column, made at the first push (type ``array``).

    Takes SampleBatch and dicts of numbers and arrays; returns SampleBatch. The first rows set
    names, shapes and dtypes. Later batches must match them exactly; numbers in dicts are converted
    if that loses only precision (an int into a float column).
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``storage`` of type ``array``.

        Attributes:
            next_of: Name of the column of observations, such as ``obs``. A ``next_obs`` that equals
                the ``obs`` of a later row is then not stored again. This halves the memory of
                large observations if trajectories are complete; they may be interleaved, and
                ``next_obs`` may be several steps ahead.
        """

        type: str = "array"
        next_of: Annotated[str, Meta(min_length=1)] | None = None

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        super().__init__(cfg, capacity, deepcopy)
        self._cfg = self.read(cfg, "storage")
        self._next_of: str | None = self._cfg.next_of
        self.needs_fifo = self._next_of is not None
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, Any] = {}
        self._form: dict[str, Any] = {}
        self._schema: Layout | None = None
        self._layout: Layout | None = None
        self.layout = None
        self._following: NextOf | None = None

    def accept(self, rows: SampleBatch | Sequence[Any]) -> dict[str, Any]:
        schema, is_batch = self._schema, isinstance(rows, SampleBatch)
        batch = rows if isinstance(rows, SampleBatch) else SampleBatch.from_rows(rows)
        columns, n = batch.columns, batch.length
        if schema is None:
            self._allocate(columns)
        elif not schema.fits(columns):
            columns = convert(self._form, columns, "", strict=is_batch)
        if self._following is not None:
            self._following.reserve(n)
        return columns

    def put(self, where: Where, rows: dict[str, Any]) -> None:
        self._layout.put(where, rows)  # type: ignore[union-attr]
        if self._following is not None:
            name = self._next_of
            self._following.put(where, rows[name], rows[f"next_{name}"])  # type: ignore[index]

    def take(self, where: Where) -> SampleBatch:
        if isinstance(where, slice):
            columns = map_columns(lambda array: array[where].copy(), self._columns)
            length = where.stop - where.start
        else:
            columns = self._layout.take(where)  # type: ignore[union-attr]
            length = len(where)
        if self._following is not None:
            columns[f"next_{self._next_of}"] = self._following.take(where)
            columns = {key: columns[key] for key in self._form}
        return SampleBatch.trusted(columns, length, self._is_plain)

    def clear(self) -> None:
        self._clear()

    def _allocate(self, rows: dict[str, Any]) -> None:
        """Make the columns, in the form of the first rows."""
        name = self._next_of
        following = "" if name is None else f"next_{name}"
        if name is not None:
            check_pair(rows, name)
        kept = {key: column for key, column in rows.items() if key != following}
        numbers = itertools.count()

        def new_column(array: NDArray[Any]) -> NDArray[Any]:
            # The dtype is given by its name, because a pickled dtype is not numpy's own object, and
            # compares more slowly.
            shape, dtype = (self.capacity, *array.shape[1:]), np.dtype(array.dtype.str)
            return self._new_array(f"column-{next(numbers)}", shape, dtype)

        try:
            columns = map_columns(new_column, kept)
            if name is not None:
                # Imported here, because importing compiled code is slow and few configs need it.
                from dingsdk.worker.replay_buffer.storage.next_of import NextOf

                self._following = NextOf(columns[name], self._new_array, self._hold_slots)
        except ConfigError:
            raise
        except (MemoryError, ValueError) as error:
            raise self._too_large(kept) from error
        self._columns = self._form = columns
        self._layout = self._schema = Layout(columns)
        if name is not None:
            # A following observation has the form of an observation.
            self._form = {key: columns[name if key == following else key] for key in rows}
            self._schema = Layout(self._form)
        own = (type(self).accept, type(self).put) == (ArrayStorage.accept, ArrayStorage.put)
        self.layout = self._layout if own and name is None else None
        self._is_plain = not any(type(column) is dict for column in rows.values())

    def _hold_slots(self, slots: int) -> None:
        """Make room for this many own copies of following observations."""

    def _new_array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        # Pages of np.zeros that were never written take no memory.
        return np.zeros(shape, dtype)

    def _too_large(self, columns: dict[str, Any]) -> ConfigError:
        row = sum(row_bytes(array) for _, array in leaves(columns))
        return ConfigError(
            f"{self.capacity} rows of {row} bytes need {self.capacity * row} bytes of memory, "
            "which cannot be allocated; choose a smaller replay_buffer_size",
            path="replay_buffer_size",
            size_bytes=self.capacity * row,
        )


_VIEWED_FORMATS = frozenset("?bBhHiIlLqQfd")
"""Formats that a memoryview can assign numbers to."""
_Array = np.ndarray  # looked up for each column of a row


class Layout:
    """The columns of one dict, prepared for fast pushes.

    A push of 64 small rows, or of one, takes 1 to 2 us in total: looking up attributes takes longer
    than copying. Looping over tuples was the fastest way to compare, and assigning to a
    memoryview of one dimension takes half the time of assigning to an array (0.13 and 0.25 us on
    2 cores, Python 3.11, numpy 2.4).
    """

    def __init__(self, columns: dict[str, Any]) -> None:
        self._fields = len(columns)
        self._arrays = [(key, v) for key, v in columns.items() if type(v) is not dict]
        self._children = [(key, Layout(v)) for key, v in columns.items() if type(v) is dict]
        flat = [(key, array) for key, array in self._arrays if array.ndim == 1]
        deep = [(key, array) for key, array in self._arrays if array.ndim > 1]
        # Dtypes and shapes that new batches and rows must have.
        self._deep = [(key, array.dtype, array.shape) for key, array in deep]
        self._flat = [(key, array.dtype) for key, array in flat]
        self._values = [(key, array.dtype, array.shape[1:]) for key, array in deep]
        self._numbers = [(key, v.dtype.type, *_number_check(v.dtype)) for key, v in flat]
        self._takes_rows = all(isinstance(_flat_view(array), memoryview) for _, array in flat)
        # The method is the fastest way to gather rows; take_rows of a batch takes twice as long.
        self._gathers = [(key, array.take) for key, array in self._arrays]
        # Batches and rows are written to these. A width is the length of a row in a flat view.
        self._targets = [(key, _flat_view(v) if v.ndim == 1 else v) for key, v in self._arrays]
        self._number_targets = [(key, _flat_view(array)) for key, array in flat]
        self._value_targets = [(key, *_value_target(array)) for key, array in deep]

    def fits(self, new: dict[str, Any]) -> bool:
        """Whether columns of equal length have the same names, shapes and dtypes as these."""
        if len(new) != self._fields:
            return False
        try:
            # A pickled dtype is equal to ours, but not the same object.
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
            if self._children:
                for key, child in self._children:
                    column = new[key]
                    if type(column) is not dict or not child.fits(column):
                        return False
        except (KeyError, AttributeError):  # a dict in place of an array has no dtype
            return False
        return True

    def _fits_in_length(self, key: str, shape: tuple[int, ...]) -> bool:
        """Whether a shape differs from ours only in its length; expect this length from now on."""
        if shape[1:] != dict(self._arrays)[key].shape[1:]:
            return False
        # Slicing each shape in each push would take a twentieth of a small push.
        self._deep = [(name, dtype, (shape[0], *tail)) for name, dtype, tail in self._values]
        return True

    def put(self, where: Where, new: dict[str, Any]) -> None:
        """Write rows, which must fit, to positions."""
        if type(where) is slice:
            try:
                for key, target in self._targets:
                    target[where] = new[key]
            except ValueError:
                self._assign(where, new)
        else:
            self._assign(where, new)
        if self._children:
            for key, child in self._children:
                child.put(where, new[key])

    def take(self, where: NDArray[np.int64]) -> dict[str, Any]:
        """Gather rows into new columns."""
        columns: dict[str, Any] = {key: gather(where, 0) for key, gather in self._gathers}
        for key, child in self._children:
            columns[key] = child.take(where)
        return columns

    def fits_row(self, row: dict[str, Any]) -> bool:
        """Whether a row can be written as it is: its arrays and numbers fit.

        False may also mean that the row needs a closer check, as for tensors, NaN and infinities.
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
                # Comparing numpy scalars takes 0.5 us; scalars of the column's type always fit.
                if kind is not own and (kind not in types or not low <= value <= high):
                    return False
            for key, child in self._children:
                value = row[key]
                if type(value) is not dict or not child.fits_row(value):
                    return False
        except KeyError:
            return False
        return True

    def put_row(self, position: int, row: dict[str, Any]) -> None:
        """Write a row, which must fit, to a position."""
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
        for key, child in self._children:
            child.put_row(position, row[key])

    def _assign(self, where: Where | int, new: dict[str, Any]) -> None:
        # Arrays accept every dtype that fits; memoryviews refuse the same dtype under another name
        # (int64 is both long and long long).
        for key, array in self._arrays:
            array[where] = new[key]


def _flat_view(array: Any) -> Any:
    """Return the array as a memoryview of one dimension, or the array if that is impossible."""
    if array.flags.c_contiguous and array.size and array.dtype.isnative:
        view = memoryview(array.reshape(-1))
        if view.format in _VIEWED_FORMATS:
            return view
    return array


def _value_target(array: NDArray[Any]) -> tuple[Any, int]:
    """Return the target for the values of single rows, and their width if it is a memoryview."""
    view = _flat_view(array) if array.ndim == 2 else array
    return view, array.shape[1] if isinstance(view, memoryview) else 0


def _number_check(dtype: np.dtype[Any]) -> tuple[frozenset[type], Any, Any]:
    """Return the types and the range of the numbers that a column takes without conversion."""
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return frozenset({int, np.int64}), int(whole.min), int(whole.max)
    if dtype.kind == "f":
        widest = float(np.finfo(dtype).max)
        return frozenset({int, float, np.float64}), -widest, widest
    return frozenset({bool, np.bool_}), False, True
