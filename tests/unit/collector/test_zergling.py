from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, ClassVar

import numpy as np
import pytest

from dingsdk.config import PartSection
from dingsdk.data import SampleBatch
from dingsdk.errors import ClosedError, NotSetError, TaskTimeoutError
from dingsdk.policy import CollectMode, create_policy
from dingsdk.policy.dqn import DQNPolicy
from dingsdk.worker.collector.base import ISerialCollector
from dingsdk.worker.collector.env_pool import EnvPool
from dingsdk.worker.collector.serial_task import SerialTaskCollector
from dingsdk.worker.collector.zergling import ZerglingParallelCollector
from tests.own_plugins import using

POLICY = {
    "type": "dqn",
    "model": {"obs_shape": 4, "action_shape": 2},
    "collect": {"n_sample": 32, "unroll_len": 1, "collector": {"type": "sample"}},
    "eval": {"evaluator": {"type": "interaction", "n_episode": 5}},
}


class Wire:
    """The peer of a collector: records what the collector sends and provides policies."""

    def __init__(self, polls_before_policy: int = 0) -> None:
        self.metas: list[dict[str, Any]] = []
        self.payloads: dict[str, SampleBatch] = {}
        self.polls = 0
        self.turns = 0
        self._first = polls_before_policy
        mode = create_policy(POLICY, enable_field=["collect"], seed=5).collect_mode
        self.model = mode.state_dict()["model"]

    def attach(self, collector: ZerglingParallelCollector) -> ZerglingParallelCollector:
        collector.send_metadata = self.metas.append
        collector.send_stepdata = self.payloads.__setitem__
        collector.get_policy_update_info = self.newest
        collector.yield_turn = self.turn
        return collector

    def newest(self, path: str) -> dict[str, Any] | None:
        assert path == "policy_1"
        self.polls += 1
        if self.polls <= self._first:
            return None
        return {"model": self.model, "iter": self.polls}

    def turn(self) -> None:
        self.turns += 1

    @property
    def samples(self) -> list[dict[str, Any]]:
        return [meta for meta in self.metas if "data_id" in meta]

    @property
    def progress(self) -> list[dict[str, Any]]:
        return [meta for meta in self.metas if "data_id" not in meta]


@pytest.fixture
def make_zergling(make_task):
    def make(
        *,
        kind: Any = ZerglingParallelCollector,
        eval_flag: bool = False,
        wire: Wire | None = None,
        **changes: Any,
    ):
        env = {"env_id": "CartPole-v1", "collector_env_num": 3, "evaluator_env_num": 2}
        env |= {"collector_episode_num": 4} | changes.pop("env", {})
        own = {"env_manager": {"type": "vector"}, "policy": POLICY}
        cfg = {**own, "policy_update_path": "policy_1", "env": env, **changes}
        kind = SerialTaskCollector if eval_flag else kind
        collector = make_task(kind, eval_flag=eval_flag, **cfg)
        return collector if wire is None else wire.attach(collector)

    return make


def test_replaced_collect_setting_is_used_from_the_next_round_on(make_zergling) -> None:
    collector = make_zergling(wire=Wire())
    used = []
    infer = collector._rollout.infer

    def note(obs, setting):
        used.append(setting["eps"])
        collector.collect_setting = {"eps": 0.25}
        return infer(obs, setting)

    collector._rollout.infer = note
    collector.start()
    assert used[0] == 0.5
    assert set(used[1:]) == {0.25}


@pytest.mark.parametrize(("second", "reports"), [(0.0, 2), (1.0, 4)])
def test_episodes_that_end_in_quick_succession_are_reported_together(
    make_zergling, second: float, reports: int
) -> None:
    wire = Wire()
    collector = make_zergling(wire=wire, env={"collector_env_num": 1})
    collector.clock = itertools.count(0.0, second).__next__
    collector.start()

    assert [each["collector_done"] for each in wire.progress] == [False] * (reports - 1) + [True]
    assert wire.progress[-1]["cur_episode"] == 4


