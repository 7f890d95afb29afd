"""Which version of a policy a reader gets."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from dingsdk.errors import DataCorruptError
from dingsdk.worker.comm.files.policy_versions import Version, VersionedPolicyStore


class Restless(VersionedPolicyStore[None]):
    """A store whose only version is replaced before it can be read."""

    def __init__(self) -> None:
        super().__init__(keep_versions=2, max_policy_bytes=100)
        self._numbers = itertools.count(1)

    def opened(self, *args: Any, **options: Any) -> AbstractContextManager[None]:
        return nullcontext()

    add = remove = discard = opened  # type: ignore[assignment]

    def versions(self, place: None, floor: int = 0) -> list[Version]:
        return [Version(next(self._numbers), "life")]

    def read(self, place: None, version: Version) -> None:
        return None


def test_reader_gives_up_on_a_policy_that_is_replaced_again_and_again() -> None:
    with pytest.raises(DataCorruptError, match="never holds still"):
        Restless().newest("p")
