"""Runs serial collectors and evaluators as tasks of a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np

from dingsdk.config import to_easydict
from dingsdk.data import SampleBatch, derive_seed
from dingsdk.envs.steps import StepColumns, Timestep
from dingsdk.errors import ClosedError
from dingsdk.worker.collector.env_pool import EnvKind
from dingsdk.worker.collector.episode_numbers import numbers_of_episode, summaries
from dingsdk.worker.collector.rollout import Rollout
from dingsdk.worker.collector.zergling import ZerglingParallelCollector
from dingsdk.worker.evaluator.base import plays_episodes, returns_of
from dingsdk.worker.factory import (
    create_serial_collector,
    create_serial_evaluator,
    get_serial_evaluator_cls,
)
from dingsdk.worker.serial_worker import evaluation_of, samples_of

STEPS = ("step", "step_batch")
"""The methods that step the envs of a manager."""
FORWARDS = ("forward", "forward_batch")
"""The members of a policy's mode that compute actions."""


class SerialTaskCollector(ZerglingParallelCollector):
    """Runs the serial collector or evaluator that the config names, in a worker.

    A collect task calls ``policy.collect.collector``, an evaluation ``policy.eval.evaluator``.
    If the collector returns episodes, each episode is one payload. A newer policy is loaded between
    two calls. A collect task ends after ``env.collector_episode_num`` episodes per env on average;
    if the collector does not set ``last_episodes``, after that number of calls.
    """

    class Config(ZerglingParallelCollector.Config, frozen=True, kw_only=True):
        """Section ``policy.collect.parallel_collector``."""

        type: str = "serial"

    _evaluated: Mapping[str, Any] = {}
    """Result of the evaluator."""

    def __repr__(self) -> str:
        return f"{type(self._serial).__name__} {self._uid}"

    def _set_up_envs(self, cfg: Mapping[str, Any]) -> tuple[float, Self | None]:
        env_cfg = cfg["env"]
        kind: EnvKind = "evaluator" if self._eval_flag else "collector"
        self._env_num = int(env_cfg[f"{kind}_env_num"])
        self._counts_of_rollout = SimpleNamespace(env_steps=0, is_finished=False)
        before = self._take_envs(kind, None if self._eval_flag else cfg["policy"])
        self._calls_left = int(env_cfg["collector_episode_num"])
        episodes = math.inf if self._eval_flag else float(self._calls_left * self._env_num)
        return episodes, before

    def _with_turns(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function: let other tasks run before each call, and count transitions."""
        acting = cast("list[SerialTaskCollector]", self._acting)

        def called(*args: Any, **kwargs: Any) -> Any:
            task = acting[0]
            task._give_turn()
            before = task._counts_of_rollout.env_steps
            made = call(*args, **kwargs)
            # `step` may call `step_batch`.
            task._counts_of_rollout.env_steps = before + _transition_count(made)
            return made

        return called

    def _give_turn(self) -> None:
        """Let other tasks run; raise ClosedError if this task is over."""
        self.yield_turn()
        if self._is_closed:
            raise ClosedError("the task is over", what="collector")

    def _set_up_rollout(self, before: Self | None) -> Rollout:
        for name in STEPS:
            setattr(self.env_manager, name, self._with_turns(getattr(self.env_manager, name)))
        self._serial: Any = self._create_serial() if before is None else before._serial
        if not self._eval_flag:
            self._unroll_len = int(self.policy.get_attribute("unroll_len"))
            self._steps_before = self._serial.envstep
        return cast(Rollout, self._counts_of_rollout)

    def _create_serial(self) -> Any:
        policy_cfg, seed = self._policy_cfg, self._cfg.get("seed")
        # A collector or evaluator that does not step envs may call the policy.
        forms = {name: getattr(self.policy, name, None) for name in FORWARDS}
        given = {name: self._with_turns(form) for name, form in forms.items() if form is not None}
        parts = {
            "env": self.env_manager,
            "policy": self.policy._replace(**given),
            "tb_logger": _NoTensorboard(),
            "exp_name": self._exp_name,
            "instance_name": self._instance_name,
        }
        if self._eval_flag:
            section = to_easydict(policy_cfg["eval"]["evaluator"])
            per_env = self._cfg["env"].get("evaluator_episode_num")
            if per_env is not None and "n_episode" in section:
                section.n_episode = per_env * self._env_num
            if not plays_episodes(get_serial_evaluator_cls(section)):
                parts["env"] = None
            evaluator: Any = create_serial_evaluator(section, **parts)
            evaluator.tells_observers = False  # the coordinator calls them for all evaluations
            return evaluator
        section = to_easydict(policy_cfg["collect"]["collector"])
        if section.get("seed", 0) is None and seed is not None:
            section.seed = derive_seed(seed, "collector")
        return create_serial_collector(section, **parts)

    def get_finish_info(self) -> dict[str, Any]:
        """As ``ZerglingParallelCollector.get_finish_info``; an evaluation has one more key.

        It is ``opponent``: the opponent that plays the other players of the env.
        """
        info = super().get_finish_info()
        if self._eval_flag:
            info["numbers"] = summaries(self._evaluated)
            plays = plays_episodes(self._serial)
            info["opponent"] = self._cfg["env"].get("eval_opponent") if plays else None
        return info

    def _observe(self) -> None:
        return None

    def _policy_inference(self, obs: Any) -> None:
        return None

    def _env_step(self, policy_output: Any) -> Any:
        """Evaluate or collect once; return the result."""
        if self._eval_flag:
            return evaluation_of(self._serial, train_iter=self._policy_iter)[1]
        self._serial.last_episodes = None
        self._calls_left -= 1
        return samples_of(
            self._serial, train_iter=self._policy_iter, policy_kwargs=self.collect_setting
        )

    def _process_timestep(self, obs: Any, policy_output: Any, step: Any) -> None:
        if self._eval_flag:
            returns = returns_of(step)
            self._evaluated = step if isinstance(step, Mapping) else {}
            self._counts_of_rollout.is_finished = True
        else:
            ended = self._serial.last_episodes
            returns = [each.episode_return for each in ended or ()]
            self._lengths.extend(each.length for each in ended or ())
            self._numbers.extend(filter(None, map(numbers_of_episode, ended or ())))
            # Collectors that do not set `last_episodes` play the episodes that the policy asks for.
            asked = self._policy_cfg["collect"].get("n_episode") or 0
            self._unsent_episodes += asked if ended is None else len(returns)
            self._counts_of_rollout.env_steps = self._serial.envstep - self._steps_before
            self._counts_of_rollout.is_finished = ended is None and self._calls_left <= 0
            for samples in step if self._is_of_episodes(step) else [step]:
                if len(samples):
                    self._send_samples(samples)
        self._episode_count += len(returns)
        self._returns.extend(returns)
        self.send_metadata(self._progress())

    def _is_of_episodes(self, collected: Any) -> bool:
        if not isinstance(collected, list) or not collected:
            return False
        section = self._policy_cfg["collect"]["collector"]
        gives = getattr(self._serial, "gives_episodes", False)
        is_whole = gives and not section.get("get_train_sample")
        # A list of lists is not always a list of episodes: samples may be lists too.
        return is_whole or isinstance(collected[0], SampleBatch)

    def _release(self) -> None:
        if self._left is None:
            self._end_unfinished()
        for name in STEPS if self.env_manager is not None else ():
            vars(self.env_manager).pop(name, None)
        super()._release()

    def _end_unfinished(self) -> None:
        serial = getattr(self, "_serial", None)
        if serial is not None:
            serial.detach_env()  # the next task may use it
            serial.close()


def _transition_count(made: Any) -> int:
    """Return how many transitions a step made; 0 for what a policy returned."""
    if isinstance(made, StepColumns):
        return len(made.reward) if made.valid is None else int(np.count_nonzero(made.valid))
    steps = made.values() if isinstance(made, Mapping) else ()
    return sum(isinstance(each, Timestep) and not each.info.get("abnormal") for each in steps)


class _NoTensorboard:
    """Drops the tensorboard output of serial mode, because a worker runs thousands of tasks."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None
