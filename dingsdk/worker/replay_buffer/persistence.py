"""Saves the rows and the state of a buffer to a folder, and loads them.

A folder holds containers (:mod:`dingsdk.data.container`): frames of rows, one frame of the rest of
the buffer's state, and ``manifest.json``, which names them with their digests. Rows are in segments
of equal length. A full segment is written once: the next save to the folder writes only the rows
pushed since then, the last segment if it was not full, and the state. The manifest is replaced
last, so a folder holds either the old rows or the new ones if the writer dies. The next save
removes files that the manifest does not name.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.container import (
    checkpoint_errors,
    decode_frame,
    decode_json,
    encode_frame,
    encode_json,
)
from dingsdk.errors import (
    CheckpointError,
    CheckpointMissingError,
    CheckpointVersionError,
    DataCorruptError,
    DataMissingError,
    RunFolderError,
    SchemaMismatchError,
    StorageFullError,
)
from dingsdk.runtime.files import Buffer, Folder, locked_folder
from dingsdk.worker.replay_buffer.interface import KEPT
from dingsdk.worker.replay_buffer.sampler import ENDS
from dingsdk.worker.replay_buffer.state import Facts, Natural, RowCopy, TableSnapshot
from dingsdk.worker.replay_buffer.storage import Rows

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.table import Table

MANIFEST = "manifest.json"

_MANIFEST_KIND, _ROWS_KIND, _STATE_KIND = "replay-buffer", "replay-rows", "replay-state"
_NAME = re.compile(r"(rows-[0-9]{1,19}|state)-[0-9a-f]{16}\.bin")
_MAX_TEXT_BYTES = (1 << 32) - 1
"""The limit of frames for their JSON, which holds everything in an object except its arrays."""
_SEGMENT_ROWS = 131_072
"""Most rows in a segment of a saved buffer."""
_SEGMENT_BYTES = 32 << 20
"""About the most bytes in a segment of a saved buffer; large rows make segments of fewer rows."""
_OBJECT_ROWS = 2048
"""Most rows in a segment of objects, which are encoded one by one."""
_PROBED_ROWS = 64
"""The size of a row is estimated from this many rows."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest's entry for a file with one frame."""

    name: str
    size_bytes: Natural
    digest: str


class _Segment(_File, frozen=True):
    """Consecutively pushed rows; ``first`` is how many rows were pushed before them."""

    first: Natural
    rows: Annotated[int, msgspec.Meta(ge=1)]

    @property
    def stop(self) -> int:
        return self.first + self.rows


