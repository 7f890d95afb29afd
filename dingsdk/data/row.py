"""One row of a batch: a dict whose assignments reach the columns it was read from."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import NUMERIC_KINDS, column_equal, join_key, torch_to_numpy
from dingsdk.errors import FrozenBatchError, SchemaMismatchError


class Row(dict[str, Any]):
    """The values of one row, by column name.

    Multi-dimensional values are views, numbers are copies as of the time of reading.
    Assigning to a key writes into the batch; what cannot be written (an unknown key, another
    shape, a number that does not fit, a frozen batch) raises and changes nothing. Copies of a
    row (``copy``, ``dict(row)``, pickling) are plain dicts without that tie.
    """

    __slots__ = ("_columns", "_index", "_prefix")

    def __init__(self, columns: dict[str, Any], index: int, prefix: str = "") -> None:
        super().__init__(
            (key, Row(column, index, join_key(prefix, key)))
            if isinstance(column, dict)
            else (key, column[index])
            for key, column in columns.items()
        )
        self._columns = columns
        self._index = index
        self._prefix = prefix

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Write several values: all of them, or none if one cannot be written."""
        new = dict(*args, **kwargs)
        self._check(new)
        self._write(new)

    def _check(self, new: Mapping[str, Any]) -> None:
        for key, value in new.items():
            name = join_key(self._prefix, key)
            column = self._columns.get(key)
            if column is None:
                raise SchemaMismatchError(
                    f"a row takes no new key {name!r}: the batch has no such column; "
                    "use SampleBatch.with_columns",
                    key=name,
                    expected=sorted(self._columns),
                    found=name,
                )
            if isinstance(column, dict):
                if not isinstance(value, Mapping):
                    raise _misfit(name, "a dict", type(value).__name__)
                super().__getitem__(key)._check(value)
            else:
                _check_value(name, column, value)

    def _write(self, new: Mapping[str, Any]) -> None:
        for key, value in new.items():
            column = self._columns[key]
            if isinstance(column, dict):
                super().__getitem__(key)._write(value)
            else:
                column[self._index] = torch_to_numpy(value)
                super().__setitem__(key, column[self._index])

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """Return the value of ``key``; a missing one raises, as a row cannot grow."""
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, other: Any) -> Row:  # type: ignore[override]
        self.update(other)
        return self

    def __delitem__(self, key: str) -> NoReturn:
        self._refuse_removal(key)

    def pop(self, key: str, *default: Any) -> NoReturn:
        """Refused: a row cannot lose a column."""
        self._refuse_removal(key)

    def popitem(self) -> NoReturn:
        """Refused: a row cannot lose a column."""
        self._refuse_removal("the last key")

    def clear(self) -> NoReturn:
        """Refused: a row cannot lose its columns."""
        self._refuse_removal("all keys")

    def _refuse_removal(self, key: str) -> NoReturn:
        raise SchemaMismatchError(
            f"a row of a batch cannot lose {key!r}; take dict(row) and change that",
            key=key,
            expected=sorted(self._columns),
            found=key,
        )

    def copy(self) -> dict[str, Any]:
        """Return a plain dict; arrays in it are still views of the batch."""
        return {key: v.copy() if isinstance(v, Row) else v for key, v in self.items()}

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return self.copy() | dict(other)

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def __eq__(self, other: object) -> bool:
        return column_equal(self, other) if isinstance(other, Mapping) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    @classmethod
    def fromkeys(cls, keys: Iterable[str], value: Any = None, /) -> dict[str, Any]:  # type: ignore[override]
        """Return a plain dict: a row exists only as part of a batch."""
        return dict.fromkeys(keys, value)


def _check_value(name: str, column: NDArray[Any], value: Any) -> None:
    if not column.flags.writeable:
        raise FrozenBatchError(
            f"column {name!r} is frozen: it is shared with others; write into "
            "batch.take(indices) or another copy",
            key=name,
        )
    value = torch_to_numpy(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise _misfit(name, f"shape {list(column.shape[1:])}", str(error)) from error
    if array.dtype.kind not in NUMERIC_KINDS:
        raise _misfit(name, f"dtype {column.dtype}", f"{type(value).__name__} {value!r:.80}")
    if array.shape != column.shape[1:]:
        raise _misfit(name, f"shape {list(column.shape[1:])}", f"shape {list(array.shape)}")
    if np.can_cast(array.dtype, column.dtype, casting="same_kind"):
        if array.dtype.kind in "iu" and column.dtype.kind in "iu" and not _fits(array, column):
            raise _misfit(name, f"a number of {column.dtype}", f"{value!r:.80}")
    elif not (array.dtype.kind in "iu" and column.dtype.kind in "iu" and _fits(array, column)):
        raise _misfit(name, f"dtype {column.dtype}", f"dtype {array.dtype}")


def _fits(array: NDArray[Any], column: NDArray[Any]) -> bool:
    if array.size == 0:
        return True
    limits = np.iinfo(column.dtype)
    return bool(int(array.min()) >= limits.min and int(array.max()) <= limits.max)


def _misfit(name: str, expected: str, found: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"column {name!r} takes {expected}, found {found}", key=name, expected=expected, found=found
    )
