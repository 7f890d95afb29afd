"""The keeper of a journal, with a real journal in a folder that refuses writes on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from dingsdk.errors import StorageFullError
from dingsdk.runtime.files import Buffer, Folder
from dingsdk.worker.coordinator.journal import RETRY_S, Assigned, Journal, Keeper


class FullableFolder(Folder):
    """A folder that refuses to write states or facts while a flag is set."""

    refuses_states = False
    refuses_facts = False

    def append(self, name: str, content: Buffer, at: int, durable: bool = False) -> int:
        if self.refuses_facts if at else self.refuses_states:
            raise StorageFullError("no room", path=name, reason="ENOSPC")
        return super().append(name, content, at, durable)


class Site:
    """A keeper with a fixed state, a controlled clock and the last reason for waiting."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = FullableFolder(path)
        self.now = 100.0
        self.held_up = ""
        self.keeper = Keeper(
            Journal(self.disk), lambda: {"version": 7}, self._hold_up, lambda: self.now
        )
        self.keeper.journal.open()
        self.keeper.save_state()

    def _hold_up(self, reason: str) -> None:
        self.held_up = reason

    def known(self) -> tuple[object, list[str]]:
        """Return what another coordinator would read: the state, and the task ids of the facts."""
        found = Journal(Folder(self.path)).read()
        tasks = [each.task_id for each in found.facts if isinstance(each, Assigned)]
        return found.state, tasks


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_fact_is_not_acknowledged_if_the_disk_is_full(site: Site) -> None:
    site.disk.refuses_facts = True
    assert not site.keeper.acknowledge(Assigned("a", 1, ""))
    assert (site.keeper.is_behind, bool(site.held_up)) == (False, True)

    site.disk.refuses_facts = False
    assert site.keeper.acknowledge(Assigned("b", 1, ""))
    assert site.held_up == ""
    assert site.known() == ({"version": 7}, ["b"])


def test_nothing_is_acknowledged_after_an_unwritten_fact_until_the_state_is_saved(
    site: Site,
) -> None:
    site.disk.refuses_facts = site.disk.refuses_states = True
    site.keeper.note(Assigned("a", 1, ""))
    assert site.keeper.is_behind
    assert site.keeper.is_state_due

    site.disk.refuses_facts = False
    assert not site.keeper.acknowledge(Assigned("b", 1, ""))
    site.keeper.save_state()
    assert site.keeper.is_behind
    assert site.held_up
    site.now += RETRY_S / 2
    assert not site.keeper.is_state_due
    site.now += RETRY_S / 2
    assert site.keeper.is_state_due

    site.disk.refuses_states = False
    site.keeper.save_state()
    assert (site.keeper.is_behind, site.held_up) == (False, "")
    assert site.keeper.acknowledge(Assigned("c", 1, ""))
    assert site.known() == ({"version": 7}, ["c"])


def test_facts_are_acknowledged_if_only_the_state_cannot_be_saved(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert site.keeper.acknowledge(Assigned("a", 1, ""))
    site.disk.refuses_states = True
    site.keeper.save_state()
    assert caplog.messages == ["the state of the run is not saved, its facts are: no room"]
    assert (site.keeper.is_behind, site.held_up) == (False, "")
    assert site.keeper.acknowledge(Assigned("b", 1, ""))
    assert site.known() == ({"version": 7}, ["a", "b"])
