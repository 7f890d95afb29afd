"""The status file of a run: written during the run, read by other processes, and printed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dingsdk.cli.status import _lines, status
from dingsdk.errors import RunFolderError
from dingsdk.pipeline import status_file
from dingsdk.pipeline.context import PlayerStatus, RunContext, RunningTask, RunStatus
from dingsdk.pipeline.run_folder import CONFIG_NAME, PROGRESS_NAME, RESULT_NAME, STATUS_NAME, held
from dingsdk.pipeline.saved_run import SavedRun
from dingsdk.pipeline.status_file import Reporter, read_status
from dingsdk.pipeline.train import train
from dingsdk.worker.sample_counts import SampleCounts
from tests.own_plugins import plugin_of, using
from tests.runs import SMALL

TASK = RunningTask("t1", "collector", "c0", 40, 12.5, False, 2, "room for 8 rows")
STATUS = RunStatus(
    env_steps=40,
    best_return=math.inf,
    buffer_capacity=64,
    workers=2,
    samples=SampleCounts(50, 40, 100, 30, {"overwritten": 9, "missing": 1}),
    tasks=(TASK,),
)


def context_of(run_dir: Path, *, has_begun: bool = True) -> RunContext:
    return RunContext(cfg=None, run_dir=run_dir, has_begun=has_begun, status=lambda: STATUS)


def shown(run: Path, *options: str) -> str:
    result = CliRunner().invoke(status, [str(run), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_status_of_a_running_run_can_be_read_and_printed(tmp_path: Path) -> None:
    Reporter(context_of(tmp_path), "parallel").report()
    found = read_status(tmp_path)
    assert found["samples"] == {
        "collected": 50, "acknowledged": 40, "trained": 100, "live": 30,
        "evicted": {"overwritten": 9, "missing": 1}, "preloaded": 0,
    }  # fmt: skip
    assert found["best_return"] is None
    assert found["reason"] is None
    assert json.loads(shown(tmp_path, "--json")) == json.loads(json.dumps(found))
    with held(tmp_path):
        lines = shown(tmp_path).splitlines()
    assert lines[0].startswith("run           under way (process ")
    assert lines[5:] == [
        "collected     50 samples",
        "acknowledged  40, 10 not",
        "trained on    100 (drawn 2.50 times each)",
        "in the buffer 30 of 64",
        "evicted       9 overwritten, 1 missing",
        "task          collector c0, 12.5 a second, waits for room for 8 rows",
    ]


def test_status_shows_returns_players_and_why_the_run_is_held_up(tmp_path: Path) -> None:
    status = RunStatus(
        env_steps=4000,
        train_iter=1500,
        last_return=-2.04,
        best_return=None,
        elapsed_s=61.25,
        held_up_by="cannot write: ENOSPC",
        samples=SampleCounts(40, 40, 0, 40, {}),
        players={
            "main": PlayerStatus(1500, 4000, last_return=-2.04, best_return=3.0),
            "other": PlayerStatus(0, 0, last_return=None, best_return=None),
        },
        tasks=(RunningTask("t2", "learner", "l0", 1500, None, False, 1, "", "main"),),
    )
    context = RunContext(cfg=None, run_dir=tmp_path, has_begun=True, status=lambda: status)
    Reporter(context, "serial").report()

    assert shown(tmp_path).splitlines()[1:] == [
        "elapsed       61.2 s, serial, 1 worker",
        "env steps     4,000",
        "iterations    1,500",
        "return        -2.0 (best -)",
        "collected     40 samples",
        "acknowledged  40",
        "trained on    0 (drawn 0.00 times each)",
        "in the buffer 40 of 0",
        "evicted       none",
        "player        main: 1,500 iterations, 4,000 env steps, return -2.0 (best 3.0)",
        "player        other: 0 iterations, 0 env steps, return - (best -)",
        "task          learner l0 of main",
        "held up       cannot write: ENOSPC",
    ]


HOLDER = """
import sys, time
from pathlib import Path
from dingsdk.pipeline.context import RunContext, RunStatus
from dingsdk.pipeline.run_folder import held
from dingsdk.pipeline.status_file import Reporter

run = Path(sys.argv[1])
with held(run):
    context = RunContext(cfg=None, run_dir=run, has_begun=True, status=lambda: RunStatus())
    Reporter(context, "serial").report()
    print("written", flush=True)
    time.sleep(300)
