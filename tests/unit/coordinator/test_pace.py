"""A slow worker becomes a straggler once, and stops being one when it is faster again."""

from __future__ import annotations

import pytest

from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.coordinator import TaskState
from dingsdk.worker.coordinator.pace import PaceBoard

WINDOW_S = 20.0


class Race:
    """Simulates workers that make progress at given rates, second by second."""

    def __init__(self, factor: float = 3.0) -> None:
        self.now = 1000.0
        self.board = PaceBoard(factor, WINDOW_S, lambda: self.now)
        self.tasks: dict[str, TaskState] = {}
        self.totals: dict[str, float] = {}
        self.changes: list[str] = []

    def start(self, *names: str, kind: str = "collector", incarnation: int = 1) -> None:
        for name in names:
            task = self.tasks[name] = TaskState("t", kind)
            task.worker = WorkerInfo(name, kind, {}, incarnation)
            task.began_at, self.totals[name] = self.now, 0.0

    def run(self, seconds: int, rates: dict[str, float]) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for name, rate in rates.items():
                self.totals[name] += rate
                self.tasks[name].progress = int(self.totals[name])
            self.changes += self.board.look(self.tasks.values()).keys()

    def stragglers(self) -> set[str]:
        return {name for name, pace in self.board.paces().items() if pace.is_straggler}


@pytest.fixture
def race() -> Race:
    made = Race()
    made.start("c0", "c1", "c2")
    return made


def test_pace_is_the_rate_and_its_ratio_to_the_median_of_the_others(race: Race) -> None:
    race.run(60, {"c0": 100.0, "c1": 50.0, "c2": 200.0})
    paces = race.board.paces()
    assert paces["c0"].per_s == pytest.approx(100.0, rel=0.05)
    relatives = {name: pace.relative for name, pace in paces.items()}
    assert relatives == {
        "c0": pytest.approx(0.8, rel=0.05),
        "c1": pytest.approx(1 / 3, rel=0.05),
        "c2": pytest.approx(200 / 75, rel=0.05),
    }


@pytest.mark.parametrize(
    ("seconds", "rate", "changes"), [(60, 0.0, ["c1"]), (300, 10.0, ["c1"]), (200, 40.0, [])]
)
def test_worker_slower_than_the_factor_is_reported_once(
    race: Race, seconds: int, rate: float, changes: list[str]
) -> None:
    race.run(seconds, {"c0": 100.0, "c1": rate, "c2": 100.0})
    assert race.changes == changes
    assert race.stragglers() == set(changes)


def test_worker_near_the_limit_does_not_alternate(race: Race) -> None:
    for _ in range(20):
        race.run(20, {"c0": 90.0, "c1": 25.0, "c2": 90.0})
        race.run(20, {"c0": 90.0, "c1": 35.0, "c2": 90.0})
    assert race.changes in ([], ["c1"])
    race.run(200, {"c0": 90.0, "c1": 20.0, "c2": 90.0})
    assert race.stragglers() == {"c1"}
    race.run(200, {"c0": 90.0, "c1": 90.0, "c2": 90.0})
    assert race.changes == ["c1", "c1"]
    assert race.stragglers() == set()


def test_short_tasks_add_up_and_the_time_between_them_does_not_count(race: Race) -> None:
    for _ in range(40):
        race.run(2, {"c0": 100.0, "c1": 10.0, "c2": 100.0})
        race.tasks.clear()
        race.run(5, {})
        race.start("c0", "c1", "c2")
    assert race.changes == ["c1"]
    assert race.board.paces()["c0"].per_s == pytest.approx(100.0, rel=0.05)


def test_only_busy_workers_of_the_same_kind_and_process_are_compared(race: Race) -> None:
    race.run(15, {"c0": 100.0, "c1": 1.0, "c2": 100.0})
    assert race.board.paces().keys() == {"c0", "c1", "c2"}
    race.tasks.clear()
    race.start("e0", kind="evaluator")
    race.start("c0", incarnation=2)
    race.run(60, {"c0": 50.0})
    paces = race.board.paces()
    assert paces.keys() == {"c0", "e0"}
    assert (paces["c0"].per_s, paces["c0"].relative) == (50.0, None)
    assert race.changes == []
