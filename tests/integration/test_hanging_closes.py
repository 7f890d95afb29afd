"""The end of a run whose parts hang in ``close()``, or whose ``after_run`` hooks hang."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dingsdk.envs import guard
from dingsdk.envs.in_process import InProcessEnvManager
from dingsdk.pipeline import signals
from dingsdk.pipeline.train import train
from dingsdk.plugins import default_manager
from dingsdk.runtime import deadline, spawn
from dingsdk.worker import LearnerHook
from dingsdk.worker.collector.sample import SampleSerialCollector
from dingsdk.worker.comm import learner as comm_learner
from dingsdk.worker.evaluator.interaction import InteractionSerialEvaluator
from dingsdk.worker.learner.base import BaseLearner
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage
from tests.integration.short_runs import QUICK

SETS = (*QUICK, "policy.learn.learner.train_iterations=4")
LONG_S = 150.0
"""How long a part hangs: longer than a test takes, even on a busy machine."""


class Hanging:
    """Its ``close()`` waits until ``gate`` is set."""

    gate = threading.Event()
    closed_in: ClassVar[list[threading.Thread]] = []
    left: ClassVar[list[Any]] = []

    def close(self) -> None:
        Hanging.left.append(self)
        Hanging.closed_in.append(threading.current_thread())
        Hanging.gate.wait(LONG_S)


class HangingHook(Hanging, LearnerHook):
    def __call__(self, engine: Any) -> None:
        pass


PARTS = {
    "policy.other.replay_buffer": ("buffers", NaiveReplayBuffer),
    "policy.other.replay_buffer.storage": ("storages", ArrayStorage),
    "policy.collect.collector": ("collectors", SampleSerialCollector),
    "policy.eval.evaluator": ("evaluators", InteractionSerialEvaluator),
    "policy.learn.learner": ("learners", BaseLearner),
    "env_manager": ("env_managers", InProcessEnvManager),
}


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (deadline, guard):
        monkeypatch.setattr(module, "CLOSE_S", 0.5)
    Hanging.gate.clear()
    Hanging.closed_in.clear()
    yield
    Hanging.gate.set()
    for thread in Hanging.closed_in:
        if thread is not threading.current_thread():
            thread.join(30)
    while Hanging.left:  # close its open files
        super(Hanging, Hanging.left.pop()).close()


def hanging(path: str) -> tuple[str, ...]:
    """Register a hanging part for the section at ``path``; return the setting that selects it."""
    kind, base = PARTS[path]
    members = {"close": lambda self: Hanging.close(self), "__module__": __name__}
    cls = type("HangingPart", (Hanging, base), members)
    default_manager().registry(kind).register("hanging", cls, force_overwrite=True)
    return (f"{path}.type=hanging",)


@pytest.mark.parametrize("path", PARTS)
def test_part_that_hangs_in_close_is_abandoned_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    result = train("cartpole-dqn", sets=(*SETS, *hanging(path)), output=tmp_path)

    assert (result.reason, result.train_iter) == ("limit", 4)
    assert Hanging.closed_in, "close() was not called"
    assert "did not return in time" in caplog.text


def test_hook_that_hangs_in_close_does_not_stop_other_hooks_from_closing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = [HangingHook(name, 50, position="after_iter") for name in ("one", "two")]
    result = train("cartpole-dqn", sets=SETS, output=tmp_path, callbacks=hooks)
    assert result.reason == "limit"
    assert len(Hanging.closed_in) == 2


def test_result_is_written_before_parts_are_closed(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []

    class Reader(LearnerHook):
        def __call__(self, engine: Any) -> None:
            pass

        def close(self) -> None:
            (path,) = tmp_path.glob("*/result.json")
            found.append(json.loads(path.read_text()))

    hook = Reader("reader", 50, position="after_run")
    result = train("cartpole-dqn", sets=SETS, output=tmp_path, callbacks=[hook])
    assert found == [json.loads((result.run_dir / "result.json").read_text())]
    assert (found[0]["reason"], found[0]["train_iter"]) == ("limit", 4)


@pytest.mark.parametrize("position", ["after_iter", "after_run"])
def test_signal_ends_a_hanging_last_hook_and_the_checkpoint_is_saved(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    position: str,
) -> None:
    """The signal comes during training, or just before the hook hangs."""
    monkeypatch.setattr(signals, "PATIENCE_S", 0.5)

    class Last(LearnerHook):
        def __call__(self, engine: Any) -> None:
            if position == "after_run":
                os.kill(os.getpid(), signal.SIGINT)
            Hanging.gate.wait(LONG_S)

    class Signal(LearnerHook):
        def __call__(self, engine: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    # Priority 10: it runs before the hook that saves the checkpoint (priority 20).
    hooks: list[LearnerHook] = [Last("last", 10, position="after_run")]
    if position == "after_iter":
        hooks.append(Signal("signal", 50, position=position))
    result = train("cartpole-dqn", sets=SETS, output=tmp_path, callbacks=hooks)

    is_cut = position == "after_iter"
    assert result.reason == ("interrupted" if is_cut else "limit")
    assert result.signal == (signal.SIGINT if is_cut else None)
    assert "latest" in result.checkpoints
    assert any("from after_run; the run ends without it" in each for each in caplog.messages)


@pytest.mark.parametrize("path", ["policy.other.replay_buffer", "env_manager"])
def test_parallel_run_abandons_a_hanging_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    sets = (*SETS, *hanging(path))
    result = train("cartpole-dqn", "parallel", "in_memory", sets, output=tmp_path)
    assert (result.reason, result.train_iter) == ("limit", 4)
    assert Hanging.closed_in
    assert f"close() of {path} did not return in time" in caplog.text


@pytest.mark.parametrize(
    "transport", ["in_memory", pytest.param("flask_fs", marks=pytest.mark.slow)]
)
def test_worker_abandons_a_hook_that_hangs_in_close_with_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    transport: str,
) -> None:
    monkeypatch.setattr(comm_learner, "PART_CLOSE_S", 0.5)  # has no effect in separate processes
    # A fork server that an earlier test has started writes to the stderr of that test.
    monkeypatch.setattr(spawn, "_server_environment", {"": ""})
    hooks = default_manager().registry("learner_hooks")
    hooks.register("hanging", HangingHook, force_overwrite=True)
    hook = "policy.learn.learner.hook.mine={type: hanging, position: after_iter}"
    result = train("cartpole-dqn", "parallel", transport, (*SETS, hook), output=tmp_path)

    assert (result.reason, result.train_iter) == ("limit", 4)
    named = "learner, in the hook 'mine' did not return in time"
    said = caplog.text + capfd.readouterr().err
    assert said.count(named) == 1
    assert "does not end" not in said
    assert "is lost" not in said
