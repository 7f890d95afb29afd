"""Reading back the rows of a buffer that :mod:`saving` wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch, decode_message
from dingsdk.data.columns import map_columns
from dingsdk.errors import CheckpointCorruptError, CheckpointError
from dingsdk.worker.replay_buffer.persistence.manifest import (
    MANIFEST,
    Manifest,
    SavedState,
    Segment,
    read_manifest,
    with_arrays,
)
from dingsdk.worker.replay_buffer.persistence.row_files import (
    Column,
    check_file,
    corrupt,
    read_column,
    read_objects,
)
from dingsdk.worker.replay_buffer.storage import Rows

_AT_ONCE_BYTES = 256 << 20
_LENGTHS = Column(("lengths",), "<i8", ())

KEPT = "kept"
"""Fact: whether the row has not left early (used up, stale)."""

Piece = tuple[Rows, dict[str, NDArray[Any]]]
"""Rows, oldest first, and facts about each."""


class SavedRows:
    """The rows of a folder, all files of which were checked; read with :func:`load`.

    Iterating gives, in pieces, the rows that had not left before their turn, with facts about
    each.

    Attributes:
        count: All rows, those that left before their turn included.
        state: That of the buffer they were in, but for ``data``; None where it was not saved.
        made_of: What the state is of: types of the buffer and its parts.
    """

    def __init__(self, folder: Path, manifest: Manifest, at_once_bytes: int) -> None:
        self._folder = folder
        self._manifest = manifest
        self.count = manifest.rows
        self.state: dict[str, Any] | None = None
        self.made_of: Mapping[str, str] = {}
        if manifest.state is not None:
            self.state = _read_state(folder, manifest.state)
            self.made_of = manifest.state.made_of
        self._facts = {}
        if manifest.facts:
            self._facts = {
                ".".join(column.path): read_column(folder, entry, column, manifest.rows)
                for column, entry in zip(manifest.facts.columns, manifest.facts.files, strict=True)
            }
        self._kept = self._facts.pop(KEPT, None)
        self._at_once: list[Rows] | None = None
        large = sum(entry.size_bytes for entry in manifest.file_entries()) > at_once_bytes
        if manifest.columns is not None and large:
            for entry in manifest.file_entries():
                check_file(folder, entry)
        else:
            self._at_once = list(self.whole())

    def __iter__(self) -> Iterator[Piece]:
        start = 0
        for rows in self.whole():
            here = slice(start, start + len(rows))
            start += len(rows)
            mine = {key: array[here] for key, array in self._facts.items()}
            if self._kept is not None:
                rows, mine = _select(rows, mine, np.flatnonzero(self._kept[here]))
            if len(rows):
                yield rows, mine

    def whole(self) -> Iterator[Rows]:
        """Read all rows, oldest first, in pieces.

        Raises:
            CheckpointCorruptError: a file is no longer what it was.
        """
        if self._at_once is not None:
            yield from self._at_once
            return
        manifest = self._manifest
        with _told_as_corrupt(self._folder):
            for segment in manifest.segments:
                skipped = max(manifest.first - segment.first, 0)
                yield _read_segment(self._folder, manifest, segment)[skipped:]


def load(path: str | os.PathLike[str], at_once_bytes: int = _AT_ONCE_BYTES) -> SavedRows:
    """Read the rows that :func:`save` wrote.

    Args:
        path: The folder.
        at_once_bytes: Columns that take more are read twice, now to be checked and then to be
            used, and never lie in memory together.

    Raises:
        CheckpointMissingError: there are none.
        CheckpointVersionError: a format that this version does not read.
        CheckpointCorruptError: a file is missing, altered, or not what the manifest says.
    """
    folder = Path(path)
    while True:
        manifest = read_manifest(folder)
        try:
            with _told_as_corrupt(folder):
                return SavedRows(folder, manifest, at_once_bytes)
        except CheckpointCorruptError:
            # A save that ends meanwhile removes files of the manifest before it.
            if read_manifest(folder) == manifest:
                raise


@contextmanager
def _told_as_corrupt(folder: Path) -> Iterator[None]:
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise corrupt(folder / MANIFEST, f"it is no valid manifest: {error!r}") from error


def _read_state(folder: Path, saved: SavedState) -> dict[str, Any]:
    text = msgspec.json.encode(saved.plain)
    arrays = {
        column.path: read_column(folder, entry, column, length)
        for column, length, entry in zip(saved.columns, saved.lengths, saved.files, strict=True)
    }
    return with_arrays(decode_message(text, len(text)), arrays)


def _read_segment(folder: Path, manifest: Manifest, segment: Segment) -> Rows:
    columns, files = manifest.columns, segment.files
    if columns is None:
        objects = read_objects(folder, files[0])
        if len(objects) != segment.rows:
            raise corrupt(folder / files[0].file, f"it has {len(objects)} rows")
        return objects
    if manifest.episodes_each is None:
        nest = _read_columns(folder, columns, files, segment.rows)
        return SampleBatch.trusted(nest, segment.rows)
    lengths = read_column(folder, files[-1], _LENGTHS, segment.rows).tolist()
    if min(lengths) < 1:
        raise corrupt(folder / files[-1].file, "an episode has no step")
    steps = _read_columns(folder, columns, files[:-1], sum(lengths))
    return list(cut_episodes(steps, lengths))


def _read_columns(
    folder: Path, columns: Sequence[Column], files: Sequence[Any], rows: int
) -> dict[str, Any]:
    nest: dict[str, Any] = {}
    for column, entry in zip(columns, files, strict=True):
        *parents, last = column.path
        section: Any = nest
        for key in parents:
            section = section.setdefault(key, {})
        if not isinstance(section, dict) or last in section:
            raise ValueError(f"column path {column.path!r:.80}")
        section[last] = read_column(folder, entry, column, rows)
    return nest


def cut_episodes(steps: dict[str, Any], lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Return the columns of each episode, which are views."""
    start = 0
    for length in lengths:
        here = slice(start, start + length)
        yield map_columns(lambda array: array[here], steps)  # noqa: B023
        start += length


def _select(rows: Rows, facts: Mapping[str, NDArray[Any]], index: NDArray[np.int64]) -> Piece:
    chosen = rows.take(index) if isinstance(rows, SampleBatch) else [rows[i] for i in index]
    return chosen, {key: array[index] for key, array in facts.items()}
