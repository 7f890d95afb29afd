"""The journal: appended facts survive a crash at any byte, and damaged files are refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from dingsdk.data import container
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
    RunDirLockedError,
    RunFolderError,
    StorageFullError,
)
from dingsdk.runtime.files import Folder
from dingsdk.runtime.records import record_of
from dingsdk.worker.coordinator.journal import (
    VERSION,
    EvaluationRecorded,
    Fact,
    Journal,
    Pushed,
    Recovered,
    Saved,
    Settled,
    TaskChanged,
    TaskRecord,
    TrainingBegan,
    _encoder,
)
from tools.os_calls import failing_calls, recorded_writes

FACTS: list[Fact] = [
    TaskChanged(
        "queued",
        TaskRecord("t", "learner", {"seed": 3, "stop": float("inf")}, 0, "ab12"),
        b"{}",
        env_steps=5,
        episodes=2,
        learner_tasks=0,
    ),
    Pushed("b", "p0", 3, 7, 12, "d1", episodes=2),
    TrainingBegan("t", 7),
    Settled("t", 9, {"reports": [], "counts": {"limiter": {"inserts": 3}}, "figures": None}),
]


def encode_fact(fact: Fact) -> bytes:
    return b"".join(record_of(_encoder.encode(fact)))


def journal(folder: Path, **options: Any) -> Journal:
    return Journal(Folder(folder), **options)


def begun(folder: Path, **options: Any) -> Journal:
    """Return a journal that has a state, so that facts can be appended."""
    made = journal(folder, **options)
    made.open()
    made.save({})
    return made


def recovered(folder: Path) -> Recovered:
    return journal(folder).open()


def written(folder: Path, facts: list[Fact] = FACTS) -> Path:
    """Write a journal and return the path of its only facts file."""
    made = begun(folder)
    for fact in facts:
        made.append(fact)
    (path,) = folder.glob("*.facts")
    return path


def same(found: list[Fact], expected: list[Fact]) -> bool:
    return [encode_fact(each) for each in found] == [encode_fact(each) for each in expected]


def test_facts_are_recovered_in_order(tmp_path: Path) -> None:
    written(tmp_path)
    found = recovered(tmp_path)
    assert found.state == {}
    assert found.facts == FACTS


@pytest.mark.parametrize("cut", [0, 3])
def test_dropped_record_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut])
    journal(tmp_path).open()
    left = len(encode_fact(FACTS[-1])) - cut
    told = [f"{path}: dropped an incomplete record of {left} bytes at its end"] if cut else []
    assert caplog.messages == told
    caplog.clear()
    path.write_bytes(b"")
    assert recovered(tmp_path) == Recovered()
    assert caplog.messages == [f"{tmp_path} has no complete state: the run begins without one"]


def test_state_replaces_the_facts_before_it_and_not_those_after(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.append(FACTS[0])
    made.save({"names": ["a"], "n": {3: 0.5}})
    made.append(FACTS[1])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000002.facts", "owner.json"]
    found = recovered(tmp_path)
    assert found.state == {"names": ["a"], "n": {3: 0.5}}
    assert found.facts == FACTS[1:2]


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damaged_state_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    made = begun(tmp_path)
    made.save({"x": "y" * 100})
    path = tmp_path / "000002.facts"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content + encode_fact(FACTS[0]) if damage == "flip" else content[:-9])
    name = "000002" if damage == "flip" else "000001"  # without the state, earlier facts are gone
    with pytest.raises(CheckpointCorruptError, match=rf"{name}\.facts"):
        recovered(tmp_path)


def test_facts_of_another_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "000001.facts").write_bytes(encode_fact(Saved("", {}, version=8)))
    with pytest.raises(CheckpointVersionError) as caught:
        recovered(tmp_path)
    assert (caught.value.found, caught.value.expected) == (8, VERSION)


def test_writes_of_the_previous_owner_are_refused(tmp_path: Path) -> None:
    old, new = journal(tmp_path, owner="the old one"), journal(tmp_path, owner="the new one")
    old.open()
    old.save({})
    old.append(FACTS[0])
    assert same(new.open().facts, FACTS[:1])
    new.save({"x": 1})
    with pytest.raises(RunDirLockedError, match="the new one") as caught:
        old.append(FACTS[1])
    assert caught.value.epoch == 2
    with pytest.raises(RunDirLockedError):
        old.save({})
    new.append(FACTS[2])
    found = recovered(tmp_path)
    assert (found.state, same(found.facts, FACTS[2:3])) == ({"x": 1}, True)


def test_journal_without_its_owner_file_is_not_written(tmp_path: Path) -> None:
    made = begun(tmp_path)
    (tmp_path / "owner.json").unlink()
    with pytest.raises(RunDirLockedError):
        made.append(FACTS[0])
    with pytest.raises(RunDirLockedError, match=r"owner\.json is gone, .*removed files of the run"):
        made.check_owner()


CALLS = ("open", "writev", "write", "fsync", "rename", "close")


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("is_persistent", [False, True])
def test_accepted_facts_survive_every_failing_system_call(
    tmp_path: Path, fsync: bool, is_persistent: bool
) -> None:
    at = count = 0
    while at <= count:
        at += 1
        folder = tmp_path / str(at)
        made = begun(folder, fsync=fsync)
        taken: list[Fact] = []
        with failing_calls(CALLS, at, errno.ENOSPC, is_persistent) as calls:
            for fact in FACTS:
                try:
                    made.append(fact)
                    taken.append(fact)
                except (StorageFullError, RunFolderError):
                    break
            count = calls()
        found = recovered(folder).facts
        # The refused fact may be there too; it was not acknowledged.
        assert same(found[: len(taken)], taken)
        assert len(found) <= len(taken) + 1
    assert at > 8


@pytest.mark.parametrize(("options", "waits"), [({}, False), ({"fsync": True}, True)])
def test_append_calls_fsync_only_if_configured(
    tmp_path: Path, options: dict[str, bool], waits: bool
) -> None:
    made = begun(tmp_path, **options)
    with failing_calls(("fsync",), 100, errno.EIO) as calls:
        made.append(FACTS[0])
        assert (calls() > 0) is waits


def test_state_waits_for_the_disk(tmp_path: Path) -> None:
    """A power cut would lose it otherwise, and the facts before it are gone."""
    made = begun(tmp_path)
    with recorded_writes() as log:
        made.save({"x": 1})
    assert log.calls == [("sync", str(tmp_path / "000002.facts")), ("sync", str(tmp_path))]


def test_fact_is_written_when_a_full_disk_has_room_again(tmp_path: Path) -> None:
    made = begun(tmp_path)
    with failing_calls(("writev",), 1, errno.ENOSPC), pytest.raises(StorageFullError):
        made.append(FACTS[0])
    made.append(FACTS[1])
    assert same(recovered(tmp_path).facts, FACTS[1:2])


def test_state_is_due_after_a_number_of_facts_or_bytes(tmp_path: Path) -> None:
    made = begun(tmp_path, snapshot_facts=3)
    for _ in range(2):
        made.append(FACTS[2])
        assert not made.is_state_due
    made.append(FACTS[2])
    assert made.is_state_due
    made.save({})
    assert not made.is_state_due
    made = begun(tmp_path / "bytes", snapshot_bytes=1000)
    made.save({"x": bytes(5000)})
    made.append(EvaluationRecorded({"x": bytes(4000)}))
    assert not made.is_state_due  # smaller than the last state
    made.append(EvaluationRecorded({"x": bytes(4000)}))
    assert made.is_state_due
    made = begun(tmp_path / "default")
    for is_due in (False, True):  # each fact has two thirds of 4 MiB
        made.append(EvaluationRecorded({"x": bytes(2_800_000)}))
        assert made.is_state_due is is_due


def test_damaged_owner_file_is_refused_by_name(tmp_path: Path) -> None:
    journal(tmp_path).open()
    (tmp_path / "owner.json").write_bytes(b"{")
    with pytest.raises(CheckpointCorruptError, match=r"owner\.json cannot be used: ") as caught:
        recovered(tmp_path)
    assert caught.value.path == str(tmp_path / "owner.json")


def test_owner_file_of_another_version_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(container, "VERSION", container.VERSION + 1)
        journal(tmp_path).open()
    with pytest.raises(CheckpointVersionError, match=r"owner\.json: format version 4; ") as caught:
        recovered(tmp_path)
    assert (caught.value.found, caught.value.expected) == (4, 3)