R2D2 = {
    "type": "r2d2",
    "model": {"obs_shape": 4, "action_shape": 2},
    "collect": {"n_sample": 32, "unroll_len": 1, "collector": {"type": "sample"}},
}
"""A recurrent policy, which keeps a state during an episode."""


WHOLE = {**POLICY, "traj_len_inf": True}


QUICK_MANAGERS = ["in_process", "vector"]
MANAGERS = [*QUICK_MANAGERS, "async_subprocess"]


@pytest.mark.parametrize(
    ("kind", "policy", "manager_type"),
    [
        *((ZerglingParallelCollector, POLICY, each) for each in MANAGERS),
        *((ZerglingParallelCollector, WHOLE, each) for each in QUICK_MANAGERS),
        *((ZerglingParallelCollector, R2D2, each) for each in QUICK_MANAGERS),
        *((SerialTaskCollector, POLICY, each) for each in QUICK_MANAGERS),
        pytest.param(SerialTaskCollector, POLICY, "async_subprocess", marks=pytest.mark.slow),
        (SerialTaskCollector, R2D2, "vector"),
    ],
)
def test_short_tasks_play_the_same_episodes_as_a_long_task(
    make_zergling, kind: Any, policy: dict[str, Any], manager_type: str
) -> None:
    """The end of a task cuts no episode: the next task continues it."""
    env_num = 1 if manager_type.startswith("async") else 2  # several would finish in any order
    wire = Wire()
    wire.model = create_policy(policy, enable_field=["collect"]).collect_mode.state_dict()["model"]

    def play(pool: EnvPool, episodes: int) -> tuple[list[float], int]:
        collector = make_zergling(
            kind=kind,
            wire=wire,
            policy=policy,
            env={"collector_episode_num": episodes, "collector_env_num": env_num},
            env_manager={"type": manager_type},
            env_pool=pool,
        )
        collector.start()
        info = collector.get_finish_info()
        # Reward 1 per step: the length of an episode is its return, also if earlier tasks began it.
        assert info["avg_step_per_episode"] == pytest.approx(info["reward_mean"])
        return info["reward_raw"], info["step_count"]

    with closing(EnvPool()) as pool:
        long, long_steps = play(pool, 8)
    wire.payloads.clear()
    with closing(EnvPool()) as pool:
        tasks = [play(pool, 1) for _ in range(8)]
    short = [value for returns, _ in tasks for value in returns]
    steps = sum(steps for _, steps in tasks)
    assert short[: len(long)] == long
    assert steps >= long_steps
    rows = sum(len(batch) for batch in wire.payloads.values())
    if kind is SerialTaskCollector:
        assert rows % 32 == 0  # rows beyond n_sample come with the next task
    elif policy is POLICY:
        assert rows == steps
    elif policy is WHOLE:
        assert rows == sum(short)  # whole episodes; reward 1 per step


def test_task_of_another_policy_gets_a_new_rollout(make_zergling) -> None:
    with closing(EnvPool()) as pool:
        first = make_zergling(wire=Wire(), env_pool=pool)
        first.start()
        same = make_zergling(wire=Wire(), env_pool=pool)
        assert same.policy is first.policy
        same.start()
        other = {**POLICY, "model": {**POLICY["model"], "encoder_hidden_size_list": [8]}}
        assert make_zergling(env_pool=pool, policy=other)._rollout is not same._rollout


@pytest.mark.parametrize("ends_by", ["policy", "pool"])
def test_serial_collector_without_a_next_task_is_closed(make_zergling, ends_by: str) -> None:
    with closing(EnvPool()) as pool:
        first = make_zergling(kind=SerialTaskCollector, wire=Wire(), env_pool=pool)
        first.start()
        assert not first._serial._is_closed
        if ends_by == "policy":
            make_zergling(kind=SerialTaskCollector, env_pool=pool, policy=WHOLE)
            assert first._serial._is_closed
    assert first._serial._is_closed
    assert not first.env_manager.closed or ends_by == "pool"


