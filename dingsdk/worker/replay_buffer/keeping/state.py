"""The state of a buffer as plain data: making it, checking it, filling a storage from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer.remover import Remover
from dingsdk.worker.replay_buffer.storage import Rows

VERSION = 1
_KEYS = frozenset({"version", "capacity", "storage", "tail", "valid_count", "push_count"}) | {
    "sampler",
    "limiter",
}


def describe_rows(rows: Rows) -> dict[str, Any]:
    """Return the ``storage`` and ``data`` entries for rows that nobody else holds."""
    if isinstance(rows, SampleBatch):
        return {"storage": "array", "data": rows.columns}
    return {"storage": "object" if rows else None, "data": rows}


def rows_of(data: Any) -> Rows:
    """Return the rows of a ``data`` entry: a list, a SampleBatch, or columns.

    Raises:
        CheckpointCorruptError: it is none of these.
    """
    if isinstance(data, (SampleBatch, list)):
        return data
    try:
        return SampleBatch(data)
    except SchemaMismatchError as error:
        raise CheckpointCorruptError(f"the buffer state's data is wrong: {error}") from error


def check(state: Mapping[str, Any], capacity: int) -> None:
    """Look at everything in a state, but for its rows, that needs no other part.

    Raises:
        CheckpointVersionError: another version, or a buffer of another capacity.
        CheckpointCorruptError: a missing entry or one of the wrong type.
    """
    version = state.get("version")
    if version != VERSION:
        raise CheckpointVersionError(
            f"the buffer state has version {version!r}; this dingsdk reads {VERSION}",
            found=version,
            expected=VERSION,
        )
    missing = sorted(_KEYS - set(state))
    if missing:
        raise CheckpointCorruptError(f"the buffer state lacks {', '.join(missing)}")
    if state["capacity"] != capacity:
        raise CheckpointVersionError(
            f"the state is of a buffer of {state['capacity']} rows, this one has {capacity}; use "
            "the same replay_buffer_size, or load {'data': state['data']} to push its rows",
            found=state["capacity"],
            expected=capacity,
        )
    push_count = state["push_count"]
    if type(push_count) is not int or push_count < 0:
        raise CheckpointCorruptError(f"push_count is {push_count!r}; expected a number >= 0")
    for part in ("sampler", "limiter"):
        if not isinstance(state[part], Mapping):
            raise CheckpointCorruptError(f"the buffer state's {part} entry is no mapping")


def checked_rows(state: Mapping[str, Any]) -> Rows:
    """Return the rows of a state.

    Raises:
        CheckpointCorruptError: they are missing, or none of its storage.
    """
    if "data" not in state:
        raise CheckpointCorruptError("the buffer state lacks data")
    rows = rows_of(state["data"])
    # Episodes are a list in columns too.
    kinds = (
        ("array",) if isinstance(rows, SampleBatch) else ("object", "array") if rows else (None,)
    )
    if state["storage"] not in kinds:
        raise CheckpointCorruptError(
            f"the buffer state's storage is {state['storage']!r}, but its data is of {kinds[0]!r}"
        )
    return rows


def check_count(rows: int, count: int) -> None:
    """Refuse a state whose rows are not as many as it says.

    Raises:
        CheckpointCorruptError: they differ.
    """
    if rows != count:
        raise CheckpointCorruptError(f"the buffer state has {rows} rows and counts {count}")


def placed(remover: Remover, pieces: Iterable[Rows]) -> Iterator[tuple[NDArray[np.int64], Rows]]:
    """Say of rows (oldest first, as many as the remover counts) at which positions they lie."""
    first = 0
    for rows in pieces:
        yield remover.by_age(np.arange(first, first + len(rows), dtype=np.int64)), rows
        first += len(rows)


Arrays = dict[tuple[str, ...], NDArray[Any]]


def without_arrays(state: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """Return a nest of dicts without its arrays, and these by their paths."""
    arrays: Arrays = {}

    def rest(section: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        plain = {}
        for key, value in section.items():
            if isinstance(value, np.ndarray) and value.ndim:
                arrays[(*path, key)] = value
            else:
                plain[key] = rest(value, (*path, key)) if isinstance(value, Mapping) else value
        return plain

    return rest(state, ()), arrays


def with_arrays(plain: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Put arrays back, into the nest itself.

    Raises:
        ValueError: there is no such place, or it is taken.
    """
    for path, array in arrays.items():
        section: Any = plain
        for key in path[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        if not path or not isinstance(section, dict) or path[-1] in section:
            raise ValueError(f"the array {path!r:.80} of the state has no place")
        section[path[-1]] = array
    return plain
