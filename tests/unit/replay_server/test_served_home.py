"""The home of a learner whose buffer is on a replay server: batches, priorities and counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk import ReplayClient, ReplayServer
from dingsdk.data import SampleBatch
from dingsdk.worker.replay_server.home import ServedHome

from .serving import numbers, rows

SECTION = {"type": "advanced", "replay_buffer_size": 100, "seed": 0}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ReplayClient]:
    with ExitStack() as stack:
        server = stack.enter_context(ReplayServer({}, SECTION, tmp_path / "replay"))
        yield stack.enter_context(ReplayClient(server.address, tmp_path / "replay"))


def test_batches_come_from_the_server_and_priorities_go_to_it(client: ReplayClient) -> None:
    home = ServedHome(client, wait_s=0.0, retry_s=0.25)
    assert home.sample(64, 0) is None
    assert home.retry_s == 0.25
    client.insert(rows(0))
    batch = home.sample(64, 0)
    assert isinstance(batch, SampleBatch)
    assert numbers(batch) == list(range(64))
    assert home.rows_of(batch) == 64
    ids = {name: batch.columns[name] for name in ("replay_unique_id", "replay_buffer_idx")}
    home.update({**ids, "priority": batch.columns["number"] + 1.0})
    found = client.sample(64)
    assert isinstance(found, SampleBatch)
    assert np.allclose(found.columns["priority"], found.columns["number"] + 1.0, atol=1e-4)


def test_home_is_idle_once_the_server_gives_no_batch_of_the_announced_rows(
    client: ReplayClient,
) -> None:
    home = ServedHome(client, wait_s=0.0, retry_s=0.25)
    assert not home.is_idle, "the server was not asked"
    assert home.count() == 0
    assert home.sample(64, 0) is None
    assert home.is_idle
    client.insert(rows(0))
    home.announce([{"data_id": "a", "rows": 0}])
    assert not home.is_idle
    assert home.sample(64, 0) is not None
    assert not home.is_idle, "the batch is trained on"
    assert home.sample(65, 0) is None
    assert home.is_idle


def test_home_is_not_idle_if_rows_are_announced_while_it_asks(
    client: ReplayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ServedHome(client, wait_s=0.0, retry_s=0.25)
    monkeypatch.setattr(client, "sample", lambda *_, **__: home.announce([{}]))
    assert home.sample(64, 0) is None
    assert not home.is_idle


def test_rows_of_sequences_are_counted(tmp_path: Path) -> None:
    section = {"type": "sequence", "replay_buffer_size": 100, "sequence_length": 4}
    with ReplayServer({}, section, tmp_path) as server, ReplayClient(server.address, tmp_path) as c:
        c.insert(rows(0))
        home = ServedHome(c, wait_s=0.0, retry_s=0.25, drawn="sequences")
        seen: list[Any] = []
        home.observe = seen.append
        batch = home.sample(8, 0)
        assert isinstance(batch, SampleBatch)
        assert (len(batch), home.rows_of(batch)) == (8, 32)
        assert seen == [batch]


def test_policy_observes_each_row_once(client: ReplayClient) -> None:
    home = ServedHome(client, wait_s=0.0, retry_s=0.25)
    seen: list[list[int]] = []
    home.observe = lambda batch: seen.append(numbers(batch))
    assert home.sample(64, 0) is None
    client.insert(rows(0))
    drawn = home.sample(16, 0)
    assert isinstance(drawn, SampleBatch)
    assert sorted(seen.pop()) == sorted(numbers(drawn))
    home.sample(64, 0)
    assert sorted(seen.pop()) == sorted(set(range(64)) - set(numbers(drawn)))
    home.sample(64, 0)
    assert not seen


def test_counts_of_the_server_are_reported_when_they_are_new(
    client: ReplayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    age_s = "dingsdk.worker.replay_server.home.FIGURES_S"
    home = ServedHome(client, wait_s=0.0, retry_s=0.25)
    client.insert(rows(0))

    def reported(least_age_s: float) -> tuple[int, int, int]:
        """Draw a batch; return the count, the rows drawn, and the number of reports."""
        monkeypatch.setattr(age_s, least_age_s)
        home.sample(16, 0)
        found = home.report()
        return found["count"], found["figures"].get("sampled", 0), len(found["reports"])

    assert reported(-1.0) == (64, 16, 1)
    assert reported(1e9) == (64, 16, 1)  # they are not old enough
    client.insert(rows(64))
    assert reported(-1.0) == (100, 48, 2)
    home.sample(16, 0)
    home.end_batch(is_last=True)
    found = home.report(2)
    assert found["figures"] == client.stats()
    assert found["reports"] == [{"number": 3, "inserted": [], "lost": [], "left": []}]
