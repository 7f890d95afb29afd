"""Env classes, policy classes and callbacks passed to ``train`` as objects."""

from __future__ import annotations

import functools
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import dingsdk
from dingsdk.envs import EnvFn
from dingsdk.errors import (
    ConfigError,
    ConfigTypeError,
    DuplicateTypeError,
    PluginLoadError,
    UnknownEnvError,
    UnknownPluginError,
)
from dingsdk.pipeline.user_objects import HOOKS, IN_WORKERS, name_env
from dingsdk.plugins import PluginManager, Switches, hookspecs, use_manager
from dingsdk.policy import DQNPolicy
from dingsdk.worker import LearnerHook, NaiveReplayBuffer
from tests.programs import python

SETS = (
    "env.collector_env_num=2",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "policy.collect.n_sample=20",
    "policy.learn.batch_size=8",
    "policy.learn.update_per_collect=1",
    "policy.learn.learner.train_iterations=4",
)
CONFIG: dict[str, Any] = {"env": {"kwargs": {"length": 5}}}


class Paid(gym.Env[Any, Any]):
    """Gives reward 1 for action 1. An episode has ``length`` steps."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return np.ones(3, np.float32), float(action), self._time == self._length, False, {}


class OneAction(DQNPolicy):
    """Always takes action 1 in evaluations."""

    def act(self, obs: Any, *args: Any, explore: bool, **setting: Any) -> Any:
        found = super().act(obs, *args, explore=explore, **setting)
        return found if explore else {"action": np.ones_like(found["action"])}


@pytest.fixture(autouse=True)
def _own_manager() -> Iterator[None]:
    with use_manager(PluginManager(Switches())):
        yield


def train(
    tmp_path: Path, *args: Any, env: Any = Paid, policy: Any = OneAction, **kwargs: Any
) -> Any:
    sets = [*SETS, *kwargs.pop("sets", ())]
    return dingsdk.train(
        CONFIG, *args, sets=sets, output=tmp_path, env=env, policy=policy, **kwargs
    )


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_uses_the_given_env_and_policy_classes(tmp_path: Path, mode: str) -> None:
    result = train(tmp_path, mode)

    assert (result.train_iter, result.last_return) == (4, 5.0)
    loaded = dingsdk.load_policy(result.run_dir, "latest")
    assert loaded.config["env"]["env_id"] == f"{__name__}:Paid"
    assert loaded.config["policy"]["type"] == "OneAction"
    assert loaded.predict(np.zeros(3)) == (1, None)


def test_functions_with_the_same_name_get_different_env_ids() -> None:
    def maker(length: int) -> Callable[[], Paid]:
        return lambda: Paid(length)

    first, second = maker(1), maker(2)

    names = [name_env(each) for each in (first, second, first, functools.partial(Paid, 3))]

    assert names[0] == names[2] != names[1]
    assert [EnvFn({"env_id": name})().unwrapped._length for name in names] == [1, 2, 1, 3]


def test_redefined_class_replaces_the_first(tmp_path: Path) -> None:
    def define(action: int) -> type:
        class Fixed(OneAction):
            def act(self, *args: Any, **kwargs: Any) -> Any:
                return {"action": np.full(len(args[0]), action)}

        return Fixed

    returns = [train(tmp_path, policy=define(action)).last_return for action in (1, 0)]
    assert returns == [5.0, 0.0]


def test_policy_class_must_be_given_again_in_another_process(tmp_path: Path) -> None:
    run_dir = train(tmp_path).run_dir
    with use_manager(PluginManager(Switches())):
        assert dingsdk.load_policy(run_dir, "latest", policy=OneAction).predict(np.zeros(3))[0] == 1
    with use_manager(PluginManager(Switches())):
        assert dingsdk.evaluate(run_dir, policy=OneAction).mean == 5.0
    with pytest.raises(ConfigError, match="'OneAction', not 'DQNPolicy'"):
        dingsdk.load_policy(run_dir, policy=DQNPolicy)
    with pytest.raises(ConfigError, match="policy: expected a class, found 5"):
        dingsdk.load_policy(run_dir, policy=5)  # type: ignore[arg-type]


def test_error_tells_how_another_process_finds_the_given_classes(tmp_path: Path) -> None:
    run_dir = train(tmp_path, env=lambda length: Paid(length)).run_dir
    with (
        use_manager(PluginManager(Switches())),
        pytest.raises(UnknownPluginError, match="Pass a class of your own as policy="),
    ):
        dingsdk.load_policy(run_dir)
    config = run_dir / "config.yaml"
    env_id = dingsdk.load_policy(run_dir).config["env"]["env_id"]
    del gym.registry[env_id]
    for unknown in (env_id, "__main__:Paid"):
        config.write_text(config.read_text().replace(env_id, unknown))
        with pytest.raises(UnknownEnvError, match=r"pass it as env=.* as env\.env_id in"):
            dingsdk.evaluate(run_dir)
        assert dingsdk.evaluate(run_dir, env=Paid).mean == 5.0
        with dingsdk.load_policy(run_dir, env=Paid).make_env() as env:
            assert isinstance(env.unwrapped, Paid)
    config.write_text(config.read_text().replace("__main__:Paid", f"{__name__}:Paid"))
    assert dingsdk.evaluate(run_dir).mean == 5.0


def test_registered_part_that_child_processes_cannot_import_is_refused(tmp_path: Path) -> None:
    class Local(NaiveReplayBuffer):
        """A local class, which cannot be imported."""

    dingsdk.default_manager().registry("buffers").register("local", Local)
    sets = ["policy.other.replay_buffer.type=local"]
    with pytest.raises(ConfigError, match="Local cannot be imported by the child") as raised:
        train(tmp_path, "parallel", "flask_fs", sets=sets)
    assert raised.value.path == "policy.other.replay_buffer"
    assert list(tmp_path.iterdir()) == []
    assert train(tmp_path, "parallel", "in_memory", sets=sets).train_iter == 4


def test_class_of_a_notebook_is_refused_if_workers_are_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = ModuleType("notebook_main")
    vars(notebook)["Cell"] = cell = type("Cell", (Paid,), {"__module__": "notebook_main"})
    monkeypatch.setitem(sys.modules, "notebook_main", notebook)
    assert name_env(cell) == "notebook_main:Cell"
    with pytest.raises(ConfigError, match="env=Cell cannot be imported"):
        train(tmp_path, "parallel", "flask_fs", env=cell)


class Recorder:
    """Records the calls of its hooks."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.sources: set[str] = set()

    @dingsdk.hookimpl
    def dingsdk_configure(self) -> None:
        self.told.append("configure")

    @dingsdk.hookimpl
    def dingsdk_unconfigure(self) -> None:
        self.told.append("unconfigure")

    def after_collect(self, source: str, sample_count: int) -> None:
        assert sample_count > 0
        self.sources.add(source)

    def run_started(self, run_dir: Path) -> None:
        self.told.append(("run_started", run_dir.name))

    def after_iter(self, learner: Any, iteration: int) -> None:
        assert learner.train_iter == iteration
        self.told.append(("after_iter", iteration))

    def run_finished(self, result: Any) -> None:
        self.told.append(("run_finished", result["reason"]))

    def other(self) -> None:
        """A method that is no hook."""


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_functions_and_objects_are_called_by_the_hooks(tmp_path: Path, mode: str) -> None:
    evaluated = []

    def after_evaluate(mean_return: float, train_iter: int) -> None:
        evaluated.append((mean_return, train_iter))

    asked = []

    def should_stop(status: Any) -> None:
        asked.append(status)

    recorder = Recorder()
    dingsdk.default_manager().register_plugin(recorder, "recorder")
    train(tmp_path, mode, callbacks=[after_evaluate, recorder, should_stop])

    assert asked
    assert evaluated[-1] == (5.0, 4)
    iterations = [("after_iter", iteration) for iteration in range(4)]
    started, finished = ("run_started", "run"), ("run_finished", "limit")
    assert recorder.told == ["configure", started, *iterations, finished, "unconfigure"]
    workers = {"collector"} if mode == "serial" else {"collector-0", "collector-1"}
    assert set() < recorder.sources <= workers
    recorder.told.clear()
    train(tmp_path, mode)
    assert recorder.told == ["configure", "unconfigure"]


