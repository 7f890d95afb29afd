"""The run folder, its result file and learning curve, and the progress display."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dingsdk import train
from dingsdk.errors import RunFolderError
from dingsdk.pipeline.context import Evaluation, RunContext, RunRecorder, best_of
from dingsdk.pipeline.results import _draw, result_record
from dingsdk.pipeline.run_folder import (
    check_run_folder,
    claim_run_folder,
    discard_run,
    held,
    make_run_folder,
    no_run_text,
    private_files,
)
from tests.runs import SMALL

NOON = datetime(2030, 1, 2, 12, 0, 0)
EVALUATIONS = tuple(
    Evaluation(
        elapsed_s=i * 1.5,
        env_steps=i * 1000,
        train_iter=i * 10,
        mean=50.0 * i,
        min=40.0 * i,
        max=60.0 * i,
        episodes=10,
    )
    for i in range(5)
)


def test_run_folder_that_does_not_exist_is_reported_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "cartpole-dqn" / "ckpt").mkdir(parents=True)
    (tmp_path / "cartpole-dqn" / "config.yaml").touch()
    run = tmp_path / "cartpole-dqn"

    assert no_run_text(run) is None
    assert no_run_text(tmp_path / "cartpole-dqm") == (
        f"there is no run folder {tmp_path / 'cartpole-dqm'}; did you mean {run}?"
    )
    assert no_run_text(run / "ckpt") == (
        f"{run / 'ckpt'} is not a run folder: it has no config.yaml; did you mean {run}?"
    )
    for other, problem in (
        (tmp_path, f"{tmp_path} is not a run folder: it has no config.yaml"),
        (tmp_path / "x" / "y", f"there is no run folder {tmp_path / 'x' / 'y'}"),
    ):
        advice = "name a folder that `dingsdk train` wrote, such as runs/<name>"
        assert no_run_text(other) == f"{problem}; {advice}"


def test_run_folders_of_one_second_are_counted_up_to_a_limit(tmp_path: Path) -> None:
    folders = [make_run_folder(tmp_path, "run", NOON) for _ in range(100)]
    names = [each.name for each in folders]
    assert names[0] == "run"
    assert all((each / "ckpt").is_dir() for each in folders)
    assert names[1:4] == ["run-300102-120000", "run-300102-120000-2", "run-300102-120000-3"]
    assert names[-1] == "run-300102-120000-99"
    with pytest.raises(RunFolderError, match="no free run folder name") as caught:
        make_run_folder(tmp_path, "run", NOON)
    assert caught.value.path == str(tmp_path)


@pytest.mark.parametrize(
    "make", [lambda path: make_run_folder(path, "exp"), claim_run_folder, check_run_folder]
)
def test_folder_whose_path_is_not_utf8_is_refused_before_anything_is_written(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = tmp_path / os.fsdecode(b"R\xff")
    with pytest.raises(RunFolderError, match=r"R\\udcff.* is not UTF-8") as caught:
        make(path)
    assert caught.value.is_user_mistake
    assert list(tmp_path.iterdir()) == []


def test_only_one_of_several_starts_gets_a_folder(tmp_path: Path) -> None:
    folder, begin = tmp_path / "run", threading.Barrier(8)
    claimed: list[Path] = []
    refused: list[RunFolderError] = []

    def start() -> None:
        begin.wait(10.0)
        try:
            claimed.append(claim_run_folder(folder))
        except RunFolderError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)

    assert claimed == [folder]
    assert len(refused) == 7
    assert all("holds a run already" in str(error) for error in refused)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "config.yaml").stat().st_mode & 0o777 == 0o600


def test_discarded_run_frees_its_folder_and_keeps_other_files(tmp_path: Path) -> None:
    folder = claim_run_folder(tmp_path / "run")
    for name in ("result.json", "status.json", "progress.jsonl"):
        (folder / name).write_text("{}")
    (folder / "log" / "deep").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")

    discard_run(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert claim_run_folder(folder) == folder

    (folder / "notes.txt").unlink()
    discard_run(folder)
    assert not folder.exists()


def test_files_of_a_run_are_private_and_the_umask_is_restored(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with private_files():
            (tmp_path / "file").touch()
            (tmp_path / "folder").mkdir()
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"file": 0o600, "folder": 0o700, "later": 0o666}


def test_umask_is_restored_after_runs_in_several_threads() -> None:
    before = os.umask(0)
    try:
        with ExitStack() as second:
            with private_files():
                second.enter_context(private_files())
            while_second = os.umask(0o077)
        after = os.umask(0)
    finally:
        os.umask(before)
    assert (while_second, after) == (0o077, 0)


def test_result_can_be_read_back_and_is_plain_json(tmp_path: Path) -> None:
    context = RunContext(cfg=None, run_dir=tmp_path)
    context.recorder.mark_first_step()
    context.recorder.add_evaluation([1.0, 3.0], env_steps=40, train_iter=7)
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "latest.json").write_text("{}")

    found = result_record(tmp_path, context.finish("limit", "serial"), seed=4)

    assert (found["reason"], found["reached"], found["seed"]) == ("limit", False, 4)
    assert found["evaluations"][0]["mean"] == 2.0
    assert found["checkpoints"] == {"latest": "ckpt/latest.json"}
    json.dumps(found, allow_nan=False)


def test_numbers_of_training_are_means_over_the_last_hundred_episodes() -> None:
    recorder = RunRecorder()
    for episodes, mean in ((90, 5.0), (60, 1.0), (30, 0.0)):
        recorder.add_training(episodes, {"score": {"mean": mean, "min": 0.0, "max": 9.0}})
    recorder.add_training(20, {"depth": {"mean": 2.0, "min": 2.0, "max": 2.0}})
    recorder.add_training(40, {})

    # The first 90 episodes are too old, and 110 are left; 90 of them have a score.
    assert recorder.training_numbers == {"score": 60 / 90, "depth": 2.0}


def test_untrained_policy_is_best_only_if_there_is_no_other_evaluation() -> None:
    recorder = RunRecorder()
    recorder.add_evaluation([90.0], env_steps=0, train_iter=0)
    assert recorder.progress_of(None, 0, 0).best_return == 90.0
    for returns, train_iter in (([20.0], 5), ([20.0], 6), ([10.0], 7)):
        recorder.add_evaluation(returns, env_steps=1, train_iter=train_iter)
        assert best_of(recorder.evaluations) is recorder.evaluations[1]


def test_best_evaluation_is_against_the_newest_opponent() -> None:
    recorder = RunRecorder()
    for mean, opponent in ((0.9, "random"), (1.0, "random"), (0.2, "strong"), (0.1, "strong")):
        recorder.add_evaluation([mean], env_steps=1, train_iter=1, opponent=opponent)

    assert best_of(recorder.evaluations) is recorder.evaluations[2]
    assert recorder.progress_of(None, 1, 1).best_return == 0.2


@pytest.mark.parametrize("stop_value", [475.0, float("inf")])
def test_curve_shows_means_a_band_of_extremes_and_a_finite_stop_value(
    stop_value: float,
) -> None:
    (axes,) = _draw(EVALUATIONS[:3], stop_value, "dqn").axes
    means, *stop = axes.lines
    assert means.get_xydata().tolist() == [[0, 0], [1000, 50], [2000, 100]]
    assert [line.get_ydata() for line in stop] == [[stop_value] * 2] * (stop_value == 475)
    (band,) = axes.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert corners == {(0, 0), (1000, 40), (2000, 80), (2000, 120), (1000, 60)}
    assert axes.get_title() == "dqn\n100.0 after 2,000 env steps, 3.0 s"
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["worst to best episode", "mean of 10 episodes", "stop 475"][: 2 + len(stop)]


def test_curve_that_cannot_be_drawn_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def savefig(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no such backend")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)
    result = train("cartpole-dqn", sets=[*SMALL, "system.max_env_steps=16"], output=tmp_path)

    assert "curve.png was not drawn: ValueError: no such backend" in caplog.text
    assert result.reason == "limit"
    written = json.loads((result.run_dir / "result.json").read_text())
    assert written["error"] is None
    assert not (result.run_dir / "curve.png").exists()


def test_temporary_file_of_a_killed_run_is_removed_on_resume(tmp_path: Path) -> None:
    left = tmp_path / ".tmp-52f8f81151a8115b"
    left.touch()
    with held(tmp_path):
        assert not left.exists()
