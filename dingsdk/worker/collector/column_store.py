"""Preallocated columns ``[time, env, ...]`` that one collect round is written to at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import SchemaMismatchError

Path = tuple[str, ...]


class ColumnStore:
    """Arrays ``[capacity, env_num, ...]`` by column name; nested dicts are kept as such.

    The first write fixes names, shapes and dtypes.

    Args:
        env_num: Number of envs.
        capacity: Rounds to make room for at first.
    """

    def __init__(self, env_num: int, capacity: int) -> None:
        self.env_num = env_num
        self.capacity = capacity
        # (path, array, shape of a round of all envs)
        self._slots: list[tuple[Path, NDArray[Any], tuple[int, ...]]] = []

    def write(
        self, time: int, columns: Mapping[str, Any], env_ids: NDArray[np.int64] | None = None
    ) -> None:
        """Write one round.

        Args:
            time: Row to write, ``0 <= time < capacity``.
            columns: Arrays ``[n, ...]``, possibly in nested dicts.
            env_ids: int64[n], the env of each row; None for all envs in order.

        Raises:
            SchemaMismatchError: names, shapes or dtypes differ from the first write.
        """
        if not self._slots:
            self._allocate(columns, self.env_num if env_ids is None else len(env_ids))
        try:
            if env_ids is None:
                for path, slot, shape in self._slots:
                    value: Any = columns
                    for key in path:
                        value = value[key]
                    if value.shape != shape or value.dtype != slot.dtype:
                        self._refuse(path, slot, value)
                    slot[time] = value
                return
            for path, slot, shape in self._slots:
                value = columns
                for key in path:
                    value = value[key]
                if value.shape != (len(env_ids), *shape[1:]) or value.dtype != slot.dtype:
                    self._refuse(path, slot, value)
                slot[time, env_ids] = value
        except (KeyError, AttributeError) as error:
            raise SchemaMismatchError(
                f"the policy's make_transitions gave no array for the column {'.'.join(path)!r} "
                "that its first call gave",
                key=".".join(path),
                expected="an array",
                found=None,
            ) from error

    def gather(self, times: NDArray[np.int64], envs: NDArray[np.int64]) -> dict[str, Any]:
        """Return the rows ``(times[k], envs[k])`` of every column as new arrays."""
        rows = times * self.env_num + envs
        out: dict[str, Any] = {}
        for path, slot, shape in self._slots:
            flat = slot.reshape(self.capacity * self.env_num, *shape[1:])
            node = out
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = flat.take(rows, axis=0)
        return out

    def move_to_front(self, first: int, stop: int) -> None:
        """Move the rounds ``first .. stop - 1`` to the front; they must not reach past it."""
        for _, slot, _ in self._slots:
            slot[: stop - first] = slot[first:stop]

    def grow(self, used: int) -> None:
        """Double the capacity; the first ``used`` rounds are kept."""
        self.capacity *= 2
        for index, (path, slot, shape) in enumerate(self._slots):
            larger = np.empty((self.capacity, *slot.shape[1:]), slot.dtype)
            larger[:used] = slot[:used]
            self._slots[index] = (path, larger, shape)

    def _allocate(self, columns: Mapping[str, Any], rows: int) -> None:
        slots = []
        for path, value in _leaves(columns, ()):
            if not isinstance(value, np.ndarray) or value.shape[:1] != (rows,):
                raise SchemaMismatchError(
                    f"column {'.'.join(path)!r} of the policy's make_transitions must be an "
                    f"array with {rows} rows, one for each env; found {_describe(value)}",
                    key=".".join(path),
                    expected=(rows,),
                    found=_describe(value),
                )
            shape = (self.env_num, *value.shape[1:])
            slots.append((path, np.empty((self.capacity, *shape), value.dtype), shape))
        self._slots = slots

    def _refuse(self, path: Path, slot: NDArray[Any], value: Any) -> None:
        expected = f"{slot.dtype}{list(slot.shape[2:])}"
        raise SchemaMismatchError(
            f"column {'.'.join(path)!r} had rows of {expected}, now {_describe(value)} came: "
            "make_transitions must give every round the same shapes and dtypes",
            key=".".join(path),
            expected=expected,
            found=_describe(value),
        )


def _leaves(node: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
