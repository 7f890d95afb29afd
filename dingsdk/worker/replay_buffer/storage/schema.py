"""Converts new rows to the columns of the stored ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import join_key, mismatch
from dingsdk.errors import SchemaMismatchError


def row_bytes(column: Any) -> int:
    """Return the bytes of one row of a column."""
    return int(math.prod(column.shape[1:]) * column.dtype.itemsize)


def convert(
    stored: dict[str, Any], new: dict[str, Any], prefix: str, strict: bool
) -> dict[str, Any]:
    """Return new columns with the dtypes of the stored columns; errors put ``prefix`` before names.

    If ``strict``, other dtypes are refused. Else they are converted if that loses only precision.

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
    """Convert numbers to a dtype of the same kind; refuse numbers outside its range."""
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
    """Refuse rows without a column ``name``, or without a ``next_<name>`` of the same form.

    Raises:
        SchemaMismatchError: a column is missing or differs; the error names the key.
    """
    what, following = f"columns for storage.next_of {name!r}", f"next_{name}"
    for key in (name, following):
        if key not in columns:
            raise mismatch(what, key, key, sorted(columns))
    convert({following: columns[name]}, {following: columns[following]}, "", strict=True)


def _mismatch(key: str, what: str, expected: Any, found: Any) -> SchemaMismatchError:
    hint = "all rows of a buffer need the same columns (storage.type: object takes any)"
    return mismatch(f"column {key!r} {what}", key, expected, found, hint)
