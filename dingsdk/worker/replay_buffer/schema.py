"""What the columns of a buffer look like, and how new rows are compared with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dingsdk.data.columns import join_key
from dingsdk.data.sample_batch import take_rows
from dingsdk.errors import SchemaMismatchError
from dingsdk.worker.replay_buffer.remover import Where


class Level:
    """The columns of one dict, laid out so that a push looks at each as briefly as it can.

    Copying a chunk of 64 small rows takes 2 us; comparing its five columns one by one took as
    long again, in one list comparison (identical dtypes are equal at once) it takes half.
    """

    __slots__ = ("_children", "_forms", "_leaves", "_names", "_rows")

    def __init__(self, columns: dict[str, Any]) -> None:
        self._leaves = [(k, v) for k, v in columns.items() if type(v) is not dict]
        self._children = [(k, Level(v)) for k, v in columns.items() if type(v) is dict]
        self._names = [key for key, _ in self._leaves]
        self._rows = -1
        self._forms: list[tuple[tuple[int, ...], Any]] = []

    def fits(self, new: dict[str, Any], rows: int) -> bool:
        """Whether ``rows`` new rows have the same names, shapes and dtypes."""
        if rows != self._rows:
            self._forms = [((rows, *array.shape[1:]), array.dtype) for _, array in self._leaves]
            self._rows = rows
        if not self._children and [*new] == self._names:
            try:
                return [(column.shape, column.dtype) for column in new.values()] == self._forms
            except AttributeError:
                return False  # a dict where an array belongs
        return self._fits_in_any_order(new, rows)

    def _fits_in_any_order(self, new: dict[str, Any], rows: int) -> bool:
        if len(new) != len(self._leaves) + len(self._children):
            return False
        for key, form in zip(self._names, self._forms, strict=True):
            column = new.get(key)
            if column is None or type(column) is dict or (column.shape, column.dtype) != form:
                return False
        for key, level in self._children:
            column = new.get(key)
            if type(column) is not dict or not level.fits(column, rows):
                return False
        return True

    def put(self, where: Where, new: dict[str, Any]) -> None:
        """Write rows that fit to positions."""
        for key, array in self._leaves:
            array[where] = new[key]
        for key, level in self._children:
            level.put(where, new[key])

    def take(self, where: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Gather rows into new columns."""
        columns: dict[str, Any] = {key: take_rows(array, where) for key, array in self._leaves}
        for key, level in self._children:
            columns[key] = level.take(where)
        return columns


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
            columns[key] = other.astype(column.dtype)
    return columns


def _mismatch(key: str, what: str, expected: Any, found: Any) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"column {key!r} {what}: the buffer holds {expected}, the push has {found}; all rows of "
        "a buffer need the same columns (storage.type: object takes any)",
        key=key,
        expected=expected,
        found=found,
    )
