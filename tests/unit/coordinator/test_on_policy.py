"""On-policy experience: which rows are trained on, their age, and when each side waits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from dingsdk.worker.coordinator.experience import PolicyLag
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.worker.coordinator.on_policy import Admission, OnPolicyExperience
from dingsdk.worker.coordinator.tasks import TaskState

N_SAMPLE = 12
ITERS = 5
"""Train iterations of one training."""


def learner() -> TaskState:
    return TaskState("learner", "learner", {"buffer_id": "b"})


@dataclass
class Collector:
    """A simulated collector that takes admitted steps and sends them together.

    When it sees a newer policy, it first sends its rows, then switches to that policy. When it
    gets more steps and holds no rows, it takes the newest policy before it continues.
    """

    name: str
    experience: OnPolicyExperience
    admitted: int = 0
    taken: int = 0
    held: int = 0
    policy: int = 0
    payloads: int = 0
    sent: list[int] = field(default_factory=list)

    @property
    def state(self) -> TaskState:
        return TaskState(self.name, "collector", {"buffer_id": "b"})

    def ask(self, published: int) -> None:
        told = self.experience.admit(self.state)
        self.admitted = told["admitted_steps"]
        if self.taken < self.admitted and not self.held:
            assert told["policy_iter"] <= published
            self.policy = published
            self.experience.admission.report(self.name, self.taken, self.policy)

    def step(self, published: int) -> None:
        if published > self.policy:
            self.deliver()
            self.policy = published
            self.experience.admission.report(self.name, self.taken, self.policy)
        if self.taken < self.admitted:
            self.taken += 1
            self.held += 1
        if self.taken >= self.admitted:
            self.deliver()

    def deliver(self) -> None:
        if self.held:
            self.payloads += 1
            name = f"{self.name}-{self.payloads}"
            meta = {"data_id": name, "rows": self.held, "policy_iter": self.policy}
            assert self.experience.push(meta, 0)
            self.sent += [self.policy] * self.held
            self.held = 0
        self.experience.admission.report(self.name, self.taken, self.policy)


@settings(max_examples=60, deadline=None)
@given(
    max_lag=st.integers(0, 3),
    collectors=st.integers(1, 4),
    turns=st.lists(st.integers(0, 9), min_size=50, max_size=400),
)
def test_no_trained_row_is_too_old_and_none_is_lost(
    max_lag: int, collectors: int, turns: list[int]
) -> None:
    """Collectors and a learner take turns in any order; every sent row is trained on in time."""
    experience = OnPolicyExperience(N_SAMPLE, max_lag)
    crew = [Collector(f"c{n}", experience) for n in range(collectors)]
    state, published, trained = learner(), 0, []
    lease: Any = None

    def take_turn(turn: int) -> None:
        nonlocal lease, published
        if turn > collectors:
            return
        if turn < collectors:
            crew[turn].ask(published)
            crew[turn].step(published)
        elif lease is None:
            if experience.buffer.can_sample(1):
                lease = experience.lease(state, 1, 8, published)
        else:
            (batch,) = lease["batches"]
            rows = batch["collect_iter"].tolist()
            assert len(rows) >= N_SAMPLE
            assert all(published - row <= max_lag * ITERS for row in rows), (published, rows)
            trained.extend(rows)
            published += ITERS
            info = {"learner_step": published, "lost_payloads": [], "priority_info": {}}
            experience.settle(state, info)
            lease = None

    for turn in turns:
        take_turn(turn)
    for _ in range(200):  # all take turns: training must continue from any state
        for turn in range(collectors + 1):
            take_turn(turn)

    sent = [row for each in crew for row in each.sent]
    assert len(trained) + experience.buffer.count() == len(sent)
    assert published >= 10 * ITERS
    assert experience.ledger.evicted_rows == {"trained": len(trained)}
    experience.check()
    lag = experience.admission.lag
    assert lag is not None
    assert lag.largest <= max_lag


def test_with_max_lag_0_a_training_has_rows_of_one_version_only() -> None:
    experience = OnPolicyExperience(N_SAMPLE, 0)
    first, second = (Collector(name, experience) for name in "ab")
    for each in (first, second):
        each.ask(0)
    assert (first.admitted, second.admitted) == (N_SAMPLE, 0)
    for _ in range(N_SAMPLE):
        assert not experience.buffer.can_sample(1)
        first.step(0)
    state = learner()
    assert experience.lease(state, 1, 8, 0) is not None
    for each in (first, second):  # during the training
        each.ask(0)
        assert each.taken == each.admitted
    experience.settle(state, {"learner_step": 5, "lost_payloads": [], "priority_info": {}})
    for each in (first, second):
        each.ask(5)
    assert (first.admitted - first.taken, second.admitted) == (N_SAMPLE / 2, N_SAMPLE / 2)


def test_lost_collector_is_not_waited_for() -> None:
    experience = OnPolicyExperience(N_SAMPLE, 0)
    first, second = (Collector(name, experience) for name in "ab")
    for each in (first, second):
        each.ask(0)
    experience.admission.forget("a")
    second.ask(0)
    assert second.admitted == N_SAMPLE
    for _ in range(N_SAMPLE):
        second.step(0)
    assert experience.buffer.can_sample(1)


def test_rows_of_a_failed_training_are_used_in_the_next_one() -> None:
    experience = OnPolicyExperience(4, 0)
    state = learner()
    for name in ("a", "b"):
        experience.push({"data_id": name, "rows": 4, "policy_iter": 0}, 0)
    assert experience.lease(state, 1, 8, 0) is not None
    assert experience.lease(state, 1, 8, 0) is None
    experience.settle(state)  # the learner was lost
    leased = experience.lease(state, 1, 8, 0)
    assert leased is not None
    assert leased["batches"][0]["payload"].tolist() == [0] * 4 + [1] * 4
    info = {"learner_step": 0, "lost_payloads": [[0, "corrupt"]], "priority_info": {}}
    experience.settle(state, info)
    assert experience.buffer.count() == 4
    assert experience.ledger.evicted_rows == {"corrupt": 4}
    assert experience.take_garbage([state]) == ["a"]
    leased = experience.lease(state, 1, 8, 0)
    assert leased is not None
    assert leased["batches"][0]["payload"].tolist() == [1] * 4
    experience.settle(state, {"learner_step": 3, "lost_payloads": [], "priority_info": {}})
    assert experience.take_garbage([state]) == ["b"]
    experience.check()


def push(experience: OnPolicyExperience, *names: str) -> None:
    for name in names:
        assert experience.push({"data_id": name, "rows": 4, "policy_iter": 0}, 0)


def test_rows_that_arrive_during_a_training_are_used_in_the_next_one() -> None:
    experience = OnPolicyExperience(4, 1)
    push(experience, "a")
    for number, name in enumerate("bc", start=1):
        assert experience.lease(learner(), 4, 8, number - 1) is not None
        push(experience, name)
        experience.settle(learner(), {"learner_step": number, "lost_payloads": []})
        assert experience.readable() == [name]
        assert experience.ledger.evicted_rows == {"trained": 4 * number}
    leased = experience.lease(learner(), 4, 8, 2)
    assert leased is not None
    assert list(leased["payloads"]) == ["c"]
    experience.check()


def test_queue_with_only_missing_payloads_is_emptied_at_once() -> None:
    experience = OnPolicyExperience(4, 0)
    push(experience, "a", "b")
    experience.give_up_missing(["a", "b"])
    assert experience.buffer.count() == 0
    assert experience.ledger.evicted_rows == {"missing": 8}
    push(experience, "c")
    assert experience.lease(learner(), 4, 8, 5) is not None
    experience.close()
    assert experience.buffer.count() == 0


def test_restored_training_is_compared_with_its_own_start_iteration() -> None:
    before, experience = OnPolicyExperience(4, 0), OnPolicyExperience(4, 0)
    push(before, "a")
    assert before.lease(learner(), 4, 8, 5) is not None
    state = before.state_dict()
    experience.load_state_dict(state)
    experience.settle(learner(), {"learner_step": 5, "lost_payloads": []})  # no training happened
    assert experience.readable() == ["a"]
    assert experience.lease(learner(), 4, 8, 5) is not None

    del state["buffer"]["returned"]  # as in the format of earlier versions
    older = OnPolicyExperience(4, 0)
    older.load_state_dict({**state, "buffer": {**state["buffer"], "drawn": 0}, "leases": {}})
    assert older.lease(learner(), 4, 8, 9) is not None


def test_batch_that_was_not_trained_on_is_leased_again() -> None:
    experience = OnPolicyExperience(4, 0)
    push(experience, "a")
    assert experience.lease(learner(), 4, 8, 0) is not None
    experience.settle(learner(), {"learner_step": 0, "lost_payloads": []})
    assert experience.lease(learner(), 4, 8, 9) is not None, "the learner reported no training"


def test_payload_that_arrived_after_a_training_counts_as_missing() -> None:
    experience = OnPolicyExperience(4, 0)
    push(experience, "a")
    assert experience.lease(learner(), 4, 8, 0) is not None
    experience.settle(learner())  # the learner was lost; it may have trained
    push(experience, "b")
    experience.give_up_missing(["b"])
    experience.settle(learner())
    assert experience.lease(learner(), 4, 8, 1) is None, "payload a was trained on"
    assert experience.ledger.evicted_rows == {"trained": 4, "missing": 4}


def test_missing_payloads_are_removed_at_once() -> None:
    experience = OnPolicyExperience(4, 0)
    for name in ("a", "b"):
        experience.push({"data_id": name, "rows": 4, "policy_iter": 0}, 0)
    experience.give_up_missing(["a"])
    experience.settle(learner())
    assert experience.readable() == ["b"]
    assert experience.buffer.count() == 4


def test_rows_are_leased_once_per_training() -> None:
    experience = OnPolicyExperience(4, 0, trainings=3)
    experience.push({"data_id": "a", "rows": 5, "policy_iter": 0}, 0)
    leased = experience.lease(learner(), 64, 8, 0)
    assert leased is not None
    assert [len(batch["row"]) for batch in leased["batches"]] == [5, 5, 5]

    assert experience.settle(learner(), {"learner_step": 3, "lost_payloads": []})
    assert experience.trained_rows == experience.counts().trained == 3 * 5


def test_learner_restored_from_a_checkpoint_continues_from_its_version() -> None:
    admission = Admission(4, 1)
    for train_iter in (10, 20, 30):
        admission.trained(np.zeros(4, np.int64), train_iter)
    admission.begin(20)
    assert admission.newest_iter == 20
    assert admission.newest == 2
    assert [admission.version_of(each) for each in (0, 9, 10, 20, 30)] == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("reports", [[], [0], [3], [4], [3, 0], [4, 0]])
@pytest.mark.parametrize("newest", [0, 3])
def test_training_waits_for_a_collector_with_the_older_policy_of_a_restarted_learner(
    newest: int, reports: list[int]
) -> None:
    admission = Admission(4, 1)
    assert admission.admit("c", 0, is_training=False) == 4
    for train_iter in range(1, newest + 1):
        admission.trained(np.zeros(4, np.int64), train_iter)
    admission.report("c", 1, newest + 1)  # it loads a policy before its training is reported
    admission.begin(0)
    for policy_iter in reports:
        admission.report("c", 1, policy_iter)  # of before the restart, or of the loaded policy 0
    assert admission.may_train(4)
    admission.trained(np.zeros(4, np.int64), 1)
    assert not admission.may_train(4), "3 steps with the policy 0 are left"
    admission.report("c", 1, 1)
    assert admission.may_train(4)


def test_training_does_not_wait_for_a_collector_with_a_policy_that_is_reported_later() -> None:
    admission = Admission(4, 1)
    admission.admit("c", 0, is_training=False)
    admission.report("c", 1, 1)
    admission.trained(np.zeros(4, np.int64), 1)
    assert admission.may_train(4)


def test_steps_for_the_policy_after_a_training_are_admitted_again_after_it() -> None:
    # An earlier coordinator had admitted 9 steps, and forgot that the training had ended.
    admission = Admission(4, 0)
    admission.rejoin("c", 9, 5, 0)
    assert admission.admit("c", 0, is_training=True) == 5
    assert not admission.has_outstanding("c")
    admission.trained(np.zeros(4, np.int64), 1)
    assert admission.admit("c", 0, is_training=False) == 9
    assert admission.has_outstanding("c")


def test_collector_that_rejoins_with_a_dropped_policy_is_waited_for() -> None:
    admission = Admission(4, 1)
    admission.rejoin("c", 4, 1, 3)
    assert admission.may_train(4)
    admission.trained(np.zeros(4, np.int64), 1)
    assert not admission.may_train(4)
    admission.report("c", 1, 1)
    assert admission.may_train(4)


def test_collectors_get_the_version_of_a_restored_learner_after_its_first_demand() -> None:
    before, experience = (OnPolicyExperience(4, 0) for _ in range(2))
    for train_iter in (10, 20, 30):
        before.admission.trained(np.zeros(4, np.int64), train_iter)
    experience.load_state_dict(before.state_dict())
    collector = TaskState("c", "collector", {"buffer_id": "b"})
    assert experience.admission.lag == before.admission.lag == PolicyLag(1.0, 2, 2)
    assert experience.admit(collector) == {"admitted_steps": 4, "policy_iter": 30}
    assert experience.lease(learner(), 1, 8, 15) is None, "no rows yet"
    assert experience.admit(collector) == {"admitted_steps": 4, "policy_iter": 10}


def test_saved_but_unreported_training_is_not_repeated() -> None:
    """The learner trained on its rows, saved a checkpoint and was lost."""
    experience = OnPolicyExperience(4, 0)
    gone: list[str] = []
    experience.buffer.add_remove_listener(lambda rows, reason: gone.append(reason))
    experience.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    assert experience.lease(learner(), 4, 8, 0) is not None
    experience.settle(learner())
    assert experience.lease(learner(), 4, 8, 1) is None
    assert (gone, experience.buffer.count(), experience.admission.newest_iter) == (
        ["trained"],
        0,
        1,
    )
    experience.push({"data_id": "b", "rows": 4, "policy_iter": 1}, 0)
    assert experience.lease(learner(), 4, 8, 1) is not None


def test_end_of_a_task_without_a_lease_does_not_end_the_training_of_another() -> None:
    experience = OnPolicyExperience(4, 0)
    experience.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    assert experience.lease(learner(), 4, 8, 0) is not None
    assert not experience.settle(TaskState("c", "collector", {"buffer_id": "b"}))
    assert experience.buffer.is_training
    assert experience.settle(learner())
    assert not experience.buffer.is_training


def test_training_that_was_saved_halfway_is_repeated() -> None:
    experience = OnPolicyExperience(4, 0, trainings=3)
    experience.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    assert experience.lease(learner(), 4, 8, 0) is not None
    experience.settle(learner())
    assert experience.lease(learner(), 4, 8, 2) is not None


def test_rows_that_arrived_after_a_lost_training_are_not_counted_as_trained() -> None:
    before = OnPolicyExperience(4, 0)
    before.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    before.push({"data_id": "b", "rows": 4, "policy_iter": 0}, 0)
    assert before.lease(learner(), 4, 8, 0) is not None
    before.give_up_missing(["a"])
    before.settle(learner())
    before.push({"data_id": "c", "rows": 4, "policy_iter": 0}, 0)
    experience = OnPolicyExperience(4, 0)
    experience.load_state_dict(before.state_dict())
    leased = experience.lease(learner(), 4, 8, 1)
    assert leased is not None
    assert list(leased["payloads"]) == ["c"]


def test_training_waits_for_the_collectors_of_an_earlier_coordinator() -> None:
    experience, collector = OnPolicyExperience(4, 1), TaskState("c", "collector", {})
    experience.admission.expect(collector.task_id)
    experience.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    assert experience.can_sample(4), "the first training has one version of lag to spare"
    experience.admission.trained(np.zeros(4, np.int64), 1)
    assert not experience.can_sample(4)
    experience.admission.rejoin(collector.task_id, 9, 0, 0)
    assert not experience.can_sample(4), "it has not delivered all its steps"
    experience.admission.report(collector.task_id, 9, 1)
    assert experience.can_sample(4)
    experience.admission.expect(collector.task_id)
    experience.admission.forget(collector.task_id)
    assert experience.can_sample(4)


def test_collector_that_may_rejoin_gets_a_share_of_the_steps() -> None:
    admission = Admission(4, 0)
    admission.expect("gone")
    assert admission.admit("c", 1, is_training=False) == 2, "half of 4: the other may rejoin"
    admission.forget("gone")
    admission.report("c", 2, 0)
    assert admission.admit("c", 1, is_training=False) == 5


@pytest.mark.parametrize(
    ("iters", "expected"),
    [
        ([[0, 0]], PolicyLag(0.0, 0, 0)),
        ([[0, 0], [0, 5]], PolicyLag(0.25, 1, 1)),
        ([[0] * 100, [0] * 2 + [5] * 98, [10] * 200], PolicyLag(2 / 400, 0, 1)),
    ],
)
def test_lag_is_counted_in_versions(iters: list[list[int]], expected: PolicyLag) -> None:
    admission = Admission(1, 1)
    assert admission.lag is None
    for number, rows in enumerate(iters):
        admission.trained(np.array(rows, np.int64), ITERS * (number + 1))
    found = admission.lag
    assert found is not None
    assert math.isclose(found.mean, expected.mean)
    assert found[1:] == expected[1:]


def test_collector_with_the_newest_policy_is_not_waited_for() -> None:
    admission = Admission(4, 1)
    admission.admit("slow", 0, is_training=False)
    admission.trained(np.zeros(4, np.int64), 5)
    assert not admission.may_train(4), "its rows of version 0 would be 2 versions old"
    admission.report("slow", 0, 5)
    assert admission.may_train(4)
    admission.trained(np.zeros(4, np.int64), 10)
    admission.report("slow", 4, 5)
    admission.admit("slow", 0, is_training=False)
    assert admission.may_train(4), "its new steps are taken with the newest policy"


def test_steps_beyond_the_last_grant_do_not_reduce_the_next_one() -> None:
    admission = Admission(4, 1)
    assert admission.admit("a", 0, is_training=False) == 4
    admission.report("a", 7, 0)
    assert admission.admit("a", 3, is_training=False) == 8
    assert admission.has_outstanding("a")
    assert not admission.has_outstanding("b")


def test_no_rows_are_drawn_during_a_training() -> None:
    experience = OnPolicyExperience(4, 1)
    experience.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    assert experience.lease(learner(), 1, 8, 0) is not None
    experience.push({"data_id": "b", "rows": 4, "policy_iter": 0}, 0)
    assert not experience.buffer.can_sample(1)
    assert experience.lease(learner(), 1, 8, 0) is None
    assert experience.buffer.count() == 8


def test_grant_for_the_last_rows_has_at_least_the_steps_of_one_sample() -> None:
    admission = Admission(12, 0, least_steps=6)
    assert admission.admit("a", 0, is_training=False) == 12
    admission.report("a", 12, 0)
    assert admission.admit("a", 10, is_training=False) == 18


def test_collect_is_open_from_its_first_grant_until_it_has_all_rows() -> None:
    experience, found = OnPolicyExperience(4, 0), list[tuple[int, bool]]()

    def look() -> None:
        found.append((experience.collects, experience.is_in_collect))

    look()
    collector = TaskState("c", "collector", {"buffer_id": "b"})
    assert experience.admit(collector)["admitted_steps"] == 4
    look()
    for rows in (3, 1):
        experience.push({"data_id": str(rows), "rows": rows, "policy_iter": 0}, 0)
        look()
    experience.admission.report("c", 4, 0)
    state = learner()
    assert experience.lease(state, 1, 8, 0) is not None
    look()
    experience.settle(state, {"learner_step": 1, "lost_payloads": [], "priority_info": {}})
    look()
    assert found == [(0, False), (0, True), (0, True), (1, False), (1, False), (1, False)]


def test_too_few_rows_are_an_open_collect_even_without_a_grant() -> None:
    experience = OnPolicyExperience(4, 0)
    experience.push({"data_id": "a", "rows": 3, "policy_iter": 0}, 0)
    assert (experience.collects, experience.is_in_collect) == (0, True)
    assert experience.admit(TaskState("c", "collector", {}))["admitted_steps"] == 1
