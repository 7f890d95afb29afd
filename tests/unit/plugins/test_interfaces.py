"""A part that lacks methods of its kind is refused before the run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk import SampleBatch, train
from dingsdk.errors import PluginLoadError, SchemaMismatchError
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.plugins.interfaces import check_interface
from dingsdk.worker import NaiveReplayBuffer
from dingsdk.worker.replay_buffer import RowSampler
from tests.runs import SMALL

BUFFER = "policy.other.replay_buffer"
BUFFER_PARTS = ("storage", "sampler", "remover", "limiter")


class Bare:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class Undrawn(RowSampler):
    """A sampler without ``draw``."""


class BaselessLimiter:
    """Has the abstract methods of the base class, but not the others that a buffer calls."""

    def __init__(self, cfg: Any, seed: int | None = None) -> None: ...
    def can_sample(self, n: int) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "cls", "path", "missing"),
    [
        ("storages", Bare, f"{BUFFER}.storage", {"accept", "put", "take", "clear"}),
        ("samplers", Undrawn, f"{BUFFER}.sampler", {"draw"}),
        ("collectors", Bare, "policy.collect.collector", {"collect"}),
        ("evaluators", Bare, "policy.eval.evaluator", {"eval"}),
        ("serial_commanders", Bare, "policy.other.serial_commander", {"step"}),
        ("env_managers", Bare, "env_manager", {"step", "step_batch"}),
        ("learners", Bare, "policy.learn.learner", {"train", "call_hook"}),
        ("policies", Bare, "policy", {"learn_mode", "collect_mode", "eval_mode"}),
    ],
)
def test_part_that_lacks_methods_is_refused_before_the_run(
    kind: str, cls: type, path: str, missing: set[str], tmp_path: Path
) -> None:
    with use_manager(PluginManager()) as manager:
        manager.registry(kind).register("mine", cls)
        with pytest.raises(PluginLoadError) as caught:
            compile_run("cartpole-dqn", "serial", None, (f"{path}.type=mine",), 0)

    assert missing <= set(caught.value.facts["missing"])
    assert f"{path}.type" in str(caught.value)
    assert cls.__qualname__ in str(caught.value)


def test_part_of_a_buffer_needs_its_base() -> None:
    with pytest.raises(PluginLoadError, match="is no subclass"):
        check_interface("limiters", BaselessLimiter)


@pytest.mark.parametrize(
    ("kind", "path", "wrong"),
    [
        ("transports", "system.transport", "no subclass"),
        ("comm_collectors", "system.collector", "lacks close, start"),
        ("comm_learners", "system.learner", "lacks close, start"),
    ],
)
def test_wrong_parts_of_a_parallel_run_are_refused(kind: str, path: str, wrong: str) -> None:
    with use_manager(PluginManager()) as manager:
        manager.registry(kind).register("mine", Bare)
        with pytest.raises(PluginLoadError, match=f"{path}.type.*{wrong}"):
            compile_run("cartpole-dqn", "parallel", None, (f"{path}.type=mine",), 0, begins=True)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("transports", "system.transport"),
        ("buffers", BUFFER),
        ("evaluators", "policy.eval.evaluator"),
        ("learners", "policy.learn.learner"),
        ("commanders", "policy.other.commander"),
        ("env_managers", "env_manager"),
        ("policies", "policy"),
    ],
)
def test_function_is_refused_where_a_run_needs_a_class(kind: str, path: str) -> None:
    with use_manager(PluginManager()) as manager:
        manager.registry(kind).register("mine", lambda *args, **kwargs: None)
        with pytest.raises(PluginLoadError, match=f"{path}.type: 'mine'.*is no class"):
            compile_run("cartpole-dqn", "parallel", None, (f"{path}.type=mine",), 0, begins=True)


@pytest.mark.parametrize("made", [None, 5, Bare()])
@pytest.mark.parametrize(
    ("kind", "sets"),
    [
        *((f"{part}s", f"{BUFFER}.{part}.type=mine") for part in BUFFER_PARTS),
        ("collectors", "policy.collect.collector.type=mine"),
        ("serial_commanders", "policy.other.serial_commander.type=mine"),
        ("learner_hooks", "policy.learn.learner.hook.x={type: mine, position: after_iter}"),
        ("datasets", "policy.other.demonstrations={share: 0.5, path: 'mine:x'}"),
    ],
)
def test_function_that_makes_no_part_of_its_kind_is_named(
    kind: str, sets: str, made: object, tmp_path: Path
) -> None:
    def make(*args: Any, **kwargs: Any) -> object:
        return made

    with use_manager(PluginManager()) as manager:
        manager.registry(kind).register("mine", make)
        with pytest.raises(PluginLoadError, match=r"mine.*make returned .*which lacks") as caught:
            train("cartpole-dqn", sets=[*SMALL, sets], output=tmp_path, progress=False)

    assert caught.value.facts["plugin"] == __name__
    assert f" returned {made!r:.80}, " in str(caught.value)


@pytest.mark.parametrize("kind", ["roles", "leagues", "comm_learners", "parallel_collectors"])
def test_function_that_makes_nothing_is_refused_when_its_part_is_made(kind: str) -> None:
    with use_manager(PluginManager()) as manager:
        manager.registry(kind).register("mine", lambda *args: None)
        with pytest.raises(PluginLoadError, match=f"'mine' of {kind}, from .* returned None"):
            manager.create(kind, {"type": "mine"})


@pytest.mark.parametrize(
    "drawn",
    [np.zeros(3, np.int64), np.arange(4) + 7, np.arange(4) - 1, np.zeros(4), [0, 1, 2, 3]],
    ids=["too few", "too high", "negative", "floats", "list"],
)
def test_invalid_row_indices_from_draw_are_refused(drawn: Any) -> None:
    class Fixed(RowSampler):
        def draw(self, population: int, size: int, replace: bool = False) -> Any:
            return drawn

    with use_manager(PluginManager()) as manager:
        manager.registry("samplers").register("fixed", Fixed)
        buffer = NaiveReplayBuffer({"replay_buffer_size": 20, "sampler": {"type": "fixed"}})
    buffer.push(SampleBatch({"a": np.arange(10)}), 0)

    with pytest.raises(SchemaMismatchError, match=r"int64\[4\] of 0\.\.9"):
        buffer.sample(4, 0)
