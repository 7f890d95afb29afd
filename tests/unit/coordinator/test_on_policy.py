"""Payloads of an on-policy run: which rows are trained on, their age, and when each side waits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.data import SampleBatch
from dingsdk.errors import DataMissingError
from dingsdk.worker.coordinator.admission import Admission
from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads
from dingsdk.worker.replay_buffer.home import TrainingHome

N_SAMPLE = 12
ROWS = 4


class Run:
    """Payloads with single letters as ids, a learner that trains on them, and its home.

    Args:
        iters: Train iterations of one batch.
    """

    def __init__(
        self, n_sample: int = ROWS, max_lag: int = 0, trainings: int = 1, iters: int = 1
    ) -> None:
        self._args = (n_sample, max_lag)
        self.trainings, self.iters = trainings, iters
        self.payloads = self._new_payloads()
        self.store: dict[str, SampleBatch] = {}
        self.begin_learner(0)

    def _new_payloads(self) -> OnPolicyPayloads:
        return OnPolicyPayloads(Admission(*self._args), self.trainings)

    def begin_learner(self, checkpoint: int) -> None:
        """Begin with a new learner, which loads a checkpoint."""
        self.payloads.restart()
        self.home = TrainingHome(self._load, self.trainings)
        self.train_iter, self.trained_rows = checkpoint, 0

    def restart_coordinator(self) -> None:
        """Continue with a coordinator that has what the earlier one saved."""
        earlier, self.payloads = self.payloads, self._new_payloads()
        self.payloads.load_state_dict(earlier.state_dict())
        assert self.payloads.state_dict() == earlier.state_dict()

    def _load(self, name: str, digest: str | None) -> SampleBatch:
        if name not in self.store:
            raise DataMissingError(f"no payload {name}", data_id=name)
        return self.store[name]

    def push(self, names: str, version: int = 0, rows: int = ROWS) -> None:
        for name in names:
            self.store[name] = SampleBatch({"payload": np.full(rows, ord(name))})
            meta = {"data_id": name, "rows": rows, "policy_iter": version}
            assert self.payloads.push(meta, 0)

    def report(self) -> None:
        """Let the coordinator process the learner's answer."""
        self.payloads.settle(
            {
                **self.home.report(self.payloads.confirmed),
                "learner_step": self.train_iter,
                "is_idle": False,
                "trained_rows": self.trained_rows,
            }
        )

    def exchange(self) -> str:
        """Report, then announce; return the announced payloads."""
        self.report()
        news = self.payloads.take_news()
        self.home.announce(news)
        return "".join(each["data_id"] for each in news)

    def train(self) -> str:
        """Train on a batch; return the payload of each row."""
        batch = self.home.sample(1, self.train_iter)
        if batch is None:
            return ""
        assert isinstance(batch, SampleBatch)
        self.train_iter += self.iters
        self.trained_rows += len(batch)
        self.home.end_batch()
        return "".join(map(chr, batch.columns["payload"].tolist()))

    @property
    def evicted(self) -> dict[str, int]:
        self.payloads.recounted().check()
        return dict(self.payloads.counts().evicted)


def test_training_takes_all_payloads_that_wait_and_each_once() -> None:
    run = Run(n_sample=8, max_lag=1)
    run.push("a")
    assert run.exchange() == "", "4 rows of 8"
    run.push("bc")
    assert run.exchange() == "abc"
    run.push("de")  # during the training
    assert run.exchange() == ""
    assert run.train() == "aaaabbbbcccc"
    assert run.evicted == {}, "not reported yet"
    assert run.exchange() == "de"
    assert run.evicted == {"trained": 12}
    assert run.payloads.take_garbage() == ["a", "b", "c"]
    assert run.train() == "ddddeeee"
    assert run.exchange() == ""
    assert (run.evicted, run.payloads.count()) == ({"trained": 20}, 0)


def test_rows_are_trained_on_several_times_in_one_training() -> None:
    run = Run(trainings=3)
    run.push("a", rows=5)
    run.exchange()
    for _ in range(3):
        assert run.train() == "aaaaa"
        assert run.evicted == {}
        run.report()
    assert run.train() == ""
    assert run.evicted == {"trained": 5}
    assert run.payloads.counts().trained == 15


def test_training_whose_payloads_are_all_lost_is_replaced_by_the_next_one() -> None:
    run = Run()
    run.push("ab")
    run.store.clear()
    assert run.exchange() == "ab"
    assert run.train() == ""
    assert run.exchange() == ""
    assert (run.evicted, run.payloads.admission.newest) == ({"missing": 8}, 0)
    run.push("c")
    assert run.exchange() == "c"
    assert run.train() == "cccc"
    run.report()
    assert run.payloads.admission.newest == 1


