"""A data set: recorded transitions of whole or cut episodes, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dingsdk.data.columns import as_columns, common_length, leaves, map_columns
from dingsdk.data.container import encode_frame
from dingsdk.data.pytree import part_of
from dingsdk.errors import (
    DatasetError,
    SchemaMismatchError,
    listing,
    nearest_name,
    spelling,
    wrong_type,
)

REQUIRED = ("obs", "action", "reward", "terminated")
"""Columns that every data set has to give."""
DATASET_COLUMNS = (*REQUIRED, "truncated", "next_obs")
"""All columns of a data set. One of the last two may be left out."""


class Dataset:
    """Recorded transitions, pieces of trajectories laid end to end.

    The arrays that are given are not copied where they have the right type, and must not be changed
    afterwards.

    Args:
        columns: Arrays ``[n, ...]``, or nested dicts of arrays for observations of a Dict space;
            ``n`` is the number of env steps, at least 1:

            - ``obs``: numbers ``[n, ...]``, finite;
            - ``action``: numbers ``[n, ...]``, finite: integers for discrete actions, which become
              int64; others become float32;
            - ``reward``: numbers ``[n]``, finite; it becomes float32;
            - ``next_obs``: as ``obs``, the observation after the action, also where an episode
              ends. If it is left out, it is the ``obs`` of the next row of the piece. Of a last row
              that is terminated it is the row's own ``obs``, which no target uses. A last row that
              is not terminated is left out, and the row before it becomes the last one;
            - ``terminated``: bool ``[n]`` (or numbers 0 and 1), whether the env ended the task;
            - ``truncated``: like ``terminated``, whether the episode was ended for another reason,
              such as a time limit. If it is left out, ``next_obs`` has to be given: a piece then
              also ends where the next row does not begin with its ``next_obs``.
        ends: int64[k], ascending exclusive ends of pieces, in addition to the rows that are
            terminated or truncated: where the recording was cut while an episode went on.
        source: Where the data comes from, for messages.

    Attributes:
        columns: All six columns; ``terminated`` and ``truncated`` are bool. ``truncated`` is also
            true in the last row of a piece that was cut, so that a piece ends exactly where a row
            is terminated or truncated.
        ends: int64[k], exclusive end of each piece, ascending, the last one ``n``.
        source: As given.

    Raises:
        DatasetError: a column is missing, unknown, of the wrong shape or type, or not finite; the
            message names ``source`` and the column.

    Example:
        >>> Dataset({"obs": np.zeros((2, 3)), "action": np.array([0, 1]), "reward": np.ones(2),
        ...          "terminated": np.array([0, 1]), "truncated": np.zeros(2)}).ends
        array([2])
    """

    def __init__(
        self, columns: Mapping[str, Any], ends: ArrayLike | None = None, source: str = "data"
    ) -> None:
        self.source = source
        found = self._named(columns)
        rows = self._length(found)
        for name in ("reward", "terminated", "truncated"):
            if name in found and not (
                isinstance(found[name], np.ndarray) and found[name].shape == (rows,)
            ):
                raise self._wrong(name, f"has the shape {_shape(found[name])}, not [{rows}]")
        for name in ("terminated", "truncated"):
            if name in found:
                found[name] = self._flag(name, found[name])
        for name in ("obs", "next_obs", "action", "reward"):
            if name in found:
                self._check_finite(name, found[name])
        if isinstance(found["action"], dict):
            raise self._wrong("action", "is a dict; actions are one array")
        is_float = found["action"].dtype.kind == "f"
        kind = np.float32 if is_float else np.int64
        found["action"] = found["action"].astype(kind, copy=False)
        found["reward"] = found["reward"].astype(np.float32, copy=False)
        if "next_obs" in found:
            self._check_same("next_obs", found["next_obs"], found["obs"])
        is_last = self._last_rows(found, ends, rows)
        # A copy, because arrays that were given are not written to.
        found["truncated"] = is_last & ~found["terminated"]
        if "next_obs" not in found:
            found = self._with_next_obs(found, is_last)
            is_last = found["terminated"] | found["truncated"]
        self.columns: dict[str, Any] = {name: found[name] for name in DATASET_COLUMNS}
        self.ends: NDArray[np.int64] = np.flatnonzero(is_last).astype(np.int64) + 1

    def __len__(self) -> int:
        return len(self.columns["reward"])

    def __repr__(self) -> str:
        return f"Dataset({self.source}: {len(self)} rows, {len(self.ends)} pieces)"

    @cached_property
    def digest(self) -> str:
        """Digest (``algorithm:hex``) of all columns, the same for every format."""
        return encode_frame("dataset", self.columns)[1].digest

    def returns(self) -> NDArray[np.float64]:
        """Return float64[k], the undiscounted sum of the rewards of each piece."""
        starts = np.concatenate(([0], self.ends[:-1]))
        sums: NDArray[np.float64] = np.add.reduceat(
            self.columns["reward"], starts, dtype=np.float64
        )
        return sums

    def _named(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checked copy of the columns as arrays, with all names known."""
        if not isinstance(columns, Mapping):
            raise wrong_type("columns", "a mapping of names to arrays", columns)
        missing = [name for name in REQUIRED if name not in columns]
        if not (missing or {"truncated", "next_obs"} & columns.keys()):
            missing = ["truncated"]
        if missing:
            name = missing[0]
            near = nearest_name(
                name, [str(each) for each in columns if each not in DATASET_COLUMNS]
            )
            hint = f"; is it the column {near!r}?" if near else ""
            has = listing([str(each) for each in columns])
            raise self._wrong(name, f"is missing; there are {has}{hint}")
        for name in columns:
            if name not in DATASET_COLUMNS:
                hint = spelling(name, DATASET_COLUMNS)[1].removesuffix(".")
                raise self._wrong(str(name), f"is not one of {', '.join(DATASET_COLUMNS)}{hint}")
        try:
            return as_columns(columns)
        except SchemaMismatchError as error:
            raise self._wrong(str(error.key), f"cannot be used: {error}") from error

    def _length(self, columns: Mapping[str, Any]) -> int:
        try:
            rows = common_length(columns)
        except SchemaMismatchError as error:
            name = str(error.key)
            raise self._wrong(
                name, f"has {error.found} rows, and the first column has {error.expected}"
            ) from error
        if not rows:
            raise self._wrong("obs", "has no rows")
        return rows

    def _flag(self, name: str, column: NDArray[Any]) -> NDArray[np.bool_]:
        flags = column.astype(np.bool_)
        if column.dtype != np.bool_ and (flags != column).any():
            row = int(np.flatnonzero(flags != column)[0])
            raise self._wrong(name, f"is {column[row]} in row {row}; expected bools, or 0 and 1")
        return flags

    def _check_finite(self, name: str, column: Any) -> None:
        for leaf_name, leaf in leaves({name: column}):
            if leaf.dtype.kind == "c":
                raise self._wrong(leaf_name, "holds complex numbers")
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                row = int(np.flatnonzero(~_all_of_row(np.isfinite(leaf)))[0])
                raise self._wrong(leaf_name, f"holds NaN or infinity, first in row {row}")

    def _check_same(self, name: str, column: Any, like: Any) -> None:
        found = {key[len(name) :]: leaf for key, leaf in leaves({name: column})}
        wanted = {key[len("obs") :]: leaf for key, leaf in leaves({"obs": like})}
        for part in sorted(found.keys() ^ wanted.keys()):
            lacks = name if part in wanted else "obs"
            raise self._wrong(f"{lacks}{part}", "is missing; obs and next_obs have the same parts")
        for part, leaf in found.items():
            own, other = (leaf.dtype, leaf.shape[1:]), (wanted[part].dtype, wanted[part].shape[1:])
            if own != other:
                raise self._wrong(
                    f"{name}{part}",
                    f"is {own[0]}{list(own[1])} for each row, and obs{part} is "
                    f"{other[0]}{list(other[1])}",
                )

    def _last_rows(
        self, columns: Mapping[str, Any], ends: ArrayLike | None, rows: int
    ) -> NDArray[np.bool_]:
        """Return bool[n], whether each row is the last one of its piece."""
        is_last: NDArray[np.bool_] = columns["terminated"].copy()
        if "truncated" in columns:
            is_last |= columns["truncated"]
        else:
            is_last[:-1] |= ~is_followed(columns["obs"], columns["next_obs"])
        if ends is not None:
            given = np.asarray(ends)
            is_int = given.ndim == 1 and given.dtype.kind in "iu"
            if not is_int or (given.size and not 0 < given.min() <= given.max() <= rows):
                raise self._wrong("ends", f"are not numbers from 1 to {rows}")
            is_last[given.astype(np.int64) - 1] = True
        is_last[-1] = True
        return is_last

    def _with_next_obs(self, columns: dict[str, Any], is_last: NDArray[np.bool_]) -> dict[str, Any]:
        rows = np.arange(len(is_last))
        following = np.where(is_last, rows, rows + 1)
        is_kept = ~columns["truncated"]
        if not is_kept.any():
            raise self._wrong(
                "next_obs", "is missing, and no row but the last of each piece could do without it"
            )
        truncated = columns["truncated"].copy()
        truncated[:-1] |= columns["truncated"][1:] & ~is_last[:-1]
        next_obs = part_of(columns["obs"], following)
        made = {**columns, "truncated": truncated, "next_obs": next_obs}
        return map_columns(lambda column: column[is_kept], made)

    def _wrong(self, column: str, what: str) -> DatasetError:
        return DatasetError(
            f"{self.source}: column {column!r} {what}", source=self.source, column=column
        )


def is_followed(obs: Any, next_obs: Any) -> NDArray[np.bool_]:
    """Return bool[n - 1], whether the ``obs`` of the next row is the ``next_obs`` of each row."""
    now, after = dict(leaves({"obs": obs})), dict(leaves({"obs": next_obs}))
    same = [_all_of_row(after[name][:-1] == now[name][1:]) for name in now]
    found: NDArray[np.bool_] = np.logical_and.reduce(same)
    return found


def _all_of_row(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(flags.all(axis=tuple(range(1, flags.ndim))))


def _shape(column: Any) -> Any:
    return list(column.shape) if isinstance(column, np.ndarray) else "of a dict"
