"""The home of a buffer: payloads go into the table in order, and what leaves is reported."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.data.list_samples import pack_samples
from dingsdk.errors import ConfigError, DataCorruptError, DataMissingError
from dingsdk.worker import create_buffer
from dingsdk.worker.replay_buffer.home import Home, TableHome, TrainingHome
from dingsdk.worker.replay_buffer.pace import EpisodePace

BUFFERS: dict[str, dict[str, Any]] = {
    "naive": {"type": "naive", "replay_buffer_size": 40},
    "smaller than a payload": {"type": "naive", "replay_buffer_size": 7},
    "elastic": {"type": "elastic", "replay_buffer_size": 40},
    "used up": {"type": "advanced", "replay_buffer_size": 40, "max_use": 2},
    "stale": {"type": "advanced", "replay_buffer_size": 40, "max_staleness": 3},
    "objects": {"type": "naive", "replay_buffer_size": 40, "storage": {"type": "object"}},
    "episodes": {"type": "episode", "replay_buffer_size": 5},
}


class Store(dict[str, SampleBatch]):
    """Payloads by id; each row knows its payload and its number in it."""

    def add(self, name: str, rows: int, train_iter: int = 0) -> dict[str, Any]:
        """Store a payload; return its announcement."""
        self[name] = SampleBatch(
            {
                "obs": np.arange(rows, dtype=np.float32)[:, None],
                "payload": np.full(rows, int(name)),
                "collect_iter": np.full(rows, train_iter),
                "done": np.zeros(rows, np.bool_),
            }
        )
        return {"data_id": name, "rows": rows}

    def load(self, name: str, digest: str | None) -> SampleBatch:
        """Return a payload."""
        if name not in self:
            raise DataMissingError(f"no payload {name}", data_id=name)
        return self[name]


def payloads_in(buffer: Any) -> Counter[int]:
    """Count the rows of each payload in a buffer of columns, without the home."""
    return Counter(buffer.state_dict()["data"]["payload"].tolist())


@pytest.mark.parametrize("cfg", BUFFERS.values(), ids=BUFFERS)
def test_rows_of_each_payload_are_in_the_buffer_or_reported_as_left(cfg: dict[str, Any]) -> None:
    rng, store = np.random.default_rng(0), Store()
    home = TableHome(create_buffer({**cfg, "seed": 0}), store.load)
    wanted: Counter[tuple[str, str]] = Counter()

    def note(rows: Any, reason: str) -> None:
        for row in rows:  # an episode is a batch
            numbers = row.columns["payload"][:1] if isinstance(row, SampleBatch) else row["payload"]
            wanted[str(int(np.asarray(numbers).item())), reason] += 1

    home.buffer.add_remove_listener(note)
    is_episode, rows_of = cfg["type"] == "episode", dict[str, int]()
    found: Counter[tuple[str, str]] = Counter()
    confirmed = 0
    for number in range(60):
        rows = int(rng.integers(1, 12))
        rows_of[str(number)] = 1 if is_episode else rows
        home.announce([store.add(str(number), rows, train_iter=number // 4)])
        home._insert_waiting()
        home.sample(4, number // 4)
        for report in home.report(confirmed)["reports"]:
            confirmed = report["number"]
            assert report["lost"] == []
            for name, reason, count in report["left"]:
                found[name, reason] += 1 if is_episode else count
        assert found == wanted
        left: Counter[str] = Counter()
        for (name, _), count in wanted.items():
            left[name] += count
        assert home.known == {name for name, rows in rows_of.items() if left[name] < rows}
    assert found


def test_payloads_wait_in_order_until_the_limiter_admits_them() -> None:
    limiter = {"type": "samples_per_insert", "samples_per_insert": 1.0, "min_size": 4}
    limiter |= {"error_buffer": 8.0, "samples_ahead": 0}
    store = Store()
    home = TableHome(create_buffer({"type": "naive", "limiter": limiter, "seed": 0}), store.load)
    home.announce([store.add(str(number), 4) for number in range(6)])
    home._insert_waiting()
    assert payloads_in(home.buffer) == {0: 4, 1: 4, 2: 4}
    assert home.known == {str(number) for number in range(6)}
    assert home.buffer.sample(4, 0) is not None
    home._insert_waiting()
    assert payloads_in(home.buffer) == {0: 4, 1: 4, 2: 4, 3: 4}


def test_payloads_that_cannot_be_read_are_reported_and_others_are_inserted() -> None:
    store = Store()

    def load(name: str, digest: str | None) -> SampleBatch:
        if name == "1":
            raise DataCorruptError("damaged", where="payload", data_id=name)
        return store.load(name, digest)

    home = TableHome(create_buffer({"type": "naive", "seed": 0}), load)
    home.announce([store.add(str(number), 2) for number in range(4)])
    del store["2"]
    home._insert_waiting()
    (report,) = home.report()["reports"]
    assert report["inserted"] == ["0", "3"]
    assert report["lost"] == [("1", "corrupt"), ("2", "missing")]
    assert payloads_in(home.buffer) == {0: 2, 3: 2}


def test_new_home_goes_on_from_the_counts_of_the_earlier_limiter() -> None:
    limiter = {"type": "samples_per_insert", "samples_per_insert": 1.0, "min_size": 4}
    limiter |= {"error_buffer": 8.0, "samples_ahead": 0}
    cfg, store = {"type": "naive", "limiter": limiter, "seed": 0}, Store()
    first = TableHome(create_buffer(cfg), store.load)
    announced = [store.add(str(number), 4) for number in range(4)]
    first.announce(announced)
    first._insert_waiting()
    while first.buffer.sample(4, 0) is not None:
        first._insert_waiting()
    counts = first.counts()
    assert counts["limiter"]["inserts"] == 16

    second = TableHome(create_buffer(cfg), store.load, counts=counts)
    second.announce({**each, "was_inserted": True} for each in announced)
    second._insert_waiting()
    assert payloads_in(second.buffer) == {0: 4, 1: 4, 2: 4, 3: 4}
    assert second.counts() == counts
    assert second.buffer.sample(4, 0) is None


def test_reports_are_repeated_until_they_are_confirmed() -> None:
    store = Store()
    home = TableHome(create_buffer({"type": "naive", "seed": 0}), store.load)
    for number in range(3):
        home.announce([store.add(str(number), 1)])
        home._insert_waiting()
        home.report()
    reports = home.report()["reports"]  # nothing changed
    assert [each["inserted"] for each in reports] == [["0"], ["1"], ["2"]]
    assert [each["number"] for each in home.report(2)["reports"]] == [3]


def announced_of(store: Store, trainings: dict[str, int]) -> list[dict[str, Any]]:
    """Store a payload of two rows by name; return the announcements for their trainings."""
    return [{**store.add(name, 2), "training": number} for name, number in trainings.items()]


def test_training_goes_on_without_payloads_that_cannot_be_read() -> None:
    store = Store()
    home = TrainingHome(store.load)
    home.announce(announced_of(store, {"0": 1, "1": 2, "2": 2}))
    del store["0"], store["1"]
    batch = home.sample(1, 0)
    assert isinstance(batch, SampleBatch)
    assert batch.columns["payload"].tolist() == [2, 2]
    (report,) = home.report()["reports"]
    assert report["lost"] == [("0", "missing"), ("1", "missing")]
    assert report["inserted"] == ["2"]
    assert home.known == {"2"}


def test_training_on_samples_that_are_lists_gets_a_list() -> None:
    packed = {"a": pack_samples([[{"n": 1}], [{"n": 2}]]), "b": pack_samples([[{"n": 3}]])}
    home = TrainingHome(lambda name, digest: packed[name])
    home.announce(
        {"data_id": name, "rows": len(each), "training": 1} for name, each in packed.items()
    )
    assert home.sample(1, 0) == [[{"n": 1}], [{"n": 2}], [{"n": 3}]]
    assert home.count() == 3


def observed_by(home: Home) -> list[list[int]]:
    """Return the list to which the home adds the payload of each row that it shows the policy."""
    seen: list[list[int]] = []
    home.observe = lambda rows: seen.append(rows.columns["payload"].tolist())
    return seen


@pytest.mark.parametrize("kind", ["naive", "episode"])
def test_policy_observes_each_payload_once_and_none_of_an_earlier_home(kind: str) -> None:
    store = Store()
    home = TableHome(create_buffer({"type": kind, "seed": 0}), store.load)
    seen = observed_by(home)
    home.announce([{**store.add("3", 2), "was_inserted": True}, store.add("1", 3)])
    for name, rows in (("3", 2), ("1", 3)):
        returns = np.ones(rows, np.float32)
        store[name] = SampleBatch({**store[name].columns, DISCOUNTED_RETURN: returns})
    assert seen == []  # it is not inserted yet
    for train_iter in range(3):
        home.sample(1, train_iter)
    home.announce([store.add("2", 1), {"data_id": "1", "rows": 3}])
    home.sample(1, 3)
    assert seen == [[1, 1, 1], [2]]
    batch = home.sample(3, 4)
    for part in batch if kind == "episode" else [batch]:  # type: ignore[union-attr, list-item]
        assert DISCOUNTED_RETURN not in part.columns  # it was only for the policy


def test_policy_observes_the_payloads_of_a_training_after_it() -> None:
    store = Store()
    home = TrainingHome(store.load, trainings=2)
    seen = observed_by(home)
    found = announced_of(store, {"7": 1, "3": 1, "5": 2})
    home.announce([{**each, "was_inserted": each["data_id"] == "3"} for each in found])
    home.sample(1, 0)
    home.sample(1, 1)
    assert seen == []  # the second update on the same rows is not made yet
    home.sample(1, 2)
    assert seen == [[7, 7]]
    home.end_batch(is_last=True)
    assert seen == [[7, 7], [5, 5]]
    home.end_batch(is_last=True)
    assert len(seen) == 2


def test_batches_are_limited_by_the_number_of_episodes() -> None:
    store = Store()
    pace = EpisodePace(n_episode=2, updates=3, ahead=6, batch_size=4)
    home = TableHome(create_buffer({"type": "naive", "seed": 0}), store.load, pace)

    def batches() -> int:
        return sum(home.sample(4, 0) is not None for _ in range(20))

    home.announce([{**store.add("0", 2), "episodes": 5}])
    assert batches() == 0  # episodes before there is a batch do not count
    home.announce([{**store.add("1", 2), "episodes": 3}])
    assert batches() == 3
    home.announce([{**store.add(str(number), 1), "episodes": 1} for number in range(2, 9)])
    assert batches() == 12  # of 10 episodes, 3 batches for 2 of them
    assert home.counts()["pace"] == [10, 15]


# After a restart, and with payloads that are not as announced ------------------------------------

LIMITER = {"type": "samples_per_insert", "samples_per_insert": 1.0, "min_size": 4}
LIMITER |= {"error_buffer": 100.0}


def rows_of(rows: int, first: int = 0) -> SampleBatch:
    return SampleBatch({"obs": np.arange(first, first + rows), "done": np.zeros(rows, np.bool_)})


def announced(name: str, rows: int, **facts: Any) -> dict[str, Any]:
    return {"data_id": name, "rows": rows, **facts}


def test_rows_are_used_as_often_as_allowed_over_all_homes_of_a_learner() -> None:
    """The uses are saved at any time, and the coordinator has not had all reports by then."""
    rng = np.random.default_rng(0)
    cfg = {"type": "advanced", "replay_buffer_size": 30, "max_use": 2, "seed": 0}
    store, used, saved = Store(), Counter[tuple[int, int]](), {}
    live = [store.add(str(name), int(rng.integers(1, 9))) for name in range(20)]
    for _ in range(12):
        home: Any = TableHome(create_buffer(cfg), store.load)
        home.restore_uses(saved)
        # Some were not reported as inserted; that changes only the counts of the limiter.
        was_inserted = rng.random(len(live)) < 0.5
        pairs = zip(live, was_inserted.tolist(), strict=True)
        home.announce({**each, "was_inserted": is_in} for each, is_in in pairs)
        for _ in range(int(rng.integers(0, 6))):
            batch = home.sample(3, 0)
            if batch is not None:
                columns = batch.columns
                pairs = zip(columns["payload"].tolist(), columns["obs"][:, 0].tolist(), strict=True)
                used.update({(name, int(row)) for name, row in pairs})
        if rng.random() < 0.7:
            reports = home.report()["reports"]
        if rng.random() < 0.5:  # the coordinator hears of it
            gone = {name for report in reports for name, _, _ in report["left"]}
            live = [each for each in live if each["data_id"] not in gone - home.known]
            home.report(home._reported)
        saved = home.uses()
    assert max(used.values()) == 2
    assert sum(used.values()) > 50


def test_uses_of_rows_without_a_limit_are_not_saved() -> None:
    store = Store()
    home = TableHome(create_buffer({"type": "advanced", "replay_buffer_size": 5}), store.load)
    home.announce([store.add("1", 4), store.add("2", 4)])
    home.sample(2, 0)
    home.report()
    assert home.uses() == {}


def test_episode_that_leaves_is_reported_with_all_its_rows() -> None:
    buffer: Any = create_buffer({"type": "episode", "replay_buffer_size": 1})
    home = TableHome(buffer, lambda name, digest: rows_of(7 if name == "a" else 3))
    home.announce([announced("a", 7), announced("b", 3)])
    home.sample(1, 0)
    (report,) = home.report()["reports"]
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


def test_limiter_that_admits_neither_rows_nor_a_batch_is_an_error() -> None:
    limiter = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 4}
    buffer = create_buffer({"type": "naive", "replay_buffer_size": 40, "limiter": limiter})
    home = TableHome(buffer, lambda name, digest: SampleBatch({"obs": np.arange(8.0)}))
    home.announce([{"data_id": name, "rows": 8} for name in ("1", "2")])
    with pytest.raises(ConfigError, match="admits neither the next 8 rows nor a batch, with 8"):
        home.sample(16, 0)
