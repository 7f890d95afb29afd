"""The JSON half of a checkpoint: what it says, how it is written, verified and refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import msgspec

from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMissingError,
    CheckpointVersionError,
)

FORMAT = "dingsdk-checkpoint"
POINTER_FORMAT = "dingsdk-checkpoint-pointer"
FORMAT_VERSION = 1
LATEST = "latest"
MAX_MANIFEST_BYTES = 16 << 20
"""Cap of a manifest, checked before it is read; a state this large belongs in tensors."""

_FOREIGN_ENDINGS = (".pth.tar", ".pth", ".pt", ".ckpt")
_STEM = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TENSOR_FILE = re.compile(r"[A-Za-z0-9_-]{1,128}-[0-9a-f]{16}\.safetensors")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint but for its tensors. Fields it does not know are ignored on reading."""

    iteration: int
    envstep: int
    meta: dict[str, Any]
    state: Any
    tensor_file: str
    tensor_bytes: int
    tensor_sha256: str
    torch: str
    dingsdk: str = ""
    format: str = FORMAT
    version: int = FORMAT_VERSION


def check_stem(name: str) -> str:
    """Return the stem that ``name`` stands for.

    Raises:
        CheckpointError: Not a plain name, or one that is taken.
    """
    stem = stem_of(name)
    if stem == LATEST or not _STEM.fullmatch(stem):
        raise CheckpointError(
            f"{name!r} cannot name a checkpoint: use letters, digits, '_' and '-', at most 128, "
            f"and not {LATEST!r}, which always points at the newest one.",
            path=name,
        )
    return stem


def stem_of(name: str) -> str:
    """Return ``name`` without the ending that callers of the reference give it."""
    for ending in _FOREIGN_ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def is_tensor_file(name: str) -> bool:
    """Whether ``name`` is one that checkpoints give their tensor files."""
    return _TENSOR_FILE.fullmatch(name) is not None


def dump(manifest: Manifest, path: Path) -> bytes:
    """Return the file's bytes, with a digest over all else it says.

    Raises:
        CheckpointError: Not JSON, or larger than ``MAX_MANIFEST_BYTES``.
    """
    fields = msgspec.structs.asdict(manifest) | {"dingsdk": _own_version()}
    # The scalars come last: whoever opens the file sees what it is first.
    ordered = {key: fields[key] for key in sorted(fields, key=lambda key: key == "state")}
    try:
        ordered["sha256"] = _digest(ordered)
        raw = json.dumps(ordered, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: its meta is not JSON ({error}).", path=str(path)
        ) from error
    if len(raw) > MAX_MANIFEST_BYTES:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {len(raw)} bytes of state besides the tensors, "
            f"at most {MAX_MANIFEST_BYTES}. Return large state as tensors.",
            path=str(path),
        )
    return raw


def read(path: Path) -> tuple[Manifest, bytes]:
    """Read and verify a manifest; return it with its bytes.

    Raises:
        CheckpointMissingError, CheckpointCorruptError, CheckpointVersionError: As they say.
    """
    raw = read_file(path, MAX_MANIFEST_BYTES)
    fields = _parse(path, raw)
    if fields.get("format") != FORMAT:
        raise foreign(path)
    # Every version keeps this digest rule, so a wrong digest is damage and a wrong version
    # below is really another version.
    if not _is_intact(fields):
        raise corrupt(path, "its content is not what its sha256 says")
    if fields.get("version") != FORMAT_VERSION:
        raise CheckpointVersionError(
            f"the checkpoint {path} has format version {fields.get('version')!r}, this dingsdk "
            f"reads version {FORMAT_VERSION}. It was written by dingsdk "
            f"{fields.get('dingsdk')!r}: install that version, or choose another checkpoint.",
            path=str(path),
            found=fields.get("version"),
            expected=FORMAT_VERSION,
        )
    try:
        manifest = msgspec.convert(fields, Manifest)
    except msgspec.ValidationError as error:
        raise corrupt(path, str(error)) from error
    if not is_tensor_file(manifest.tensor_file):
        raise corrupt(path, f"it names no tensor file but {manifest.tensor_file!r}")
    return manifest, raw


def dump_pointer(stem: str, iteration: int) -> bytes:
    """Return the bytes of ``latest.json``."""
    fields = {"format": POINTER_FORMAT, "stem": stem, "iteration": iteration}
    return json.dumps(fields | {"sha256": _digest(fields)}, indent=1).encode()


def read_pointer(path: Path) -> str:
    """Return the stem that ``latest.json`` names.

    Raises:
        CheckpointMissingError, CheckpointCorruptError: As they say.
    """
    fields = _parse(path, read_file(path, 4096))
    stem = fields.get("stem")
    if fields.get("format") != POINTER_FORMAT or not _is_intact(fields):
        raise corrupt(path, "not a pointer to a checkpoint, or altered")
    if not isinstance(stem, str) or not _STEM.fullmatch(stem):
        raise corrupt(path, f"it points at {stem!r}, which is no checkpoint's name")
    return stem


def read_file(path: Path, limit_bytes: int, exact: bool = False) -> bytes:
    """Read a regular file whose size is checked first (equal to the limit if ``exact``).

    Raises:
        CheckpointMissingError: No such file.
        CheckpointCorruptError: Of another size, no regular file, or unreadable.
    """
    # O_NONBLOCK: opening a pipe that lies in the file's place must not wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise corrupt(path, "not a regular file")
            if found.st_size > limit_bytes or (exact and found.st_size != limit_bytes):
                bound = "exactly" if exact else "at most"
                raise corrupt(path, f"{found.st_size} bytes, expected {bound} {limit_bytes}")
            raw = file.read(limit_bytes + 1)
    except FileNotFoundError as error:
        raise CheckpointMissingError(
            f"no checkpoint at {path}. Give a folder for its newest checkpoint, or the name of "
            "a .json file in it.",
            path=str(path),
        ) from error
    except OSError as error:
        raise corrupt(path, f"cannot be read: {error.strerror or error}") from error
    if len(raw) > limit_bytes or (exact and len(raw) != limit_bytes):
        raise corrupt(path, "its size changed while it was read")
    return raw


def corrupt(path: Path, why: str) -> CheckpointCorruptError:
    """Return the error for a checkpoint that fails verification."""
    return CheckpointCorruptError(
        f"the checkpoint file {path} is damaged: {why}. Choose another checkpoint; nothing was "
        "loaded from this one.",
        path=str(path),
        why=why,
    )


def foreign(path: Path) -> CheckpointCorruptError:
    """Return the error for a file that dingsdk did not write as a manifest."""
    return CheckpointCorruptError(
        f"{path} is not a dingsdk checkpoint. dingsdk never unpickles files (that can run code), "
        "so a .pth.tar or .pt of another library cannot be loaded: name the .json file of a "
        "dingsdk checkpoint, or its folder.",
        path=str(path),
        why="foreign",
    )


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    # A zip (torch.save) or a pickle of protocol 2 and later.
    if raw.startswith((b"PK\x03\x04", b"\x80")):
        raise foreign(path)
    try:
        fields = json.loads(raw, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise corrupt(path, f"not the JSON of a checkpoint ({error})") from error
    if not isinstance(fields, dict):
        raise foreign(path)
    return fields


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _is_intact(fields: dict[str, Any]) -> bool:
    return fields.get("sha256") == _digest({k: v for k, v in fields.items() if k != "sha256"})


def _digest(fields: dict[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _own_version() -> str:
    from dingsdk import __version__

    return __version__