class Slotted:
    """Has its function in a slot, as a dataclass with ``slots`` has it."""

    __slots__ = ("run_started",)


def test_function_in_a_slot_is_called(tmp_path: Path) -> None:
    callback, told = Slotted(), []
    callback.run_started = lambda: told.append("started")

    train(tmp_path, callbacks=[callback])
    assert told == ["started"]


class Numbered:
    """Counts iterations, and shows its number as a column."""

    def __init__(self, number: int, together: threading.Barrier) -> None:
        self.number = number
        self.iterations: list[int] = []
        self._together = together

    def run_started(self) -> None:
        self._together.wait()

    def after_iter(self, iteration: int) -> None:
        self.iterations.append(iteration)

    def progress_columns(self) -> dict[str, int]:
        return {"number": self.number}

    def run_finished(self) -> None:
        self._together.wait()


@pytest.mark.parametrize("concurrency", ["greenlets", "threads", None])
def test_callbacks_are_not_called_for_a_run_in_another_thread(
    tmp_path: Path, concurrency: str | None
) -> None:
    together = threading.Barrier(2, timeout=30)
    callbacks = [Numbered(number, together) for number in (1, 2)]
    sets = [f"system.transport.concurrency={concurrency}"] if concurrency else []
    mode = ["parallel", "in_memory"] if concurrency else ["serial"]

    def run(callback: Numbered) -> Any:
        return train(tmp_path, *mode, sets=sets, callbacks=[callback])

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, callbacks))

    for callback, result in zip(callbacks, results, strict=True):
        assert callback.iterations == list(range(4))
        status = json.loads((result.run_dir / "status.json").read_text())
        assert status["columns"] == {"number": callback.number}


