"""Columns: a dict of numeric arrays (or nested dicts of them) that all have the same length.

Functions for :class:`dingsdk.data.SampleBatch`: they check columns, make columns from lists of row
values, and compare columns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import SchemaMismatchError, repr_of

NUMERIC_KINDS = "biufc"
"""numpy dtype kinds that a column may have: numbers of a fixed size."""
COLUMN_DTYPES = frozenset(map(np.dtype, "?bBhHiIlLqQefdFD"))
"""The dtypes of columns: bools, integers and floats of native byte order, up to 128 bits."""


def mismatch(
    what: str, key: Any, expected: Any, found: Any, hint: str = "", **facts: Any
) -> SchemaMismatchError:
    """Return an error with the text ``what: expected .., found ..; hint``."""
    text = f"{what}: expected {expected}, found {found}" + (f"; {hint}" if hint else "")
    return SchemaMismatchError(text, key=key, expected=expected, found=found, **facts)


def join_key(prefix: str, key: str) -> str:
    """Return the dotted name of a nested column."""
    return f"{prefix}.{key}" if prefix else key


def is_tensor(value: object) -> bool:
    """Return whether the value is a torch tensor, without importing torch."""
    # A tensor can only exist where torch is imported already.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def torch_to_numpy(value: Any, key: str | None = None) -> Any:
    """Return a torch tensor as an array (zero-copy on CPU), anything else unchanged.

    Args:
        value: Any value.
        key: Name of the column, for the error.

    Raises:
        SchemaMismatchError: numpy does not have the tensor's dtype.
    """
    if not is_tensor(value):
        return value
    try:
        return value.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        what, found = "a tensor" if key is None else f"column {key!r}", str(value.dtype)
        raise mismatch(what, key, "a dtype that numpy has", found, str(error)) from error


def as_columns(columns: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a checked copy of a (nested) mapping, with arrays as its leaves.

    Arrays and CPU tensors are not copied, except arrays of another byte order; sequences of numbers
    become arrays, with floats as float32.

    Raises:
        SchemaMismatchError: there is no column, a name is not a str, or a leaf is not a numeric
            array of at least one dimension.
    """
    what = f"column {prefix!r}" if prefix else "the batch"
    if not isinstance(columns, (dict, Mapping)):  # the check for a dict is ten times as fast
        raise mismatch(what, prefix, "a mapping of names to arrays", type(columns).__name__)
    if not columns:
        raise mismatch(what, prefix, "at least one column", "{}")
    checked: dict[str, Any] = {}
    for key, value in columns.items():
        if not isinstance(key, str):
            raise mismatch(f"column {repr_of(key)}", key, "a name of type str", type(key).__name__)
        if type(value) is np.ndarray and value.ndim and value.dtype in COLUMN_DTYPES:
            checked[key] = value  # the usual case; five times as fast as the code below
            continue
        name = join_key(prefix, key)
        is_nested = isinstance(value, Mapping)
        checked[key] = as_columns(value, name) if is_nested else _as_column(name, value)
    return checked


def _as_column(key: str, value: Any) -> NDArray[Any]:
    value = torch_to_numpy(value, key)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        value = stack_values(key, value) if len(value) else np.empty(0, np.float32)
    is_array = isinstance(value, np.ndarray)
    if not is_array or value.dtype.kind not in NUMERIC_KINDS:
        found = f"dtype {value.dtype}" if is_array else type(value).__name__
        hint = "other objects go as a list"
        raise mismatch(f"column {key!r}", key, "a numeric array", found, hint)
    if value.ndim == 0:
        raise mismatch(f"column {key!r}", key, "[batch, ...]", "[]")
    return native(key, value)


