"""Env managers with one defect each, for the env manager rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dingsdk.envs import Capabilities, InProcessEnvManager, StepColumns, Timestep
from dingsdk.envs.subprocess import AsyncSubprocessEnvManager

from .mutant_list import MutantList

FULL = frozenset({"per_env_seed", "per_env_reset", "partial_step", "guarded", "players", "saves"})


class Mutant(InProcessEnvManager):
    """The unchanged env manager; mutants override one of its methods."""

    declared: ClassVar[frozenset[str]] = FULL


MUTANTS = MutantList()
mutant = MUTANTS.mutant


@mutant(5, 9)
class LosesTheLastObservation(Mutant):
    def step_batch(self, actions: Any, env_ids: Any = None) -> StepColumns:
        step = super().step_batch(actions, env_ids)
        return step._replace(final_obs=step.obs)


@mutant(5)
class TellsNoTruncation(Mutant):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        timestep = self._episodes.timestep

        def told_as_terminated(*args: Any) -> Timestep:
            step = timestep(*args)
            if args[-1]["truncated"]:
                args[-1].update(terminated=True, truncated=False)
            return step

        self._episodes.timestep = told_as_terminated  # type: ignore[method-assign]


@mutant(7)
class UsesItsColumnsAgain(Mutant):
    _kept: Any = None

    def step_batch(self, actions: Any, env_ids: Any = None) -> StepColumns:
        step = super().step_batch(actions, env_ids)
        if self._kept is None or len(self._kept) != len(step.reward):
            self._kept = step.reward
        self._kept[:] = step.reward
        return step._replace(reward=self._kept)


@mutant(8)
class KeepsTheReturnOverAReset(Mutant):
    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        before = self._episodes.returns.copy()
        super()._reset_envs(env_ids, kwargs)
        self._episodes.returns[:] = before


@mutant(9)
class DropsTheStatistics(Mutant):
    def step_batch(self, actions: Any, env_ids: Any = None) -> StepColumns:
        return super().step_batch(actions, env_ids)._replace(episode_info={})


@mutant(10, 5, 20)
class GivesAllEnvsOtherSeeds(Mutant):
    def seed(self, seed: Any, dynamic_seed: bool | None = None) -> None:
        super().seed(seed, dynamic_seed)
        self._seeds.values = [None if each is None else each + 1 for each in self._seeds.values]


@mutant(10)
class IgnoresThatSeedsAreFixed(Mutant):
    def seed(self, seed: Any, dynamic_seed: bool | None = None) -> None:
        super().seed(seed)


@mutant(13)
class ForgetsTheArguments(Mutant):
    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        super()._reset_envs(env_ids, kwargs)
        for env_id in env_ids:
            self._envs[env_id]._reset_kwargs = {}


@mutant(14)
class PlaysOnAfterItsEpisodes(Mutant):
    def step_batch(self, actions: Any, env_ids: Any = None) -> StepColumns:
        self._episodes.parked[:] = False
        return super().step_batch(actions, env_ids)


@mutant(15)
class ResetsByItself(Mutant):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        episodes, end = self._episodes, self._episodes.end

        def end_and_reset(env_ids: Any) -> None:
            end(env_ids)
            episodes.parked[env_ids] = episodes.counts[env_ids] >= self.episode_num

        episodes.end = end_and_reset  # type: ignore[method-assign]


@mutant(16)
class StepsBeforeItChecks(Mutant):
    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        steps = {}
        for env_id, action in actions.items():
            steps |= super().step({env_id: action})
        return steps


@mutant(17)
class PassesTheRewardOfAFailureOn(Mutant):
    def step_batch(self, actions: Any, env_ids: Any = None) -> StepColumns:
        step = super().step_batch(actions, env_ids)
        if step.abnormal is not None:
            step.reward[step.abnormal] = -1
        return step


@mutant(17)
class AddsUpOverAFailure(Mutant):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        episodes, timestep = self._episodes, self._episodes.timestep

        def keep_the_return(env_id: int, *args: Any) -> Timestep:
            before = episodes.returns[env_id]
            step = timestep(env_id, *args)
            if args[-1].get("abnormal"):
                episodes.returns[env_id] = before
            return step

        episodes.timestep = keep_the_return  # type: ignore[method-assign]


@mutant(19)
class ForgivesNothing(Mutant):
    def _play_all(self, actions: Mapping[int, Any]) -> Any:
        before = [env._failures_in_row for env in self._envs]
        played = list(super()._play_all(actions))
        for env, count in zip(self._envs, before, strict=True):
            env._failures_in_row = max(count, env._failures_in_row)
        return played


@mutant(20)
class RebuildsWithTheSameSeed(Mutant):
    def step_batch(self, actions: Any, env_ids: Any = None) -> StepColumns:
        for env in self._envs:
            env._rebuilds = 0
        return super().step_batch(actions, env_ids)


@mutant(22)
class SortsItsEnvs(Mutant):
    def step_batch(self, actions: Any, env_ids: Any = None) -> StepColumns:
        return super().step_batch(actions, None if env_ids is None else np.sort(env_ids))


@mutant(23)
class WaitsForTheSlowest(AsyncSubprocessEnvManager):
    declared: ClassVar[frozenset[str]] = FULL | {"asynchronous"}
    only: ClassVar[int] = 23

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        self._begin(actions)
        self._wait(for_all=True)
        return self._timesteps()


@mutant(1)
class LeavesEnvsOpen(Mutant):
    def _discard(self) -> None:
        self._envs.clear()


@mutant(25)
class TakesAnyConfig(Mutant):
    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__({k: v for k, v in cfg.items() if k != "no_such_key"}, env_fns)


@mutant(26)
class PromisesTooMuch(Mutant):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(asynchronous=True)


@mutant(27)
class GivesAllTheSameReturn(Mutant):
    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        steps = super().step(actions)
        for step in steps.values():
            if isinstance(step.info, list) and step.done:
                for info in step.info:
                    info["eval_episode_return"] = step.info[0]["eval_episode_return"]
        return steps


@mutant(28)
class ForgetsTheRandomStreams(Mutant):
    def _envs_state(self) -> Any:
        states = super()._envs_state()
        for state in states:
            del state["env"]["layers"][-1]["attributes"]["_np_random"]
        return states


@mutant(28)
class ForgetsItsEpisodes(Mutant):
    def set_state(self, state: Mapping[str, Any]) -> None:
        counts = self._episodes.counts.copy()
        super().set_state(state)
        self._episodes.counts = counts
