"""Random histories of a solo commander against a plain count of what is out."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dingsdk.config import to_easydict
from dingsdk.worker.commander.solo import SoloCommander

CFG = to_easydict(
    {
        "exp_name": "x",
        "seed": 0,
        "env": {
            "collector_env_num": 1,
            "evaluator_env_num": 1,
            "n_evaluator_episode": 1,
            "stop_value": 100.0,
            "collector_episode_num": 1,
        },
        "env_manager": {"type": "vector"},
        "policy": {
            "type": "dqn",
            "learn": {"learner": {"type": "base"}},
            "collect": {"parallel_collector": {"type": "zergling"}},
            "other": {
                "replay_buffer": {"type": "naive"},
                "commander": {"type": "solo", "collector_task_space": 2, "eval_interval": 5},
            },
        },
    }
)
PICK = st.integers(0, 99)


class SoloMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.commander = SoloCommander(CFG, clock=lambda: self.now)
        self.collectors, self.learners, self.goal = [], [], False
        self.limit, self.steps = 2, 0

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def ask_learner(self):
        task = self.commander.get_learner_task()
        assert (task is None) == (self.goal or len(self.learners) >= 1)
        if task is not None:
            self.learners.append(task)
            self.steps = 0

    @rule()
    def ask_collector(self):
        task = self.commander.get_collector_task()
        has_room = len(self.collectors) < self.limit
        assert (task is None) == (self.goal or not self.learners or not has_room)
        if task is not None:
            assert task["buffer_id"] == self.learners[0]["buffer_id"]
            self.collectors.append(task)

    @precondition(lambda self: self.collectors)
    @rule(pick=PICK, fails=st.booleans(), value=st.sampled_from([10.0, 100.0]))
    def end_collector(self, pick, fails, value):
        task = self.collectors.pop(pick % len(self.collectors))
        is_evaluation = task["collector_cfg"]["eval_flag"]
        if fails:
            self.commander.notify_fail_collector_task(task)
            return
        result = {"eval_flag": is_evaluation, "reward_mean": value, "train_iter": 1}
        result["step_count"] = 7
        self.goal = self.goal or (is_evaluation and value >= 100)
        assert self.commander.finish_collector_task(task["task_id"], result) is self.goal
        if (
            self.learners
            and not is_evaluation
            and task["buffer_id"] == self.learners[0]["buffer_id"]
        ):
            self.steps += 7

    @precondition(lambda self: self.learners)
    @rule(fails=st.booleans())
    def end_learner(self, fails):
        task = self.learners.pop()
        self.steps = 0
        if fails:
            self.commander.notify_fail_learner_task(task)
        else:
            end = {"buffer_id": task["buffer_id"]}
            assert self.commander.finish_learner_task(task["task_id"], end) == task["buffer_id"]

    @rule(more=st.booleans())
    def move_limit(self, more):
        if more:
            self.commander.increase_collector_task_space()
            self.limit += 1
        else:
            self.commander.decrease_collector_task_space()
            self.limit = max(0, self.limit - 1)

    @invariant()
    def at_most_one_evaluation_is_out(self):
        flags = [task["collector_cfg"]["eval_flag"] for task in self.collectors]
        assert sum(flags) <= 1

    @invariant()
    def env_steps_are_those_of_the_current_learner(self):
        assert self.commander.envstep == self.steps


SoloMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestSoloMachine = SoloMachine.TestCase
