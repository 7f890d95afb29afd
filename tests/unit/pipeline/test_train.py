"""Results of failed and interrupted runs, and the checks before a run starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dingsdk.config import save_config, to_plain
from dingsdk.errors import CheckpointMissingError, ConfigError
from dingsdk.pipeline import signals
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.results import write_results
from dingsdk.pipeline.resume import changed_config, find_unfinished
from dingsdk.pipeline.run_folder import STATUS_NAME
from dingsdk.pipeline.saved_run import SavedRun
from dingsdk.pipeline.train import (
    _finish_failed,
    _warn_of_short_pieces,
    compile_run,
    run_pipeline,
    train,
)
from dingsdk.policy import create_policy
from dingsdk.runtime.files import Folder
from dingsdk.worker import LearnerHook
from dingsdk.worker.coordinator.journal import Journal
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint
from tests.own_plugins import plugin_of, using
from tests.runs import SMALL

SETS = (*SMALL, "policy.learn.learner.train_iterations=40")


class Failing(LearnerHook):
    """Raises at its position, ``after_iter`` from iteration 20 on, after an optional signal."""

    def __init__(self, position: str, *, sends_signal: bool) -> None:
        super().__init__("failing", 100, position=position)
        self._sends_signal = sends_signal

    def __call__(self, engine: Any) -> None:
        if self.position == "after_iter" and engine.train_iter < 20:
            return
        if self._sends_signal:
            os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("a part failed")


def run(tmp_path: Path, hook: LearnerHook) -> Any:
    return train("cartpole-dqn", sets=SETS, seed=0, output=tmp_path, callbacks=[hook])


@pytest.mark.parametrize("position", ["after_iter", "after_run"])
def test_error_after_a_signal_gives_an_interrupted_run(
    tmp_path: Path, position: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = run(tmp_path, Failing(position, sends_signal=True))
    assert (result.reason, result.mode, result.signal) == ("interrupted", "serial", signal.SIGINT)
    assert result.train_iter == (20 if position == "after_iter" else 40)
    assert any("a part failed" in message for message in caplog.messages)
    assert result.env_steps >= result.train_iter / 2
    assert not list(result.run_dir.glob("ckpt/*exception*"))


def test_signal_while_results_are_written_prints_that_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return write_results(*args)

    monkeypatch.setattr("dingsdk.pipeline.train.write_results", write)
    sets = (*SETS, "policy.learn.learner.train_iterations=4")
    result = train("cartpole-dqn", sets=sets, seed=0, output=tmp_path)
    told = "SIGINT: the run is over, and its results are being written; press Ctrl-C again"
    assert told in capsys.readouterr().err
    assert (result.reason, result.signal) == ("limit", None)


def test_failed_run_writes_a_checkpoint_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a part failed"):
        run(tmp_path, Failing("after_iter", sends_signal=False))
    (run_dir,) = tmp_path.iterdir()
    assert list(run_dir.glob("ckpt/*exception*"))
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["reason"], result["mode"]) == ("error", "serial")
    assert json.loads((run_dir / STATUS_NAME).read_text())["reason"] == "error"


def test_failure_is_raised_with_a_note_if_its_checkpoint_cannot_be_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class WithoutFolder(Failing):
        def __call__(self, engine: Any) -> None:
            (folder,) = tmp_path.glob("*/ckpt")
            if folder.is_dir():
                shutil.rmtree(folder)
                folder.touch()
            super().__call__(engine)

    with pytest.raises(RuntimeError, match="a part failed") as caught:
        run(tmp_path, WithoutFolder("after_iter", sends_signal=False))
    assert "No checkpoint ckpt_exception was saved: " in "".join(caught.value.__notes__)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("can_break", [True, False])
def test_code_that_ignores_the_stop_event_is_interrupted_if_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], can_break: bool
) -> None:
    monkeypatch.setattr(signals, "PATIENCE_S", 0.05)
    stop = threading.Event()
    with signals.StopOnSignal(stop, can_break=True) as handled:
        signal.raise_signal(signal.SIGINT)
        block = handled.breakable() if can_break else nullcontext()
        with pytest.raises(KeyboardInterrupt) if can_break else nullcontext(), block:
            threading.Event().wait(60.0 if can_break else 0.2)

    assert (stop.is_set(), handled.received) == (True, signal.SIGINT)
    told = "SIGINT: stopping and saving a checkpoint; press Ctrl-C again to exit at once\n"
    assert capsys.readouterr().err == told


def test_new_goal_of_a_resumed_run_also_changes_its_evaluator() -> None:
    config = {"env": {"stop_value": 1.0}, "policy": {"eval": {"evaluator": {"stop_value": 1.0}}}}
    changed = changed_config(SavedRun(Path("run"), config), ["env.stop_value=2.5"])
    assert changed["env"]["stop_value"] == 2.5
    assert changed["policy"]["eval"]["evaluator"]["stop_value"] == 2.5
    assert config["env"] == {"stop_value": 1.0}
    with pytest.raises(ConfigError, match=r"resumed; did you mean 'env\.stop_value'\?") as caught:
        changed_config(SavedRun(Path("run"), config), ["env.stop_valeu=2.5"])
    assert (caught.value.path, caught.value.nearest) == ("env.stop_valeu", "env.stop_value")


def test_unfinished_run_can_be_continued_only_with_the_same_config(tmp_path: Path) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", None, (), 0)
    assert find_unfinished(tmp_path, cfg) is None
    save_config(cfg, tmp_path / "config.yaml")
    with Folder(tmp_path / "journal") as folder:
        Journal(folder).open()

    found = find_unfinished(tmp_path, cfg)
    assert found == SavedRun(tmp_path, to_plain(cfg))
    cfg.system.max_env_steps = 5
    assert find_unfinished(tmp_path, cfg) is not None
    cfg.policy.discount_factor = 0.5
    with pytest.raises(ConfigError, match=r"discount_factor: 0\.\d+, not 0\.5") as caught:
        find_unfinished(tmp_path, cfg)
    assert caught.value.path == "policy.discount_factor"


def test_another_type_of_a_part_is_named_before_the_keys_of_its_section(tmp_path: Path) -> None:
    save_config(compile_run("cartpole-dqn", "parallel", "in_memory"), tmp_path / "config.yaml")
    with Folder(tmp_path / "journal") as folder:
        Journal(folder).open()
    with pytest.raises(ConfigError, match=r"transport\.type: 'in_memory', not 'flask_fs'"):
        find_unfinished(tmp_path, compile_run("cartpole-dqn", "parallel", "flask_fs"))

    buffer = ["policy.other.replay_buffer.type=elastic", "policy.discount_factor=0.5"]
    other = compile_run("cartpole-dqn", "parallel", "in_memory", buffer)
    with pytest.raises(ConfigError, match=r"replay_buffer\.type: '\w+', not 'elastic'"):
        find_unfinished(tmp_path, other)


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="'sreial'; known: parallel, serial") as caught:
        compile_run("cartpole-dqn", "sreial")  # type: ignore[arg-type]
    assert caught.value.path == "mode"


def test_second_signal_exits_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stop = threading.Event()
    with signals.StopOnSignal(stop, saved=lambda: "a file was saved") as handled:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (handled.received, stop.is_set(), codes) == (signal.SIGTERM, True, [])
        os.kill(os.getpid(), signal.SIGINT)
    assert codes == [130]
    told = capsys.readouterr().err.splitlines()
    assert told[1] == "SIGINT again: exiting at once; a file was saved"


def test_second_interrupt_in_a_notebook_ends_the_run_but_not_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exit_at_once(code: int) -> None:
        raise AssertionError(f"the process would exit with {code}")

    def after_iter(iteration: int) -> None:
        if iteration == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert iteration < 3

    monkeypatch.setattr(os, "_exit", exit_at_once)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    result = train("cartpole-dqn", sets=SETS, seed=0, output=tmp_path, callbacks=[after_iter])

    assert (result.reason, result.signal) == ("interrupted", signal.SIGINT)
    assert (result.run_dir / "result.json").is_file()
    told = "SIGINT: stopping and saving a checkpoint; interrupt again to stop at once"
    assert told in capsys.readouterr().err


def test_terminal_that_closes_with_several_signals_stops_the_run_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    try:
        with signals.StopOnSignal(threading.Event()) as handled:
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    told = capsys.readouterr().err.splitlines()
    assert (handled.received, len(told), codes) == (signal.SIGHUP, 1, [])
    assert signals.exit_code(handled.received) == 129


def test_run_under_nohup_continues_when_its_terminal_closes() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.StopOnSignal(threading.Event()) as handled:
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert handled.received is None


def test_transport_for_a_serial_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'flask_fs' is for mode='parallel'") as caught:
        train("cartpole-dqn", transport="flask_fs", output=tmp_path)
    assert caught.value.path == "mode"
    assert list(tmp_path.iterdir()) == []
    assert compile_run("cartpole-dqn", "parallel", "flask_fs").system.transport.type == "flask_fs"


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_missing_checkpoint_to_load_is_refused_before_anything_is_written(
    tmp_path: Path, mode: Any
) -> None:
    path = tmp_path / "gone"
    hook = "policy.learn.learner.hook"
    first = "{type: load_ckpt, position: before_run, priority: 1, ext_args: {load_path: ''}}"
    sets = (*SETS, f"{hook}.load_ckpt_before_run={path}", f"{hook}.first={first}")

    with pytest.raises(CheckpointMissingError, match="gone"):
        train("cartpole-dqn", mode, sets=sets, output=tmp_path / "runs")

    assert not (tmp_path / "runs").exists()


def saved_checkpoint(folder: Path, iteration: int, envstep: int) -> Path:
    cfg = compile_run("cartpole-dqn").policy
    state = create_policy(cfg, enable_field=["learn"], seed=1).learn_mode.state_dict()
    return save_checkpoint(folder, "saved", state, iteration=iteration, envstep=envstep)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_with_a_checkpoint_continues_its_env_steps_and_exploration(
    tmp_path: Path, mode: Any
) -> None:
    path = saved_checkpoint(tmp_path, iteration=7, envstep=5000)
    sets = (
        *SETS,
        f"policy.learn.learner.hook.load_ckpt_before_run={path}",
        "policy.other.eps={type: linear, start: 1.0, end: 0.0, decay: 10000}",
        "system.max_env_steps=5100",
    )
    result = train("cartpole-dqn", mode, sets=sets, output=tmp_path)

    first = result.evaluations[0]
    assert first.train_iter == 7
    assert 5000 <= first.env_steps <= 5100
    assert result.env_steps >= 5008
    assert 0 < result.samples.collected <= result.env_steps - 5000
    lines = (result.run_dir / "progress.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):  # the first is of some time after the first env step
        assert line["env_steps_per_s"] * line["elapsed_s"] <= 2 * (line["env_steps"] - 5000)
    status = json.loads((result.run_dir / "status.json").read_text())
    assert (status["loaded_env_steps"], status["loaded_train_iter"]) == (5000, 7)
    # 1 - 5000 / 10000 = 0.5 at the first step, 0.49 at the 5100th; workers may be a bit ahead.
    assert 0.45 <= status["exploration"]["eps"] <= 0.5
    latest = load_checkpoint(result.checkpoints["latest"])
    assert latest.iteration == result.train_iter
    assert 5000 < latest.envstep <= result.env_steps


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("system.max_env_steps=5000", "is 5000, but the checkpoint .* is of env step 5000"),
        ("policy.learn.learner.train_iterations=7", "is 7, but .* is of iteration 7"),
    ],
)
def test_checkpoint_that_has_reached_a_limit_is_refused_before_anything_is_written(
    tmp_path: Path, limit: str, why: str
) -> None:
    path = saved_checkpoint(tmp_path, iteration=7, envstep=5000)
    sets = (*SETS, f"policy.learn.learner.hook.load_ckpt_before_run={path}", limit)

    with pytest.raises(ConfigError, match=why):
        train("cartpole-dqn", sets=sets, output=tmp_path / "runs")

    assert not (tmp_path / "runs").exists()


def test_interrupt_after_the_result_was_written_changes_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def close_late(context: RunContext) -> None:
        context.has_begun = True
        context.conclude(context.finish("limit", "serial"))
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("a part was not closed")

    monkeypatch.setattr("dingsdk.pipeline.train._pipeline", lambda mode, context: close_late)
    result = train("cartpole-dqn", sets=SETS, seed=0, output=tmp_path)
    assert "after the signal: a part was not closed" in caplog.messages
    assert (result.reason, result.signal) == ("interrupted", signal.SIGINT)
    written = json.loads((result.run_dir / "result.json").read_text())
    assert written["reason"] == "interrupted"


def test_resume_that_is_interrupted_before_it_begins_keeps_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(context: RunContext) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return context.finish("interrupted", "parallel")

    monkeypatch.setattr("dingsdk.pipeline.train._pipeline", lambda mode, context: interrupted)
    (tmp_path / "result.json").write_text("{}")
    cfg = compile_run("cartpole-dqn", seed=0)
    context = RunContext(cfg=cfg, run_dir=tmp_path, resumed=SavedRun(tmp_path, {}))
    result = run_pipeline(context, "parallel")

    assert (result.reason, result.signal) == ("interrupted", signal.SIGTERM)
    assert (tmp_path / "result.json").read_text() == "{}"
    assert any("its files have not changed" in message for message in caplog.messages)


def test_error_of_the_run_is_kept_if_its_result_cannot_be_written(tmp_path: Path) -> None:
    results: list[Any] = []

    cfg = compile_run("cartpole-dqn", seed=0)
    error = ValueError("no")
    with using(plugin_of(run_finished=lambda result: results.append(result["error"]))):
        _finish_failed(RunContext(cfg=cfg, run_dir=tmp_path), "serial", error)
        assert results == ["ValueError: no"]
        assert not hasattr(error, "__notes__")
        _finish_failed(RunContext(cfg=cfg, run_dir=tmp_path / "gone"), "serial", error)
    assert results == ["ValueError: no"]
    (note,) = error.__notes__
    assert note.startswith("the run folder lacks its result: ")


@pytest.mark.parametrize(
    ("sets", "spans"),
    [
        (("policy.collect.n_sample=8",), ["4"]),
        (("policy.collect.n_sample=9",), []),
        (("policy.collect.n_sample=8", "policy.nstep=4"), []),
        (("policy.collect.n_sample=8", "policy.traj_len_inf=true"), []),
    ],
)
def test_nstep_longer_than_the_collected_pieces_is_a_warning(
    caplog: pytest.LogCaptureFixture, sets: tuple[str, ...], spans: list[str]
) -> None:
    _warn_of_short_pieces(compile_run("cartpole-dqn", sets=(*SETS, "policy.nstep=5", *sets)))
    assert re.findall(r"spans (\d+):", caplog.text) == spans
    assert len(caplog.messages) == len(spans)
