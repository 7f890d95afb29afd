"""Serial collectors and evaluators as the tasks of a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from dingsdk.config import to_easydict
from dingsdk.data import SampleBatch, derive_seed
from dingsdk.errors import ClosedError, ConfigError
from dingsdk.worker.collector.env_pool import EnvKind
from dingsdk.worker.collector.rollout import Rollout
from dingsdk.worker.collector.zergling import ZerglingParallelCollector
from dingsdk.worker.evaluator.base import returns_of
from dingsdk.worker.factory import (
    create_serial_collector,
    create_serial_evaluator,
    get_serial_evaluator_cls,
)

STEPS = ("step", "step_batch")
"""The methods that step the envs of a manager."""
FORWARDS = ("forward", "forward_batch")
"""The members of a policy's mode that ask it for actions."""


class SerialTaskCollector(ZerglingParallelCollector):
    """Runs the serial collector or evaluator that the config names, in a worker.

    A collecting task calls ``policy.collect.collector``, an evaluation ``policy.eval.evaluator``.
    Of episodes each becomes a payload. A newer policy is loaded between two calls. A collecting
    task ends after ``env.collector_episode_num`` episodes per env on average; where the collector
    tells no ``last_episodes``, after as many calls.
    """

    class Config(ZerglingParallelCollector.Config, frozen=True, kw_only=True):
        """Section ``policy.collect.parallel_collector``."""

        type: str = "serial"

    _evaluated: Mapping[str, Any] = {}
    """What the evaluator returned."""

    goes_on = False

    def __repr__(self) -> str:
        return f"{type(self._serial).__name__} {self._uid}"

    def _set_up_envs(self, cfg: Mapping[str, Any]) -> float:
        env_cfg = cfg["env"]
        kind: EnvKind = "evaluator" if self._eval_flag else "collector"
        self._env_num = int(env_cfg[f"{kind}_env_num"])
        self._counts_of_rollout = _Counts()
        manager = self._take_envs(kind)
        for name in STEPS:
            setattr(manager, name, self._with_turns(getattr(manager, name)))
        self._calls_left = int(env_cfg["collector_episode_num"])
        return math.inf if self._eval_flag else float(self._calls_left * self._env_num)

    def _with_turns(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Let others run before each step, and count it."""

        def stepped(actions: Any, *args: Any, **kwargs: Any) -> Any:
            self._give_turn()
            self._counts_of_rollout.env_steps += len(actions)
            return step(actions, *args, **kwargs)

        return stepped

    def _policy_with_turns(self) -> Any:
        """Return the mode in use; others run before each of its calls, for those without a step."""

        def with_turns(forward: Callable[..., Any]) -> Callable[..., Any]:
            def asked(*args: Any, **kwargs: Any) -> Any:
                self._give_turn()
                return forward(*args, **kwargs)

            return asked

        forms = {name: getattr(self.policy, name, None) for name in FORWARDS}
        return self.policy._replace(
            **{name: with_turns(form) for name, form in forms.items() if form is not None}
        )

    def _give_turn(self) -> None:
        """Let others run; raises ClosedError where the task is over."""
        self.yield_turn()
        if self._is_closed:
            raise ClosedError("the task is over", what="collector")

    def _set_up_rollout(self) -> Rollout:
        policy_cfg, seed = self._cfg["policy"], self._cfg.get("seed")
        parts = {
            "env": self._env_manager,
            "policy": self._policy_with_turns(),
            "tb_logger": _NoTensorboard(),
            "exp_name": self._exp_name,
            "instance_name": self._instance_name,
        }
        self._serial: Any
        if self._eval_flag:
            section = to_easydict(policy_cfg["eval"]["evaluator"])
            if not getattr(get_serial_evaluator_cls(section), "plays", True):
                parts["env"] = None
            self._serial = create_serial_evaluator(section, **parts)
            self._serial.tells_observers = False  # the coordinator does, of every evaluation
        else:
            self._unroll_len = int(self.policy.get_attribute("unroll_len"))
            section = to_easydict(policy_cfg["collect"]["collector"])
            if section.get("seed", 0) is None and seed is not None:
                section.seed = derive_seed(seed, "collector")
            self._serial = create_serial_collector(section, **parts)
        return cast(Rollout, self._counts_of_rollout)

    def _episode_info(self) -> Mapping[str, Any]:
        return self._evaluated

    def _observe(self) -> None:
        return None

    def _policy_inference(self, obs: Any) -> None:
        return None

    def _env_step(self, policy_output: Any) -> Any:
        """Evaluate or collect once; return the result."""
        if self._eval_flag:
            return self._serial.eval(train_iter=self._policy_iter)[1]
        self._serial.last_episodes = ()
        self._calls_left -= 1
        return self._serial.collect(
            train_iter=self._policy_iter, policy_kwargs=self.collect_setting
        )

    def _process_timestep(self, obs: Any, policy_output: Any, step: Any) -> None:
        if self._eval_flag:
            returns = returns_of(step)
            self._evaluated = step if isinstance(step, Mapping) else {}
            self._counts_of_rollout.is_finished = True
        else:
            returns = [each.episode_return for each in self._serial.last_episodes]
            self._counts_of_rollout.env_steps = self._serial.envstep
            is_counted = self._episode_count or returns
            self._counts_of_rollout.is_finished = not is_counted and self._calls_left <= 0
            for samples in step if self._is_of_episodes(step) else [step]:
                if len(samples):
                    self._check_samples(samples)
                    self._send_samples(samples)
        self._episode_count += len(returns)
        self._returns.extend(returns)
        self.send_metadata(self._progress())

    def _is_of_episodes(self, collected: Any) -> bool:
        if not isinstance(collected, list) or not collected:
            return False
        section = self._cfg["policy"]["collect"]["collector"]
        gives = getattr(self._serial, "gives_episodes", False)
        is_whole = gives and not section.get("get_train_sample")
        # A list of lists may also be samples that are lists.
        return is_whole or isinstance(collected[0], SampleBatch)

    def _check_samples(self, samples: Any) -> None:
        if isinstance(samples, SampleBatch) or isinstance(samples[0], Mapping | list):
            return
        kind = self._cfg["policy"]["collect"]["collector"]["type"]
        raise ConfigError(
            f"a collector of type {kind!r} gives a list of {type(samples[0]).__name__}, and "
            "parallel mode moves samples: a SampleBatch, or a list of dicts or lists; use --mode "
            "serial",
            path="policy.collect.collector.type",
        )

    def _release(self) -> None:
        serial = getattr(self, "_serial", None)
        if serial is not None:
            serial.detach_env()  # it may serve the next task
            serial.close()
        for name in STEPS if self._env_manager is not None else ():
            vars(self._env_manager).pop(name, None)
        super()._release()


class _Counts:
    """What a rollout counts."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.is_finished = False


class _NoTensorboard:
    """Drops what serial mode writes to tensorboard: a worker has tasks by the thousand."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None
