"""Policies for tests: each version is filled with its number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dingsdk.worker.comm.files.policy_store import FilePolicyStore


def weights(version: int, size: int = 8) -> dict[str, Any]:
    return {"w": torch.full((size, 2), float(version)), "b": np.full(3, version, np.int64)}


def is_whole(found: tuple[int, dict[str, Any]] | None, version: int) -> bool:
    if found is None or found[0] != version:
        return False
    return all(bool((tensor == version).all()) for tensor in found[1].values())


def folder_of(tmp_path: Path, policy_id: str = "p") -> Path:
    return tmp_path / "run" / "policy" / policy_id


def file_of(tmp_path: Path, version: int, policy_id: str = "p") -> Path:
    (found,) = folder_of(tmp_path, policy_id).glob(f"{version:012d}-*.ding")
    return found


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def publish_damaged(publisher: FilePolicyStore, tmp_path: Path, *versions: int) -> None:
    """Publish versions of the policy ``p``, and damage the last one."""
    for version in versions:
        publisher.publish("p", weights(version), version)
    damage(file_of(tmp_path, versions[-1]))
