"""The home of a buffer after a restart, and with payloads that are not as announced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import DataMissingError
from dingsdk.worker import create_buffer
from dingsdk.worker.replay_buffer.home import Announcement, Home, TableHome, TrainingHome
from dingsdk.worker.replay_buffer.pace import EpisodePace

LIMITER = {"type": "samples_per_insert", "samples_per_insert": 1.0, "min_size": 4}
LIMITER |= {"error_buffer": 100.0}


def rows_of(rows: int, first: int = 0) -> SampleBatch:
    return SampleBatch({"obs": np.arange(first, first + rows), "done": np.zeros(rows, np.bool_)})


def announced(name: str, rows: int, **facts: Any) -> dict[str, Any]:
    return {"data_id": name, "rows": rows, **facts}


def test_new_home_that_draws_before_its_announcements_counts_each_row_once() -> None:
    """The learner asks for its first batch before the first message arrives."""
    earlier = {"limiter": {"inserts": 8, "samples": 4}, "pace": [6, 1]}
    pace = EpisodePace(n_episode=1, updates=1, ahead=100, batch_size=4)
    buffer: Any = create_buffer({"type": "naive", "limiter": LIMITER, "seed": 0})
    home = TableHome(buffer, lambda name, digest: rows_of(4), pace, earlier)
    assert home.sample(4, 0) is None
    home.announce([announced("a", 4, was_inserted=True), announced("b", 4, was_inserted=True)])
    assert home.sample(4, 0) is not None

    def counts() -> tuple[int, int, list[int]]:
        found = home.report()
        return found["limiter"]["inserts"], found["limiter"]["samples"], found["pace"]

    assert counts() == (8, 8, [6, 2])
    home.announce([announced("c", 4, episodes=2)])
    home.sample(4, 0)
    assert counts() == (12, 12, [8, 3])


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["table", "training"])
def test_payload_with_other_rows_than_announced_is_corrupt(kind: str, rows: int) -> None:
    def load(name: str, digest: str | None) -> SampleBatch:
        return rows_of(rows if name == "a" else 2)

    buffer: Any = create_buffer({"type": "naive", "seed": 0})
    home: Home = TableHome(buffer, load) if kind == "table" else TrainingHome(load)
    home.announce([announced("a", 2), announced("b", 2)])
    home.sample(2, 0)
    home.report()
    (report,) = home.reports(0)
    assert (report["lost"], report["inserted"]) == ([("a", "corrupt")], ["b"])
    assert home.known == {"b"}


def test_episode_that_leaves_is_reported_with_all_its_rows() -> None:
    buffer: Any = create_buffer({"type": "episode", "replay_buffer_size": 1})
    home = TableHome(buffer, lambda name, digest: rows_of(7 if name == "a" else 3))
    home.announce([announced("a", 7), announced("b", 3)])
    home.sample(1, 0)
    home.report()
    (report,) = home.reports(0)
    assert report["left"] == [("a", "overwritten", 7)]


def test_sequences_do_not_cross_a_payload_that_is_lost() -> None:
    def load(name: str, digest: str | None) -> SampleBatch:
        if name == "c-2":
            raise DataMissingError(name, data_id=name)
        return rows_of(3, first=3 * int(name[2:]))

    buffer: Any = create_buffer(
        {"type": "sequence", "sequence_length": 3, "replay_buffer_size": 40, "seed": 0}
    )
    home = TableHome(buffer, load)
    home.announce([announced(f"c-{number}", 3) for number in range(5)])
    found = {
        tuple(np.asarray(each).tolist())
        for _ in range(40)
        if (batch := home.sample(4, 0)) is not None
        for each in batch.columns["obs"]  # type: ignore[union-attr]
    }
    assert found == {(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (9, 10, 11), (12, 13, 14)} | {
        (10, 11, 12),
        (11, 12, 13),
    }


def test_stream_of_a_payload_is_its_collector() -> None:
    assert Announcement("0a1b-17", 1).stream == "0a1b"