def test_closed_tasks_and_evaluations_leave_no_rollout(make_zergling) -> None:
    with closing(EnvPool()) as pool:
        evaluation = make_zergling(eval_flag=True, wire=Wire(), env_pool=pool)
        evaluation.start()
        assert evaluation._left is None
        collector = make_zergling(wire=Wire(), env_pool=pool)
        collector.yield_turn = collector.close
        collector.start()
        assert collector._left is None
        assert make_zergling(env_pool=pool)._rollout is not collector._rollout


def test_envs_stay_open_after_a_serial_evaluation(make_zergling) -> None:
    with closing(EnvPool()) as pool:
        first = make_zergling(eval_flag=True, wire=Wire(), env_pool=pool)
        first.start()
        assert not first.env_manager.closed
        again = make_zergling(eval_flag=True, wire=Wire(), env_pool=pool)
        assert again.env_manager is first.env_manager


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize("manager_type", QUICK_MANAGERS)
def test_serial_evaluation_counts_the_steps_of_its_episodes(
    make_zergling, manager_type: str, form: str
) -> None:
    wire = Wire()
    task = make_zergling(
        eval_flag=True,
        wire=wire,
        env={"evaluator_env_num": 1},
        env_manager={"type": manager_type},
    )
    if form == "rows":
        task._serial.reset_policy(task._serial._policy._replace(forward_batch=None))
    task.start()

    info = task.get_finish_info()
    assert info["real_episode_count"] == 5
    # CartPole gives reward 1 per step, and the one env plays its episodes one after another.
    assert info["step_count"] == sum(info["reward_raw"]) == wire.progress[-1]["cur_step"]


@pytest.mark.parametrize(("plays", "opponent"), [(True, "random"), (False, None)])
def test_serial_evaluation_names_the_opponent_if_it_plays_games(
    make_zergling, plays: bool, opponent: str | None
) -> None:
    task = make_zergling(
        eval_flag=True,
        wire=Wire(),
        env={"evaluator_env_num": 1, "eval_opponent": "random"},
    )
    task._serial.plays = plays
    task.start()
    assert task.get_finish_info()["opponent"] == opponent


class Given(ISerialCollector):
    """Returns the next of the prepared results. Each call counts 5 env steps."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Its config section."""

        type: str = "given"

    gives: ClassVar[list[Any]] = []
    asked: ClassVar[list[tuple[int, float, Any]]] = []

    def collect(self, train_iter: int, policy_kwargs: Mapping[str, Any]) -> Any:
        self.asked.append((train_iter, policy_kwargs["eps"], self.last_episodes))
        self.envstep += 5
        return self.gives[len(self.asked) - 1]


@pytest.fixture
def make_given(make_zergling):
    Given.asked.clear()
    collect = {**POLICY["collect"], "collector": {"type": "given"}}

    def make(wire: Wire, gives: list[Any], calls: int = 4, **changes: Any) -> SerialTaskCollector:
        Given.gives = gives
        changes |= {"policy": {**POLICY, "collect": collect}}
        changes |= {"env": {"collector_episode_num": calls}}
        return make_zergling(kind=SerialTaskCollector, wire=wire, **changes)

    with using(collectors={"given": Given}):
        yield make


def rows_of(*numbers: int) -> list[dict[str, Any]]:
    return [{"x": np.float32(number)} for number in numbers]


def test_serial_collector_without_episodes_is_called_a_fixed_number_of_times(make_given) -> None:
    wire = Wire()
    batch = SampleBatch({"x": np.array([4.0, 5.0], np.float32)})
    gives = [rows_of(1, 2), [], batch, [rows_of(6), rows_of(7)]]
    task = make_given(wire, gives, update_policy_second=3600)
    task.start()

    assert Given.asked == [(wire.polls, 0.5, None)] * 4
    # Anything but a SampleBatch or an episode is one sample, even a list of rows.
    first, second, _ = wire.payloads.values()
    assert [list(each.columns["x"]) for each in (first, second)] == [[1.0, 2.0], [4.0, 5.0]]
    assert [meta["rows"] for meta in wire.samples] == [2, 2, 2]
    assert [meta["cur_step"] for meta in wire.progress] == [5, 10, 15, 20]
    assert [meta["collector_done"] for meta in wire.progress] == [False, False, False, True]
    info = task.get_finish_info()
    assert (info["step_count"], info["sample_count"], info["real_episode_count"]) == (20, 6, 0)