class _Rest(msgspec.Struct, forbid_unknown_fields=True):
    """Everything that is saved besides rows."""

    state: dict[str, Any]
    facts: dict[str, Any]


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The saved rows: the rows of all segments, without those before number ``first``.

    ``lineage`` names the history in which rows are numbered. ``made_of`` names the types of the
    buffer, its sampler and its remover, which must match to restore the state.
    """

    lineage: str
    made_of: dict[str, str]
    first: Natural
    rows: Natural
    rows_each: Annotated[int, msgspec.Meta(ge=1)]
    segments: list[_Segment]
    state: _File

    def __post_init__(self) -> None:
        starts = [segment.first for segment in self.segments] or [self.first]
        stops = [segment.stop for segment in self.segments] or [self.first]
        is_begun = starts[0] <= self.first < stops[0] or not self.segments
        if not is_begun or starts[1:] != stops[:-1] or stops[-1] != self.first + self.rows:
            raise ValueError(f"its segments are not those of {self.rows} rows from {self.first} on")


def save(
    path: str | os.PathLike[str],
    table: Table,
    segment_rows: int = _SEGMENT_ROWS,
    segment_bytes: int = _SEGMENT_BYTES,
) -> None:
    """Write a consistent copy of the rows into a folder, and replace the rows saved there.

    Other threads may push during the save. They wait for the copy of one segment at a time, and at
    the end for the copy of the newest rows. If rows leave in another order than oldest first, all
    of them are copied before they are put in order and written.

    Args:
        path: The folder; created with its parents if missing.
        table: The buffer.
        segment_rows: The most rows of a segment, a power of two.
        segment_bytes: About the most bytes of a segment of more than one row.

    Raises:
        RunFolderError, StorageFullError, SchemaMismatchError: as :meth:`Table.save_data`, and
            if another save to the folder is running; the old rows stay.
    """
    taken = f"another save to {Path(path)} is under way; save again later, or elsewhere"
    with Folder(path) as folder, locked_folder(folder.path, taken):
        folder.sweep()
        _Save(folder, table, segment_rows, segment_bytes).run()


_Piece = tuple[Rows, int, int] | _Segment | None
"""Rows, the number of the first one and its age; or the segment of an earlier save that has them;
or None, if all of them have left."""


class _Save:
    """One save: reuses the segments of the folder that are still valid, and writes the others."""

    def __init__(self, folder: Folder, table: Table, segment_rows: int, segment_bytes: int) -> None:
        self._folder = folder
        self._table = table
        self._rows_each = segment_rows
        self._segment_bytes = segment_bytes
        self._there: Mapping[int, _Segment] = {}
        self._token = secrets.token_hex(8)

    def run(self) -> None:
        try:
            text = encode_json(_MANIFEST_KIND, msgspec.to_builtins(self._write()))
            self._folder.write_atomic(MANIFEST, [text], durable=True)
        finally:
            self._remove_unnamed()

    def _write(self) -> _Manifest:
        """Write all rows, and release the buffer's lock after the copy of each full segment."""
        with self._table.snapshot() as now:
            lineage = now.lineage
            probe = now.rows_at(np.arange(min(_PROBED_ROWS, now.last - now.first)))
        self._plan(now, probe)
        segments, at = self._write_full(now) if now.is_ordered else ([], now.first)
        with self._table.copies() as (columns, rows):
            if rows is not None:
                self._copy_pieces(rows, now.last - now.first)
            columns.run()
            with self._table.snapshot() as now:
                # Row numbers never repeat: if the buffer was cleared or loaded a state, all its
                # rows have higher numbers than those before. Only the columns may be of old parts.
                bounds = list(_bounds(max(at, now.first), now.last, self._rows_each))
                pieces: Iterable[_Piece]
                if rows is None:
                    pieces = [self._copied(now, *each) for each in bounds]
                else:
                    rows.finish(now)
                state = now.state(columns if now.lineage == lineage else None)
        where = now.oldest_first(state)
        if rows is not None:
            pieces = _in_order(rows.rows(), rows.places(where), bounds)
        segments += map(self._written, pieces)
        rest = {"state": state, "facts": now.facts(state, where)}
        frame, info = encode_frame(_STATE_KIND, rest, max_manifest_bytes=_MAX_TEXT_BYTES)
        name = self._put("state", frame)
        return _Manifest(
            lineage=now.lineage,
            made_of=dict(now.made_of),
            first=now.first,
            rows=now.last - now.first,
            rows_each=self._rows_each,
            segments=[each for each in segments if each is not None and each.stop > now.first],
            state=_File(name, info.size_bytes, info.digest),
        )

    def _write_full(self, now: TableSnapshot) -> tuple[list[_Segment | None], int]:
        """Write the full segments of rows that leave oldest first, and return the row after them.

        If another thread pushes a whole buffer meanwhile, it is faster than the disk, and the later
        segments are not written here.
        """
        at, rows_each, last = now.first, self._rows_each, 2 * now.last - now.first
        segments = []
        while (stop := (at // rows_each + 1) * rows_each) <= min(now.last, last):
            with self._table.snapshot() as now:
                piece = self._copied(now, at, stop)
            segments.append(self._written(piece))
            at = stop
        return segments, at

    def _copy_pieces(self, rows: RowCopy, count: int) -> None:
        """Copy ``count`` rows that leave in any order, and those that were pushed meanwhile."""
        for _ in range(2 * (-(-count // self._rows_each) + 1)):
            with self._table.snapshot() as now:
                rows.copy(now, self._rows_each)

    def _copied(self, now: TableSnapshot, first: int, stop: int) -> _Piece:
        """Copy the rows ``first..stop-1`` that are still stored, under the buffer's lock."""
        first = max(first, now.first)
        if first >= stop:
            return None
        old = self._there.get(first // self._rows_each)
        if old is not None and old.first <= first and old.stop == stop:
            return old
        return now.rows(first, stop), first, first - now.first

    def _written(self, piece: _Piece) -> _Segment | None:
        return self._write_rows(*piece) if isinstance(piece, tuple) else piece

    def _plan(self, now: TableSnapshot, probe: Rows) -> None:
        """Choose the rows per segment, and find the valid segments in the folder."""
        rows_each = self._rows_each
        if isinstance(probe, list) and not all(isinstance(row, SampleBatch) for row in probe):
            # Objects may have changed since they were saved.
            self._rows_each = min(rows_each, _OBJECT_ROWS)
            return
        size = sum(each.nbytes for each in ([probe] if isinstance(probe, SampleBatch) else probe))
        while rows_each > 1 and rows_each * size > self._segment_bytes * len(probe):
            rows_each //= 2
        self._rows_each = rows_each
        try:
            old = _read_manifest(self._folder)
        except (CheckpointError, RunFolderError, StorageFullError):
            return
        if old.lineage != now.lineage or not now.is_ordered:
            return
        # Keep the old length if it is close, so that longer episodes do not rewrite all segments.
        if rows_each <= 4 * old.rows_each <= 16 * rows_each:
            self._rows_each = old.rows_each
        self._there = {
            segment.first // self._rows_each: segment
            for segment in old.segments
            if (found := self._folder.stat(segment.name)) and found.st_size == segment.size_bytes
        }

    def _write_rows(self, rows: Rows, first: int, row: int) -> _Segment:
        """Write a segment; ``row`` is the index of its first row, for errors."""
        try:
            frame, info = encode_frame(_ROWS_KIND, rows, max_manifest_bytes=_MAX_TEXT_BYTES)
        except SchemaMismatchError as error:
            number, _, key = error.key.partition(".")
            if isinstance(rows, SampleBatch) or not number:
                raise  # it is about a column, or about all of them
            row += int(number)
            raise SchemaMismatchError(
                f"row {row} cannot be saved: {error}",
                key=key,
                row=row,
                expected=error.expected,
                found=error.found,
            ) from error
        name = self._put(f"rows-{first}", frame)
        return _Segment(name, info.size_bytes, info.digest, first, len(rows))

    def _put(self, what: str, frame: list[Buffer]) -> str:
        # The token makes the name differ from the file of an older save of the same rows.
        name = f"{what}-{self._token}.bin"
        self._folder.write_atomic(name, frame, durable=True)
        return name

    def _remove_unnamed(self) -> None:
        """Remove the files that the manifest does not name; the next save removes what stays."""
        with suppress(CheckpointError, RunFolderError, StorageFullError):
            named = set()
            if self._folder.stat(MANIFEST) is not None:
                manifest = _read_manifest(self._folder)
                named = {each.name for each in (*manifest.segments, manifest.state)}
            for name in self._folder.names():
                if _NAME.fullmatch(name) and name not in named:
                    self._folder.unlink(name)


def _bounds(start: int, stop: int, rows_each: int) -> Iterator[tuple[int, int]]:
    """Return the first row of each segment from ``start`` to ``stop``, and the one after it."""
    while start < stop:
        after = min((start // rows_each + 1) * rows_each, stop)
        yield start, after
        start = after


def _in_order(
    rows: Rows, places: NDArray[np.int64], bounds: Sequence[tuple[int, int]]
) -> Iterator[_Piece]:
    """Return the pieces of segments; ``places`` are the indices of the rows by age."""
    for first, stop in bounds:
        age, end = first - bounds[0][0], stop - bounds[0][0]
        yield _taken(rows, places[age:end]), first, age


def _taken(rows: Rows, index: NDArray[np.int64]) -> Rows:
    return rows.take(index) if isinstance(rows, SampleBatch) else [rows[i] for i in index]


class SavedRows:
    """What :func:`save` wrote to a folder: the state is read at once, rows when they are iterated.

    Iterating returns pieces of rows with their facts, without the rows that had left early (used
    up, stale).

    Args:
        path: The folder.

    Attributes:
        count: Number of rows, including the rows that had left early.
        state: The state of the saved buffer, without ``data``.
        made_of: Types of the saved buffer, its sampler and its remover.

    Raises:
        CheckpointMissingError: the folder holds no saved rows.
        CheckpointVersionError: this version does not read the format.
        CheckpointCorruptError: a file is missing, altered, or does not match the manifest.
        RunFolderError: a file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.path.exists(Path(path, MANIFEST)):
            raise CheckpointMissingError(
                f"{path} holds no saved buffer rows (no {MANIFEST}); give a folder that save_data "
                "wrote",
                path=str(path),
            )
        with Folder(path, create=False) as folder:
            self._path, manifest = folder.path, _read_manifest(folder)
            self.state, self._facts = _read_state(folder, manifest.state, manifest.rows)
        self._manifest = manifest
        self.made_of: Mapping[str, str] = manifest.made_of
        self.count = manifest.rows

    def __iter__(self) -> Iterator[tuple[Rows, Facts]]:
        kept = self._facts.get(KEPT)
        start = 0
        for rows in self.whole():
            stop = start + len(rows)
            mine = {key: array[start:stop] for key, array in self._facts.items() if key != KEPT}
            if kept is not None:
                index = np.flatnonzero(kept[start:stop])
                rows = _taken(rows, index)
                mine = {key: array[index] for key, array in mine.items()}
            start = stop
            if len(rows):
                yield rows, mine

    def whole(self) -> Iterator[Rows]:
        """Return all rows, oldest first, in pieces, including the rows that had left early.

        Raises:
            CheckpointCorruptError: a file is missing, altered, or does not match the manifest; also
                if another save to the folder has replaced the files since the state was read.
            RunFolderError: a file cannot be read.
        """
        for segment in self._manifest.segments:
            with Folder(self._path, create=False) as folder:
                rows = _read_rows(folder, segment)
            yield rows[max(self._manifest.first - segment.first, 0) :]


def load_into(table: Table, path: str) -> None:
    """Push all rows of a folder into a table, or restore its state; see ``Table.load_data``."""
    saved, made_of = _opened(table, path)
    if saved.made_of == made_of and not table.count():
        with suppress(CheckpointVersionError):
            if table.restore(saved.state, saved.count, saved.whole, as_pushed=True):
                return
    for _ in saved.whole():  # read, and so checked, before any row is pushed
        pass
    table.end_trajectory()
    for rows, facts in saved:
        start = 0
        ends = np.flatnonzero(facts.get(ENDS, ())) + 1
        for stop in (*ends.tolist(), len(rows)):
            mine = {key: array[start:stop] for key, array in facts.items()}
            table.push_unlimited(rows[start:stop], facts=mine)
            if stop in ends:
                table.end_trajectory()
            start = stop
    table.end_trajectory()


def resume(table: Table, path: str) -> None:
    """Replace the rows and the state of a table; see ``Table.resume_data``."""
    saved, made_of = _opened(table, path)
    if saved.made_of != made_of:
        raise CheckpointVersionError(
            f"{path} is of a buffer made of {saved.made_of}, this one of {made_of}",
            found=saved.made_of,
            expected=made_of,
        )
    table.restore(saved.state, saved.count, saved.whole)


def _opened(table: Table, path: str) -> tuple[SavedRows, Mapping[str, str]]:
    """Return the saved rows of a folder, and what an open table is made of."""
    with table.snapshot() as now:
        made_of = now.made_of
    return SavedRows(path), made_of


def _read_manifest(folder: Folder) -> _Manifest:
    with reading(folder.path / MANIFEST):
        text = folder.read(MANIFEST, _MAX_TEXT_BYTES)
        return msgspec.convert(decode_json(_MANIFEST_KIND, text, len(text)), _Manifest)


def _read_rows(folder: Folder, segment: _Segment) -> Rows:
    with reading(folder.path / segment.name):
        rows = _decoded(_ROWS_KIND, folder, segment)
        if not isinstance(rows, (SampleBatch, list)) or len(rows) != segment.rows:
            raise ValueError(f"it does not hold {segment.rows} rows")
        return rows


def _read_state(folder: Folder, file: _File, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state, and the facts of the rows."""
    with reading(folder.path / file.name):
        contents = msgspec.convert(_decoded(_STATE_KIND, folder, file), _Rest)
        if any(np.shape(array)[:1] != (rows,) for array in contents.facts.values()):
            raise ValueError("its facts are not those of all rows")
        return contents.state, contents.facts


def _decoded(kind: str, folder: Folder, file: _File) -> Any:
    content = folder.read(file.name, file.size_bytes)
    digest, longest = file.digest, _MAX_TEXT_BYTES
    return decode_frame(
        kind, content, file.size_bytes, expected_digest=digest, max_manifest_bytes=longest
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of a file into errors about saved rows."""
    with checkpoint_errors(path, "save the buffer's data again"):
        try:
            yield
        except DataMissingError as error:
            raise DataCorruptError(f"it is missing: {error}", where=path.name) from error
