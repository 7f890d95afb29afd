"""Saving the rows of a buffer to a folder.

Rows lie in segments of equally many pushes, which are written once and never again: saving to
the same folder anew writes what was pushed since, and the last segment if it was not full. The
manifest names the files that count and is replaced last, so a folder holds the old rows or the
new whenever the writer dies; files that no manifest names are removed by the next save. Facts
about rows, and the state of the buffer as of its newest row, are written anew each time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch, encode_message
from dingsdk.data.files import ensure_dir, folder_error
from dingsdk.data.pytree import flatten
from dingsdk.errors import (
    CheckpointError,
    CheckpointMissingError,
    DingError,
    ProtocolError,
    RunFolderError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer.persistence.manifest import (
    Facts,
    Manifest,
    SavedState,
    Segment,
    read_manifest,
    without_arrays,
    write_manifest,
)
from dingsdk.worker.replay_buffer.persistence.row_files import (
    FILE_NAME,
    Column,
    FileEntry,
    write_column,
    write_objects,
)
from dingsdk.worker.replay_buffer.storage import Rows

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.table import Snapshot, Table

SEGMENT_ROWS = 131_072
_SEGMENT_BYTES = 32 << 20  # fewer rows where they would take more
_OBJECT_ROWS = 4096
_SYNCS = 8
_PROBED_ROWS = 64  # how large episodes are is estimated from so many of the newest


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows ``start`` to ``stop``, copied at one moment.

    Attributes:
        rows: The rows; of episodes in columns all of their steps.
        lengths: int64[episodes], steps of each, where rows are such episodes; else None.
        first, last: Numbers of the oldest row and after the newest, at that moment.
        facts, state: Those of the table, where the piece reaches its newest row.
    """

    rows: Rows
    lengths: NDArray[np.int64] | None
    start: int
    stop: int
    first: int
    last: int
    facts: Mapping[str, NDArray[Any]]
    state: Mapping[str, Any]


def save(path: str | os.PathLike[str], table: Table, segment_rows: int = SEGMENT_ROWS) -> None:
    """Write the rows of one moment into a folder, and replace those that it held.

    Other threads may push meanwhile: they wait for the copy of one segment at most, unless they
    push faster than the disk writes.

    Args:
        path: The folder; made with its parents where missing.
        table: The buffer.
        segment_rows: The most rows of a segment, a power of two.

    Raises:
        RunFolderError: the folder cannot be written, or another save to it is under way; the
            old rows stay.
        SchemaMismatchError: an object, or the state of a part of the buffer, has no JSON form;
            the old rows stay.
    """
    folder = ensure_dir(path)
    try:
        with _alone(folder) as descriptor:
            attempt = _Save(folder, descriptor, table, segment_rows)
            if not attempt.write(hold=False):
                # It was cleared and filled with other columns meanwhile, or loaded a state.
                attempt.write(hold=True)
    except OSError as error:
        if isinstance(error, DingError):
            raise
        raise folder_error("write", folder, error) from error


