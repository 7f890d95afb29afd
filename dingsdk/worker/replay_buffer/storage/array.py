"""Columns in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves, map_columns
from dingsdk.errors import ConfigError, ConfigTypeError
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.storage import Rows, Storage
from dingsdk.worker.replay_buffer.storage.compression import Codec
from dingsdk.worker.replay_buffer.storage.declared import read_schema
from dingsdk.worker.replay_buffer.storage.schema import Level, check_pair, convert, row_bytes

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.storage.next_of import NextOf


class ArrayStorage(Storage):
    """One preallocated numpy array per column, made at the first push (type ``array``).

    Takes SampleBatch and dicts of numbers and arrays; gives SampleBatch. The config, or else the
    first rows, set names, shapes and dtypes. Later batches must have exactly these; numbers in
    dicts are converted where that loses no more than precision (an int into a float column).

    Config:
        schema: Column names to a dtype, to ``{dtype, shape}`` or, nested, to the same again;
            None leaves it to the first rows.
        next_of: Name of the column of observations, such as ``obs``: what is in ``next_obs``
            is then stored once, where it is the observation of a later row. Halves the memory
            of large observations; wants unbroken trajectories, in whatever order.
        compress: ``none`` only: columns are read and written in place.
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "array",
        "schema": None,
        "next_of": None,
        "compress": "none",
    }

    takes_grids: ClassVar[bool] = True

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        super().__init__(cfg, capacity, deepcopy)
        self._declared = read_schema(cfg.get("schema"))
        self._next_of = _read_next_of(cfg)
        self._codec = self._read_codec(cfg)
        self._clear()

    def _read_codec(self, cfg: Mapping[str, Any]) -> Codec | None:
        if cfg.get("compress", "none") == "none":
            return None
        raise ConfigError(
            f"storage.compress is {cfg['compress']!r}, but type {self.config['type']} keeps plain "
            "columns that are read in place; use type memmap or object, or leave compress out "
            "(next_of halves large observations)",
            path="storage.compress",
        )

    def _clear(self) -> None:
        self._columns: dict[str, Any] = {}
        self._form: dict[str, Any] = {}
        self._is_plain = False
        self._schema: Level | None = None
        self._level: Level | None = None
        self._following: NextOf | None = None
        self._fits_row: Callable[[dict[str, Any]], bool] | None = None

    def accept(self, rows: SampleBatch | Sequence[Any]) -> SampleBatch:
        schema = self._schema
        batch = rows if isinstance(rows, SampleBatch) else SampleBatch.from_rows(rows)
        if schema is None:
            if self._declared is not None:
                columns = convert(self._declared, batch.columns, "", strict=batch is rows)
                batch = SampleBatch.trusted(columns, len(batch))
            self._allocate(batch)
        elif not schema.fits(batch.columns):
            columns = convert(self._form, batch.columns, "", strict=batch is rows)
            batch = SampleBatch.trusted(columns, len(batch))
        if self._following is not None:
            self._reserve(min(len(batch), self.capacity))
        return batch

    def put(self, where: Where, rows: Rows) -> None:
        columns = rows.columns  # type: ignore[union-attr]
        self._level.put(where, columns)  # type: ignore[union-attr]
        if self._following is not None:
            name = self._next_of
            self._following.put(where, columns[name], columns[f"next_{name}"])  # type: ignore[index]

    def accept_one(self, row: Any) -> Any:
        # A dict that fits goes into the columns as it is; making a batch of it takes 15 us.
        if type(row) is dict and self._fits_row is not None and self._fits_row(row):
            return row
        return self.accept([row])

    def put_one(self, position: int, row: Any) -> None:
        if type(row) is dict:
            self._level.put_row(position, row)  # type: ignore[union-attr]
        else:
            self.put(slice(position, position + 1), row)

    def take(self, where: Where) -> SampleBatch:
        if isinstance(where, slice):
            columns = map_columns(lambda array: array[where].copy(), self._columns)
            length = where.stop - where.start
        else:
            columns = self._level.take(where)  # type: ignore[union-attr]
            length = len(where)
        if self._following is not None:
            columns[f"next_{self._next_of}"] = self._following.take(where)
            columns = {key: columns[key] for key in self._form}
        return SampleBatch.trusted(columns, length, self._is_plain)

    def make_room(self, rows: int) -> None:
        """Have room for accepted rows that are yet to be put, where one push was many.

        Raises:
            ConfigError, StorageFullError: there is none; nothing changed.
        """
        if self._following is not None:
            self._reserve(min(rows, self.capacity))

    def grow(self, capacity: int) -> None:
        """Have a larger capacity; rows stay at their positions.

        Raises:
            ConfigError, StorageFullError: there is no room for it; nothing changed.
        """
        before, self.capacity = self.capacity, capacity
        try:
            columns = self._longer_columns()
            if self._following is not None:
                self._following.observe(columns[self._next_of])  # type: ignore[index]
        except BaseException as error:
            too_large = self._too_large(self._form)
            self.capacity = before
            if isinstance(error, (MemoryError, ValueError)):
                raise too_large from error
            raise
        self._lay_out(columns, self._form)

    def _longer_columns(self) -> dict[str, Any]:
        def longer(array: NDArray[Any]) -> NDArray[Any]:
            column = self._new_column(array)
            column[: len(array)] = array
            return column

        return map_columns(longer, self._columns)

    def seal(self) -> None:
        if self._following is not None:
            self._following.seal()

    def clear(self) -> None:
        self._clear()

    def _allocate(self, batch: SampleBatch) -> None:
        name = self._next_of
        if name is not None:
            check_pair(batch.columns, name)
        kept = {key: v for key, v in batch.columns.items() if name is None or key != f"next_{name}"}
        try:
            self._lay_out(map_columns(self._new_column, kept), batch.columns)
        except ConfigError:
            self._clear()
            raise
        except (MemoryError, ValueError) as error:
            self._clear()
            raise self._too_large(kept) from error

    def _lay_out(self, columns: dict[str, Any], form: dict[str, Any]) -> None:
        """Use columns for rows that look like those of ``form``."""
        self._columns = self._form = columns
        self._level = self._schema = Level(columns)
        self._fits_row = self._level.fits_row
        if self._next_of is not None:
            self._follow(form, self._next_of)
        self._is_plain = not any(type(column) is dict for column in form.values())

    def _follow(self, rows: dict[str, Any], name: str) -> None:
        # Compiled code, which takes a moment to import: only for those who ask for it.
        from dingsdk.worker.replay_buffer.storage.next_of import NextOf

        if self._following is None:
            self._following = NextOf(self._columns[name], self._new_array)

        def stand_in(array: NDArray[Any]) -> NDArray[Any]:
            shape = (self.capacity, *array.shape[1:])
            return np.broadcast_to(np.empty((), array.dtype.str), shape)

        next_name = f"next_{name}"
        absent = map_columns(stand_in, {next_name: rows[next_name]})
        form = {**self._columns, **absent}
        self._form = {key: form[key] for key in rows}
        self._schema = Level(self._form)
        self._fits_row = None

    def _new_column(self, array: NDArray[Any]) -> NDArray[Any]:
        # Untouched pages of np.empty cost nothing, so a large capacity is cheap until used.
        # By its name, as a dtype that was pickled compares more slowly than the one of numpy.
        return np.empty((self.capacity, *array.shape[1:]), dtype=array.dtype.str)

    def _new_array(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], old: NDArray[Any] | None
    ) -> NDArray[Any]:
        array = np.zeros(shape, dtype)
        if old is not None:
            array[: len(old)] = old
        return array

    def _reserve(self, rows: int) -> None:
        try:
            self._following.reserve(rows)  # type: ignore[union-attr]
        except MemoryError as error:
            raise self._too_large(self._form) from error

    def _too_large(self, columns: dict[str, Any]) -> ConfigError:
        row = sum(row_bytes(array) for _, array in leaves(columns))
        return ConfigError(
            f"{self.capacity} rows of {row} bytes need {self.capacity * row} bytes, which cannot "
            "be had; choose a smaller replay_buffer_size",
            path="replay_buffer_size",
            size_bytes=self.capacity * row,
        )


def _read_next_of(cfg: Mapping[str, Any]) -> str | None:
    value = cfg.get("next_of")
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigTypeError(
            f"storage.next_of must be the name of a column, such as obs, or null; found {value!r}",
            path="storage.next_of",
            expected="the name of a column, or null",
            found=type(value).__name__,
        )
    return value