@pytest.mark.parametrize(
    ("trainings", "trained", "checkpoint", "again"),
    [
        (1, 0, 10, "aaaabbbb"),
        (1, 1, 10, "aaaabbbb"),
        (1, 1, 11, ""),
        (1, 1, 9, "aaaabbbb"),
        (3, 2, 12, "aaaabbbb"),
        (3, 3, 12, "aaaabbbb"),
        (3, 3, 13, ""),
    ],
)
@pytest.mark.parametrize("is_lost_again", [False, True])
@pytest.mark.parametrize("has_restarted", [False, True])
def test_training_of_a_lost_learner_is_repeated_unless_its_checkpoint_contains_it(
    trainings: int,
    trained: int,
    checkpoint: int,
    again: str,
    is_lost_again: bool,
    has_restarted: bool,
) -> None:
    """The learner is lost before it reports the training, which began at iteration 10."""
    run = Run(trainings=trainings)
    run.train_iter = 10
    run.push("ab")
    assert run.exchange() == "ab"
    for _ in range(trained):
        run.train()
    if has_restarted:
        run.restart_coordinator()
    run.begin_learner(checkpoint)
    if is_lost_again:  # before its first report
        run.begin_learner(checkpoint)
    run.push("c", version=checkpoint)
    expected = "abc" if again else "c"
    assert run.exchange() == expected
    assert run.evicted == ({} if again else {"trained": 8})
    assert run.payloads.take_garbage() == ([] if again else ["a", "b"])
    assert run.payloads.admission.newest == (0 if again else 1)
    assert run.train() == again + "cccc"


def test_version_that_a_lost_learner_reported_but_did_not_save_is_dropped() -> None:
    run = Run()
    for name, step in (("a", 1), ("b", 2), ("c", 3)):
        run.push(name, version=step - 1)
        assert run.exchange() == name
        run.train()
    run.report()
    assert run.payloads.admission.newest_iter == 3
    run.begin_learner(1)
    assert run.exchange() == ""
    assert run.payloads.admission.newest_iter == 1
    assert run.payloads.admit("d")["policy_iter"] == 1
    assert run.evicted == {"trained": 12}, "payloads of reported trainings are not repeated"


def test_training_that_the_learner_was_not_told_is_announced_by_a_new_coordinator() -> None:
    run = Run()
    run.push("a")
    run.report()
    assert len(run.payloads.take_news()) == 1  # the coordinator dies before it sends them
    run.restart_coordinator()
    run.report()
    run.payloads.rejoin(run.home.known)
    assert run.exchange() == "a"
    assert run.train() == "aaaa"


def test_collect_is_open_from_its_first_grant_until_it_has_all_rows() -> None:
    run, found = Run(), list[tuple[int, bool]]()

    def look() -> None:
        found.append((run.payloads.collects, run.payloads.is_in_collect))

    look()
    assert run.payloads.admit("c")["step_limit"] == 4
    look()
    for name, rows in (("a", 3), ("b", 1)):
        run.push(name, rows=rows)
        look()
    run.payloads.admission.report("c", 4, 0)
    assert run.exchange() == "ab"
    look()
    run.train()
    run.report()
    look()
    assert found == [(0, False), (0, True), (0, True), (1, False), (1, False), (1, False)]


ITERS = 5


@dataclass
class Collector:
    """A simulated collector that takes admitted steps and sends them together.

    When it sees a newer policy, it first sends its rows, then switches to that policy. When it
    gets more steps and holds no rows, it takes the newest policy before it continues.
    """

    name: str
    payloads: OnPolicyPayloads
    admitted: int = 0
    taken: int = 0
    held: int = 0
    policy: int = 0
    count: int = 0
    sent: list[int] = field(default_factory=list)

    def ask(self, published: int) -> None:
        told = self.payloads.admit(self.name)
        self.admitted = told["step_limit"]
        if self.taken < self.admitted and not self.held:
            assert told["policy_iter"] <= published
            self.policy = published
            self.payloads.admission.report(self.name, self.taken, self.policy)

    def step(self, published: int) -> None:
        if published > self.policy:
            self.deliver()
            self.policy = published
            self.payloads.admission.report(self.name, self.taken, self.policy)
        if self.taken < self.admitted:
            self.taken += 1
            self.held += 1
        if self.taken >= self.admitted:
            self.deliver()

    def deliver(self) -> None:
        if self.held:
            self.count += 1
            name = f"{self.name}-{self.count}-{self.policy}"
            meta = {"data_id": name, "rows": self.held, "policy_iter": self.policy}
            assert self.payloads.push(meta, 0)
            self.sent += [self.policy] * self.held
            self.held = 0
        self.payloads.admission.report(self.name, self.taken, self.policy)


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
    payloads = OnPolicyPayloads(Admission(N_SAMPLE, max_lag))
    crew = [Collector(f"c{n}", payloads) for n in range(collectors)]
    published, trained, training = 0, list[int](), dict[str, int]()

    def settle(left: dict[str, int]) -> None:
        report = {
            "number": payloads.confirmed + 1,
            "inserted": list(left),
            "lost": [],
            "left": [(name, "trained", rows) for name, rows in left.items()],
        }
        payloads.settle(
            {
                "learner_step": published,
                "reports": [report] if left else [],
                "is_idle": False,
                "trained_rows": len(trained),
                "counts": {},
                "count": 0,
            }
        )

    def take_turn(turn: int) -> None:
        nonlocal published, training
        if turn > collectors:
            return
        if turn < collectors:
            crew[turn].ask(published)
            crew[turn].step(published)
        elif not training:
            training = {each["data_id"]: each["rows"] for each in payloads.take_news()}
        else:
            rows = [int(name.split("-")[2]) for name, n in training.items() for _ in range(n)]
            assert len(rows) >= N_SAMPLE
            assert all(published - row <= max_lag * ITERS for row in rows), (published, rows)
            trained.extend(rows)
            published += ITERS
            settle(training)
            training = {}

    settle({})
    for turn in turns:
        take_turn(turn)
    for _ in range(200):  # all take turns: training must continue from any state
        for turn in range(collectors + 1):
            take_turn(turn)

    sent = [row for each in crew for row in each.sent]
    assert len(trained) + payloads.count() == len(sent)
    assert published >= 10 * ITERS
    assert payloads.counts().evicted == {"trained": len(trained)}
    payloads.recounted().check()