def test_steps_of_a_task_that_continues_another_count_from_its_start(make_given) -> None:
    with closing(EnvPool()) as pool:
        for _ in range(2):
            task = make_given(Wire(), [rows_of(1)] * 4, calls=2, env_pool=pool)
            task.start()
            assert task.get_finish_info()["step_count"] == 10
        assert task._serial.envstep == 20


def test_closed_serial_task_refuses_env_steps(make_given) -> None:
    task = make_given(Wire(), [])
    manager = task.env_manager
    steps = [vars(manager)[name] for name in ("step", "step_batch")]
    manager.step(manager.random_action())
    task.close()
    for step in steps:
        with pytest.raises(ClosedError, match="the task is over"):
            step({})
    task._release()
    assert not {"step", "step_batch"} & vars(manager).keys()


def test_episodes_per_env_take_precedence_over_the_total(make_zergling) -> None:
    collector = make_zergling(eval_flag=True, wire=Wire(), env={"evaluator_episode_num": 3})
    collector.start()
    assert collector.get_finish_info()["real_episode_count"] == 2 * 3


def play_on_policy(
    make_zergling: Any,
    answers: dict[int, list[Any]],
    has_second: Callable[[list[int], int], bool] = lambda asked, steps: False,
    env: Mapping[str, Any] = {},
    policy: Mapping[str, Any] = {},
    **changes: Any,
) -> tuple[Wire, list[int]]:
    """Run an on-policy task; return what it sent, and the steps at which it asked for more.

    Args:
        answers: By env steps, the admissions; the last one is repeated.
        has_second: Whether policy 2 is there, after these questions and env steps.
    """
    wire, asked, versions = Wire(), list[int](), [1, 2]
    cfg = {"policy": {**POLICY, "on_policy": True, **policy}}
    cfg["env"] = {"collector_episode_num": None, **env}
    collector = make_zergling(wire=wire, update_policy_second=0, **cfg, **changes)

    def newest(path: str) -> dict[str, Any] | None:
        is_there = versions and has_second(asked, collector._rollout.env_steps)
        if len(versions) == 2 or is_there:
            return {"model": wire.model, "iter": versions.pop(0)}
        return None

    def admit(steps: int) -> tuple[int, int]:
        asked.append(steps)
        return answers[steps].pop(0) if len(answers[steps]) > 1 else answers[steps][0]

    collector.get_policy_update_info, collector.await_steps = newest, admit
    collector.start()
    return wire, asked


@pytest.mark.parametrize(
    ("answers", "has_second", "sent", "delivered"),
    [
        (
            {0: [(6, 1)], 6: [(9, 2)], 9: [(0, 0)]},
            lambda asked, steps: 6 in asked,
            [(6, 1), (3, 2)],
            [0, 6, 9],
        ),
        ({0: [(9, 1)], 9: [(0, 0)]}, lambda asked, steps: steps > 0, [(3, 1), (6, 2)], [0, 3, 9]),
        (
            {0: [(6, 1)], 6: [(9, 4), (9, 4), (9, 1)], 9: [(0, 0)]},
            lambda asked, steps: False,
            [(6, 1), (3, 1)],
            [0, 6, 9],
        ),
    ],
    ids=["waits for the policy", "policy arrives meanwhile", "learner went back"],
)
def test_admitted_steps_are_taken_with_the_admitted_policy_or_a_newer_one(
    make_zergling, answers, has_second, sent, delivered
) -> None:
    wire, asked = play_on_policy(make_zergling, answers, has_second)

    assert set(asked) == set(answers)
    assert [(meta["rows"], meta["policy_iter"]) for meta in wire.samples] == sent
    found = [meta["delivered_steps"] for meta in wire.progress if "delivered_steps" in meta]
    assert list(dict.fromkeys(found)) == delivered


