"""Checkpoints: safetensors for the tensors, JSON for everything else, swapped atomically.

A checkpoint named *stem* is ``<stem>.json`` (the manifest) and the immutable tensor file that
it names, ``<stem>-<token>.safetensors``. The tensor file is on disk before the manifest is
replaced, so a process that dies at any moment leaves the old checkpoint or the new one,
never a mixture. ``latest.json`` points at the newest checkpoint of the folder.

Nothing is ever unpickled. One writer a folder is expected; with more, a checkpoint is still
one writer's or the other's.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from dingsdk.data.files import atomic_write_bytes, ensure_dir
from dingsdk.errors import CheckpointCorruptError, CheckpointError, CheckpointMissingError
from dingsdk.plugins import observe
from dingsdk.worker.learner import manifest as manifests
from dingsdk.worker.learner.manifest import Manifest
from dingsdk.worker.learner.state_tree import decode, encode

LATEST = manifests.LATEST
EXCEPTION = "ckpt_exception"
"""Stem of what a failing learner saves: never chosen as the newest, its weights may be bad."""

_ORPHAN_AGE_S = 3600.0
_logger = logging.getLogger(__name__)


class Checkpoint:
    """What ``load_checkpoint`` read.

    Attributes:
        path: The manifest.
        iteration: Train iteration of the learner.
        envstep: Environment steps collected so far; -1 if unknown.
        state: The policy's state dict, tensors on the CPU.
        meta: What else the writer put in, as JSON.
        skipped: Why newer checkpoints of the folder were passed over; empty unless a folder
            or ``latest`` was asked for and its newest checkpoint is damaged.
    """

    __slots__ = ("envstep", "iteration", "meta", "path", "skipped", "state")

    def __init__(self, path: Path, manifest: Manifest, state: dict[str, Any]) -> None:
        self.path = path
        self.iteration = manifest.iteration
        self.envstep = manifest.envstep
        self.state = state
        self.meta = manifest.meta
        self.skipped: tuple[CheckpointError, ...] = ()


def save_checkpoint(
    directory: str | Path,
    stem: str,
    state: Mapping[str, Any],
    *,
    iteration: int,
    envstep: int = -1,
    meta: Mapping[str, Any] | None = None,
    is_latest: bool = True,
) -> Path:
    """Write a checkpoint, replacing one of the same name, and point ``latest`` at it.

    It survives a power cut once this returns. ``dingsdk_after_checkpoint`` fires afterwards.

    Args:
        directory: Folder, created where absent.
        stem: Name, ``[A-Za-z0-9_-]{1,128}``; ``ckpt_best.pth.tar`` is taken as ``ckpt_best``.
        state: Policy state; see ``state_tree.encode`` for what it may hold.
        iteration: Train iteration, >= 0.
        envstep: Environment steps collected so far; -1 if unknown.
        meta: More to keep, as JSON.
        is_latest: False leaves ``latest`` where it points, for a state that nobody can resume
            from (weights alone).

    Returns:
        Path of the manifest.

    Raises:
        CheckpointError: The state holds something else than data, or the name is not valid.
        RunFolderError: The folder cannot be written.
    """
    folder = Path(directory)
    stem = manifests.check_stem(stem)
    tree, tensors = encode(state)
    tensor_bytes = _serialize(tensors, folder / stem)
    manifest = Manifest(
        iteration=iteration,
        envstep=envstep,
        meta=dict(meta or {}),
        state=tree,
        tensor_file=f"{stem}-{secrets.token_hex(8)}.safetensors",
        tensor_bytes=len(tensor_bytes),
        tensor_sha256=hashlib.sha256(tensor_bytes).hexdigest(),
        torch=torch.__version__,
    )
    path = folder / f"{stem}.json"
    manifest_bytes = manifests.dump(manifest, path)
    ensure_dir(folder)
    replaced = _tensor_file_of(path)
    atomic_write_bytes(folder / manifest.tensor_file, tensor_bytes, durable=True)
    atomic_write_bytes(path, manifest_bytes, durable=True)
    if is_latest and stem != EXCEPTION:
        atomic_write_bytes(
            folder / f"{LATEST}.json", manifests.dump_pointer(stem, iteration), durable=True
        )
    if replaced is not None and replaced != manifest.tensor_file:
        _remove(folder / replaced)
    _remove_orphans(folder)
    observe().after_checkpoint(path=path, iteration=iteration)
    return path


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        path: A manifest (``.json``), a name without ending, a name such as
            ``ckpt_best.pth.tar`` (taken as ``ckpt_best``), or a folder or ``<folder>/latest``
            for its newest checkpoint. Only where the newest one was asked for and is damaged
            is the one before it read instead, with a warning and ``skipped`` set.

    Raises:
        CheckpointMissingError: There is none at that path.
        CheckpointCorruptError: It is truncated, altered or not ours (pickle files included).
        CheckpointVersionError: Its format is one that this version does not read.
    """
    asked = Path(path)
    if asked.is_dir():
        return _load_newest(asked)
    if asked.suffix != ".json":
        if asked.is_file():
            raise manifests.foreign(asked)
        asked = asked.with_name(manifests.stem_of(asked.name) + ".json")
    if asked.name == f"{LATEST}.json":
        return _load_newest(asked.parent)
    return _load_manifest(asked)


