"""Reading policies during updates: no missing, incomplete or older versions."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.errors import DataCorruptError
from dingsdk.worker.comm.files.policy_store import FilePolicyStore

from .policies import is_whole, weights


def test_overtaken_thread_does_not_return_the_older_version(
    publisher: FilePolicyStore, reader: FilePolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish("p", weights(1), 1)
    real = reader._load

    def overtaken(*args: Any) -> Any:
        state = real(*args)
        monkeypatch.undo()
        publisher.publish("p", weights(2), 2)
        assert is_whole(reader.newest("p"), 2)  # simulates another thread
        return state

    monkeypatch.setattr(reader, "_load", overtaken)
    assert is_whole(reader.newest("p"), 2)


def test_read_gives_up_if_the_policy_changes_at_every_try(
    publisher: FilePolicyStore, reader: FilePolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish("p", weights(1), 1)
    looks: list[Any] = []
    monkeypatch.setattr("dingsdk.worker.comm.files.policy_store._MOVED_ON_TRIES", 3)
    monkeypatch.setattr(reader._returned, "note", lambda *version: looks.append(version))
    with pytest.raises(DataCorruptError, match="never holds still") as caught:
        reader.newest("p")
    assert caught.value.where == "p"
    assert len(looks) == 3
    monkeypatch.undo()
    assert is_whole(reader.newest("p"), 1)