def test_pieces_are_not_cut_at_a_policy_load_if_samples_may_have_any_age(make_zergling) -> None:
    wire, asked = play_on_policy(
        make_zergling,
        {0: [(9, 1)], 9: [(0, 0)]},
        lambda asked, steps: steps > 0,
        policy={"other": {"commander": {"max_policy_lag": None}}},
    )

    assert asked == [0, 9]
    (meta,), (piece,) = wire.samples, wire.payloads.values()
    assert (meta["rows"], meta["policy_iter"]) == (9, 1)
    assert piece.columns["collect_iter"].tolist() == 3 * [1, 2, 2]


def test_close_wakes_a_collector_that_waits_for_its_first_policy(make_zergling) -> None:
    wire = Wire(polls_before_policy=10**9)
    collector = make_zergling(wire=wire)
    polled = threading.Event()
    collector.yield_turn = polled.set
    thread = threading.Thread(target=collector.start)
    thread.start()
    assert polled.wait(10)

    collector.close()
    thread.join(10)

    assert not thread.is_alive()
    info = collector.get_finish_info()
    assert (info["step_count"], info["collector_done"]) == (0, False)


def test_close_before_start_makes_start_return(make_zergling) -> None:
    wire = Wire()
    collector = make_zergling(wire=wire)
    collector.close()
    collector.start()
    assert wire.polls == 0
    assert collector.env_manager.closed


def test_closed_transport_is_no_error_while_the_collector_closes(make_zergling) -> None:
    def closed(data_id: str, batch: SampleBatch) -> None:
        if is_closing:
            collector.close()
        raise ClosedError("the transport is closed", what="transport")

    for is_closing in (True, False):
        collector = make_zergling(wire=Wire())
        collector.send_stepdata = closed
        if is_closing:
            collector.start()
        else:
            with pytest.raises(ClosedError):
                collector.start()


def test_no_policy_within_the_deadline_is_a_timeout_error(make_zergling) -> None:
    collector = make_zergling(wire=Wire(10**9), policy_timeout_s=0.02)
    with pytest.raises(TaskTimeoutError):
        collector.start()
    assert collector.env_manager.closed


@pytest.mark.parametrize("name", ["send_metadata", "send_stepdata", "get_policy_update_info"])
def test_callback_that_is_not_attached_is_an_error(make_zergling, name: str) -> None:
    collector = make_zergling(wire=Wire())
    setattr(collector, name, getattr(make_zergling(), name))
    with pytest.raises(NotSetError, match=name):
        collector.start()


@pytest.mark.parametrize("fails", [False, True])
def test_helper_threads_start_after_the_first_policy_and_always_end(make_zergling, fails) -> None:
    calls: list[str] = []
    collector = make_zergling(wire=Wire())

    def recorded(name: str) -> None:
        method = getattr(collector, name)
        setattr(collector, name, lambda: (calls.append(name), method()))

    for name in ("_update_policy", "_start_thread", "_finish_task", "_join_thread", "_release"):
        recorded(name)
    if fails:
        collector._observe = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            collector.start()
    else:
        collector.start()

    finish = [] if fails else ["_finish_task"]
    assert calls == ["_update_policy", "_start_thread", *finish, "_join_thread", "_release"]


class RowsPolicy(DQNPolicy):
    """A DQN in the row form. Records whether its transitions share observations."""

    shared: ClassVar[list[bool]] = []

    @property
    def collect_mode(self) -> CollectMode:
        make = super().collect_mode.get_train_sample

        def noted(rows: list[Any]) -> Any:
            self.shared.extend(a["next_obs"] is b["obs"] for a, b in itertools.pairwise(rows))
            return make(rows)

        columns = dict.fromkeys(("forward_batch", "make_transitions", "make_samples"))
        return super().collect_mode._replace(get_train_sample=noted, **columns)


