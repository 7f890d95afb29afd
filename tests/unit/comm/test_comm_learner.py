"""How a comm learner provides batches, reports results and publishes policies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from dingsdk.worker.comm.row_store import RowStore

from dingsdk.data import RowLoaders, SampleBatch
from dingsdk.data.list_samples import pack_samples
from dingsdk.errors import (
    ClosedError,
    DataMissingError,
    SchemaMismatchError,
    StorageFullError,
    WorkerCrashedError,
    WorkerLostError,
)
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import BaseCommLearner, Master
from dingsdk.worker.comm.learner import _with_lists
from dingsdk.worker.learner.base import to_batch

PAYLOADS = {0: "first", 1: "second"}
LEARNER = SimpleNamespace(learn_info={}, train_iter=5)


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[BaseCommLearner]:
    """A joined learner with two announced payloads, of which only the first is stored."""
    transport = default_manager().create("transports", {"type": "in_memory"}, tmp_path)
    master = Master(
        transport.master_end(),
        transport.scheduler,
        on_join=lambda info: None,
        on_renew=lambda worker_id: None,
        on_lost=lambda info, reason: None,
    )
    made = BaseCommLearner({}, transport, "l0")
    made.start(master.start())
    store = transport.data_store()
    store.put("first", SampleBatch({"obs": np.array([10.0, 11.0])}))
    made._rows = RowStore(8, {}, lambda data_id, digest: store.get(data_id))
    made._rows.announce({name: number for number, name in PAYLOADS.items()})
    made._learner = LEARNER
    yield made
    made.close()
    master.close()
    transport.close()


def lease(learner: BaseCommLearner, payload: int) -> None:
    """Lease both rows of a payload, in reverse, with an importance weight."""
    columns = {
        "payload": np.full(2, payload),
        "row": np.array([1, 0]),
        "IS": np.array([0.5, 1.0]),
    }
    learner._leased.append((columns, {}))


def test_data_is_a_list_of_callables_that_share_one_gather(learner: BaseCommLearner) -> None:
    lease(learner, 0)
    rows = learner.get_data(2)

    assert isinstance(rows, list)
    assert [row() for row in rows] == [{"obs": 11.0, "IS": 0.5}, {"obs": 10.0, "IS": 1.0}]
    assert rows[0]() is not rows[0]()  # a new dict each time
    assert rows.batch() is rows.batch()


def test_batch_in_columns_has_the_same_rows(learner: BaseCommLearner) -> None:
    lease(learner, 0)
    batch = learner.get_batch(2)
    assert batch is not None
    assert batch.columns["obs"].tolist() == [11.0, 10.0]
    assert batch.columns["IS"].tolist() == [0.5, 1.0]


def test_data_loader_takes_the_columns_from_the_list(learner: BaseCommLearner) -> None:
    lease(learner, 0)
    batch = to_batch(learner.get_data(2))
    assert isinstance(batch, SampleBatch)
    assert batch.columns["obs"].tolist() == [11.0, 10.0]


def test_next_batch_is_used_if_a_payload_is_lost(
    learner: BaseCommLearner, caplog: pytest.LogCaptureFixture
) -> None:
    lease(learner, 1)
    lease(learner, 0)
    rows = learner.get_data(2)
    assert rows is not None
    assert [row()["obs"] for row in rows] == [11.0, 10.0]
    assert learner._lost_payloads == {1: "missing"}
    assert caplog.messages == ["payloads cannot be read: {1: 'missing'}"]


@pytest.mark.parametrize("name", ["get_data", "get_batch"])
def test_each_batch_decrements_the_number_of_batches_to_take(
    learner: BaseCommLearner, name: str
) -> None:
    learner._iterations_left = 5
    for left in (4, 3):
        lease(learner, 0)
        assert getattr(learner, name)(2) is not None
        assert learner._iterations_left == left


def test_learner_is_idle_until_a_batch_arrives(learner: BaseCommLearner) -> None:
    found: list[Any] = []
    job = threading.Thread(target=lambda: found.append(learner._next_lease(2)))
    job.start()
    with learner.condition:
        assert learner.condition.wait_for(lambda: learner._is_idle, 20.0)
        lease(learner, 0)
        learner.condition.notify_all()
    job.join(20.0)
    assert found[0]["payload"].tolist() == [0, 0]
    assert not learner._is_idle


def test_new_task_starts_as_not_idle(learner: BaseCommLearner) -> None:
    learner._is_idle = True
    learner._begin()
    assert not learner._is_idle


@pytest.mark.parametrize(
    ("batches", "to_take", "is_on_policy", "is_to_finish", "few"),
    [
        (8, 5, False, False, 4),
        (8, 4, False, False, 0),  # it has all batches that it needs
        (8, 100, True, False, 0),
        (8, 100, False, True, 0),
        (9, 100, False, False, 4),
        (1, 100, False, False, 0),
    ],
)
def test_learner_asks_for_more_batches_when_half_are_left_and_more_are_needed(
    learner: BaseCommLearner,
    batches: int,
    to_take: int,
    is_on_policy: bool,
    is_to_finish: bool,
    few: int,
) -> None:
    learner._cfg = msgspec.structs.replace(learner._cfg, batches_per_demand=batches)
    learner._iterations_left = to_take
    learner._is_on_policy, learner._is_to_finish = is_on_policy, is_to_finish
    assert learner._ask_again_at == few


def test_unreadable_rows_of_a_stopping_learner_raise_closed_error(learner: BaseCommLearner) -> None:
    lease(learner, 1)
    rows = learner.get_data(2)
    assert rows is not None
    learner.is_stopping = True
    lease(learner, 0)
    with pytest.raises(ClosedError):
        rows[0]()


def test_ids_are_added_to_samples_that_are_dicts_but_not_to_lists() -> None:
    holding = pack_samples([{"x": [{"n": 1}, {"n": 2}]}, {"x": [{"n": 3}, {"n": 4}]}])
    alone = pack_samples([[{"n": 1}], [{"n": 2}]])
    iters = {"collect_iter": np.array([4, 4])}
    ids = {"replay_unique_id": np.array([7, 8]), **iters}
    assert _with_lists(holding, ids, is_of_rows=True) == [
        {"x": [{"n": 1}, {"n": 2}], "replay_unique_id": 7},
        {"x": [{"n": 3}, {"n": 4}], "replay_unique_id": 8},
    ]
    assert _with_lists(alone, iters, is_of_rows=True) == [[{"n": 1}], [{"n": 2}]]
    with pytest.raises(SchemaMismatchError, match="keeps only dicts"):
        _with_lists(alone, ids, is_of_rows=True)
    with pytest.raises(SchemaMismatchError, match="keeps rows"):
        _with_lists(holding, iters, is_of_rows=False)


def test_row_function_takes_a_decompressor() -> None:
    batch = SampleBatch({"obs": np.array([3.0, 4.0])})

    def double(row: dict[str, Any]) -> dict[str, Any]:
        return {"obs": 2 * row["obs"]}

    load = BaseCommLearner.load_data_fn
    assert load(lambda: batch, {"index": 1}) == {"obs": 4.0}
    assert load(path=lambda: batch, meta={"index": 1}, decompressor=double) == {"obs": 8.0}


def test_learner_uses_get_batch_unless_a_subclass_overrides_get_data(
    learner: BaseCommLearner,
) -> None:
    class OwnRows(BaseCommLearner):
        def get_data(self, batch_size: int) -> RowLoaders | None:
            raise DataMissingError("mine", data_id="p")

    assert learner.data_source == learner.get_batch
    own = OwnRows.__new__(OwnRows)
    assert own.data_source == own.get_data


def test_padded_steps_of_sequences_are_zero(learner: BaseCommLearner) -> None:
    payload, row = np.zeros((2, 2), np.int64), np.array([[0, 1], [1, 0]])
    mask = np.array([[True, True], [True, False]])
    batch = learner._gather({"payload": payload, "row": row, "mask": mask})
    assert isinstance(batch, SampleBatch)
    assert batch.columns["obs"].tolist() == [[10.0, 11.0], [11.0, 0.0]]
    assert batch.columns["mask"].tolist() == mask.tolist()


def test_episodes_are_split_by_their_lengths(learner: BaseCommLearner) -> None:
    leased = {"payload": np.zeros(3, np.int64), "row": np.array([1, 0, 1])}
    episodes = learner._gather({**leased, "lengths": np.array([2, 1])})
    assert isinstance(episodes, list)
    assert [each.columns["obs"].tolist() for each in episodes] == [[11.0, 10.0], [11.0]]


@pytest.mark.parametrize(
    "leased",
    [
        {"payload": np.full(2, 5), "row": np.arange(2), "lengths": np.array([2])},
        {"payload": np.full((1, 2), 5), "row": np.arange(2)[None]},
    ],
)
def test_samples_with_lists_are_refused_in_episodes_and_sequences(
    learner: BaseCommLearner, leased: dict[str, Any]
) -> None:
    learner.data_store.put("lists", pack_samples([{"x": [{"n": 1}]}, {"x": [{"n": 2}]}]))
    assert learner._rows is not None
    learner._rows.close()
    store = learner.data_store
    learner._rows = RowStore(8, {"type": "object"}, lambda data_id, digest: store.get(data_id))
    learner._rows.announce({"lists": 5})
    with pytest.raises(SchemaMismatchError, match="keeps rows"):
        learner._gather(leased)


def test_report_that_was_not_fetched_is_merged_into_the_next_one(learner: BaseCommLearner) -> None:
    learner._learner = SimpleNamespace(learn_info={"learner_step": 2, "learner_done": False})
    reports = []
    for ids, lost in (([3, 4], {1: "missing"}), ([], {}), ([5], {2: "corrupt"})):
        if ids:
            found = {"replay_unique_id": ids, "priority": [float(each) for each in ids]}
            learner.send_learn_info({"priority_info": found, "learner_done": False})
        learner._lost_payloads = dict(lost)
        learner._report()
        assert learner._info is not None
        priorities = learner._info["priority_info"]
        reports.append(({k: v.tolist() for k, v in priorities.items()}, learner._info))
    first, second, third = reports
    assert first[0] == second[0] == {"replay_unique_id": [3, 4], "priority": [3.0, 4.0]}
    assert third[0] == {"replay_unique_id": [3, 4, 5], "priority": [3.0, 4.0, 5.0]}
    lost = [info["lost_payloads"] for _, info in reports]
    assert lost == [[[1, "missing"]], [[1, "missing"]], [[1, "missing"], [2, "corrupt"]]]


@pytest.mark.parametrize("is_on_policy", [True, False])
def test_hooks_that_send_policy_and_info_have_priority_100(
    learner: BaseCommLearner, is_on_policy: bool
) -> None:
    learner._is_on_policy = is_on_policy
    assert [(hook.name, hook.position, hook.priority) for hook in learner.hooks4call] == [
        ("send_policy", "before_run", 100),
        *([] if is_on_policy else [("send_policy", "after_iter", 100)]),
        ("send_policy", "after_run", 100),
        ("send_learn_info", "after_iter", 100),
        ("send_learn_info", "after_run", 100),
    ]


def test_priorities_are_sent_to_the_replay_server_if_there_is_one(learner: BaseCommLearner) -> None:
    told, closed = list[Any](), list[bool]()
    client: Any = SimpleNamespace(
        update=told.append, stats=lambda: {"count": 7}, close=lambda: closed.append(True)
    )
    learner.replay = client
    learner._learner = SimpleNamespace(learn_info={"learner_step": 2, "learner_done": False})
    found = {"replay_unique_id": [3], "priority": [1.0]}
    learner.send_learn_info({"priority_info": found, "learner_done": False})
    info = learner._learn_info()
    assert told == [found]
    assert (info["priority_info"], info["replay"]) == ({}, {"count": 7})
    assert learner.close() is True
    assert closed == [True]


def test_learn_info_has_the_priorities_of_all_batches_once(learner: BaseCommLearner) -> None:
    learner._learner = SimpleNamespace(learn_info={"learner_step": 2, "learner_done": False})
    for ids in ([3, 4], [5], [None]):
        found = {"replay_unique_id": ids, "priority": [float(each or 0) for each in ids]}
        learner.send_learn_info({"priority_info": found, "learner_done": False})
    learner._lost_payloads = {1: "missing"}

    info = learner._learn_info()
    assert {key: column.tolist() for key, column in info["priority_info"].items()} == {
        "replay_unique_id": [3, 4, 5],
        "priority": [3.0, 4.0, 5.0],
    }
    assert (info["learner_step"], info["lost_payloads"]) == (2, [[1, "missing"]])
    again = learner._learn_info()
    assert (again["priority_info"], again["lost_payloads"]) == ({}, [])


@pytest.mark.parametrize(("is_on_policy", "sent"), [(True, [(5, "tensors")]), (False, [])])
def test_on_policy_learner_publishes_before_it_waits_for_the_next_version(
    learner: BaseCommLearner, is_on_policy: bool, sent: list[tuple[int, str]]
) -> None:
    found: list[tuple[int, str]] = []
    policy = SimpleNamespace(state_dict=lambda: {"model": "tensors"})
    learner._learner = SimpleNamespace(**vars(LEARNER), policy=policy)
    learner._is_on_policy = is_on_policy
    learner.send_policy = lambda state: found.append(  # type: ignore[method-assign]
        (state["iter"], state["model"])
    )
    lease(learner, 0)
    assert learner._next_lease(2) is not None  # it has not used all batches of this version
    assert found == []
    learner.is_stopping = True
    assert learner._next_lease(2) is None
    learner._sent_iter = 5
    assert learner._next_lease(2) is None
    assert found == sent


def test_on_policy_learner_publishes_each_version_once(learner: BaseCommLearner) -> None:
    learner._task_info, learner._is_on_policy = {"policy_id": "p"}, True
    policy = SimpleNamespace(state_dict=lambda: {"model": {"w": np.ones(1)}})
    learner._learner = SimpleNamespace(
        learn_info={"learner_done": False}, train_iter=5, policy=policy
    )
    learner.is_stopping = True
    assert learner._next_lease(2) is None
    published = learner.policy_store.newest("p")
    assert published is not None
    assert published[0] == 5
    learner.policy_store.discard("p")
    assert learner._next_lease(2) is None
    assert learner.policy_store.newest("p") is None


@pytest.mark.parametrize(
    ("is_on_policy", "is_whole", "sent"),
    [
        (True, False, [5]),
        (True, True, []),
        (False, False, []),
    ],
)
def test_waiting_on_policy_learner_publishes_a_damaged_version_again_once(
    learner: BaseCommLearner, is_on_policy: bool, is_whole: bool, sent: list[int]
) -> None:
    found: list[int] = []
    policy = SimpleNamespace(state_dict=lambda: {"model": "tensors"})
    learner._learner = SimpleNamespace(**vars(LEARNER), policy=policy)
    learner._task_info, learner._is_on_policy, learner._sent_iter = (
        {"policy_id": "p"},
        is_on_policy,
        5,
    )
    learner.send_policy = lambda state: found.append(state["iter"])  # type: ignore[method-assign]
    asked: list[tuple[str, int]] = []

    def newest(policy_id: str, newer_than: int) -> Any:
        asked.append((policy_id, newer_than))
        return (5, {}) if is_whole else None

    learner.policy_store = SimpleNamespace(newest=newest)  # type: ignore[assignment]
    for _ in range(3):
        learner._catch_up()
    assert found == sent
    assert asked == ([("p", 4)] if is_on_policy else [])


def test_waiting_learner_publishes_its_policy_after_the_disk_was_full(
    learner: BaseCommLearner,
) -> None:
    stored: list[int] = []
    refusals = [StorageFullError("no room", path="p", reason="ENOSPC")] * 2

    def publish(policy_id: str, state: Any, version: int) -> None:
        if refusals:
            raise refusals.pop()
        stored.append(version)

    policy = SimpleNamespace(state_dict=lambda: {"model": {}})
    known = {**vars(LEARNER), "policy": policy, "learn_info": {"learner_done": False}}
    learner._learner = SimpleNamespace(**{**known, "train_iter": 5})
    learner._task_info = {"policy_id": "p"}
    learner.policy_store = SimpleNamespace(  # type: ignore[assignment]
        publish=publish, newest=lambda policy_id: (1, {})
    )
    learner.send_policy({"model": {}, "iter": 3})
    for _ in range(3):
        learner._catch_up()
    assert stored == [5]


def test_learner_saves_a_checkpoint_every_minute_if_it_has_trained(
    learner: BaseCommLearner, caplog: pytest.LogCaptureFixture
) -> None:
    now, saves, full, cost_s = [1000.0], [], [False], [0.0]

    def save() -> None:
        now[0] += cost_s[0]
        if full[0]:
            raise StorageFullError("no room", path="ckpt")
        saves.append((now[0], learner._learner.train_iter))

    learner._clock = lambda: now[0]
    learner._begin()
    learner._learner = SimpleNamespace(learn_info={}, train_iter=0, save_checkpoint=save)

    def next_lease(at: float, train_iter: int) -> None:
        now[0], learner._learner.train_iter = at, train_iter
        lease(learner, 0)
        assert learner._next_lease(2) is not None

    next_lease(1059.9, 7)
    next_lease(1060.0, 8)
    next_lease(1061.0, 9)
    assert saves == [(1060.0, 8)]
    next_lease(1120.0, 8)  # nothing new
    full[0] = True
    next_lease(1180.0, 20)
    assert caplog.messages == ["no checkpoint of iteration 20, training continues: no room"]
    full[0], cost_s[0] = False, 3.0
    next_lease(1240.0, 30)
    next_lease(1392.0, 40)  # three seconds are 2 % of 150
    assert saves == [(1060.0, 8), (1243.0, 30)]
    next_lease(1393.0, 41)
    assert saves[2:] == [(1396.0, 41)]


def test_learner_saves_no_checkpoints_by_time_if_told_so(learner: BaseCommLearner) -> None:
    learner._cfg = learner.Config(save_every_s=None)
    learner._clock = lambda: 1e9
    learner._begin()
    assert learner._save_at == float("inf")


def test_ranks_are_closed_once_when_their_task_stops(learner: BaseCommLearner) -> None:
    ends: list[str] = []
    learner._ranks = SimpleNamespace(close=lambda: ends.append("end"))  # type: ignore[assignment]
    for _ in range(2):
        assert learner.stop_job(1.0)
    assert ends == ["end"]


@pytest.mark.parametrize("traceback", ["", "of its code"])
def test_task_with_a_dead_rank_is_retried_unless_its_code_raised(
    learner: BaseCommLearner, traceback: str
) -> None:
    saved: list[str] = []

    def start() -> None:
        raise WorkerCrashedError("rank 1 is gone", worker_id="l0", traceback=traceback)

    learner._learner = SimpleNamespace(
        start=start, save_checkpoint=lambda: saved.append("saved"), train_iter=5
    )
    expected = WorkerCrashedError if traceback else WorkerLostError
    with pytest.raises(expected, match="rank 1 is gone"):
        learner._train()
    assert saved == ([] if traceback else ["saved"])


def test_learner_waits_half_a_second_for_announced_payloads(learner: BaseCommLearner) -> None:
    now, asked = [100.0], list[tuple[Any, ...]]()
    learner._clock = lambda: now[0]
    learner._learner = SimpleNamespace(collector_envstep=0)
    learner.data_store = SimpleNamespace(  # type: ignore[assignment]
        get=lambda *given: asked.append(given), get_verified=lambda *given: asked.append(given)
    )
    learner._take_news({"payloads": {"late": 2}})
    for digest, later_s in ((None, 0.0), ("d1", 0.25), (None, 1.0)):
        now[0] = 100.0 + later_s
        learner._load_payload("late", digest)
    assert asked == [("late", 0.5), ("late", "d1", 0.25), ("late", 0.0)]


def test_replay_server_without_a_batch_is_asked_again_for_twenty_seconds(
    learner: BaseCommLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked, pauses = [0.0], list[tuple[int, int, float]](), list[float]()
    monkeypatch.setattr(learner, "pause", pauses.append)
    learner._clock = lambda: now[0]

    def sample(size: int, *, train_iter: int, timeout_s: float) -> Any:
        asked.append((size, train_iter, timeout_s))
        now[0] += 7.0
        return "batch" if len(asked) == 5 else None

    client: Any = SimpleNamespace(sample=sample)
    assert learner._sample(client, 4) is None
    assert asked == [(4, 5, 0.0)] * 3  # the workers of this run take turns
    assert pauses == [0.05] * 3
    assert learner._sample(client, 4) == "batch"
    learner.is_stopping = True
    assert learner._sample(client, 4) is None
    assert len(asked) == 5
