"""Reading back the rows of a buffer that :mod:`saving` wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, CheckpointError
from dingsdk.worker.replay_buffer.keeping.manifest import MANIFEST, Manifest, Segment, read_manifest
from dingsdk.worker.replay_buffer.keeping.row_files import (
    Column,
    check_file,
    corrupt,
    read_column,
    read_objects,
)
from dingsdk.worker.replay_buffer.keeping.row_reader import KEPT
from dingsdk.worker.replay_buffer.storage import Rows

_AT_ONCE_BYTES = 256 << 20


def load(
    path: str | os.PathLike[str], at_once_bytes: int = _AT_ONCE_BYTES
) -> Iterator[tuple[Rows, dict[str, NDArray[Any]]]]:
    """Read the rows that :func:`save` wrote, oldest first, in pieces, with facts about each.

    Everything is checked before the first piece is returned.

    Args:
        path: The folder.
        at_once_bytes: Columns that take more are read twice, to be checked first, and never
            lie in memory together.

    Raises:
        CheckpointMissingError: there are none.
        CheckpointVersionError: a format that this version does not read.
        CheckpointCorruptError: a file is missing, altered, or not what the manifest says.
    """
    folder = Path(path)
    try:
        while True:
            manifest = read_manifest(folder)
            try:
                pieces = _read_pieces(folder, manifest)
                large = sum(entry.size_bytes for entry in manifest.file_entries()) > at_once_bytes
                if manifest.columns is not None and large:
                    for entry in manifest.file_entries():
                        check_file(folder, entry)
                else:
                    pieces = iter(list(pieces))
                break
            except CheckpointCorruptError:
                # A save that ends meanwhile removes files of the manifest before it.
                if read_manifest(folder) == manifest:
                    raise
        yield from pieces
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise corrupt(folder / MANIFEST, f"it is no valid manifest: {error!r}") from error


def _read_pieces(
    folder: Path, manifest: Manifest
) -> Iterator[tuple[Rows, dict[str, NDArray[Any]]]]:
    facts: dict[str, NDArray[Any]] = {}
    if manifest.facts:
        facts = {
            ".".join(column.path): read_column(folder, entry, column, manifest.rows)
            for column, entry in zip(manifest.facts.columns, manifest.facts.files, strict=True)
        }
    kept = facts.pop(KEPT, None)
    for segment in manifest.segments:
        skipped = max(manifest.first - segment.first, 0)
        start = segment.first + skipped - manifest.first
        here = slice(start, start + segment.rows - skipped)
        rows = _read_segment(folder, manifest.columns, segment)[skipped:]
        mine = {key: array[here] for key, array in facts.items()}
        if kept is not None:
            rows, mine = _select(rows, mine, np.flatnonzero(kept[here]))
        if len(rows):
            yield rows, mine


def _read_segment(folder: Path, columns: Sequence[Column] | None, segment: Segment) -> Rows:
    if columns is None:
        objects = read_objects(folder, segment.files[0])
        if len(objects) != segment.rows:
            raise corrupt(folder / segment.files[0].file, f"it has {len(objects)} rows")
        return objects
    nest: dict[str, Any] = {}
    for column, entry in zip(columns, segment.files, strict=True):
        *parents, last = column.path
        section: Any = nest
        for key in parents:
            section = section.setdefault(key, {})
        if not isinstance(section, dict) or last in section:
            raise ValueError(f"column path {column.path!r:.80}")
        section[last] = read_column(folder, entry, column, segment.rows)
    return SampleBatch.trusted(nest, segment.rows)


def _select(
    rows: Rows, facts: Mapping[str, NDArray[Any]], index: NDArray[np.int64]
) -> tuple[Rows, dict[str, NDArray[Any]]]:
    chosen = rows.take(index) if isinstance(rows, SampleBatch) else [rows[i] for i in index]
    return chosen, {key: array[index] for key, array in facts.items()}
