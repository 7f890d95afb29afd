"""The coordinator's list of live payloads, for a buffer whose rows are with its learner."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.errors import ConflictError, ProtocolError
from dingsdk.worker.coordinator.live_payloads import (
    LEAST_AHEAD_ROWS,
    LivePayloads,
    ServedPayloads,
)
from dingsdk.worker.sample_counts import SampleCounts


def announce(payloads: LivePayloads, name: str, rows: int = 4) -> bool:
    meta = {"data_id": name, "rows": rows, "policy_iter": 0, "digest": None}
    return payloads.push(meta, 0)


def report(number: int, **changes: Any) -> dict[str, Any]:
    return {"number": number, "inserted": [], "lost": [], "left": [], **changes}


def settle(payloads: LivePayloads, *reports: dict[str, Any], **info: Any) -> None:
    own = {"is_idle": False, "trained_rows": 0, "counts": {}, "count": 0, "figures": None}
    payloads.settle({"reports": list(reports), **own, **info})


def names(payloads: LivePayloads) -> list[str]:
    return [each["data_id"] for each in payloads.take_news()]


def test_collectors_wait_while_the_home_has_not_inserted_enough() -> None:
    payloads = LivePayloads(8)
    assert payloads.can_push(10 * LEAST_AHEAD_ROWS), "a large payload goes in alone"
    announce(payloads, "a", LEAST_AHEAD_ROWS)
    assert not payloads.can_push(1)
    settle(payloads, report(1, inserted=["a"]))
    assert payloads.can_push(1)


def test_state_continues_in_another_coordinator() -> None:
    payloads = LivePayloads(8)
    for name in "abcd":
        announce(payloads, name)
    names(payloads)
    left = [("a", "overwritten", 4), ("b", "used_up", 1)]
    settle(payloads, report(3, inserted=["a", "b"], left=left), trained_rows=7)
    other = LivePayloads(8)
    other.load_state_dict(payloads.state_dict())
    assert other.state_dict() == payloads.state_dict()
    assert other.counts() == payloads.counts()
    assert not other.can_push(LEAST_AHEAD_ROWS), "rows wait for the home"
    assert (other.confirmed, names(other)) == (3, ["c", "d"])
    assert other.take_garbage() == ["a"], "it may not have been deleted"
    settle(other, trained_rows=9)  # by the same home
    assert other.counts().trained == 9
    assert not announce(other, "a")
    other.recounted().check()


def test_payload_with_other_rows_under_a_known_id_is_refused() -> None:
    payloads = LivePayloads(8)
    announce(payloads, "a")
    with pytest.raises(ConflictError, match="ids are used once"):
        announce(payloads, "a", rows=5)
    with pytest.raises(ProtocolError, match="0 rows"):
        announce(payloads, "b", rows=0)
    assert payloads.counts().acknowledged == 4


def test_home_that_has_news_is_not_idle() -> None:
    """The run must not end between an announcement and its training."""
    payloads = LivePayloads(8)
    announce(payloads, "a")
    settle(payloads, is_idle=True)
    assert payloads.can_train, "a is not announced"
    names(payloads)
    assert payloads.can_train, "a is announced, and nothing is known about it"
    settle(payloads, report(1, inserted=["a"]), is_idle=True)
    assert not payloads.can_train


def figures(**counts: int) -> dict[str, int]:
    return {"pushed": 0, "count": 0, "overwritten": 0, "cleared": 0, "stale": 0, **counts}


def test_learner_of_a_served_buffer_is_asked_again_after_an_insert() -> None:
    payloads = ServedPayloads()
    settle(payloads, is_idle=True)
    assert not payloads.can_train
    announce(payloads, "a")
    payloads.rejoin([])
    settle(payloads, is_idle=True)
    assert payloads.can_train, "a is not announced"
    assert names(payloads) == ["a"]
    assert payloads.can_train, "the learner has not answered"
    settle(payloads, is_idle=True)
    assert not payloads.can_train


def test_training_on_a_shared_server_ends_by_the_ratio_of_the_run() -> None:
    payloads = ServedPayloads(per_insert=2.0, min_size=6)
    announce(payloads, "a", 6)
    settle(payloads, trained_rows=100)
    assert not payloads.can_train, "serial mode begins with the next rows"
    announce(payloads, "b", 8)
    settle(payloads, trained_rows=115)
    assert payloads.can_train
    settle(payloads, trained_rows=116)
    assert not payloads.can_train, "the rows of other clients are not waited for"


def test_counts_of_a_served_buffer_are_those_of_the_server() -> None:
    payloads = ServedPayloads()
    assert announce(payloads, "a")
    assert announce(payloads, "a"), "the server refuses repeats"
    assert not payloads.live_ids()
    assert payloads.counts() == SampleCounts()
    now = figures(pushed=10, count=7, overwritten=3)
    settle(payloads, report(1), trained_rows=20, count=7, figures=now)
    assert payloads.counts() == SampleCounts(10, 10, 20, 7, {"overwritten": 3})
    payloads.recounted().check()
    # A new learner has not asked the server yet.
    payloads.restart()
    settle(payloads, trained_rows=4, count=0, figures={})
    assert payloads.counts() == SampleCounts(10, 10, 24, 7, {"overwritten": 3})
    payloads.recounted().check()