class _Save:
    """One save: which segments of the folder still count, and the files written anew."""

    def __init__(self, folder: Path, descriptor: int, table: Table, segment_rows: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._table = table
        self._segment_rows = segment_rows
        self._token = secrets.token_hex(8)
        self._written: list[str] = []
        self._syncs: list[Future[None]] = []

    def write(self, hold: bool) -> bool:
        """Write all rows; return False when they became those of another history meanwhile.

        Args:
            hold: Whether to keep others from the buffer all the time.
        """
        try:
            # The disk is waited for while more is written, and for several files at once: for
            # 80 of 0.6 MB that took 300 ms after the last and one by one, 60 ms after the last,
            # and 20 ms like this (2 cores, ext4).
            with ThreadPoolExecutor(_SYNCS, thread_name_prefix="save") as self._pool:
                manifest = self._write_rows(hold)
                for each in self._syncs:
                    each.result()
            if manifest is not None:
                os.fsync(self._descriptor)
        except BaseException:
            self._remove_written()
            raise
        if manifest is None:
            assert not hold, "the rows became others while nobody could touch them"
            self._remove_written()
            return False
        try:
            write_manifest(self._folder, manifest)
        except BaseException:
            if not self._is_in_place(manifest):
                self._remove_written()
            raise
        self._remove_others({entry.file for entry in manifest.file_entries()})
        return True

    def _is_in_place(self, manifest: Manifest) -> bool:
        # Writing it can fail after it took the place of the old one, whose files then go.
        try:
            return read_manifest(self._folder) == manifest
        except CheckpointMissingError:
            return False
        except (CheckpointError, RunFolderError):
            return True

    def _write_rows(self, hold: bool) -> Manifest | None:
        with ExitStack() as held:
            held_now: Snapshot | None = None
            with self._table.snapshot() as now:
                newest = _read(now, now.last - _PROBED_ROWS, now.last)
                lineage, ordered, made_of = now.lineage, now.is_ordered, now.made_of
            columns, has_episodes = _columns_of(newest.rows), newest.lengths is not None
            rows_each, kept = self._kept_segments(columns, newest, lineage if ordered else "")
            # A thread that pushes a whole buffer meanwhile is faster than the disk.
            patience = newest.last + max(newest.last - newest.first, rows_each)
            at, segments = newest.first, []
            while True:
                if held_now is None and (hold or not ordered or at > patience):
                    held_now = held.enter_context(self._table.snapshot())
                end = (at // rows_each + 1) * rows_each
                old = kept.get(at // rows_each)
                if old is not None and old.first <= at and old.end == end:
                    segments.append(old)
                    at = end
                    continue
                if held_now is not None:
                    piece, found = _read(held_now, at, end), held_now.lineage
                else:
                    with self._table.snapshot() as now:
                        piece, found = _read(now, at, end), now.lineage
                if found != lineage:
                    return None
                if piece.start < piece.stop:
                    if _columns_of(piece.rows) != columns:
                        return None
                    if old is not None and old.first <= piece.start and old.end == piece.stop:
                        segments.append(old)
                    else:
                        segments.append(self._write_segment(columns, piece))
                at = max(piece.start, piece.stop)
                if at >= piece.last:
                    break
        living = tuple(segment for segment in segments if segment.end > piece.first)
        return Manifest(
            lineage=lineage,
            first=piece.first,
            rows=piece.last - piece.first,
            columns=columns,
            segments=living,
            facts=self._write_facts(piece),
            episodes_each=rows_each if has_episodes else None,
            state=self._write_state(piece, made_of),
        )

    def _rows_each(self, columns: Sequence[Column] | None, newest: _Piece) -> int:
        if columns is None:
            return min(_OBJECT_ROWS, self._segment_rows)
        held = max(newest.stop - newest.start, 1)
        row_bytes = sum(column.row_bytes for column in columns) * -(-len(newest.rows) // held)
        rows = self._segment_rows
        while rows > 1 and rows * row_bytes > _SEGMENT_BYTES:
            rows //= 2
        return rows

    def _kept_segments(
        self, columns: Sequence[Column] | None, newest: _Piece, lineage: str
    ) -> tuple[int, dict[int, Segment]]:
        """Return the rows of a segment, and those in the folder of this history, by number."""
        rows_each = self._rows_each(columns, newest)
        if columns is None or not lineage:
            return rows_each, {}
        try:
            old = read_manifest(self._folder)
        except (CheckpointError, RunFolderError):
            return rows_each, {}
        if old.lineage != lineage or old.columns != columns:
            return rows_each, {}
        # Episodes get longer during training, which is no reason to write all of them again.
        if old.episodes_each and rows_each <= 4 * old.episodes_each <= 16 * rows_each:
            rows_each = old.episodes_each
        there = {part.first // rows_each: part for part in old.segments if self._is_there(part)}
        return rows_each, there

    def _is_there(self, segment: Segment) -> bool:
        try:
            return all(
                os.stat(entry.file, dir_fd=self._descriptor, follow_symlinks=False).st_size
                == entry.size_bytes
                for entry in segment.files
            )
        except OSError:
            return False

    def _write_segment(self, columns: Sequence[Column] | None, piece: _Piece) -> Segment:
        rows = piece.rows
        if columns is None:
            name = self._name("rows", piece.start, 0, "jsonl")
            objects = cast(list[Any], rows)
            entry = write_objects(self._descriptor, name, objects, piece.start - piece.first)
            self._syncs.append(self._pool.submit(self._sync, name))
            return Segment(piece.start, len(rows), (entry,))
        assert isinstance(rows, SampleBatch)
        arrays = [array for _, array in _leaves(rows)]
        if piece.lengths is not None:
            arrays.append(piece.lengths)
        files = self._write_columns("rows", piece.start, arrays)
        return Segment(piece.start, piece.stop - piece.start, files)

    def _write_facts(self, piece: _Piece) -> Facts | None:
        if not piece.facts or piece.last == piece.first:
            return None
        columns = tuple(_column((key,), array) for key, array in piece.facts.items())
        arrays = list(piece.facts.values())
        return Facts(columns, self._write_columns("facts", piece.first, arrays))

    def _write_state(self, piece: _Piece, made_of: Mapping[str, str]) -> SavedState:
        plain, arrays = without_arrays(piece.state)
        try:
            text = encode_message(plain)
        except ProtocolError as error:
            raise SchemaMismatchError(
                f"the state of the buffer and its parts cannot be saved: {error}",
                key=str(error.where),
                expected="JSON values and numeric arrays",
                found=str(error),
            ) from error
        return SavedState(
            made_of=dict(made_of),
            plain=msgspec.json.decode(text),
            columns=tuple(_column(path, array) for path, array in arrays.items()),
            lengths=tuple(map(len, arrays.values())),
            files=self._write_columns("state", piece.first, list(arrays.values())),
        )

    def _write_columns(
        self, what: str, start: int, arrays: Sequence[NDArray[Any]]
    ) -> tuple[FileEntry, ...]:
        entries = []
        for index, array in enumerate(arrays):
            name = self._name(what, start, index, "npy")
            entries.append(write_column(self._descriptor, name, array))
            self._syncs.append(self._pool.submit(self._sync, name))
        return tuple(entries)

    def _name(self, what: str, start: int, index: int, suffix: str) -> str:
        # The token keeps it apart from the file of the same rows that an older save wrote.
        name = f"{what}-{start}-{index}-{self._token}.{suffix}"
        self._written.append(name)
        return name

    def _sync(self, name: str) -> None:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _remove_others(self, named: set[str]) -> None:
        for path in self._folder.iterdir():
            if FILE_NAME.fullmatch(path.name) and path.name not in named:
                self._remove(path.name)

    def _remove_written(self) -> None:
        for name in self._written:
            self._remove(name)
        self._written.clear()
        self._syncs.clear()

    def _remove(self, name: str) -> None:
        # What stays is removed by the next save; nothing reads it.
        try:
            os.unlink(name, dir_fd=self._descriptor)
        except OSError:
            return


def _read(now: Snapshot, start: int, stop: int) -> _Piece:
    """Copy rows ``start`` to ``stop``, as far as there are."""
    start = max(start, now.first)
    stop = min(stop, now.last)
    rows, lengths = now.rows(start, stop)
    is_last = stop == now.last
    return _Piece(
        rows=rows,
        lengths=lengths,
        start=start,
        stop=stop,
        first=now.first,
        last=now.last,
        facts=now.facts() if is_last else {},
        state=now.state() if is_last else {},
    )


def _columns_of(rows: Rows) -> tuple[Column, ...] | None:
    if not isinstance(rows, SampleBatch):
        return None
    return tuple(_column(path, array) for path, array in _leaves(rows))


def _leaves(rows: SampleBatch) -> list[tuple[tuple[str, ...], NDArray[Any]]]:
    # Storages may give the columns in another order from one call to the next.
    return sorted(flatten(rows.columns), key=lambda leaf: leaf[0])


def _column(path: Sequence[str], array: NDArray[Any]) -> Column:
    return Column(tuple(path), array.dtype.newbyteorder("<").str, array.shape[1:])


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Open a folder, as the only one that saves to it; the lock goes with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(
                f"another save to {folder} is under way; save again later, or elsewhere",
                path=str(folder),
            ) from error
        except OSError:
            # Some file servers have no locks; then it is up to the user.
            pass
        yield descriptor
    finally:
        os.close(descriptor)
