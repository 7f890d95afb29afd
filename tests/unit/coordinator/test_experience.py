"""The coordinator's metadata of payloads: leases, freed rows, lost payloads, restarts."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferFullError,
    ProtocolError,
    SamplesLostError,
    SchemaMismatchError,
)
from dingsdk.worker.coordinator.experience import (
    REDRAWS,
    EpisodePace,
    Experience,
    _located,
    metadata_config,
    open_experience,
)
from dingsdk.worker.coordinator.journal import Pushed
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.factory import create_buffer
from dingsdk.worker.replay_buffer import NaiveReplayBuffer

ROWS = 4


def evict(experience: Experience, number: int, *rows: int) -> None:
    experience.ledger.evict(np.full(len(rows), number), np.array(rows), "overwritten")


@pytest.fixture
def experience() -> Experience:
    cfg = {"type": "naive", "replay_buffer_size": 400, "seed": 7}
    return Experience(create_buffer(metadata_config(cfg), exp_name="run"))


def push(experience: Experience, *names: str) -> None:
    for name in names:
        assert experience.push({"data_id": name, "rows": ROWS, "policy_iter": 0}, 0)


def leased(experience: Experience, batch_size: int) -> set[str] | None:
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    found: dict[str, Any] | None = experience.lease(state, batch_size, 1, 0)
    experience.settle(state)
    return None if found is None else set(found["payloads"])


def push_episodes(experience: Experience, name: str, episodes: int) -> None:
    fact = Pushed("buffer", name, ROWS, 0, 0, episodes=episodes)  # what a restarted run pushes
    assert experience.push(msgspec.structs.asdict(fact), 0)


def test_batches_follow_from_the_episodes_that_came_after_the_first_batch(
    experience: Experience,
) -> None:
    # 2 batches of 8 rows for 3 episodes; collectors may be 4 batches ahead, for 6 episodes.
    experience.pace = EpisodePace(n_episode=3, updates=2, ahead=4, batch_size=8)
    push_episodes(experience, "a", 5)
    assert not experience.can_sample(8)
    assert experience.can_push(ROWS)
    push_episodes(experience, "b", 2)  # 8 rows: from here on episodes count
    assert not experience.can_sample(8)
    push_episodes(experience, "c", 1)
    assert [leased(experience, 8) is not None for _ in range(3)] == [True, True, False]

    push_episodes(experience, "d", 0)
    experience.push({"data_id": "e", "rows": ROWS, "policy_iter": 0}, 0)  # says nothing: 1 episode
    push_episodes(experience, "f", 5)
    assert experience.can_push(ROWS)  # 2 / 3 * 9 - 2 = 4 batches ahead
    push_episodes(experience, "g", 1)
    assert not experience.can_push(ROWS)

    again = Experience(experience.buffer)
    again.pace = EpisodePace(n_episode=3, updates=2, ahead=4, batch_size=8)
    again.load_state_dict(experience.state_dict())
    assert not again.can_push(ROWS)
    assert leased(again, 8) is not None
    assert again.can_push(ROWS)
    assert [leased(again, 8) is not None for _ in range(4)] == [True, True, True, False]


def test_missing_payloads_are_not_leased_again(experience: Experience) -> None:
    names = [f"p{n}" for n in range(50)]
    push(experience, *names)
    experience.give_up_missing([*names[:45], "deleted meanwhile"])
    assert set(experience.readable()) == set(names[45:])
    for _ in range(20):
        batch = leased(experience, 16)
        assert batch is not None, f"a tenth is readable, but {REDRAWS} draws found no full batch"
        assert batch <= set(names[45:])
        state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
        found = experience.lease(state, 15, 1, 0)
        assert found is not None
        assert len(found["batches"][0]["payload"]) == 15, "rows beyond the batch size are left out"
        experience.settle(state)
    experience.check()


def test_learner_gets_no_lease_if_almost_no_payload_is_readable(experience: Experience) -> None:
    names = [f"p{n}" for n in range(100)]
    push(experience, *names)
    experience.give_up_missing(names[1:])
    assert leased(experience, 16) is None, f"{REDRAWS} draws find about 5 of 16 rows"


class Clocked(NaiveReplayBuffer):
    """Says that it has room for rows, then refuses them."""

    def push(self, data: Any, cur_collector_envstep: int) -> None:
        raise BufferFullError("too soon", rows=len(data), waited_s=0.0)


def test_admitted_payload_is_stored_even_if_the_buffer_refuses_it_later() -> None:
    experience = Experience(Clocked({"replay_buffer_size": 40}))
    push(experience, "a", "b")
    assert experience.buffer.count() == 2 * ROWS
    assert leased(experience, 2 * ROWS) == {"a", "b"}
    experience.check()


def test_payload_that_is_announced_again_adds_no_rows(experience: Experience) -> None:
    push(experience, "a")
    assert not experience.push({"data_id": "a", "rows": ROWS, "policy_iter": 0}, 0)
    assert experience.count_rows() == ROWS
    assert (experience.collects, experience.is_in_collect) == (0, False), "not on-policy"


def test_buffer_of_nothing_but_lost_payloads_makes_room_at_once(experience: Experience) -> None:
    push(experience, "a", "b")
    experience.give_up_missing(["a"])
    assert experience.buffer.count() == 2 * ROWS
    experience.give_up_missing(["b"])
    assert experience.buffer.count() == 0
    assert experience.ledger.evicted_rows == {"missing": 2 * ROWS}
    experience.check()
    push(experience, "c")
    assert leased(experience, 2) == {"c"}


def test_payload_is_forgotten_with_its_last_row(experience: Experience) -> None:
    push(experience, "a", "b")
    experience.give_up_missing(["a"])
    push(experience, *(f"p{n}" for n in range(400 // ROWS)))
    assert experience.ledger.evicted_rows == {"missing": ROWS, "overwritten": ROWS}
    assert experience._lost == {}
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    experience.settle(state, {"lost_payloads": [[0, "missing"]]})  # a learner's late report
    assert experience._lost == {}
    assert len(experience.readable()) == 400 // ROWS
    assert experience.readable(known=range(3, 102)) == ["p0"]


def test_learner_is_told_of_deleted_payloads_with_its_next_batch(experience: Experience) -> None:
    push(experience, "a")
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    assert experience.lease(state, 2, 1, 0)["payloads"] == {"a": 0}
    experience.settle(state)
    push(experience, *(f"p{n}" for n in range(400 // ROWS)))
    assert experience.take_garbage([state]) == ["a"]
    assert experience.take_garbage([state]) == []
    found = [experience.lease(state, 2, 1, 0)["dropped"] for _ in range(2)]
    assert found == [[0], []]
    experience.settle(state)


def test_learner_is_told_the_digests_of_new_payloads(experience: Experience) -> None:
    meta = {"rows": ROWS, "policy_iter": 0}
    experience.push({"data_id": "a", "digest": "d1", **meta}, 0)
    experience.push({"data_id": "b", **meta}, 0)
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    lease = experience.lease(state, 2 * ROWS, 4, 0)
    assert lease is not None
    assert lease["payloads"] == {"a": 0, "b": 1}
    assert lease["digests"] == {"a": "d1"}
    again = experience.lease(state, 2 * ROWS, 1, 0)
    assert again is not None
    assert (again["payloads"], again["digests"]) == ({}, {})


def test_payload_that_the_buffer_refused_can_be_pushed_again() -> None:
    experience = Experience(Curious({"replay_buffer_size": 40}))
    meta: dict[str, Any] = {"rows": ROWS, "policy_iter": 0}
    good, bad = {"reward": np.ones(ROWS)}, {"reward": np.ones((ROWS, 2))}
    assert experience.push({**meta, "data_id": "a", "columns": good}, 0)
    with pytest.raises(SchemaMismatchError):
        experience.push({**meta, "data_id": "b", "columns": bad}, 0)
    experience.check()
    assert not experience.ledger.knows("b")
    assert experience.push({**meta, "data_id": "b", "columns": good}, 0)
    assert experience.ledger.numbers == {"a": 0, "b": 1}
    assert experience.counts().acknowledged == 2 * ROWS
    experience.check()


class Curious(NaiveReplayBuffer):
    needs_columns: ClassVar[tuple[str, ...]] = ("reward",)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"reward": 1.0},
        {"reward": np.ones(ROWS - 1)},
        {"reward": np.ones(ROWS), "priority": 1.0},
    ],
    ids=["none", "a-number", "too-few", "priority"],
)
def test_payload_without_the_needed_columns_is_refused(columns: dict[str, Any]) -> None:
    experience = Experience(Curious({"replay_buffer_size": 40}))
    assert experience.columns == ("reward",)
    meta = {"data_id": "a", "rows": ROWS, "policy_iter": 0, "columns": columns}
    with pytest.raises(ProtocolError):
        experience.push(meta, 0)
    assert experience.push({**meta, "columns": {"reward": np.ones(ROWS)}}, 0)
    experience.check()


def test_rows_of_a_payload_are_as_old_as_their_own_policy() -> None:
    cfg = {"type": "advanced", "replay_buffer_size": 40, "max_staleness": 10, "seed": 0}
    experience = Experience(create_buffer(metadata_config(cfg), exp_name="run"))
    versions = np.array([5, 20, 26, 30])
    meta = {"data_id": "a", "rows": ROWS, "policy_iter": 5, "columns": {"collect_iter": versions}}
    assert experience.push(meta, 0)

    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    found = experience.lease(state, 8, 1, 31)  # 5 and 20 are too stale
    assert found is None
    found = experience.lease(state, 2, 1, 31)

    assert found is not None
    (batch,) = found["batches"]
    assert set(batch["collect_iter"].tolist()) <= {26, 30}
    assert (batch["staleness"] == 31 - batch["collect_iter"]).all()
    assert experience.ledger.evicted_rows == {"stale": 2}


@pytest.mark.parametrize("versions", [np.ones(ROWS), np.ones((ROWS, 0), np.int64)], ids=str)
def test_payload_with_wrong_versions_is_refused(experience: Experience, versions: Any) -> None:
    meta = {"data_id": "a", "rows": ROWS, "policy_iter": 0, "columns": {"collect_iter": versions}}
    with pytest.raises(ProtocolError, match="collect_iter"):
        experience.push(meta, 0)
    push(experience, "a")
    experience.check()


def test_learners_are_told_which_rows_of_partly_used_payloads_to_keep() -> None:
    cfg = {"type": "advanced", "replay_buffer_size": 400, "max_use": 1, "seed": 7}
    experience = Experience(create_buffer(metadata_config(cfg), exp_name="run"))
    push(experience, *(f"p{n}" for n in range(100)))
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    first = experience.lease(state, 200, 1, 0)
    assert first is not None
    assert first["kept"] == []
    experience.settle(state)
    garbage = experience.take_garbage([state])
    told = experience.lease(state, 8, 1, 0)
    assert told is not None
    kept = {number: rows.tolist() for number, rows in told["kept"]}
    gone = set(zip(*(first["batches"][0][key].tolist() for key in ("payload", "row")), strict=True))
    for number, rows in kept.items():
        assert rows == [row for row in range(ROWS) if (number, row) not in gone]
    named = {number for number, _ in gone}
    assert len(garbage) + len(kept) == len(named)


def learned(step: int, *lost: int) -> dict[str, Any]:
    return {"learner_step": step, "lost_payloads": [[each, "missing"] for each in lost]}


def test_rows_of_trained_batches_are_counted(experience: Experience) -> None:
    push(experience, "a", "b", "c", "d")
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    experience.lease(state, 6, 3, 10)
    experience.settle(state, learned(13))
    assert experience.trained_rows == 18
    experience.lease(state, 6, 3, 13)
    experience.settle(state, learned(14))  # the learner ended after the first batch
    assert experience.trained_rows == 24
    experience.lease(state, 6, 3, 14)
    experience.settle(state, learned(14))
    experience.settle(state, learned(99))
    experience.lease(state, 6, 3, 14)
    experience.settle(state)  # the learner was lost
    assert experience.trained_rows == 24
    experience.lease(state, 16, 1, 14)
    experience.settle(state, learned(15, 0, 1, 2, 3))  # the batch was not readable
    assert experience.trained_rows == 24
    experience.check()


def test_batches_that_are_not_trained_yet_stay_leased(experience: Experience) -> None:
    push(experience, "a", "b", "c", "d")
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    experience.lease(state, 6, 3, 10)
    experience.settle(state, {**learned(12), "batches_left": 1})
    assert experience.trained_rows == 12
    experience.check({"task"})
    experience.lease(state, 5, 3, 12)
    experience.settle(state, {**learned(14), "batches_left": 2})  # one of six rows, one of five
    assert experience.trained_rows == 12 + 6 + 5
    experience.check({"task"})
    assert experience.settle(state, learned(15))  # the learner ended after one more
    assert experience.trained_rows == 28
    assert not experience.settle(state)
    experience.check()


def test_learner_that_started_no_batch_keeps_its_lease(experience: Experience) -> None:
    push(experience, "a", "b")
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    experience.lease(state, 6, 2, 10)
    assert not experience.settle(state, {**learned(10), "batches_left": 2})
    assert experience.trained_rows == 0
    assert experience.settle(state, learned(12))
    assert experience.trained_rows == 12


def test_learner_is_told_only_once_which_rows_to_keep(experience: Experience) -> None:
    push(experience, "a", "b")
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    state.kept = {1: np.array([0, 2])}
    found = [experience.lease(state, 2, 1, 0) for _ in range(2)]
    told = [{} if each is None else dict(each["kept"]) for each in found]
    assert [{key: rows.tolist() for key, rows in each.items()} for each in told] == [
        {1: [0, 2]},
        {},
    ]


def test_rejoining_learner_is_told_which_of_its_payloads_and_rows_to_free(
    experience: Experience,
) -> None:
    push(experience, "a", "b")
    evict(experience, 0, 0, 1, 2)
    experience.ledger.free_rows()
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    experience.rejoin(state, [0, 9, 8])
    assert (state.announced, state.dropped) == ({0}, [8, 9])
    assert {number: rows.tolist() for number, rows in state.kept.items()} == {0: [3]}
    evict(experience, 0, 3)
    assert experience.take_garbage([state]) == ["a"]
    assert (state.announced, state.dropped, state.kept) == (set(), [8, 9, 0], {})


class Listening(NaiveReplayBuffer):
    """Records the argument of ``update``."""

    told: Any = None

    def update(self, info: Any) -> None:
        self.told = info


def test_priorities_of_a_learner_are_passed_to_the_buffer() -> None:
    experience = Experience(buffer := Listening({"replay_buffer_size": 40}))
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    experience.settle(state, {**learned(1), "priority_info": {}})
    assert buffer.told is None
    experience.settle(state, {**learned(2), "priority_info": {"priority": [0.5]}})
    assert buffer.told == {"priority": [0.5]}


def test_check_names_a_payload_whose_leases_do_not_match_the_ledger(experience: Experience) -> None:
    push(experience, "a")
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    experience.lease(state, 2, 1, 0)
    experience.check()
    experience.ledger.unpin([0])
    with pytest.raises(SamplesLostError, match="'a' has 4 live rows"):
        experience.check()


def test_saved_state_contains_leases_and_lost_payloads() -> None:
    cfg = metadata_config({"type": "naive", "replay_buffer_size": 400, "seed": 7})
    old, new = (Experience(create_buffer(cfg, exp_name="run")) for _ in range(2))
    push(old, "a", "b")
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)
    old.lease(state, 6, 1, 0)
    old.settle(state, learned(1, 0))
    old.lease(state, 3, 2, 1)
    new.load_state_dict(old.state_dict())
    assert new.readable() == ["b"]
    with pytest.raises(SamplesLostError, match="have leases"):
        new.check(["other"])
    new.check(["task"])
    assert new.settle(state, learned(3))
    assert new.trained_rows == 6
    new.check([])


def test_padded_step_refers_to_a_row_of_its_own_sequence() -> None:
    mask = np.array([[True, False], [False, True]])
    columns = {"payload": np.array([[3, 4], [9, 5]]), "row": np.array([[0, 1], [8, 2]])}
    reward = np.ones((2, 2))

    found = _located(SampleBatch({**columns, "mask": mask, "reward": reward}), {"reward"}).columns

    assert found["payload"].tolist() == [[3, 3], [5, 5]]
    assert found["row"].tolist() == [[0, 0], [2, 2]]
    assert sorted(found) == ["mask", "payload", "row"]


def test_admitted_episode_is_stored_even_if_the_buffer_refuses_it_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cfg = {"type": "episode", "replay_buffer_size": 3, "seed": 7}
    experience = open_experience(create_buffer(metadata_config(cfg), exp_name="run"))

    def refuse(batch: SampleBatch, envstep: int) -> None:
        raise BufferFullError("too late", rows=1, waited_s=0.0)

    monkeypatch.setattr(experience, "_push", refuse)
    for name, count in (("a", 3), ("b", 2)):
        assert experience.push({"data_id": name, "rows": count, "policy_iter": 0}, 0)
    assert experience.buffer.episode_len == [3, 2]
    assert experience.counts().live == 5
    experience.check()


def test_leases_of_episodes_contain_the_length_of_each() -> None:
    cfg = {"type": "episode", "replay_buffer_size": 3, "seed": 7}
    experience = open_experience(create_buffer(metadata_config(cfg), exp_name="run"))
    rows = [2, 3, 4, 5]  # by payload number
    for name, count in zip("abcd", rows, strict=True):
        assert experience.push({"data_id": name, "rows": count, "policy_iter": 0}, 0)
    assert experience.ledger.evicted_rows == {"overwritten": 2}
    assert (experience.count_rows(), experience.counts().live) == (12, 12)
    assert experience.can_push(10**6), "an episode takes one place, however long it is"
    experience.check()
    experience.give_up_missing(["b"])
    state = TaskState("task", "learner", {"buffer_id": "b"}, 0.0)

    for _ in range(10):
        lease = experience.lease(state, 2, 1, 0)
        assert lease is not None
        (batch,) = lease["batches"]
        starts = np.cumsum([0, *batch["lengths"]])[:-1]
        assert [rows[batch["payload"][at]] for at in starts] == list(batch["lengths"])
        assert (len(starts), sum(batch["lengths"])) == (2, len(batch["payload"]))
        experience.settle(state)
