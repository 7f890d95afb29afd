"""Random histories of a solo commander, compared with a simple count of running tasks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dingsdk.config import to_easydict
from dingsdk.data import decode_json, encode_json
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


def written(commander):
    """Return the state of a commander in the form in which a journal stores it."""
    return decode_json("test", encode_json("test", commander.state_dict()))


def is_evaluation(task):
    return task["collector_cfg"]["eval_flag"]


class SoloMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.commander = SoloCommander(CFG, clock=lambda: self.now)
        self.collectors, self.learners, self.goal = [], [], False
        self.limit, self.steps, self.newest = 2, 0, ""

    @rule(seconds=st.integers(0, 10))  # whole seconds, so that sums are exact
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def ask_learner(self):
        task = self.commander.get_learner_task()
        assert (task is None) == (self.goal or len(self.learners) >= 1)
        if task is not None:
            self.learners.append(task)
            self.steps, self.newest = 0, task["buffer_id"]

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
        is_eval = is_evaluation(task)
        if fails:
            self.commander.notify_fail_collector_task(task)
            return
        result = {"eval_flag": is_eval, "reward_mean": value, "train_iter": 1}
        result["step_count"] = 7
        self.goal = self.goal or (is_eval and value >= 100)
        assert self.commander.finish_collector_task(task["task_id"], result) is self.goal
        if not is_eval and task["buffer_id"] == self.newest:
            self.steps += 7

    @precondition(lambda self: self.learners)
    @rule(fails=st.booleans())
    def end_learner(self, fails):
        task = self.learners.pop()
        if fails:
            self.commander.notify_fail_learner_task(task)
        else:
            end = {"buffer_id": task["buffer_id"]}
            assert self.commander.finish_learner_task(task["task_id"], end) == task["buffer_id"]

    @precondition(lambda self: self.learners)
    @rule(iterations=st.integers(1, 9))
    def learn(self, iterations):
        info = {"learner_step": iterations, "learner_done": False}
        self.commander.update_learner_info(self.learners[0]["task_id"], info)

    @precondition(lambda self: self.collectors)
    @rule(pick=PICK, steps=st.integers(1, 7))
    def collect(self, pick, steps):
        task = self.collectors[pick % len(self.collectors)]
        setting = self.commander.get_collect_setting(task["task_id"])
        is_current = self.learners and task["buffer_id"] == self.learners[0]["buffer_id"]
        assert (setting is not None) == bool(is_current and not is_evaluation(task))

    @rule()
    def start_again(self):
        """Restore the state in a new commander, as another coordinator does from the journal."""
        state = written(self.commander)
        self.now += 1000.0  # the clock of another host
        other = SoloCommander(CFG, clock=lambda: self.now)
        other.load_state_dict(state)
        assert written(other) == state
        self.commander = other

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
        flags = [is_evaluation(task) for task in self.collectors]
        assert sum(flags) <= 1

    @invariant()
    def env_steps_are_those_of_the_newest_learner(self):
        assert self.commander.envstep == self.steps


SoloMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestSoloMachine = SoloMachine.TestCase