def native(key: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return a numeric array in native byte order.

    Raises:
        SchemaMismatchError: it is a masked array, or its numbers are wider than 64 bits (complex
            ones: 128), which neither files nor tensors support.
    """
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        hint = "fill it, or pass the mask as a column"
        raise mismatch(f"column {key!r}", key, "an array without a mask", "a masked array", hint)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in COLUMN_DTYPES:
        raise mismatch(f"column {key!r}", key, "numbers of at most 64 bits", str(dtype))
    return array.astype(dtype, copy=False)


def leaves(columns: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield ``(dotted name, array)`` of every column, depth first in insertion order."""
    for key, value in columns.items():
        if isinstance(value, dict):
            yield from leaves(value, join_key(prefix, key))
        else:
            yield join_key(prefix, key), value


def common_length(columns: Mapping[str, Any]) -> int:
    """Return the leading dimension that all columns share.

    Raises:
        SchemaMismatchError: they differ; ``shapes`` has each column's shape.
    """
    lengths: set[int] = set()
    _add_lengths(columns, lengths)
    if len(lengths) == 1:
        return lengths.pop()
    shapes = {name: tuple(column.shape) for name, column in leaves(columns)}
    length = next(iter(shapes.values()))[0]
    key, found = next((name, shape[0]) for name, shape in shapes.items() if shape[0] != length)
    listing = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    what, hint = f"batch dimension of column {key!r}", f"the columns are {listing}"
    raise mismatch(what, key, length, found, hint, shapes=shapes)


def _add_lengths(columns: Mapping[str, Any], lengths: set[int]) -> None:
    # Twice as fast as a loop over `leaves`; this check runs for every new batch.
    for column in columns.values():
        if isinstance(column, dict):
            _add_lengths(column, lengths)
        else:
            lengths.add(column.shape[0])


def map_columns(fn: Callable[[NDArray[Any]], Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same tree with ``fn`` applied to every array."""
    return {
        key: map_columns(fn, value) if isinstance(value, dict) else fn(value)
        for key, value in columns.items()
    }


def column_equal(left: Any, right: Any) -> bool:
    """Whether two values (arrays, scalars or nested dicts of them) have the same content."""
    if isinstance(left, Mapping) or isinstance(right, Mapping):
        if not (isinstance(left, Mapping) and isinstance(right, Mapping)):
            return False
        return left.keys() == right.keys() and all(column_equal(left[k], right[k]) for k in left)
    left, right = np.asarray(torch_to_numpy(left)), np.asarray(torch_to_numpy(right))
    # NaN equals NaN here: batches are equal if they have the same content.
    floats = left.dtype.kind in "fc" and right.dtype.kind in "fc"
    return bool(np.array_equal(left, right, equal_nan=floats))


def rows_to_columns(rows: Sequence[Mapping[str, Any]], prefix: str = "") -> dict[str, Any]:
    """Stack dicts with equal keys and shapes; see :meth:`SampleBatch.from_rows` for the dtypes.

    Raises:
        SchemaMismatchError: rows differ; the error has the key, the row, the expected value and
            the found value.
    """
    names = rows[0].keys() if isinstance(rows[0], Mapping) else ()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise _row_mismatch(prefix, index, "dict", type(row).__name__)
        if row.keys() != names:
            odd = sorted(map(str, set(names) ^ set(row)))[0]
            expected, found = sorted(map(str, names)), sorted(map(str, row))
            raise _row_mismatch(join_key(prefix, odd), index, expected, found)
    if not names:
        raise _row_mismatch(prefix, 0, "keys", "{}")
    columns: dict[str, Any] = {}
    for key in names:
        if not isinstance(key, str):
            raise _row_mismatch(prefix, 0, "keys of type str", repr(key))
        values = [row[key] for row in rows]
        name = join_key(prefix, key)
        is_nested = isinstance(values[0], Mapping)
        columns[key] = rows_to_columns(values, name) if is_nested else stack_values(name, values)
    return columns


def stack_values(key: str, values: Sequence[Any]) -> NDArray[Any]:
    """Return the values of a column as one array with a row per value, with its own memory.

    Raises:
        SchemaMismatchError: a value is not numeric, or differs in shape or dtype.
    """
    try:
        with np.errstate(over="raise"):
            return _stack(key, values)
    except (FloatingPointError, OverflowError) as error:
        expected = "integers of 64 bits, and floats in the range of float32"
        raise mismatch(f"column {key!r}", key, expected, "a larger one", str(error)) from error


def _stack(key: str, values: Sequence[Any]) -> NDArray[Any]:
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, dtype=np.float32)
    if kinds == {bool}:
        return np.array(values, dtype=np.bool_)
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    arrays = [_row_value(key, index, value) for index, value in enumerate(values)]
    shape = arrays[0].shape
    for index, array in enumerate(arrays):
        if array.shape != shape:
            raise _row_mismatch(key, index, list(shape), list(array.shape))
    dtypes = [array.dtype for array in arrays]
    if len(set(dtypes)) == 1:
        return np.stack(arrays)
    if shape:
        index, odd = next((i, dtype) for i, dtype in enumerate(dtypes) if dtype != dtypes[0])
        raise _row_mismatch(key, index, str(dtypes[0]), str(odd))
    # Rewards are often scalars of mixed number types (0 and 0.5, a Python and a numpy float):
    # convert them to a common type, with float32 in place of float64.
    return _narrow(np.array([array.item() for array in arrays]))


def _row_value(key: str, index: int, value: Any) -> NDArray[Any]:
    value = torch_to_numpy(value, key)
    if isinstance(value, float):  # includes numpy.float64 scalars
        value = np.asarray(value, dtype=np.float32)
    elif isinstance(value, (list, tuple)):
        try:
            value = _narrow(np.asarray(value))
        except (ValueError, TypeError) as error:
            found = type(value).__name__
            raise mismatch(f"column {key!r}", key, "a regular array", found, str(error)) from error
    elif not isinstance(value, (np.ndarray, bool, int, np.generic)):
        raise _row_mismatch(key, index, "a number or an array", type(value).__name__)
    array: NDArray[Any] = np.asanyarray(value)
    if type(array) is np.ndarray and array.dtype in COLUMN_DTYPES:
        return array
    if array.dtype.kind not in NUMERIC_KINDS:
        raise _row_mismatch(key, index, "a numeric dtype", str(array.dtype))
    return np.asarray(native(key, array))


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _row_mismatch(key: str, row: int, expected: Any, found: Any) -> SchemaMismatchError:
    what = f"key {key!r} of row {row}" if key else f"row {row}"
    hint = "all rows need the same keys and shapes"
    return mismatch(what, key, expected, found, hint, row=row)
