"""What a folder of saved rows holds: ``manifest.json``, read and written."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data.files import atomic_write_bytes
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    CheckpointVersionError,
    RunFolderError,
)
from dingsdk.worker.replay_buffer.persistence.row_files import Column, FileEntry, corrupt

FORMAT = "dingsdk-replay-rows"
VERSION = 4
MANIFEST = "manifest.json"
_MAX_BYTES = 64 << 20


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows pushed one after another: a file a column, or one of objects.

    ``first`` is the push index of the first of them: how many rows its buffer had been given
    before. A segment is never written to again. Of episodes the columns hold all steps, one
    episode after the other, and one more file tells how many each has.
    """

    first: int
    rows: int
    files: tuple[FileEntry, ...]

    @property
    def end(self) -> int:
        """Push index after the last row."""
        return self.first + self.rows


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changes about rows while they are stored: a file a column, for all rows."""

    columns: tuple[Column, ...]
    files: tuple[FileEntry, ...]


class SavedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a buffer without its rows: ``plain``, and a file for each array of it.

    ``made_of`` names the types of the buffer and of those parts to which it means something;
    ``plain`` is in the form of messages; ``lengths`` are those of the arrays.
    """

    made_of: dict[str, str]
    plain: dict[str, Any]
    columns: tuple[Column, ...]
    lengths: tuple[int, ...]
    files: tuple[FileEntry, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rows of a buffer: those of the segments, without the ones before ``first``.

    ``lineage`` names the history of pushes that the push indices count; ``columns`` is None
    for objects; ``episodes_each`` is how many a whole segment has, where rows are episodes in
    columns.
    """

    lineage: str
    first: int
    rows: int
    columns: tuple[Column, ...] | None
    segments: tuple[Segment, ...]
    facts: Facts | None = None
    episodes_each: int | None = None
    state: SavedState | None = None
    format: str = FORMAT
    version: int = VERSION

    def file_entries(self) -> list[FileEntry]:
        """Return the entries of all files."""
        beside = [part.files for part in (self.facts, self.state) if part is not None]
        segments = [part.files for part in self.segments]
        return [*itertools.chain.from_iterable([*segments, *beside])]

    def check(self) -> None:
        """Refuse a manifest whose parts contradict each other.

        Raises:
            ValueError: says how.
        """
        segments = self.segments
        if self.first < 0 or self.rows < 0 or any(part.rows < 1 for part in segments):
            raise ValueError("a count is negative")
        if self.columns is not None and len(self.columns) == 0 and segments:
            raise ValueError("there are rows without columns")
        if self.episodes_each is not None and (self.columns is None or self.episodes_each < 1):
            raise ValueError("there are episodes without columns")
        width = 1 if self.columns is None else len(self.columns) + (self.episodes_each is not None)
        if any(len(part.files) != width for part in segments):
            raise ValueError("a segment has not one file for each column")
        if any(left.end != right.first for left, right in itertools.pairwise(segments)):
            raise ValueError("the segments do not follow each other")
        if segments:
            covered = (
                segments[0].first <= self.first < segments[0].end
                and segments[-1].end == self.first + self.rows
            )
        else:
            covered = self.rows == 0
        if not covered:
            raise ValueError(f"the segments do not hold the {self.rows} rows from {self.first} on")
        if self.facts and len(self.facts.columns) != len(self.facts.files):
            raise ValueError("the facts have not one file for each column")
        state = self.state
        if state and not len(state.columns) == len(state.lengths) == len(state.files):
            raise ValueError("the state has not one file for each array")


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


class _Kind(msgspec.Struct):
    format: str
    version: object = None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest in place of the one that is there, for good when this returns.

    Raises:
        RunFolderError: it cannot be written; the old one stays.
    """
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    atomic_write_bytes(folder / MANIFEST, text, durable=True)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder, after checking all that needs no other file.

    Raises:
        CheckpointMissingError: there is none.
        CheckpointVersionError: a format that this version does not read.
        CheckpointCorruptError: it is none.
        RunFolderError: it cannot be read.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise CheckpointMissingError(
            f"{folder} holds no saved buffer rows (no {MANIFEST}); give a folder that save_data "
            "wrote",
            path=str(folder),
        )
    try:
        with path.open("rb") as file:
            # read() makes room for all that it is asked for.
            text = file.read(min(os.fstat(file.fileno()).st_size, _MAX_BYTES) + 1)
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    try:
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        kind = msgspec.json.decode(text, type=_Kind)
        if kind.format != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        if kind.version != VERSION:
            raise CheckpointVersionError(
                f"{path} has version {kind.version!r}; this dingsdk reads {VERSION}",
                path=str(path),
                found=kind.version,
                expected=VERSION,
            )
        manifest = msgspec.json.decode(text, type=Manifest)
        manifest.check()
    except (CheckpointVersionError, CheckpointCorruptError):
        raise
    except (ValueError, RecursionError) as error:
        raise corrupt(path, f"it is no valid manifest: {error}") from error
    return manifest
