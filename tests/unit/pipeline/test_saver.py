"""When a serial run is saved, by a clock that the test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import RunFolderError
from dingsdk.pipeline import resume
from dingsdk.pipeline.resume import RunSaver


class Saver(RunSaver):
    """Notes when it writes; that takes ``took_s``, and fails while ``is_full``."""

    def __init__(self, clock: Clock, every: Any) -> None:
        self.clock, self.written_at, self.took_s, self.is_full = clock, [], 0.0, False
        self.place = SimpleNamespace(train_iter=0)
        member = SimpleNamespace(
            learner=self.place, collector=SimpleNamespace(envstep=0), updates_left=0
        )
        context: Any = SimpleNamespace(
            cfg=SimpleNamespace(system=SimpleNamespace(save_every=every)),
            run_dir=clock.folder,
            recorder=SimpleNamespace(all_evaluations=()),
        )
        team: Any = SimpleNamespace(members=[member])
        super().__init__(context, team)

    def _write(self, number: int) -> None:
        self.written_at.append(self.clock.now)
        self.clock.now += self.took_s
        if self.is_full:
            raise RunFolderError("no space", path="resume")

    def go_on(self, until: float) -> list[float]:
        """Train an iteration every quarter of a second; return when it saved."""
        self.written_at.clear()
        while self.clock.now < until:
            self.place.train_iter += 1
            self.save_if_due()
            self.clock.now += 0.25
        return list(self.written_at)


class Clock:
    def __init__(self, folder: Any) -> None:
        self.folder, self.now = folder, 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(tmp_path)
    monkeypatch.setattr(resume, "time", made)
    monkeypatch.setattr(resume, "_inexact", lambda cfg, member: [])
    return made


def test_pause_between_two_saves_begins_at_the_end_of_the_first(clock: Clock) -> None:
    saver = Saver(clock, 10)
    saver.took_s = 3.0
    assert saver.go_on(1040.0) == [1010.0, 1023.0, 1036.0]


@pytest.mark.parametrize(("took_s", "second"), [(1.0, 1121.0), (1.5, 1136.5)])
def test_automatic_saves_take_a_fiftieth_of_the_time_and_are_a_minute_apart(
    clock: Clock, took_s: float, second: float
) -> None:
    saver = Saver(clock, "auto")
    saver.took_s = took_s
    assert saver.go_on(1150.0) == [1060.0, second]


def test_save_that_fails_is_tried_again_after_the_pause(clock: Clock) -> None:
    saver = Saver(clock, 10)
    saver.is_full = True
    assert saver.go_on(1015.0) == [1010.0]
    saver.is_full = False
    assert saver.go_on(1025.0) == [1020.0]


def test_run_that_stands_still_is_saved_once_unless_that_failed(clock: Clock) -> None:
    saver = Saver(clock, 10)
    saver.is_full = True
    saver.save()
    saver.is_full = False
    for _ in range(3):
        saver.save()
    assert len(saver.written_at) == 2
    saver.place.train_iter += 1
    saver.save()
    assert len(saver.written_at) == 3


def test_run_that_is_not_to_be_saved_never_is(clock: Clock) -> None:
    saver = Saver(clock, None)
    assert saver.go_on(5000.0) == []
    saver.save()
    assert saver.written_at == []