@pytest.mark.parametrize("reports", [[], [0], [3], [4], [3, 0], [4, 0]])
@pytest.mark.parametrize("newest", [0, 3])
def test_training_waits_for_a_collector_with_the_older_policy_of_a_restarted_learner(
    newest: int, reports: list[int]
) -> None:
    admission = Admission(4, 1)
    assert admission.admit("c", 0, is_training=False) == 4
    for train_iter in range(1, newest + 1):
        admission.trained(train_iter)
    admission.report("c", 1, newest + 1)  # it loads a policy before its training is reported
    admission.begin(0)
    for policy_iter in reports:
        admission.report("c", 1, policy_iter)  # of before the restart, or of the loaded policy 0
    assert admission.may_train(4)
    admission.trained(1)
    assert not admission.may_train(4), "3 steps with the policy 0 are left"
    admission.report("c", 1, 1)
    assert admission.may_train(4)


def test_steps_for_the_policy_after_a_training_are_admitted_again_after_it() -> None:
    # An earlier coordinator had admitted 9 steps, and forgot that the training had ended.
    admission = Admission(4, 0)
    admission.rejoin("c", 9, 5, 0)
    assert admission.admit("c", 0, is_training=True) == 5
    assert not admission.is_any_outstanding
    admission.trained(1)
    assert admission.admit("c", 0, is_training=False) == 9
    assert admission.is_any_outstanding


def test_collector_that_rejoins_with_a_dropped_policy_is_waited_for() -> None:
    admission = Admission(4, 1)
    admission.rejoin("c", 4, 1, 3)
    assert admission.may_train(4)
    admission.trained(1)
    assert not admission.may_train(4)
    admission.report("c", 1, 1)
    assert admission.may_train(4)


def test_collector_that_may_rejoin_gets_a_share_of_the_steps() -> None:
    admission = Admission(4, 0)
    admission.rejoin("gone", 1, 0, 0)
    assert admission.admit("c", 1, is_training=False) == 2, "half of 4: the other may rejoin"
    admission.forget("gone")
    admission.report("c", 2, 0)
    assert admission.admit("c", 1, is_training=False) == 5


def test_collector_with_the_newest_policy_is_not_waited_for() -> None:
    admission = Admission(4, 1)
    admission.admit("slow", 0, is_training=False)
    admission.trained(5)
    assert not admission.may_train(4), "its rows of version 0 would be 2 versions old"
    admission.report("slow", 0, 5)
    assert admission.may_train(4)
    admission.trained(10)
    admission.report("slow", 4, 5)
    admission.admit("slow", 0, is_training=False)
    assert admission.may_train(4), "its new steps are taken with the newest policy"


def test_steps_beyond_the_last_grant_do_not_reduce_the_next_one() -> None:
    admission = Admission(4, 1)
    assert admission.admit("a", 0, is_training=False) == 4
    admission.report("a", 7, 0)
    assert admission.admit("a", 3, is_training=False) == 8
    assert admission.is_any_outstanding


def test_grant_for_the_last_rows_has_at_least_the_steps_of_one_sample() -> None:
    admission = Admission(12, 0, least_steps=6)
    assert admission.admit("a", 0, is_training=False) == 12
    admission.report("a", 12, 0)
    assert admission.admit("a", 10, is_training=False) == 18


def test_grants_are_as_many_env_steps_as_the_missing_unrolls_have() -> None:
    admission = Admission(12, math.inf, least_steps=40, row_steps=20)
    assert admission.admit("a", 0, is_training=False) == 12 * 20
    assert admission.admit("b", 0, is_training=False) == 6 * 20  # its share
    admission.report("a", 240, 0)
    assert admission.admit("a", 9, is_training=True) == 240 + 3 * 20
