"""Episode evaluators with one defect each, for the evaluator rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from dingsdk.errors import PolicyOutputError
from dingsdk.worker import InteractionSerialEvaluator

from .mutant_list import MutantList


class Mutant(InteractionSerialEvaluator):
    """The unchanged evaluator; mutants override one of its methods."""


MUTANTS = MutantList()
mutant = MUTANTS.mutant


@mutant(1)
class IgnoresTheNumberAskedFor(Mutant):
    def eval(self, *args: Any, **kwargs: Any) -> Any:
        if self._cfg.n_episode is not None:
            kwargs.pop("n_episode", None)
        return super().eval(*args, **kwargs)


@mutant(3)
class CountsTheFirstToEnd(Mutant):
    def _make_rollout(self, monitor: Any) -> Any:
        count = int(monitor.quota.sum())
        monitor.quota = np.full(len(monitor.quota), count)
        rollout = super()._make_rollout(monitor)
        rollout._quota = count
        return rollout


@mutant(5)
class CountsFailedEpisodes(Mutant):
    def _make_rollout(self, monitor: Any) -> Any:
        rollout = super()._make_rollout(monitor)
        record_one = rollout._record_one

        def record(env_id: int, timestep: Any, *rest: Any) -> None:
            if timestep.info.get("abnormal"):
                info = {"eval_episode_return": 0.0}
                timestep = timestep._replace(done=True, info=info)
            record_one(env_id, timestep, *rest)

        rollout._record_one = record
        return rollout


@mutant(7)
class SavesEachPolicy(Mutant):
    def eval(self, *args: Any, **kwargs: Any) -> Any:
        self._best_result = (False, -np.inf)
        return super().eval(*args, **kwargs)


@mutant(8)
class StopsUntrained(Mutant):
    def eval(self, *args: Any, **kwargs: Any) -> Any:
        is_reached, info = super().eval(*args, **kwargs)
        return is_reached or info["eval_episode_return_mean"] >= self._cfg.stop_value, info


@mutant(9)
class IsAlwaysDue(Mutant):
    def should_eval(self, train_iter: int, envstep: int = 0) -> bool:
        return super().should_eval(train_iter, envstep) or train_iter % 10 == 0


@mutant(10)
class GivesUpQuietly(Mutant):
    def eval(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().eval(*args, **kwargs)
        except PolicyOutputError:
            return False, {}


@mutant(1)
class PlaysOneForEachEnv(Mutant):
    def eval(self, *args: Any, n_episode: Any = None, **kwargs: Any) -> Any:
        if n_episode is not None:
            n_episode = max(n_episode, self.env.env_num)
        return super().eval(*args, n_episode=n_episode, **kwargs)


@mutant(12)
class NeedsAnEnvAtOnce(Mutant):
    def __init__(self, cfg: Any, env: Any = None, policy: Any = None, *args: Any) -> None:
        super().__init__(cfg, env, policy, *args)
        _ = self.env


@mutant(3)
class TellsNobody(Mutant):
    tells_observers = False


@mutant(12)
class LeavesEnvsOpen(Mutant):
    def close(self) -> None:
        self._env = None
        super().close()


@mutant(15)
class StepsAllToTheEnd(Mutant):
    def _make_rollout(self, monitor: Any) -> Any:
        rollout = super()._make_rollout(monitor)
        rollout._can_step_some = False
        return rollout