"""


def test_killed_run_is_shown_as_killed_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"written\n"
            assert f"under way (process {process.pid} on " in shown(tmp_path)
        finally:
            process.kill()
    assert f"killed: process {process.pid} on " in shown(tmp_path)


def test_status_is_written_repeatedly_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "INTERVAL_S", 0.01)
    seen = []
    with Reporter(context_of(tmp_path), "serial") as written:
        while len(set(seen)) < 3:
            if (tmp_path / STATUS_NAME).exists():
                seen.append(read_status(tmp_path)["written_at"])
        written.reason = "limit"
    assert read_status(tmp_path)["reason"] == "limit"
    assert shown(tmp_path).splitlines()[0] == "run           over: limit"


def test_run_that_never_began_writes_no_status(tmp_path: Path) -> None:
    with Reporter(context_of(tmp_path, has_begun=False), "serial"):
        pass
    with pytest.raises(RunFolderError, match="is not a run folder"):
        read_status(tmp_path)
    (tmp_path / CONFIG_NAME).touch()
    with pytest.raises(RunFolderError, match="the run has not begun"):
        read_status(tmp_path)
    (tmp_path / RESULT_NAME).touch()
    with pytest.raises(RunFolderError, match=r"was removed; .*result\.json says how the run ended"):
        read_status(tmp_path)


def test_failure_to_write_the_status_is_logged_once_per_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / STATUS_NAME).mkdir()
    written = Reporter(context_of(tmp_path), "serial")
    written.report()
    written.report()
    assert len(caplog.records) == 1
    (tmp_path / STATUS_NAME).rmdir()
    written.report()
    (tmp_path / STATUS_NAME).unlink()
    (tmp_path / STATUS_NAME).mkdir()
    written.report()
    assert len(caplog.records) == 2  # one for each outage


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"format": 99}', "{", '{"format": 1}', "[" * 100_000, '{"format": NaN}'],
    ids=range(7),
)
def test_invalid_status_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / STATUS_NAME).write_text(content)
    with pytest.raises(RunFolderError, match=STATUS_NAME):
        read_status(tmp_path)


def test_status_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / STATUS_NAME
    os.mkfifo(path)
    with pytest.raises(RunFolderError, match="not a regular file"):
        read_status(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(RunFolderError, match="not a regular file"):
        read_status(tmp_path)


def test_control_characters_of_a_status_do_not_reach_the_terminal(tmp_path: Path) -> None:
    Reporter(context_of(tmp_path), "serial").report()
    path = tmp_path / STATUS_NAME
    path.write_text(path.read_text().replace('"serial"', '"\\u001b[2J"'))
    assert ", ?[2J, 2 workers" in shown(tmp_path)


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / PROGRESS_NAME).read_text().splitlines()]


def test_interval_between_curve_lines_grows_with_the_length_of_the_run(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    written = Reporter(context, "serial")
    seconds = [0.0, 0.1, 0.5, 2.0, 4.0, 5000.0, 5002.0, 5009.9, 5010.1]
    for elapsed_s in seconds:
        context.status = lambda now=elapsed_s: RunStatus(elapsed_s=now, env_steps=int(now))
        written.report()
    written.reason = "limit"
    context.status = lambda: RunStatus(elapsed_s=5012.0, env_steps=5012)
    written.report()
    written.report()

    found = [line["elapsed_s"] for line in lines_of(tmp_path)]
    assert found == [0.0, 0.5, 2.0, 4.0, 5000.0, 5010.1, 5012.0]
    assert read_status(tmp_path)["env_steps"] == 5012


def test_resumed_run_removes_the_curve_lines_after_its_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims = []

    def keep_lines(*args: Any) -> None:
        trims.append(args[0])
        real_keep_lines(*args)

    real_keep_lines = status_file.keep_lines
    monkeypatch.setattr(status_file, "keep_lines", keep_lines)
    context = context_of(tmp_path)
    for resumed, seconds in (
        (None, (1.0, 2.0, 3.0, 4.0)),
        (SavedRun(tmp_path, {}), (3.0, 3.5)),
    ):
        context.resumed = resumed
        written = Reporter(context, "parallel")
        for elapsed_s in seconds:
            context.status = lambda now=elapsed_s: RunStatus(elapsed_s=now)
            written.report()
        if resumed is None:
            with (tmp_path / PROGRESS_NAME).open("a") as file:
                file.write('{"elapsed_s": 0.5, "env_')  # the process was killed

    assert [line["elapsed_s"] for line in lines_of(tmp_path)] == [1.0, 2.0, 3.0, 3.5]
    assert trims == [tmp_path / PROGRESS_NAME]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_curves_go_back_with_a_learner_that_continues_from_its_checkpoint(
    tmp_path: Path, is_resumed: bool
) -> None:
    context = context_of(tmp_path)
    written = Reporter(context, "parallel")
    # The learner of a resumed run reports late that it goes back.
    for elapsed_s, train_iter in ((1.0, 100), (2.0, 200), (3.0, 300), (4.0, 300), (5.0, 150)):
        if is_resumed and elapsed_s == 4.0:
            context.resumed = SavedRun(tmp_path, {})
            written = Reporter(context, "parallel")
        now = RunStatus(elapsed_s=elapsed_s, env_steps=int(elapsed_s), train_iter=train_iter)
        context.status = lambda now=now: now
        written.report()

    found = [(line["elapsed_s"], line["train_iter"]) for line in lines_of(tmp_path)]
    assert found == [(1.0, 100), (5.0, 150)]


def test_curves_stay_if_one_of_several_players_counts_from_zero(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    written = Reporter(context, "parallel")
    players = dict.fromkeys(("p0", "p1"), PlayerStatus(100, 0, None, None))
    for elapsed_s, train_iter in ((1.0, 100), (2.0, 0), (3.0, 110)):
        now = RunStatus(elapsed_s=elapsed_s, train_iter=train_iter, players=players)
        context.status = lambda now=now: now
        written.report()

    assert [line["train_iter"] for line in lines_of(tmp_path)] == [100, 0, 110]


def test_status_and_curves_contain_rates_time_left_and_plugin_columns(tmp_path: Path) -> None:
    columns = {"gpu": 0.5, "note": "warm", "odd": [1], "endless": math.inf}
    status = RunStatus(
        env_steps=100,
        train_iter=50,
        elapsed_s=10.0,
        loss=math.nan,
        max_env_steps=200,
        goal=math.inf,
    )
    context = RunContext(cfg=None, run_dir=tmp_path, has_begun=True, status=lambda: status)
    with using(plugin_of(progress_columns=lambda run_dir: columns)):
        Reporter(context, "serial").report()

    found = read_status(tmp_path)
    assert found["columns"] == {"gpu": 0.5, "note": "warm", "odd": "[1]", "endless": None}
    assert (found["env_steps_per_s"], found["updates_per_s"]) == pytest.approx((10.0, 5.0))
    assert found["left_s"] == pytest.approx(10.0)
    assert (found["loss"], found["goal"]) == (None, None)
    (line,) = lines_of(tmp_path)
    assert line["columns"] == found["columns"]
    assert line.items() <= found.items()


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_status_contains_loss_exploration_limits_and_workers(tmp_path: Path, mode: Any) -> None:
    limits = ("policy.learn.learner.train_iterations=64", "system.max_env_steps=100000")
    result = train("cartpole-dqn", mode=mode, sets=(*SMALL, *limits), output=tmp_path)

    found = read_status(result.run_dir)
    assert found["loss"] > 0
    assert 0 < found["exploration"]["eps"] <= 1
    assert (found["max_env_steps"], found["max_train_iter"], found["goal"]) == (100000, 64, 1000.0)
    assert found["left_s"] == 0.0
    (*_, last) = lines_of(result.run_dir)
    assert (last["train_iter"], last["loss"]) == (64, found["loss"])
    joined = {(each["role"], each["lease_s"] > 0) for each in found["connected"]}
    assert joined == (set() if mode == "serial" else {("collector", True), ("learner", True)})


@pytest.mark.parametrize(("age_s", "text"), [(30.0, "under way"), (30.5, "silent for 30 s")])
def test_run_is_silent_after_more_than_thirty_seconds(
    tmp_path: Path, age_s: float, text: str
) -> None:
    Reporter(context_of(tmp_path), "serial").report()
    found = read_status(tmp_path)
    (line,) = [line for label, line in _lines(found, age_s, False) if label == "run"]
    assert line.startswith(text)