def test_callback_is_not_called_for_an_evaluation_of_another_run(tmp_path: Path) -> None:
    run_dir, means = train(tmp_path).run_dir, []

    def after_evaluate(mean_return: float) -> None:
        means.append(mean_return)
        means.append(-dingsdk.evaluate(run_dir).mean)

    train(tmp_path, callbacks=[after_evaluate])
    assert means == [5.0, -5.0] * (len(means) // 2)
    assert 0 < len(means) <= 4


def test_exception_of_a_callback_is_logged_with_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def after_iter(iteration: int) -> None:
        raise ZeroDivisionError("by the callback")

    with caplog.at_level(logging.ERROR):
        assert train(tmp_path, callbacks=[after_iter]).reason == "limit"

    (record,) = caplog.records
    text = f"plugin after_iter (callbacks[0]), after_iter ({__file__}, line "
    assert record.getMessage().startswith(text)
    assert record.getMessage().endswith(" failed: ZeroDivisionError: by the callback")


class CountHook(LearnerHook):
    """Counts its calls, and raises in iteration ``fails_at``."""

    def __call__(self, engine: Any) -> None:
        self.calls = getattr(self, "calls", 0) + 1
        if engine.train_iter == getattr(self, "fails_at", None):
            raise ZeroDivisionError("by the hook")


def test_learner_hook_is_called_by_the_learner_and_its_error_ends_the_run(tmp_path: Path) -> None:
    hook = CountHook("count", 50, position="before_iter")
    train(tmp_path, callbacks=[hook])
    assert hook.calls == 4

    hook.fails_at = 2
    with pytest.raises(ZeroDivisionError) as raised:
        train(tmp_path, callbacks=[hook])
    assert raised.value.__notes__[0] == "raised by the learner hook 'count' (before_iter)"
    assert hook.calls == 7


def after_iters(iteration: int) -> None:
    """Not the name of a hook."""


def after_iter(iteration: int, loss: float) -> None:
    """A hook with an argument that does not exist."""


class Misspelt:
    """Has one hook and one misspelt hook."""

    def after_iter(self) -> None: ...

    def after_evaluation(self) -> None: ...


LOCAL = {
    "env": lambda length: Paid(length),
    "policy": type("Local", (OneAction,), {"__qualname__": "f.<locals>.Local"}),
}
"""Objects that other processes cannot import."""
FLASK_FS = ["system.transport.type=flask_fs"]
NO_IMPORT = "=.* cannot be imported by the child"


@pytest.mark.parametrize(
    ("mode", "given", "error", "text"),
    [
        ("serial", {"env": 3}, ConfigTypeError, "^env: expected .* a class"),
        ("serial", {"policy": OneAction.act}, ConfigTypeError, "^policy: expected a class"),
        ("serial", {"policy": type("dqn", (OneAction,), {})}, DuplicateTypeError, "'dqn'"),
        (
            "parallel",
            {"env": LOCAL["env"], "sets": [*FLASK_FS, "system.transport.workers=processes"]},
            ConfigError,
            f"^env{NO_IMPORT}",
        ),
        *(
            ("serial", {name: LOCAL[name], "sets": [override]}, ConfigError, f"^{name}{NO_IMPORT}")
            for name, override in (
                ("env", "env_manager.type=subprocess"),
                ("env", "env_manager.vectorization_mode=async"),
                ("policy", "system.learner_num=2"),
            )
        ),
        (
            "parallel",
            {"callbacks": [CountHook("count", 50, position="before_iter")]},
            ConfigError,
            "'count' cannot be given to a run in parallel mode",
        ),
        (
            "parallel",
            {"callbacks": [Recorder()], "sets": FLASK_FS},
            ConfigError,
            "after_iter, which this run calls in its workers",
        ),
        *(
            ("serial", {"callbacks": [Recorder(), callback]}, error, rf"(?s)callbacks\[1\].*{text}")
            for callback, error, text in (
                (after_iters, ConfigError, "did you mean 'after_iter'"),
                (Misspelt(), ConfigError, "'after_evaluation', which is no hook; did you mean"),
                (lambda: None, ConfigError, "<lambda> names no hook"),
                (3, ConfigError, "int names no hook"),
                (np.arange(3), ConfigError, "ndarray names no hook"),  # a property of it raises
                (Recorder, ConfigTypeError, "is the class Recorder; give an instance"),
                (after_iter, PluginLoadError, "loss"),
            )
        ),
    ],
)
def test_argument_that_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, mode: str, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        train(tmp_path, mode, **given)
    assert list(tmp_path.iterdir()) == []


def test_callbacks_of_a_refused_run_are_unregistered(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError):
        train(tmp_path, callbacks=[recorder, after_iters])
    train(tmp_path)
    assert recorder.told == []


def test_callback_names_are_hooks_of_the_reference() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "hooks.md"
    assert "after_evaluate" in HOOKS
    assert all(f"dingsdk_{name}" in page.read_text() for name in HOOKS)


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import dingsdk
from test_user_objects import CONFIG, SETS, OneAction, Paid

class Mine(Paid):
    pass

class MyPolicy(OneAction):
    pass

def after_evaluate(mean_return):
    print("evaluated", mean_return)

if __name__ == "__main__":
    result = dingsdk.train(
        CONFIG, "parallel", "flask_fs", sets=SETS, env=Mine, policy=MyPolicy,
        callbacks=[after_evaluate],
    )
    print(result.reason, result.train_iter)
"""


def test_hooks_called_in_workers_are_those_whose_documentation_says_so() -> None:
    texts = {name: str(getattr(hookspecs, f"dingsdk_{name}").__doc__) for name in HOOKS}
    assert {
        each for each, text in texts.items() if "that started the run" not in text
    } == IN_WORKERS


@pytest.mark.slow
def test_classes_of_a_script_reach_worker_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    ran = python(str(script), cwd=tmp_path, timeout=120)
    assert ran.stdout.endswith("evaluated 5.0\nlimit 4\n"), ran.stdout + ran.stderr
