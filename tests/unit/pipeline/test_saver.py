"""When a serial run is saved, tested with a fake clock, and the contents of a save."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.data.seeding import derive_seed
from dingsdk.errors import CheckpointCorruptError, RunFolderError
from dingsdk.pipeline import resume
from dingsdk.pipeline.resume import RunSaver, find_save


class Saver(RunSaver):
    """Records the times of its writes. A write takes ``took_s``, and fails if ``is_full``."""

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
        """Train one iteration every 0.25 s until ``until``; return the times of the saves."""
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


INEXACT = resume._inexact


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
def test_automatic_saves_use_2_percent_of_the_time_and_are_a_minute_apart(
    clock: Clock, took_s: float, second: float
) -> None:
    saver = Saver(clock, "auto")
    saver.took_s = took_s
    assert saver.go_on(1150.0) == [1060.0, second]


def test_run_without_progress_is_saved_only_once_unless_the_save_failed(clock: Clock) -> None:
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


class Bare(RunSaver):
    """The saver of a run without players."""

    def __init__(self, run_dir: Path) -> None:
        system = SimpleNamespace(save_every=None, torch_threads=1)
        cfg: Any = SimpleNamespace(system=system, seed=7)
        self.resumed: list[Any] = []
        recorder = SimpleNamespace(resume=lambda *given: self.resumed.append(given))
        context: Any = SimpleNamespace(cfg=cfg, run_dir=run_dir, recorder=recorder)
        self.team = SimpleNamespace(members=[], turn=0)
        team: Any = self.team
        super().__init__(context, team)

    def _state(self) -> Any:
        return SimpleNamespace(plain=lambda: {"x": 1})


def test_partial_save_is_replaced_and_the_last_two_saves_are_kept(tmp_path: Path) -> None:
    saver, folder = Bare(tmp_path), tmp_path / "resume"
    half = folder / "000001" / "half"
    half.mkdir(parents=True)
    saver._write(1)
    assert not half.exists()
    for number in (2, 3):
        saver._write(number)
    assert sorted(path.name for path in folder.iterdir()) == ["000002", "000003"]
    assert Bare(tmp_path)._last == 3


@pytest.mark.parametrize(("index", "branch"), [(0, ("resume", 3)), (1, ("resume", 3, 1))])
def test_new_episodes_are_seeded_differently_for_each_save_and_player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, branch: tuple[str | int, ...]
) -> None:
    seeded: list[Any] = []
    resets: list[str] = []
    monkeypatch.setattr(resume, "seed_envs", lambda *given: seeded.append(given))

    def nothing(*given: Any) -> None:
        pass

    def worker(name: str) -> Any:
        env = SimpleNamespace(get_state=nothing, name=name)
        return SimpleNamespace(env=env, reset_env=lambda: resets.append(name))

    buffers: list[str] = []
    workers: Any = SimpleNamespace(
        learner=SimpleNamespace(policy=SimpleNamespace(load_state_dict=nothing)),
        buffer=SimpleNamespace(
            load_data=buffers.append, end_trajectory=lambda: buffers.append("ended")
        ),
        collector=worker("collector"),
        evaluator=worker("evaluator"),
        samples=lambda: SimpleNamespace(evicted={"old": 5}),
    )
    state: Any = SimpleNamespace(
        policy={"state": {}, "acting_state": None},
        parts={},
        envs={"collector": None, "evaluator": None},
        updates_left=4,
        samples={"collected": 8, "trained": 6, "evicted": {"old": 1}},
    )
    save: Any = SimpleNamespace(number=3, path=tmp_path)
    Bare(tmp_path)._resume_player(workers, state, save, index)
    seed = derive_seed(7, *branch)
    names = ["collector", "evaluator"]
    assert [(env.name, *given) for env, *given in seeded] == [(name, seed, name) for name in names]
    assert resets == names
    assert buffers == [str(tmp_path / ("buffer-1" if index else "buffer")), "ended"]
    assert (workers.updates_left, workers.collected, workers.trained) == (4, 8, 6)
    # The new buffer has counted 5 evictions, 4 more than the save contains; they are subtracted.
    assert workers.evicted_before["old"] == 1 - 4


def test_policy_that_is_not_saved_whole_and_evaluations_by_the_clock_are_listed() -> None:
    def inexact(policy: Any, evaluator: dict[str, Any]) -> list[str]:
        section = SimpleNamespace(type="mine", eval=SimpleNamespace(evaluator=evaluator))
        parts = dict.fromkeys(("collector", "evaluator"), SimpleNamespace())
        workers: Any = SimpleNamespace(learner=SimpleNamespace(policy=policy), **parts)
        return INEXACT(SimpleNamespace(policy=section), workers)

    whole = SimpleNamespace(get_attribute=lambda name: {})
    assert inexact(whole, {}) == []
    (line,) = inexact(whole, {"eval_interval_s": 3.0})
    assert "eval_interval_s" in line
    (line,) = inexact(SimpleNamespace(), {})
    assert "the policy mine has no attribute acting_state" in line


def test_error_for_a_damaged_save_suggests_the_one_before_it(tmp_path: Path) -> None:
    saves = tmp_path / "resume"
    for name in ("2", "9", "10", "11", "old"):
        (saves / name).mkdir(parents=True)
        if name != "11":  # its writing was interrupted
            (saves / name / "state.safetensors").write_bytes(b"damaged")

    for asked, named, before in (
        (tmp_path, "10", "9"),
        (saves / "9", "9", "2"),
        (saves / "2", "2", None),
    ):
        with pytest.raises(CheckpointCorruptError) as caught:
            find_save(asked)
        assert caught.value.path == str(saves / named)
        advice = f"; resume from {saves / str(before)} instead"
        assert str(caught.value).endswith(advice) == (before is not None)
        assert ("; resume from" in str(caught.value)) == (before is not None)
