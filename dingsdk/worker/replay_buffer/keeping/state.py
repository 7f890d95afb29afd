"""The state of a buffer as plain data: making it, checking it, filling a storage from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
    DingError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer.remover import Remover
from dingsdk.worker.replay_buffer.storage import Rows, Storage

VERSION = 1
_KEYS = frozenset({"version", "capacity", "storage", "data"}) | frozenset(
    {"tail", "valid_count", "push_count", "sampler", "limiter"}
)


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


def check(state: Mapping[str, Any], capacity: int) -> Rows:
    """Return the rows of a state after looking at everything that needs no other part.

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


def check_count(rows: Rows, count: int) -> None:
    """Refuse a state whose rows are not as many as it says.

    Raises:
        CheckpointCorruptError: they differ.
    """
    if len(rows) != count:
        raise CheckpointCorruptError(f"the buffer state has {len(rows)} rows and counts {count}")


def fill(storage: Storage, remover: Remover, rows: Rows) -> None:
    """Put rows (oldest first) into an empty storage at the positions that the remover says.

    Raises:
        CheckpointCorruptError: the storage does not take them.
    """
    try:
        accepted = storage.accept(rows)
    except DingError as error:
        raise CheckpointCorruptError(f"the buffer state's data is wrong: {error}") from error
    storage.put(remover.oldest_first(), accepted)
