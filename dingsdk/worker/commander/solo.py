"""The commander of single-agent training: one learner, collectors, evaluations in between."""

from __future__ import annotations

import copy
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dingsdk.config import to_plain
from dingsdk.policy import create_policy
from dingsdk.worker.collector.factory import takes_env_steps
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.commander.tasks import collector_task, learner_task
from dingsdk.worker.evaluator.schedule import EvalSchedule

_log = logging.getLogger(__name__)
_LEARNER_IDS = ("task_id", "buffer_id", "policy_id")
"""Ids of a learner task that later tasks need."""


@dataclass(slots=True)
class _CollectorTask:
    """A collector task that was issued and has not ended."""

    buffer_id: str
    env_steps: int = 0
    is_evaluation: bool = False


class SoloCommander(BaseParallelCommander):
    """Trains one policy until an evaluation reaches ``env.stop_value``.

    If the run trains on a data set, collectors only evaluate; without an env, they get no task.

    The first collector task is an evaluation; ``policy.eval.evaluator`` says when others follow,
    one at a time. If all of several places are taken when one is due, one task ends early. A
    result counts towards the stop value only if the learner has trained at least once. Reports
    about unknown or ended tasks, such as a second finish of the same task, change nothing.

    Differs from the reference: env steps of running tasks count as well, and a failed
    learner or evaluation task is issued again.
    """

    class Config(BaseParallelCommander.Config, frozen=True, kw_only=True):
        """Section ``policy.other.commander``."""

        type: str = "solo"

    saved: ClassVar[tuple[str, ...]] = (
        "_run_id",
        "_collector_count",
        "_learner_count",
        "_newest_iter",
        "_evaluated_iter",
        "_ended_env_steps",
        "_learner_info",
        "_has_collected",
        "has_reached_goal",
    )
    """Attributes that are saved as they are, by their names without underscore."""

    def __init__(self, cfg: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(cfg)
        self._command = create_policy(cfg["policy"], enable_field=["command"]).command_mode
        self._stop_value = float(cfg["env"]["stop_value"])
        self._run_id = uuid.uuid4().hex[:12]
        self._collector_count = 0
        self._learner_count = 0
        self._collector_tasks: dict[str, _CollectorTask] = {}
        self._ending = ""  # collector task that ends for an evaluation
        self._learner_tasks: set[str] = set()
        self._newest: Task | None = None  # learner task, also after its end
        self._newest_iter = 0
        self._evaluated_iter = -1  # newest version of its policy that was evaluated
        self._learner_info: dict[str, Any] = {}
        self._ended_env_steps = 0
        evaluator = dict(cfg["policy"].get("eval", {}).get("evaluator", {}))
        if self._own.eval_interval is not None:
            evaluator["eval_interval_s"] = self._own.eval_interval
        self._schedule = EvalSchedule(evaluator, clock)
        self._collects = takes_env_steps(cfg["policy"])
        self._evaluates = cfg["env"].get("env_id", "") is not None
        self._has_collected = True  # since the last evaluation was issued
        self.has_reached_goal = False
        """Whether an evaluation of a trained policy has reached the stop value."""

    @property
    def _current(self) -> Task | None:
        """The newest learner task while it has not ended."""
        newest = self._newest
        return newest if newest is not None and newest["task_id"] in self._learner_tasks else None

    @property
    def envstep(self) -> int:
        """Env steps collected for the newest learner, including those of running tasks."""
        return self._ended_env_steps + sum(
            task.env_steps for task in self._collector_tasks.values() if self._is_newest(task)
        )

    def get_learner_task(self) -> Task | None:
        if self.has_reached_goal or not self._learner_space.acquire_space():
            return None
        number, self._learner_count = self._learner_count, self._learner_count + 1
        uid = f"{self._run_id}_{number}"
        ids = (f"learner_task_{uid}", f"buffer_{uid}", f"policy_{uid}")
        task = self._newest = learner_task(self._cfg, *ids, number=number)
        self._learner_tasks.add(task["task_id"])
        self._newest_iter = self.begins_at.train_iter
        self._ended_env_steps = self.begins_at.env_steps
        self._evaluated_iter = -1
        self._learner_info = {}
        self._schedule.reset()
        return task

    def get_collector_task(self) -> Task | None:
        # With one place, evaluations longer than their interval would leave no time to collect.
        is_to_collect = self._collects and not (self._collector_tasks or self._has_collected)
        evaluation = None if is_to_collect else self.get_eval_task()
        learner = self._current
        if evaluation is not None or learner is None or self.has_reached_goal:
            return evaluation
        if not self._collects or not self._collector_space.acquire_space():
            return None
        self._has_collected = True
        return self._collector_task(learner, is_evaluation=False)

    def get_eval_task(self) -> Task | None:
        learner = self._current
        if self.has_reached_goal or learner is None or not self._is_eval_due():
            return None
        if not self._collector_space.acquire_space():
            return None
        self._has_collected = False
        return self._collector_task(learner, is_evaluation=True)

    def get_last_eval_task(self) -> Task | None:
        # A learner that went back to its checkpoint may end before the last evaluated iteration.
        learner, is_evaluated = self._newest, self._evaluated_iter == self._newest_iter
        is_evaluated |= not self._evaluates
        if learner is None or is_evaluated or not self._collector_space.acquire_space():
            return None
        return self._collector_task(learner, is_evaluation=True)

    def _collector_task(self, learner: Task, *, is_evaluation: bool) -> Task:
        number, self._collector_count = self._collector_count, self._collector_count + 1
        task = collector_task(
            self._cfg,
            f"{'evaluator' if is_evaluation else 'collector'}_task_{self._run_id}_{number}",
            learner["buffer_id"],
            learner["policy_id"],
            number=number,
            collect_setting={} if is_evaluation else self._collect_setting(),
            eval_flag=is_evaluation,
        )
        if is_evaluation:
            self._schedule.note(self._newest_iter, self.envstep)
        self._collector_tasks[task["task_id"]] = _CollectorTask(task["buffer_id"], 0, is_evaluation)
        return task

    def get_collect_setting(self, task_id: str) -> Mapping[str, Any] | None:
        task = self._collector_tasks.get(task_id)
        if task is None or task.is_evaluation or not self._is_current(task):
            return None
        return self._collect_setting()

    def wants_end_of(self, task_id: str) -> bool:
        """Return whether an evaluation is due and waits for the place of this task.

        Always False with only one place, as long evaluations would leave no time to collect.
        """
        task = self._collector_tasks.get(task_id)
        if task is None or task.is_evaluation or self._collector_space.max_val < 2:
            return False
        if self._ending not in self._collector_tasks:
            has_place = self._collector_space.get_residual_space() > 0
            if has_place or not self._is_current(task) or not self._is_eval_due():
                return False
            self._ending = task_id
        return self._ending == task_id

    def _collect_setting(self) -> dict[str, Any]:
        progress = {**self._learner_info, "envstep": self.envstep}
        return to_plain(self._command.get_setting_collect(progress))

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        if self._current is not None and self._current["task_id"] == task_id:
            self._learner_info = {key: info[key] for key in info if key != "priority_info"}
            self._newest_iter = int(info.get("learner_step", 0))

    def update_collector_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        task = self._collector_tasks.get(task_id)
        if task is not None and not task.is_evaluation and "cur_step" in info:
            task.env_steps = max(task.env_steps, int(info["cur_step"]))

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        self.update_collector_info(task_id, {"cur_step": finished_task.get("step_count", 0)})
        task = self._end_collector_task(task_id)
        if task is not None and task.is_evaluation:
            if self._is_newest(task):
                self._evaluated_iter = int(finished_task["train_iter"])
            self._judge(finished_task)
        return self.has_reached_goal

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        ended = self._end_collector_task(task["task_id"])
        if ended is not None and ended.is_evaluation:
            # So that an evaluation can be issued again at once.
            self._has_collected = True
            self._schedule.reset()

    def finish_learner_task(self, task_id: str, finished_task: Mapping[str, Any]) -> str:
        self._end_learner_task(task_id)
        return str(finished_task["buffer_id"])

    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        self._end_learner_task(task["task_id"])

    def state_dict(self) -> dict[str, Any]:
        newest = self._newest
        tasks = {
            task_id: (task.buffer_id, task.env_steps, task.is_evaluation)
            for task_id, task in self._collector_tasks.items()
        }
        return {
            **super().state_dict(),
            "collector_tasks": tasks,
            "learner_tasks": sorted(self._learner_tasks),
            "newest": None if newest is None else {key: newest[key] for key in _LEARNER_IDS},
            **{name.lstrip("_"): copy.copy(getattr(self, name)) for name in self.saved},
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._collector_tasks = {
            # Earlier versions saved the start of an evaluation, or None, in place of the flag.
            task_id: _CollectorTask(buffer_id, env_steps, bool(is_evaluation))
            for task_id, (buffer_id, env_steps, is_evaluation) in state["collector_tasks"].items()
        }
        self._learner_tasks = set(state["learner_tasks"])
        self._newest = None if state["newest"] is None else dict(state["newest"])
        for name in self.saved:
            setattr(self, name, state[name.lstrip("_")])
        self._schedule.load_state_dict(state["schedule"])

    def _is_current(self, task: _CollectorTask) -> bool:
        return self._current is not None and self._is_newest(task)

    def _is_newest(self, task: _CollectorTask) -> bool:
        return self._newest is not None and self._newest["buffer_id"] == task.buffer_id

    def _is_eval_due(self) -> bool:
        is_evaluating = any(task.is_evaluation for task in self._collector_tasks.values())
        if is_evaluating or not self._evaluates:
            return False
        return self._schedule.is_due(self._newest_iter, self.envstep)

    def _judge(self, result: Mapping[str, Any]) -> None:
        text = "evaluation at iteration %d, env step %d: mean return %.2f (goal %.2f)"
        train_iter = int(result["train_iter"])
        _log.info(text, train_iter, self.envstep, result["reward_mean"], self._stop_value)
        if train_iter > 0 and self._ends_run(result):
            self.has_reached_goal = True

    def _ends_run(self, result: Mapping[str, Any]) -> bool:
        """Judge the evaluation of a trained policy; return whether it ends the run."""
        return float(result["reward_mean"]) >= self._stop_value

    def _end_collector_task(self, task_id: str) -> _CollectorTask | None:
        task = self._collector_tasks.pop(task_id, None)
        if task is not None:
            self._collector_space.release_space()
            if self._is_newest(task):
                self._ended_env_steps += task.env_steps
        return task

    def _end_learner_task(self, task_id: str) -> None:
        if task_id not in self._learner_tasks:
            return
        self._learner_tasks.remove(task_id)
        self._learner_space.release_space()
        if self._newest is not None and self._newest["task_id"] == task_id:
            self._learner_info = {}  # the next learner begins with new weights
