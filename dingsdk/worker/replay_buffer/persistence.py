"""The rows of a buffer on disk: one checked file per column, or one of JSON lines.

A folder holds ``manifest.json`` (format, version, rows, and each file with its size and
sha256) and the files, which are named by their content: writing new ones never touches those
that the old manifest names. Nothing in it is ever executed: ``.npy`` headers are compared with
the manifest, and dtypes with an allow-list, before anything is allocated.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch, decode_message, encode_message
from dingsdk.data.columns import NUMERIC_KINDS
from dingsdk.data.files import Buffer, atomic_write_chunks, atomic_write_json, ensure_dir
from dingsdk.data.pytree import flatten
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    CheckpointVersionError,
    ProtocolError,
    RunFolderError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer.storage import Rows

FORMAT = "dingsdk-replay-rows"
VERSION = 1
MANIFEST = "manifest.json"
_MANIFEST_MAX_BYTES = 16 << 20
_FILE_NAME = re.compile(r"[0-9]{4}-[0-9a-f]{16}\.(npy|jsonl)")
_DTYPE = re.compile(rf"[<|][{NUMERIC_KINDS}][0-9]{{1,2}}")


def save_rows(path: str | os.PathLike[str], rows: Rows) -> None:
    """Write rows into a folder, in place of those that it held.

    Raises:
        RunFolderError: the folder cannot be written; the old rows stay.
        SchemaMismatchError: an object has no JSON form; the old rows stay.
    """
    folder = ensure_dir(path)
    manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "rows": len(rows)}
    if isinstance(rows, SampleBatch):
        manifest["columns"] = [
            _save_column(folder, index, column_path, array)
            for index, (column_path, array) in enumerate(flatten(rows.columns))
        ]
        named = {column["file"] for column in manifest["columns"]}
    else:
        lines = [_encoded(index, row) for index, row in enumerate(rows)]
        manifest["objects"] = _write_file(folder, 0, "jsonl", lines)
        named = {manifest["objects"]["file"]}
    atomic_write_json(folder / MANIFEST, manifest, durable=True)
    for old in folder.iterdir():
        if _FILE_NAME.fullmatch(old.name) and old.name not in named:
            old.unlink(missing_ok=True)


def load_rows(path: str | os.PathLike[str]) -> Rows:
    """Read the rows of a folder that :func:`save_rows` wrote.

    Raises:
        CheckpointMissingError: there is none.
        CheckpointVersionError: a format that this version does not read.
        CheckpointCorruptError: a file is missing, altered, or not what the manifest says.
    """
    folder = Path(path)
    manifest = _read_manifest(folder)
    try:
        count = manifest["rows"]
        if type(count) is not int or count < 0:
            raise ValueError(f"rows is {count!r}")
        if "columns" in manifest:
            rows: Rows = _load_columns(folder, manifest["columns"], count)
        else:
            rows = _load_objects(folder, manifest["objects"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointCorruptError):
            raise
        raise _corrupt(folder / MANIFEST, f"it is no valid manifest: {error!r}") from error
    if len(rows) != count:
        raise _corrupt(folder / MANIFEST, f"it counts {count} rows, the files hold {len(rows)}")
    return rows


# --- writing -----------------------------------------------------------------------------


def _save_column(
    folder: Path, index: int, path: tuple[Any, ...], array: NDArray[Any]
) -> dict[str, Any]:
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(data))
    # A memoryview cannot be cast where a dimension is 0; there is nothing to write then.
    chunks: list[Buffer] = [header.getvalue(), *([data.data] if data.size else [])]
    entry = _write_file(folder, index, "npy", chunks)
    return {"path": list(path), "dtype": data.dtype.str, "shape": list(data.shape), **entry}


def _encoded(index: int, row: Any) -> bytes:
    try:
        return encode_message(row) + b"\n"
    except ProtocolError as error:
        raise SchemaMismatchError(
            f"row {index} cannot be saved: {error}. Saving object storage takes None, bools, "
            "numbers, strings, lists, dicts and numeric arrays",
            key=str(error.where),
            row=index,
            expected="JSON values and numeric arrays",
            found=str(error),
        ) from error


def _write_file(folder: Path, index: int, suffix: str, chunks: Iterable[Buffer]) -> dict[str, Any]:
    parts = [memoryview(chunk).cast("B") for chunk in chunks]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    name = f"{index:04d}-{digest.hexdigest()[:16]}.{suffix}"
    atomic_write_chunks(folder / name, (part for part in parts), durable=True)
    size_bytes = sum(part.nbytes for part in parts)
    return {"file": name, "size_bytes": size_bytes, "sha256": digest.hexdigest()}


# --- reading -----------------------------------------------------------------------------


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        raise CheckpointMissingError(
            f"{folder} holds no saved buffer rows (no {MANIFEST}); give a folder that save_data "
            "wrote",
            path=str(folder),
        )
    try:
        with path.open("rb") as file:
            manifest = decode_message(file.read(_MANIFEST_MAX_BYTES + 1), _MANIFEST_MAX_BYTES)
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    except ProtocolError as error:
        raise _corrupt(path, str(error)) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _corrupt(path, f"it is not of format {FORMAT}")
    if manifest.get("version") != VERSION:
        raise CheckpointVersionError(
            f"{path} has version {manifest.get('version')!r}; this dingsdk reads {VERSION}",
            path=str(path),
            found=manifest.get("version"),
            expected=VERSION,
        )
    return manifest


def _load_columns(folder: Path, entries: list[dict[str, Any]], count: int) -> SampleBatch:
    columns: dict[str, Any] = {}
    for entry in entries:
        *parents, last = entry["path"]
        section: Any = columns
        for key in parents:
            section = section.setdefault(key, {})
        if not isinstance(section, dict) or last in section:
            raise ValueError(f"column path {entry['path']!r:.80}")
        section[last] = _load_column(folder, entry, count)
    return SampleBatch(columns)


def _load_column(folder: Path, entry: dict[str, Any], count: int) -> NDArray[Any]:
    name, shape = entry["dtype"], tuple(entry["shape"])
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"dtype {name!r:.40}")
    dtype = np.dtype(name)
    if not shape or shape[0] != count or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"shape {shape!r:.80} for {count} rows")
    with _open_checked(folder, entry) as file:
        path = folder / str(entry["file"])
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise _corrupt(path, "it is no .npy file of version 1.0")
            found = np.lib.format.read_array_header_1_0(file)
        except ValueError as error:
            raise _corrupt(path, f"it is no .npy file: {error}") from error
        if found != (shape, False, dtype):
            raise _corrupt(path, f"its header says {found}, the manifest {shape} of {dtype}")
        # Checked before anything is allocated: a header can ask for any size.
        if entry["size_bytes"] - file.tell() != math.prod(shape) * dtype.itemsize:
            raise _corrupt(path, "its size does not fit its shape")
        return np.fromfile(file, dtype=dtype, count=math.prod(shape)).reshape(shape)


def _load_objects(folder: Path, entry: dict[str, Any]) -> list[Any]:
    with _open_checked(folder, entry) as file:
        try:
            return [decode_message(line, entry["size_bytes"]) for line in file]
        except ProtocolError as error:
            raise _corrupt(folder / str(entry["file"]), str(error)) from error


@contextmanager
def _open_checked(folder: Path, entry: dict[str, Any]) -> Iterator[IO[bytes]]:
    """Open a file of the manifest, at its start, after comparing its size and checksum."""
    if not _FILE_NAME.fullmatch(entry["file"]):
        raise ValueError(f"file name {entry['file']!r:.80}")
    path = folder / entry["file"]
    try:
        # Without blocking: the name could be that of a pipe by now.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _corrupt(path, f"it cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise _corrupt(path, "it is no regular file")
        if facts.st_size != entry["size_bytes"]:
            raise _corrupt(path, f"it has {facts.st_size} bytes, not {entry['size_bytes']}")
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise _corrupt(path, "its checksum differs")
        file.seek(0)
        yield file


def _corrupt(path: Path, what: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"{path} cannot be used: {what}; save the buffer's data again", path=str(path)
    )
