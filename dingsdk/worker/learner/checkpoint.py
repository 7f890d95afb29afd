"""Checkpoints: one safetensors file each, replaced atomically.

A checkpoint named *stem* is ``<stem>.safetensors``; data other than tensors is in its metadata (see
``dingsdk.data.container``). ``latest.json`` names the newest checkpoint of the folder. If a process
dies at any moment, the file is the complete old checkpoint or the complete new one.

Nothing is ever unpickled. One writer per folder is expected; with several, each checkpoint is still
the complete file of one of them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dingsdk import __version__
from dingsdk.data import decode_json, decode_safetensors, encode_json, encode_safetensors
from dingsdk.data.container import checkpoint_errors
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMissingError,
    CheckpointVersionError,
    DataCorruptError,
    DataMissingError,
    RunFolderError,
    SchemaMismatchError,
)
from dingsdk.plugins import ask, observe
from dingsdk.runtime import Folder
from dingsdk.runtime.files import checked_path

LATEST = "latest"
EXCEPTION = "ckpt_exception"
"""Stem of the checkpoint of a failed learner; never chosen as the newest, as it may be bad."""
SUFFIX = ".safetensors"
MAX_BYTES = 64 << 30
"""The largest checkpoint that is read."""
SAVE_SHARE = 0.02
"""The largest share of its time that a run, or a learner in parallel mode, spends on saves at
intervals."""

_KIND, _POINTER_KIND = "checkpoint", "newest-checkpoint"
_POINTER = f"{LATEST}.json"
_POINTER_BYTES = 4096
"""Largest file that names the newest checkpoint."""
_REFERENCE_ENDINGS = (".pth.tar", ".pth", ".pt", ".ckpt")
_STEM = r"[A-Za-z0-9_-]{1,128}"
_NUMBERED = re.compile(rf"iteration_(\d+){re.escape(SUFFIX)}")
_PICKLES = (b"PK\x03\x04", b"\x80")
"""First bytes of files of torch.save, and of pickles of protocol 2 and later."""
_FOREIGN = (
    "it is not a dingsdk checkpoint, and dingsdk never unpickles files (that can run code), so a "
    f".pth.tar or .pt of another library cannot be loaded: name the {SUFFIX} file of a dingsdk "
    "checkpoint, or its folder"
)
_logger = logging.getLogger(__name__)


class _Pointer(msgspec.Struct, kw_only=True):
    """Contents of ``latest.json``."""

    stem: Annotated[str, msgspec.Meta(pattern=rf"^{_STEM}\Z")]
    iteration: int


class Checkpoint(msgspec.Struct, kw_only=True):
    """A checkpoint from ``load_checkpoint``.

    Attributes:
        iteration: Train iteration of the learner.
        envstep: Environment steps collected so far; -1 if unknown.
        state: The policy's state dict, tensors on the CPU.
        meta: Further data from the writer.
        path: The file.
        skipped: Errors of newer checkpoints in the folder that were skipped; empty unless a
            folder or ``latest`` was asked for and its newest checkpoint is damaged.
    """

    iteration: Annotated[int, msgspec.Meta(ge=0)]
    envstep: int
    meta: dict[str, Any]
    state: dict[Any, Any]
    path: Path = Path()
    skipped: tuple[CheckpointError, ...] = ()


def save_checkpoint(
    directory: str | Path | Folder,
    stem: str,
    state: Mapping[str, Any],
    *,
    iteration: int,
    envstep: int = -1,
    meta: Mapping[str, Any] | None = None,
    is_latest: bool = True,
) -> Path:
    """Write a checkpoint, replacing one of the same name, and point ``latest`` at it.

    The file survives a power cut once this function returns. The hook
    ``dingsdk_write_checkpoint`` may write the checkpoint instead, and the hook
    ``dingsdk_after_checkpoint`` is called afterwards.

    Args:
        directory: Path of a folder, created if absent, or an open folder.
        stem: Name, ``[A-Za-z0-9_-]{1,128}``; ``ckpt_best.pth.tar`` is taken as ``ckpt_best``.
        state: Policy state: nested dicts, lists and tuples of tensors, numeric arrays, numbers,
            text and None.
        iteration: Train iteration, >= 0.
        envstep: Environment steps collected so far; -1 if unknown.
        meta: Further data, of the same types.
        is_latest: False does not change ``latest``; for a state that a run cannot resume from
            (only weights).

    Returns:
        Path of the file.

    Raises:
        CheckpointError: The state holds other types than these, or the name is not valid.
        RunFolderError: The folder cannot be written.
        StorageFullError: There is no room; the old checkpoint stays.
    """
    stem = _stem_of(stem)
    path = (directory.path if isinstance(directory, Folder) else Path(directory)) / (stem + SUFFIX)
    if stem == LATEST or not re.fullmatch(_STEM, stem):
        raise CheckpointError(
            f"{stem!r} cannot name a checkpoint: use letters, digits, '_' and '-', at most 128, "
            f"and not {LATEST!r}, which always names the newest one.",
            path=stem,
        )
    contents = checkpoint_contents(state, iteration=iteration, envstep=envstep, meta=meta)
    try:
        content = encode_safetensors(_KIND, contents)
    except SchemaMismatchError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error}. Return tensors, numeric arrays, "
            "numbers, text and containers of them from state_dict(), and large state as tensors.",
            path=str(path),
            key=error.key.removeprefix("state."),
            found=error.found,
        ) from error
    with _opened(directory) as folder:
        folder.sweep()
        if ask().write_checkpoint(path=path, contents=contents) is not True:
            folder.write_atomic(path.name, [content], durable=True)
        if is_latest and stem != EXCEPTION:
            pointer = encode_json(_POINTER_KIND, {"stem": stem, "iteration": iteration})
            folder.write_atomic(_POINTER, [pointer], durable=True)
    observe().after_checkpoint(path=path, iteration=iteration)
    return path


def save_pause(least_s: float, took_s: float) -> float:
    """Return the seconds to the next save at intervals, after one that took ``took_s``."""
    return max(least_s, took_s / SAVE_SHARE)


def checkpoint_contents(
    state: Mapping[str, Any],
    *,
    iteration: int,
    envstep: int = -1,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the contents of a checkpoint; arguments as of ``save_checkpoint``."""
    return {
        "iteration": iteration,
        "envstep": envstep,
        "meta": dict(meta or {}),
        "dingsdk": __version__,
        "torch": _torch_version(),
        "state": state,
    }


