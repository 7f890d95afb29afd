"""The rules of the commanders of parallel mode, and the bench that checks them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from dingsdk.config import to_plain
from dingsdk.testing.expect import RuleBroken, expect, expect_equal
from dingsdk.testing.runner import Contract, RuleBench, RuleBook, collect, needs
from dingsdk.worker.comm.files import FilePolicyStore
from dingsdk.worker.commander.base import BaseParallelCommander, Task

COMMANDER_CAPABILITIES: Final[Mapping[str, str]] = {
    "evaluates": "It issues evaluations, and ends the run at `env.stop_value`.",
    "waits": "It issues no collector task before a learner task.",
    "plays": "Its collector tasks are games of several players, of which the first is trained.",
}
"""The optional capabilities of a commander, and what each promises."""

MakeCommander = Callable[[Mapping[str, Any]], BaseParallelCommander]

_SPACES = 3
_STOP_VALUE = 100.0


class CommanderBench(RuleBench[MakeCommander]):
    """The bench of a commander: makes commanders for a small config with space for three tasks."""

    def config(self) -> Any:
        """Return the compiled config of a short DQN run on CartPole."""
        from dingsdk.pipeline.compile import compile_config

        spaces = {"collector_task_space": _SPACES, "learner_task_space": 1}
        compiled = compile_config(
            {
                "exp_name": "rules",
                "seed": 3,
                "env": {"env_id": "CartPole-v1", "stop_value": _STOP_VALUE},
                "policy": {
                    "type": "dqn",
                    "eval": {"evaluator": {"eval_freq": 10}},
                    "other": {"commander": {"type": "solo", **spaces}},
                },
            }
        )
        compiled.exp_name = str(self.folder / "run")
        return compiled

    def commander(self, cfg: Mapping[str, Any] | None = None) -> BaseParallelCommander:
        """Return a fresh commander."""
        return self._make(self.config() if cfg is None else cfg)

    def build(self) -> BaseParallelCommander:
        return self.commander()

    def started(self, cfg: Mapping[str, Any] | None = None) -> tuple[BaseParallelCommander, Task]:
        """Return a commander that has issued its learner task, and that task."""
        commander = self.commander(cfg)
        if (task := commander.get_learner_task()) is None:
            raise RuleBroken("the first get_learner_task() returned None")
        return commander, task

    def drain(self, commander: BaseParallelCommander) -> list[Task]:
        """Take collector tasks until there are no more, or a few more than the space allows."""
        tasks: list[Task] = []
        while len(tasks) < _SPACES + 3 and (task := commander.get_collector_task()) is not None:
            tasks.append(task)
        return tasks

    def finish(self, commander: BaseParallelCommander, task: Task, mean: float = 1.0) -> Any:
        """Report a collector task as finished."""
        return commander.finish_collector_task(task["task_id"], result_of(task, mean))


def result_of(task: Task, mean: float = 1.0, train_iter: int = 20) -> dict[str, Any]:
    """Return the result that a collector reports at the end of a task."""
    return {
        "task_id": task["task_id"],
        "eval_flag": is_evaluation(task),
        "train_iter": train_iter,
        "step_count": 50,
        "reward_mean": mean,
        "reward_raw": [mean],
        "collector_done": True,
        "game_result": [["wins" if mean > 0 else "draws"]],
    }


def is_evaluation(task: Task) -> bool:
    """Whether a collector task evaluates."""
    return bool(task["collector_cfg"]["eval_flag"])


def rule_01_tasks_hold_what_workers_read(bench: CommanderBench) -> None:
    """Tasks are plain data that JSON can encode, and have the keys that the workers read."""
    commander, learner = bench.started()
    keys = {"task_id", "policy_id", "buffer_id", "learner_cfg", "replay_buffer_cfg", "policy"}
    expect(not keys - set(learner), f"the learner task lacks {sorted(keys - set(learner))}")
    for task in bench.drain(commander):
        missing = {"task_id", "buffer_id", "collector_cfg"} - set(task)
        expect(not missing, f"a collector task lacks {sorted(missing)}")
        missing = {"eval_flag", "policy", "policy_update_path", "env"} - set(task["collector_cfg"])
        expect(not missing, f"collector_cfg lacks {sorted(missing)}")
        expect_equal(task["buffer_id"], learner["buffer_id"], "the buffer of a collector task")
        json.dumps(to_plain(task))


def rule_02_no_more_tasks_than_places(bench: CommanderBench) -> None:
    """If as many tasks of a kind are running as its task space allows, there are no more.

    A finished or failed task makes room for one new task; a repeated report does not.
    ``increase_collector_task_space`` allows one more task, ``decrease_...`` one less. No two tasks
    have the same id, even if one has finished before the other starts.
    """
    commander, learner = bench.started()
    expect(commander.get_learner_task() is None, "a second learner task, with one place")
    running = bench.drain(commander)
    expect_equal(len(running), _SPACES, "collector tasks at a time")
    seen = [task["task_id"] for task in (learner, *running)]
    for _ in range(2 * _SPACES):
        finished = running.pop(0)
        for _ in range(2):
            bench.finish(commander, finished)
        new = bench.drain(commander)
        expect_equal(len(new), 1, "tasks after one finish, reported twice")
        running += new
        seen += [task["task_id"] for task in new]
    expect_equal(len(seen), len(set(seen)), "different task ids")
    commander.increase_collector_task_space()
    expect_equal(len(bench.drain(commander)), 1, "tasks after one place more")
    commander.decrease_collector_task_space()
    bench.finish(commander, running[0])
    expect_equal(len(bench.drain(commander)), 0, "tasks after one place less")
    for _ in range(2):
        commander.notify_fail_collector_task(running[1])
    expect_equal(len(bench.drain(commander)), 1, "tasks after one failure, reported twice")
    for _ in range(2):
        commander.notify_fail_learner_task(learner)
    expect(commander.get_learner_task() is not None, "no learner task after the first one failed")
    expect(commander.get_learner_task() is None, "a failure reported twice freed two places")


def rule_07_the_config_is_only_read(bench: CommanderBench) -> None:
    """The commander does not change the config, and tasks share no data with it."""
    cfg = bench.config()
    before = copy.deepcopy(to_plain(cfg))
    commander, _ = bench.started(cfg)
    for task in bench.drain(commander):
        task["collector_cfg"]["env"].clear()
        bench.finish(commander, task)
    expect_equal(to_plain(cfg), before, "the config")


def rule_08_reports_about_unknown_tasks_change_nothing(bench: CommanderBench) -> None:
    """Progress, results and failures of tasks that are not running are ignored."""
    commander, learner = bench.started()
    tasks = bench.drain(commander)
    stranger = {**tasks[0], "task_id": "nobody's"}
    commander.update_collector_info("nobody's", {"cur_step": 10**9})
    commander.update_learner_info("nobody's", {"learner_step": 10**9})
    commander.finish_collector_task("nobody's", result_of(stranger, 10**9))
    commander.notify_fail_collector_task(stranger)
    commander.notify_fail_learner_task({**learner, "task_id": "nobody's"})
    expect_equal(len(bench.drain(commander)), 0, "tasks after reports about unknown ones")
    expect(commander.get_learner_task() is None, "a place was freed by an unknown task")


def rule_09_finishing_a_learner_names_its_buffer(bench: CommanderBench) -> None:
    """``finish_learner_task`` returns the id of the buffer to close; a new task may follow.

    A task counts as finished only when its worker reports that it is done.
    """
    commander, learner = bench.started()
    (task, *_) = bench.drain(commander)
    for done in (True, False):
        found = commander.judge_collector_finish(task["task_id"], {"collector_done": done})
        expect_equal(bool(found), done, f"judge_collector_finish with collector_done {done}")
        found = commander.judge_learner_finish(learner["task_id"], {"learner_done": done})
        expect_equal(bool(found), done, f"judge_learner_finish with learner_done {done}")
    finished = {"task_id": learner["task_id"], "buffer_id": learner["buffer_id"]}
    closed = commander.finish_learner_task(learner["task_id"], finished)
    expect_equal(closed, learner["buffer_id"], "the buffer to close")
    expect(commander.get_learner_task() is not None, "no learner task after one has finished")


def rule_11_each_collector_gets_its_own_seed(bench: CommanderBench) -> None:
    """No two collector tasks have the same seed; the same config gives the same seeds."""
    runs = []
    for _ in range(2):
        commander, _learner = bench.started()
        runs.append([task["collector_cfg"]["seed"] for task in bench.drain(commander)])
    expect_equal(len(set(runs[0])), len(runs[0]), "different seeds")
    expect_equal(runs[1], runs[0], "seeds of a second commander")


@needs("waits")
def rule_12_collectors_wait_for_a_learner(bench: CommanderBench) -> None:
    """There are collector tasks only while a learner task is running."""
    commander = bench.commander()
    expect(commander.get_collector_task() is None, "a collector task without a learner")
    learner = commander.get_learner_task()
    assert learner is not None
    expect(commander.get_collector_task() is not None, "no collector task for a learner")
    commander.notify_fail_learner_task(learner)
    expect(commander.get_collector_task() is None, "a collector task for a learner that failed")


@needs("evaluates")
def rule_13_one_evaluation_at_a_time(bench: CommanderBench) -> None:
    """The first collector task is an evaluation; an evaluation that failed is issued again."""
    commander, _ = bench.started()
    first, *others = bench.drain(commander)
    expect(is_evaluation(first), "the first collector task is no evaluation")
    expect(not any(map(is_evaluation, others)), "a second evaluation while one is out")
    commander.notify_fail_collector_task(first)
    (again,) = bench.drain(commander)
    expect(is_evaluation(again), "an evaluation that failed was not issued again")


@needs("evaluates")
def rule_14_the_stop_value_ends_the_run(bench: CommanderBench) -> None:
    """A trained policy that reaches ``env.stop_value`` ends the run; then there are no more tasks.

    A lower return, the return of an untrained policy and the return of a task that is not an
    evaluation do not end the run.
    """
    commander, _ = bench.started()
    evaluation, collecting, *_ = bench.drain(commander)
    expect(not bench.finish(commander, collecting, 10 * _STOP_VALUE), "a collector ended the run")
    expect(not bench.finish(commander, evaluation, _STOP_VALUE - 1), "99 of 100 ended the run")
    commander, _ = bench.started()
    evaluation, *_ = bench.drain(commander)
    untrained = result_of(evaluation, 10 * _STOP_VALUE, train_iter=0)
    ended = commander.finish_collector_task(evaluation["task_id"], untrained)
    expect(not ended, "an untrained policy ended the run")
    commander, learner = bench.started()
    evaluation, *_ = bench.drain(commander)
    commander.update_learner_info(learner["task_id"], {"learner_step": 20})
    expect(bool(bench.finish(commander, evaluation, _STOP_VALUE)), "the stop value did not end it")
    expect(commander.get_collector_task() is None, "a collector task after the end")
    expect(commander.get_learner_task() is None, "a learner task after the end")


@needs("plays")
def rule_15_tasks_name_a_policy_for_each_player(bench: CommanderBench) -> None:
    """``policy``, ``policy_update_path`` and ``policy_update_flag`` have one entry per player.

    The first entry is the trained policy. An evaluation has one player, and ``eval_opponent`` in
    its section ``env``; other tasks have several players. There are games of the trained player
    against itself and against past players, whose policies are in the store and never change.
    """
    cfg = bench.config()
    cfg.policy.other.league.update(one_phase_step=20, self_play=0.25)
    commander, learner = bench.started(cfg)
    store = bench.keep(FilePolicyStore(bench.folder))
    commander.policy_store = store
    past: set[str] = set()
    own_games = 0
    for train_iter in range(59):  # two phases of the league
        state = {"w": np.array([float(train_iter)])}
        store.publish(learner["policy_id"], state, train_iter)
        commander.update_learner_info(learner["task_id"], {"learner_step": train_iter})
        for task in bench.drain(commander):
            cfg, is_game = task["collector_cfg"], not is_evaluation(task)
            paths, trains = cfg["policy_update_path"], cfg["policy_update_flag"]
            for path in paths:
                expect(store.newest(path) is not None, f"policy {path} of a task is not published")
            expect_equal(len({len(paths), len(trains), len(cfg["policy"])}), 1, "lengths of lists")
            expect_equal(len(paths) > 1, is_game, "whether it has several players")
            expect_equal(paths[0], learner["policy_id"], "the first policy")
            expect_equal(bool(trains[0]), True, "whether the first one trains")
            has_opponent = cfg["env"].get("eval_opponent") is not None
            expect_equal(has_opponent, not is_game, "whether the env brings an opponent")
            past.update(path for path, is_new in zip(paths, trains, strict=True) if not is_new)
            own_games += is_game and all(trains)
            bench.finish(commander, task, 0.0)
    expect(own_games > 0, "no game of the trained player against itself")
    versions = sorted((store.newest(path) or (-1, {}))[0] for path in past)
    expect_equal(versions, [20, 40], "the versions of the players of the past")


COMMANDER_BOOK: Final = RuleBook(collect(__name__), COMMANDER_CAPABILITIES, CommanderBench)
COMMANDER_RULES: Final = COMMANDER_BOOK.rules
"""All rules of the commanders, ordered by number."""
check_commander = COMMANDER_BOOK.check
"""Check a commander against every rule, as ``RuleBook.check``.

``make(cfg)`` returns a new commander for a compiled main config, e.g. the class.
"""


class CommanderContract(Contract):
    """Contract tests of a commander; see ``COMMANDER_CAPABILITIES``.

    ``make_commander(cfg)`` returns a new commander for a compiled config.
    """

    book = COMMANDER_BOOK
    maker = "make_commander(cfg)"