def prune_checkpoints(directory: str | Path, keep_last: int, prefix: str = "iteration_") -> None:
    """Remove all but the ``keep_last`` checkpoints written last whose name is prefix + number.

    Whatever ``latest`` points at stays, and so do all other names (``ckpt_best``).
    """
    folder = Path(directory)
    try:
        newest = manifests.read_pointer(folder / f"{LATEST}.json")
    except CheckpointError:
        newest = None
    written: list[tuple[float, int, Path]] = []
    for path in folder.glob(f"{prefix}*.json"):
        number = path.stem.removeprefix(prefix)
        if number.isdecimal() and path.stem != newest:
            # By time, not number: a run that was resumed from further back counts again.
            written.append((_modified(path), int(number), path))
    written.sort(reverse=True)
    for _, _, path in written[max(keep_last - (newest or "").startswith(prefix), 0) :]:
        tensor_file = _tensor_file_of(path)
        _remove(path)
        if tensor_file is not None:
            _remove(folder / tensor_file)


def _load_newest(folder: Path) -> Checkpoint:
    skipped: list[CheckpointError] = []
    tried: set[Path] = set()
    pointer = folder / f"{LATEST}.json"
    for candidate in _candidates(folder, pointer, skipped):
        if candidate in tried:
            continue
        tried.add(candidate)
        try:
            found = _load_manifest(candidate)
        except (CheckpointCorruptError, CheckpointMissingError) as error:
            _logger.warning("passing over a checkpoint that cannot be used: %s", error)
            skipped.append(error)
            continue
        found.skipped = tuple(skipped)
        return found
    if not skipped:
        raise CheckpointMissingError(
            f"no checkpoint in {folder}. Name the folder that holds *.json and *.safetensors "
            "files, usually <run>/ckpt.",
            path=str(folder),
        )
    skipped[0].add_note(f"No other checkpoint in {folder} can be used either.")
    raise skipped[0]


def _candidates(folder: Path, pointer: Path, skipped: list[CheckpointError]) -> Iterable[Path]:
    try:
        yield folder / f"{manifests.read_pointer(pointer)}.json"
    except CheckpointMissingError:
        pass
    except CheckpointCorruptError as error:
        _logger.warning("cannot tell the newest checkpoint of %s: %s", folder, error)
        skipped.append(error)
    others: list[tuple[int, Path]] = []
    for path in folder.glob("*.json"):
        if path.stem in (LATEST, EXCEPTION):
            continue
        try:
            others.append((manifests.read(path)[0].iteration, path))
        except (CheckpointCorruptError, CheckpointMissingError):
            others.append((-1, path))
    for _, path in sorted(others, reverse=True):
        yield path


def _load_manifest(path: Path) -> Checkpoint:
    manifest, raw = manifests.read(path)
    while True:
        try:
            tensors = _read_tensors(path.with_name(manifest.tensor_file), manifest)
            break
        except CheckpointMissingError as error:
            # Replaced between our two reads: the new manifest names another file.
            again, raw_again = manifests.read(path)
            if raw_again == raw:
                raise manifests.corrupt(path, f"its tensor file is missing ({error})") from error
            manifest, raw = again, raw_again
    try:
        state = decode(manifest.state, tensors)
    except (ValueError, TypeError, RecursionError) as error:
        raise manifests.corrupt(path, str(error)) from error
    if not isinstance(state, dict):
        raise manifests.corrupt(path, "its state is not a dict")
    return Checkpoint(path, manifest, state)


def _read_tensors(path: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    raw = manifests.read_file(path, manifest.tensor_bytes, exact=True)
    if hashlib.sha256(raw).hexdigest() != manifest.tensor_sha256:
        raise manifests.corrupt(path, "its sha256 is not the one in the manifest")
    try:
        return safetensors.torch.load(raw)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise manifests.corrupt(path, f"not a safetensors file: {error}") from error


def _serialize(tensors: dict[str, torch.Tensor], path: Path) -> bytes:
    try:
        return safetensors.torch.save(tensors)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error}. Keep only plain tensors in the state.",
            path=str(path),
        ) from error


def _tensor_file_of(manifest_path: Path) -> str | None:
    try:
        return manifests.read(manifest_path)[0].tensor_file
    except CheckpointError:
        return None


def _remove_orphans(folder: Path) -> None:
    """Remove what a process that died while saving left behind, and no manifest names."""
    # The age spares what another writer has not committed yet.
    limit = time.time() - _ORPHAN_AGE_S
    found = [*folder.glob("*-*.safetensors"), *folder.glob(".tmp-*")]
    old = [path for path in found if _modified(path) < limit]
    if old:
        named = {_tensor_file_of(path) for path in folder.glob("*.json")}
        for path in old:
            if path.name not in named:
                _remove(path)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _logger.warning("cannot remove %s: %s", path, error)