@functools.cache
def _torch_version() -> str:
    return importlib.metadata.version("torch")  # reads a file, which takes longer than the rest


def _opened(directory: str | Path | Folder) -> AbstractContextManager[Folder]:
    if isinstance(directory, Folder):
        return nullcontext(directory)  # the caller closes it
    return Folder(directory)


def load_checkpoint(path: str | Path | Folder) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        path: A checkpoint's file, a name without ending, a name such as ``ckpt_best.pth.tar``
            (taken as ``ckpt_best``), or a folder or ``<folder>/latest`` for its newest
            checkpoint; an open folder too. If the newest one was asked for and is damaged, the
            one before it is read instead, with a warning and ``skipped`` set.

    Raises:
        CheckpointMissingError: There is no checkpoint at that path.
        CheckpointCorruptError: The file is truncated, altered or not ours (pickle files included).
        CheckpointVersionError: The file has a format that this version does not read.
    """
    if isinstance(path, Folder):
        return _load_newest(path)
    asked = checked_path(path, "path")
    if asked.name in (LATEST, _POINTER) and not os.path.isdir(asked):
        asked = asked.parent
        if not os.path.isdir(asked):
            raise _missing(asked)
    if os.path.isdir(asked):
        with Folder(asked, create=False) as folder:
            return _load_newest(folder)
    if asked.suffix != SUFFIX:
        if os.path.isfile(asked):
            raise CheckpointCorruptError(f"{asked} cannot be used: {_FOREIGN}", path=str(asked))
        asked = asked.with_name(_stem_of(asked.name) + SUFFIX)
    return _load(asked)


def can_resume(directory: Path) -> bool:
    """Whether a folder has a checkpoint that a learner saved, and not only weights."""
    if (directory / _POINTER).is_file():
        return True
    return directory.is_dir() and any(_number_of(path.name) >= 0 for path in directory.iterdir())


def prune_checkpoints(directory: str | Path | Folder, keep_last: int) -> None:
    """Remove all but the last ``keep_last`` checkpoints ``iteration_<n>``.

    The last checkpoints have the highest numbers up to the number of the checkpoint that ``latest``
    names. Checkpoints with higher numbers are of an earlier training, and are removed first. The
    checkpoint that ``latest`` names is kept, and so are all other names (``ckpt_best``).
    """
    with _opened(directory) as folder:
        try:
            newest = _read_pointer(folder)
        except CheckpointError:
            newest = ""
        last = _number_of(newest)
        # Not by time: clocks are set back, and copies of files get new times.
        numbered = [name for name in folder.names() if _number_of(name) >= 0 and name != newest]
        numbered.sort(key=lambda name: (0 <= last < _number_of(name), -_number_of(name)))
        for name in numbered[max(keep_last - (last >= 0), 0) :]:
            try:
                folder.unlink(name)
            except RunFolderError as error:
                _logger.warning("an old checkpoint stays: %s", error)


def _load_newest(folder: Folder) -> Checkpoint:
    skipped: list[CheckpointError] = []
    for name in _newest_first(folder, skipped):
        try:
            found = _load(folder.path / name, folder)
        except (CheckpointCorruptError, CheckpointMissingError) as error:
            _logger.warning("passing over a checkpoint that cannot be used: %s", error)
            skipped.append(error)
            continue
        found.skipped = tuple(skipped)
        return found
    if not skipped:
        raise _missing(folder.path)
    skipped[0].add_note(f"No other checkpoint in {folder.path} can be used either.")
    raise skipped[0]


def _missing(path: Path) -> CheckpointMissingError:
    return CheckpointMissingError(
        f"no checkpoint at {path}. Give a folder for its newest checkpoint, usually <run>/ckpt, or "
        f"the name of a {SUFFIX} file in it.",
        path=str(path),
    )


def _newest_first(folder: Folder, skipped: list[CheckpointError]) -> Iterator[str]:
    """Yield the names to try: first that in ``latest``, then the others by iteration."""
    newest = None
    try:
        newest = _read_pointer(folder)
        yield newest
    except CheckpointMissingError:
        pass
    except (CheckpointCorruptError, CheckpointVersionError) as error:
        _logger.warning("cannot tell the newest checkpoint of %s: %s", folder.path, error)
        skipped.append(error)
    names = [name for name in folder.names() if name.endswith(SUFFIX)]
    names.sort(key=_number_of, reverse=True)
    yield from (name for name in names if name not in (newest, EXCEPTION + SUFFIX))


def _read_pointer(folder: Folder) -> str:
    """Return the name of the file that ``latest.json`` names."""
    with _checkpoint_errors(folder.path / _POINTER):
        content = decode_json(_POINTER_KIND, folder.read(_POINTER, _POINTER_BYTES), _POINTER_BYTES)
        return msgspec.convert(content, _Pointer).stem + SUFFIX


def _load(path: Path, folder: Folder | None = None) -> Checkpoint:
    contents = ask().read_checkpoint(path=path)
    with _checkpoint_errors(path):
        value = _read(path, folder) if contents is None else dict(contents)
        found = msgspec.convert(value, Checkpoint, strict=True)
    found.path, found.skipped = path, ()
    return found


def _read(path: Path, folder: Folder | None) -> Any:
    if folder is None and not os.path.lexists(path.parent):
        raise DataMissingError("no folder")
    with nullcontext(folder) if folder else Folder(path.parent, create=False) as opened:
        content = opened.view(path.name, MAX_BYTES)
    try:
        return decode_safetensors(_KIND, content)
    except DataCorruptError as error:
        if bytes(content[:4]).startswith(_PICKLES):
            raise DataCorruptError(_FOREIGN, where="magic") from error
        raise


@contextmanager
def _checkpoint_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading a container to errors of the checkpoint at ``path``."""
    advice = "choose another checkpoint; nothing was loaded from this one"
    try:
        with checkpoint_errors(path, advice):
            yield
    except DataMissingError as error:
        raise _missing(path) from error
    except RunFolderError as error:
        raise CheckpointCorruptError(f"{path} cannot be used: {error}", path=str(path)) from error


def _stem_of(name: str) -> str:
    """Return the name without its ending, ``.safetensors`` or one that DI-engine's users write."""
    for ending in (SUFFIX, *_REFERENCE_ENDINGS):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def _number_of(name: str) -> int:
    """Return the number in the name of a numbered checkpoint, -1 for other names."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else -1
