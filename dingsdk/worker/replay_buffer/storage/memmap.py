"""Storage of rows as columns on disk, which may be larger than memory and outlive the process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import NUMERIC_KINDS, map_columns
from dingsdk.data.pytree import flatten, nest
from dingsdk.errors import CheckpointError, CheckpointVersionError, ConfigError, StorageFullError
from dingsdk.worker.replay_buffer.storage import Where, one_by_one
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage
from dingsdk.worker.replay_buffer.storage.mapped_folder import MappedFolder
from dingsdk.worker.replay_buffer.storage.schema import row_bytes

_MARKS = "marks.bin"
_STEP_BYTES = 64 << 20
"""Disk space is reserved in steps of about this size."""


class MemmapStorage(ArrayStorage):
    """One mapped file per column in a private folder, made at the first push (type ``memmap``).

    Rows in use stay in the system's page cache, the others are only on disk. If the process is
    killed, ``reopen`` restores the rows of every push that returned, except the oldest rows if an
    unfinished push was replacing them. Rows that left a prioritized buffer early stay removed. The
    uses of the others are restored if ``max_use`` is set; priorities are not restored. Rows may be
    lost after a power cut.
    """

    class Config(ArrayStorage.Config, frozen=True, kw_only=True):
        """Section ``storage`` of type ``memmap``.

        Attributes:
            path: The folder; only one buffer at a time can use it.
            reopen: Continue with the rows that the folder holds, if any. If False, a folder that
                holds rows is refused.
        """

        type: str = "memmap"
        path: Annotated[str, Meta(min_length=1)]
        reopen: bool = False

    is_durable: ClassVar[bool] = True

    @classmethod
    def reopening(cls, section: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**section, "reopen": True}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        super().__init__(cfg, capacity, deepcopy)
        self._path = Path(self._cfg.path)
        self._reopen: bool = self._cfg.reopen
        self._folder: MappedFolder | None = None
        self._made_with: dict[str, Any] = {
            "capacity": capacity,
            "episodes": None,
            "next_of": self._next_of,
        }
        if not self._reopen:
            self._refuse_taken()

    @property
    def needs_fifo(self) -> bool:
        return True

    def _clear(self) -> None:
        super()._clear()
        # Bytes a row: of each file of a column, and of files of own copies. Below: for how many
        # rows and own copies disk space is reserved.
        self._row_bytes: dict[str, int] = {}
        self._marks = np.empty(0, np.int64)
        self._state: dict[str, int] | None = None
        self._own_bytes: dict[str, int] = {}
        self._n_used = self._n_reserved = self._n_held = 0
        # Position of row 0 in the files; not 0 after a push to a full ring was interrupted.
        self._shift = 0

    def put(self, where: Where, rows: dict[str, Any]) -> None:
        if isinstance(where, slice):
            start, stop, n = where.start, where.stop, where.stop - where.start
        else:
            start, stop, n = int(where.min()), int(where.max()) + 1, len(where)
        self._n_used = max(self._n_used, stop)
        if stop > self._n_reserved:
            # Reserved space starts at position 0, and rows of a loaded state do not.
            self._reserve_rows(stop)
        state, holds_episodes = self._state, self._made_with["episodes"]
        if state is not None and not holds_episodes and start < state["valid_count"]:
            # From here until the push is complete, these rows may mix old and new values.
            self._record({**state, "cut": n})
        physical = self._physical(where)
        super().put(physical, rows)
        self._marks[physical] = 0

    def take(self, where: Where) -> SampleBatch:
        return super().take(self._physical(where))

    def mark(self, where: Where, marks: NDArray[np.int64] | int) -> None:
        self._marks[self._physical(where)] = marks

    def recovered_marks(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        marks: NDArray[np.int64] = self._marks[self._physical(where)]
        return marks

    def commit(self, state: Mapping[str, int]) -> None:
        self._state = dict(state)
        self._record(self._state)

    def _record(self, state: dict[str, int]) -> None:
        # A storage without rows has no files to write the state to.
        if self._folder is not None and self._layout is not None:
            self._folder.write_record({**state, "shift": self._shift})

    def _physical(self, where: Where) -> Where:
        return (one_by_one(where) + self._shift) % self.capacity if self._shift else where

    def _allocate(self, rows: dict[str, Any], n: int) -> None:
        if self._folder is None:
            self._refuse_taken()
            self._folder = MappedFolder(self._path)
        try:
            self._folder.erase()
            super()._allocate(rows, n)
            self._map_marks()
            self.make_room(n)
            self._folder.write_header(
                {
                    **self._made_with,
                    "columns": [
                        {"path": list(path), "dtype": a.dtype.str, "shape": list(a.shape[1:])}
                        for path, a in flatten(self._form)
                    ],
                }
            )
        except BaseException:
            self._clear()
            raise

    def _new_column(self, array: NDArray[Any]) -> NDArray[Any]:
        name = f"column-{len(self._row_bytes):04d}.bin"
        return self._map(name, array.shape[1:], np.dtype(array.dtype.str))

    def _map(self, name: str, tail: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        folder = cast(MappedFolder, self._folder)
        array = folder.map(name, (self.capacity, *tail), dtype)
        self._row_bytes[name] = row_bytes(array)
        return array

    def _map_marks(self) -> None:
        self._marks = self._map(_MARKS, (), np.dtype(np.int64))

    def _new_array(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], old: NDArray[Any] | None
    ) -> NDArray[Any]:
        folder, file = cast(MappedFolder, self._folder), f"{name}.bin"
        array = folder.map(file, shape, dtype)
        if name == "links":
            folder.reserve({file: array.nbytes})
        else:
            self._own_bytes[file] = row_bytes(array)
        return array

    def hold_episodes(self, capacity: int) -> None:
        self._made_with.update(capacity=capacity, episodes=True)

    def _longer_columns(self) -> dict[str, Any]:
        before, self._row_bytes = self._row_bytes, {}
        try:
            columns, held = map_columns(self._new_column, self._columns), len(self._marks)
            self._map_marks()
            # A killed process may have used more rows. Holes are not written: the disk may be full.
            added = self._marks[held:]
            added[added != 0] = 0
            return columns
        except BaseException:
            self._row_bytes = before
            raise

    def make_room(self, rows: int) -> None:
        super().make_room(rows)
        needed = min(self._n_used + rows, self.capacity)
        if needed > self._n_reserved:
            self._reserve_rows(needed)

    def _reserve_rows(self, rows: int) -> None:
        ahead = _STEP_BYTES // max(1, sum(self._row_bytes.values()))
        self._n_reserved = self._reserve(self._row_bytes, rows, ahead)

    def _hold_slots(self, slots: int) -> None:
        if slots > self._n_held:
            self._n_held = self._reserve(self._own_bytes, slots, slots >> 1)

    def _reserve(self, row_bytes: Mapping[str, int], rows: int, ahead: int) -> int:
        """Reserve disk space for rows of files, and for rows ``ahead`` of them if there is enough.

        Returns:
            For how many rows space is reserved now.
        """
        folder = cast(MappedFolder, self._folder)
        more = min(self.capacity, rows + ahead)
        with suppress(StorageFullError):
            folder.reserve({name: more * size for name, size in row_bytes.items()})
            return more
        folder.reserve({name: rows * size for name, size in row_bytes.items()})
        return rows

    def _refuse_taken(self) -> None:
        if MappedFolder.is_taken(self._path):
            raise ConfigError(
                f"storage.path {self._path} holds the rows of an earlier buffer; set "
                "storage.reopen: true to continue with them, delete the folder, or choose another",
                path="storage.path",
            )

    def recovered(self) -> dict[str, int] | None:
        if not (self._reopen and MappedFolder.is_taken(self._path)):
            return None
        self._folder = MappedFolder(self._path)
        try:
            return self._recover(self._folder)
        except BaseException:
            self.close()
            raise

    def _recover(self, folder: MappedFolder) -> dict[str, int] | None:
        header = folder.read_header()
        if header is None:
            if MappedFolder.is_taken(self._path):
                raise folder.corrupt("header.json is missing")
            return None
        for key, wanted in self._made_with.items():
            if header.get(key) != wanted:
                raise CheckpointVersionError(
                    f"{self._path} was made with {key} {header.get(key)!r}, this buffer has "
                    f"{wanted!r}; use the same, or another storage.path",
                    found=header.get(key),
                    expected=wanted,
                )
        state = folder.read_record()
        holds_episodes = self._made_with["episodes"]
        if holds_episodes:
            if "rows" not in state:
                return None  # no push was complete
            self.capacity = state["rows"]
        capacity = self.capacity
        try:
            self._open_columns(header["columns"])
            self._map_marks()
            live: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
            if holds_episodes:
                marks = self._marks
                # Clear the marks of an interrupted push, because the next push reuses its numbers.
                marks[marks >= state.get("next", 0)] = 0
                live = marks >= max(state.get("first", 0), 1)
            else:
                count = self._place_ring(folder, state)
                live[(np.arange(count) + self._shift) % capacity] = True
            if self._following is not None:
                self._following.recover(live)
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise folder.corrupt(f"its header or links are wrong ({error!r})") from error
        used = capacity if self._shift else int(np.flatnonzero(live).max(initial=-1)) + 1
        self._n_used = used
        self._reserve_rows(used)
        self.commit(state)
        return dict(state) if live.any() else None

    def _place_ring(self, folder: MappedFolder, state: dict[str, int]) -> int:
        """Repair the ring after an interrupted push; return its number of rows."""
        cut, shift = state.pop("cut", 0), state.pop("shift", -1)
        count, tail, capacity = state.get("valid_count", -1), state.get("tail", -1), self.capacity
        if not (0 <= count <= capacity and 0 <= tail < capacity and 0 <= shift < capacity):
            raise folder.corrupt("its cursor is wrong")
        self._shift = shift
        if cut:
            lost = max(0, min(count, count + cut - capacity))
            self._shift = (shift + (tail - count) % capacity + lost) % capacity
            state["valid_count"] = state["tail"] = count = count - lost
            state["lost"] = state.get("lost", 0) + lost
        return count

    def _open_columns(self, entries: list[dict[str, Any]]) -> None:
        columns: list[tuple[Any, Any]] = []
        form: list[tuple[Any, Any]] = []
        absent = self._next_of and f"next_{self._next_of}"
        for entry in entries:
            path, dtype, shape = entry["path"], np.dtype(entry["dtype"]), tuple(entry["shape"])
            if dtype.kind not in NUMERIC_KINDS or any(type(n) is not int or n < 0 for n in shape):
                raise ValueError(f"column {path!r:.80}")
            empty = np.empty((0, *shape), dtype)
            form.append((path, empty))
            if path[0] != absent:
                columns.append((path, self._new_column(empty)))
        self._use(nest(columns), nest(form))

    def close(self) -> None:
        self._clear()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def clear(self) -> None:
        super().clear()
        if self._folder is None and self._reopen and MappedFolder.is_taken(self._path):
            self._folder = MappedFolder(self._path)
        if self._folder is not None:
            self._folder.erase()
