"""How a comm learner provides batches, reports results and publishes policies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.list_samples import pack_samples
from dingsdk.errors import (
    ConfigError,
    StorageFullError,
    WorkerCrashedError,
    WorkerLostError,
)
from dingsdk.plugins import default_manager
from dingsdk.worker import create_buffer
from dingsdk.worker.comm import BaseCommLearner, Master
from dingsdk.worker.comm.hooks import SaveAtIntervalsHook
from dingsdk.worker.comm.publisher import PolicyPublisher
from dingsdk.worker.learner.hooks import SaveCkptHook
from dingsdk.worker.replay_buffer.home import TableHome, TrainingHome

LEARNER = SimpleNamespace(learn_info={}, train_iter=5)
BUFFER = {"type": "naive", "seed": 0}


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[BaseCommLearner]:
    """A joined learner without a job, whose home is an empty buffer."""
    transport = default_manager().create("transports", {"type": "in_memory"}, tmp_path)
    master = Master(transport.master_end(), transport.scheduler)
    made = BaseCommLearner({}, transport, "l0")
    made.start(master.start())
    made._home = TableHome(create_buffer(BUFFER), made._load_payload)
    made._learner = LEARNER
    made._publisher = PolicyPublisher(made, "p", 10)
    yield made
    made.close()
    master.close()
    transport.close()


def announce(learner: BaseCommLearner, name: str, samples: SampleBatch | None = None) -> None:
    """Store a payload of two rows, or another one, and announce it."""
    samples = samples or SampleBatch({"obs": np.array([10.0, 11.0])})
    learner.data_store.put(name, samples)
    learner._the_home().announce([{"data_id": name, "rows": len(samples)}])


def test_callables_of_get_data_return_the_rows_of_a_batch(learner: BaseCommLearner) -> None:
    announce(learner, "p")
    rows = learner.get_data(2)
    assert isinstance(rows, list)
    assert sorted(row()["obs"] for row in rows) == [10.0, 11.0]
    assert rows[0]() is not rows[0]()  # a new dict each time
    assert learner._trained_rows == 2


def test_callables_for_samples_that_are_lists_are_refused(learner: BaseCommLearner) -> None:
    announce(learner, "p", pack_samples([[{"n": 1}], [{"n": 2}]]))
    with pytest.raises(ConfigError, match="trains on single rows") as caught:
        learner.get_data(2)
    assert caught.value.path == "policy.other.replay_buffer.type"
    assert learner.get_batch(1) in ([[{"n": 1}]], [[{"n": 2}]])


def test_row_function_takes_a_decompressor() -> None:
    batch = SampleBatch({"obs": np.array([3.0, 4.0])})

    def double(row: dict[str, Any]) -> dict[str, Any]:
        return {"obs": 2 * row["obs"]}

    load = BaseCommLearner.load_data_fn
    assert load(lambda: batch, {"index": 1}) == {"obs": 4.0}
    assert load(path=lambda: batch, meta={"index": 1}, decompressor=double) == {"obs": 8.0}


def test_on_policy_learner_publishes_once_before_it_waits_for_the_next_training(
    learner: BaseCommLearner,
) -> None:
    learner._publisher = PolicyPublisher(learner, "p", None)
    policy = SimpleNamespace(state_dict=lambda: {"model": {"w": np.ones(1)}})
    known = {"learn_info": {"learner_done": False}, "policy": policy}
    learner._learner = SimpleNamespace(**known, train_iter=5)
    learner._home = TrainingHome(learner._load_payload, trainings=2)
    announce(learner, "p")
    asked: list[int] = []

    def newest() -> int:
        found = learner.policy_store.newest("p")
        return -1 if found is None else found[0]

    def stop() -> None:
        asked.append(newest())
        learner.is_stopping = True

    learner.job_wait = lambda predicate, meanwhile: stop()  # type: ignore[assignment, misc]
    for _ in range(2):  # the second batch of the same training
        assert learner.get_batch(2) is not None
        assert newest() == -1
    assert learner.get_batch(2) is None
    assert asked == [5]
    learner.policy_store.discard("p")
    learner.is_stopping = False
    assert learner.get_batch(2) is None
    assert asked == [5, -1]


@pytest.mark.parametrize(("is_whole", "sent"), [(False, [5]), (True, [])])
def test_waiting_on_policy_learner_publishes_a_damaged_version_again_once(
    learner: BaseCommLearner, is_whole: bool, sent: list[int]
) -> None:
    found: list[int] = []
    policy = SimpleNamespace(state_dict=lambda: {"model": "tensors"})
    trained = SimpleNamespace(**vars(LEARNER), policy=policy)
    asked: list[tuple[str, int]] = []

    def newest(policy_id: str, newer_than: int) -> Any:
        asked.append((policy_id, newer_than))
        return (5, {}) if is_whole else None

    learner.policy_store = SimpleNamespace(  # type: ignore[assignment]
        newest=newest, publish=lambda *given: None
    )
    learner.send_policy = lambda state: found.append(state["iter"])  # type: ignore[method-assign]
    publisher = PolicyPublisher(learner, "p", None)
    publisher.publish({}, 5)
    for _ in range(3):
        publisher.while_waiting(trained)
    assert found == sent
    assert asked == [("p", 4)]


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
    learner.policy_store = SimpleNamespace(  # type: ignore[assignment]
        publish=publish, newest=lambda policy_id: (1, {})
    )
    learner.send_policy({"model": {}, "iter": 3})
    for _ in range(3):
        learner._publisher.while_waiting(learner._learner)
    assert stored == [5]


def test_checkpoints_are_saved_every_minute_or_for_2_percent_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, saves, cost_s = [1000.0], list[float](), [0.0]

    def save(hook: object, engine: object) -> None:
        saves.append(now[0])
        now[0] += cost_s[0]

    monkeypatch.setattr(SaveCkptHook, "__call__", save)
    hook = SaveAtIntervalsHook(60.0, lambda: now[0])
    for at, cost in ((1059.9, 0.0), (1060.0, 0.0), (1119.0, 0.0), (1120.0, 3.0)):
        now[0], cost_s[0] = at, cost
        hook(None)
    assert saves == [1060.0, 1120.0]
    for at in (1272.0, 1273.0):  # three seconds are 2 % of 150
        now[0] = at
        hook(None)
    assert saves[2:] == [1273.0]


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
    learner._learner = SimpleNamespace(**vars(LEARNER), collector_envstep=0)
    store: Any = SimpleNamespace(get=lambda *given: asked.append(given))
    learner.data_store = store
    learner.task_wait = lambda *given, **named: True  # type: ignore[method-assign]
    news = [{"data_id": "late", "rows": 1}]
    learner.deal_with_learner_learn({"announcements": news, "confirmed": 0, "env_steps": 0})
    for digest, later_s in ((None, 0.0), ("d1", 0.25), (None, 1.0)):
        now[0] = 100.0 + later_s
        learner._load_payload("late", digest)
    assert asked == [("late", 0.5, None), ("late", 0.25, "d1"), ("late", 0.0, None)]
