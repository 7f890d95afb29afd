"""Reading policies during updates: no missing, incomplete or older versions."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import DataCorruptError
from dingsdk.worker.comm.files.policy_store import FilePolicyStore

from .policies import folder_of, is_whole, weights


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


def test_every_read_is_whole_and_never_older_while_a_policy_is_replaced(
    publisher: FilePolicyStore, tmp_path: Path
) -> None:
    stop = threading.Event()
    problems: list[str] = []
    reads = [0] * 16
    shared = FilePolicyStore(tmp_path / "run")
    own = [FilePolicyStore(tmp_path / "run") for _ in range(8)]
    publisher.publish("p", weights(0, 2000), 0)

    def read(index: int) -> None:
        source = own[index] if index < len(own) else shared
        last = -1
        while not stop.is_set():
            try:
                found = source.newest("p", None if reads[index] % 3 else last - 1)
            except Exception as error:
                problems.append(repr(error))
                return
            if found is None:
                problems.append(f"nothing after {last}")
            elif not is_whole(found, found[0]) or found[0] < last:
                problems.append(f"{found[0]} after {last}")
            else:
                last = found[0]
            reads[index] += 1

    threads = [threading.Thread(target=read, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2.0
    version = 0
    while time.monotonic() < deadline or (not problems and (min(reads) == 0 or version <= 10)):
        version += 1
        publisher.publish("p", weights(version, 2000), version)
    stop.set()
    for thread in threads:
        thread.join(10.0)
    assert not problems
    assert len(list(folder_of(tmp_path).iterdir())) == 4
    assert all(is_whole(source.newest("p"), version) for source in (*own, shared))
    assert sum(source.corrupt_count for source in (*own, shared)) == 0
    for source in (*own, shared):
        source.close()
