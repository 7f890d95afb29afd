"""Policies in shared memory: never older versions, a fallback for damage, and reused memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dingsdk_shared_memory.policy_store import SharedPolicyStore
from dingsdk_shared_memory.segments import Segments

from dingsdk.runtime import PrivateDir

LARGE = 1 << 15


def weights(value: float, size: int = LARGE) -> dict[str, Any]:
    return {"w": torch.full((size,), float(value)), "half": torch.ones(3, dtype=torch.bfloat16)}


def is_whole(found: tuple[int, dict[str, Any]] | None, version: int) -> bool:
    expected = weights(version)
    return (
        found is not None
        and found[0] == version
        and all(torch.equal(found[1][name], expected[name]) for name in expected)
    )


def opened(folder: Path, max_bytes: int = 1 << 20, min_free_bytes: int = 0) -> SharedPolicyStore:
    return SharedPolicyStore(
        Segments(PrivateDir(folder), min_free_bytes),
        keep_versions=3,
        max_policy_bytes=max_bytes,
        algorithm="xxh3-128",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "p"


@pytest.fixture
def publisher(folder: Path) -> Iterator[SharedPolicyStore]:
    made = opened(folder)
    yield made
    made.close()


@pytest.fixture
def reader(folder: Path) -> Iterator[SharedPolicyStore]:
    made = opened(folder)
    yield made
    made.close()


def damage(store: SharedPolicyStore, version: int) -> None:
    """Flip one bit of a stored version."""
    (name,) = [name for name in store.segments.ids() if name.endswith(f"{version:012d}")]
    segment, _, _, _, place = store.segments._index[name]
    path = store.segments._folder.path / f"{segment.writer}-{-place}.slot"
    with path.open("r+b") as file:
        file.seek(LARGE)
        byte = file.read(1)
        file.seek(LARGE)
        file.write(bytes([byte[0] ^ 1]))


def numbers(store: SharedPolicyStore) -> list[int]:
    with store.opened("p") as place:
        return [version.number for version in store.versions(place)]


def test_memory_of_old_versions_is_reused(
    publisher: SharedPolicyStore, reader: SharedPolicyStore, folder: Path
) -> None:
    for version in range(12):
        publisher.publish("p", weights(version), version)
        assert is_whole(reader.newest("p"), version)

    assert numbers(reader) == [11, 10, 9]
    assert len(list(folder.glob("*.slot"))) == 4  # three kept versions, and one to write


def test_damaged_newest_version_falls_back_and_can_be_published_again(
    publisher: SharedPolicyStore, reader: SharedPolicyStore
) -> None:
    for version in (1, 2, 3):
        publisher.publish("p", weights(version), version)
    damage(publisher, 3)

    assert is_whole(reader.newest("p"), 2)
    assert reader.newest("p", newer_than=2) is None
    assert reader.corrupt_count == 1
    assert publisher.newest("p", newer_than=2) is None
    publisher.publish("p", weights(3), 3)
    assert is_whole(reader.newest("p", newer_than=2), 3)
    assert numbers(reader) == [3, 2, 1]


def test_memory_of_a_dead_publisher_is_freed_once_its_versions_are_old(
    publisher: SharedPolicyStore, reader: SharedPolicyStore, folder: Path
) -> None:
    for version in (1, 2, 3):
        publisher.publish("p", weights(version), version)
    dead = publisher.segments._writer
    publisher.close()
    for version in (4, 5):
        reader.publish("p", weights(version), version)
    assert list(folder.glob(f"{dead}*"))
    reader.publish("p", weights(6), 6)

    assert not list(folder.glob(f"{dead}*"))
    assert is_whole(reader.newest("p"), 6)
