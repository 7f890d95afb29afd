"""Columns that a config declares, instead of leaving them to the first push."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import NUMERIC_KINDS, join_key
from dingsdk.errors import ConfigError

_PATH = "storage.schema"


def read_schema(schema: Any) -> dict[str, Any] | None:
    """Return columns without rows ``[0, ...]`` in the declared form; None: nothing is declared.

    Args:
        schema: Names to a dtype, to ``{dtype, shape}``, or to a mapping of the same kind for a
            nested column.

    Raises:
        ConfigError: it is something else; names the column.
    """
    if schema is None:
        return None
    return _columns(schema, "")


def _columns(schema: Any, name: str) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema:
        raise _wrong(name, "a mapping of column names", schema)
    columns: dict[str, Any] = {}
    for key, form in schema.items():
        if not isinstance(key, str):
            raise _wrong(name, "names of type str", key)
        inner = join_key(name, key)
        if isinstance(form, Mapping) and "dtype" not in form:
            columns[key] = _columns(form, inner)
        else:
            columns[key] = _column(form, inner)
    return columns


def _column(form: Any, name: str) -> NDArray[Any]:
    given = form if isinstance(form, Mapping) else {"dtype": form}
    shape = given.get("shape", ())
    shape = tuple(shape) if isinstance(shape, (list, tuple)) else shape
    if set(given) - {"dtype", "shape"} or not isinstance(shape, tuple):
        raise _wrong(name, "a dtype, or {dtype, shape}", form)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise _wrong(name, "a shape of integers >= 0", form)
    try:
        dtype = np.dtype(given["dtype"])
    except TypeError as error:
        raise _wrong(name, "the name of a numeric dtype such as float32", form) from error
    if given["dtype"] is None or dtype.kind not in NUMERIC_KINDS:
        raise _wrong(name, "the name of a numeric dtype such as float32", form)
    return np.empty((0, *shape), dtype)


def _wrong(name: str, expected: str, found: Any) -> ConfigError:
    path = join_key(_PATH, name) if name else _PATH
    return ConfigError(f"{path} must be {expected}, found {found!r:.80}", path=path)
