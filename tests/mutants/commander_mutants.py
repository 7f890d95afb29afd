"""The commanders solo and one_vs_one with one defect each, for the commander rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.worker.commander.base import Task
from dingsdk.worker.commander.one_vs_one import OneVsOneCommander
from dingsdk.worker.commander.solo import SoloCommander

from .mutant_list import MutantList


class Mutant(SoloCommander):
    """The unchanged solo commander; mutants override one of its methods."""

    declared: ClassVar[frozenset[str]] = frozenset({"evaluates", "waits"})


class Playing(OneVsOneCommander):
    """The unchanged one_vs_one commander."""

    declared: ClassVar[frozenset[str]] = frozenset({"evaluates", "waits", "plays"})


MUTANTS = MutantList()
mutant = MUTANTS.mutant


@mutant(1)
class SendsSets(Mutant):
    def get_collector_task(self) -> Task | None:
        task = super().get_collector_task()
        return task and {**task, "players": {1, 2}}


@mutant(2, 8)
class FreesAPlaceForEachFinish(Mutant):
    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        if task_id not in self._collector_tasks:
            self._collector_space.release_space()
        return super().finish_collector_task(task_id, finished_task)


@mutant(2, 12)
class KeepsTheLearnerThatFailed(Mutant):
    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        return


@mutant(2)
class KeepsItsPlaces(Mutant):
    def increase_collector_task_space(self) -> None:
        return


@mutant(7)
class WritesTheEnvNumber(Mutant):
    def get_learner_task(self) -> Task | None:
        self._cfg["env"]["collector_env_num"] = 1
        return super().get_learner_task()


@mutant(8)
class FreesPlacesOfStrangers(Mutant):
    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        if task["task_id"] == "nobody's":
            self._collector_space.release_space()
        super().notify_fail_collector_task(task)


@mutant(9)
class ClosesItsOwnName(Mutant):
    def finish_learner_task(self, task_id: str, finished_task: Mapping[str, Any]) -> str:
        super().finish_learner_task(task_id, finished_task)
        return task_id


@mutant(11)
class SeedsAllAlike(Mutant):
    def get_collector_task(self) -> Task | None:
        task = super().get_collector_task()
        if task is not None:
            task["collector_cfg"]["seed"] = 1
        return task


@mutant(12)
class CollectsOnForTheDead(Mutant):
    dead: Any = None

    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        self.dead = self._current
        super().notify_fail_learner_task(task)

    @property
    def _current(self) -> Any:
        return super()._current or self.dead


@mutant(13, 14)
class EvaluatesAllTheTime(Mutant):
    def _is_eval_due(self) -> bool:
        return True


@mutant(14)
class StopsBeforeItTrained(Mutant):
    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        finished = {**finished_task, "train_iter": max(1, finished_task["train_iter"])}
        return super().finish_collector_task(task_id, finished)


@mutant(15)
class PutsTheTrainedPlayerLast(Playing):
    def get_collector_task(self) -> Task | None:
        task = super().get_collector_task()
        if task is not None:
            task["collector_cfg"]["policy_update_path"].reverse()
        return task


@mutant(15)
class TakesNoSnapshots(Playing):
    def __init__(self, cfg: Mapping[str, Any], *args: Any) -> None:
        super().__init__(cfg, *args)
        self.league.judge_snapshot = lambda *args: False  # type: ignore[method-assign]
