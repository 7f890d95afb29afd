"""A storage outage is logged once, and ends the run only after the limit without progress."""

from __future__ import annotations

import pytest

from dingsdk.worker.coordinator.outage import StorageOutage


def test_outage_is_logged_only_at_its_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    outage = StorageOutage(600.0, lambda: 100.0)
    for _ in range(50):
        outage.note("c0", "disk full")
        outage.note("c1", "quota used up")
    assert outage.text == "disk full"
    outage.note("c0", "")
    assert outage.text == "quota used up"
    for _ in range(2):
        outage.note("c1", "")
    assert outage.text == ""
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "disk full" in texts[0]
    assert texts[1] == "there is room in the storage again"


def test_end_of_a_waiting_task_does_not_count_as_room(caplog: pytest.LogCaptureFixture) -> None:
    outage = StorageOutage(600.0, lambda: 100.0)
    outage.note("c0", "disk full")
    outage.forget("c0")
    outage.forget("c1")
    assert outage.text == ""
    assert len(caplog.records) == 1