@pytest.mark.parametrize("copies", [False, True])
def test_observations_are_copied_if_configured(make_zergling, copies: bool) -> None:
    RowsPolicy.shared.clear()
    collect = {**POLICY["collect"], "collector": {"type": "sample", "deepcopy_obs": copies}}
    wire = Wire()
    with using(policies={"rows": RowsPolicy}):
        make_zergling(wire=wire, policy={**POLICY, "type": "rows", "collect": collect}).start()
    assert set(RowsPolicy.shared) == {not copies}
    assert wire.samples


@pytest.mark.parametrize(("eval_flag", "folder"), [(False, "collector"), (True, "evaluator")])
def test_collector_logs_to_its_own_file(make_zergling, tmp_path, eval_flag, folder) -> None:
    collector = make_zergling(eval_flag=eval_flag)
    collector.info("all is well")
    collector.error("nothing is")
    collector.debug("who cares")
    collector.close()

    (log,) = (tmp_path / "log" / folder).glob("*_logger.txt")
    lines = log.read_text().splitlines()
    assert [line.rpartition("] ")[2] for line in lines] == ["all is well", "nothing is"]
    assert all(f"[{collector}]" in line for line in lines)
    assert ["INFO" in lines[0], "ERROR" in lines[1]] == [True, True]
    name = "InteractionSerialEvaluator" if eval_flag else "Zergling collector"
    assert str(collector) == f"{name} {log.name.removesuffix('_logger.txt')}"


def test_start_during_a_close_leaves_the_envs_to_the_close(make_zergling) -> None:
    class Pool(EnvPool):
        def give_back(self, *args: Any, **kwargs: Any) -> None:
            returned.append(args)
            super().give_back(*args, **kwargs)
            if len(returned) == 1:
                collector.start()

    returned: list[Any] = []
    collector = make_zergling(env_pool=Pool())
    collector.close()
    assert len(returned) == 1


def test_running_collector_that_is_closed_sends_no_rest_and_closes_its_envs(make_zergling) -> None:
    collector = make_zergling(wire=Wire(), env={"collector_episode_num": None})
    was_closed = []

    def close(meta: dict[str, Any]) -> None:
        collector.close()
        was_closed.append(collector.env_manager.closed)

    collector.send_metadata = close
    collector.start()
    assert 1 <= len(was_closed) <= 2
    assert not any(was_closed)
    assert collector.env_manager.closed


def test_monitor_gives_the_mean_times_of_the_last_rounds(make_zergling) -> None:
    collector = make_zergling(wire=Wire(), print_freq=2)
    assert collector.monitor == {"policy_time": 0.0, "env_time": 0.0}
    collector.start()
    collector._monitor.extend([(1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (4.0, 40.0)])

    assert collector.monitor == {"policy_time": 2.5, "env_time": 25.0}


def test_config_without_n_sample_and_n_episode_is_refused(make_zergling) -> None:
    with pytest.raises(NotSetError):
        make_zergling(policy={**POLICY, "collect": {"n_sample": None}})


@pytest.mark.parametrize("is_on_policy", [False, True])
def test_collector_asks_for_a_policy_at_most_once_per_interval(make_zergling, is_on_policy) -> None:
    wire = Wire()
    policy = {**POLICY, "on_policy": is_on_policy}
    collector = make_zergling(wire=wire, update_policy_second=0.05, policy=policy)
    collector.await_steps = lambda steps: (10**9, 0)
    polls: list[float] = []

    def newest(path: str) -> Any:
        polls.append(time.monotonic())
        return wire.newest(path) if len(polls) == 1 else None

    collector.get_policy_update_info = newest
    collector.start()

    if is_on_policy:
        del polls[:2]  # at the start, and before it waited to be admitted
    assert all(after - before >= 0.05 for before, after in itertools.pairwise(polls))
    assert len(polls) <= 2 + collector.get_finish_info()["duration"] / 0.05
