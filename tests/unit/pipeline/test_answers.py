"""Hooks that decide during a run: when it stops, extra result fields, checkpoint files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import dingsdk
from dingsdk.data import decode_safetensors, encode_safetensors
from dingsdk.errors import CheckpointCorruptError
from dingsdk.pipeline.train import resume, train
from dingsdk.plugins import PluginManager, hookimpl, use_manager
from dingsdk.worker.learner.checkpoint import load_checkpoint
from tests.runs import SMALL

SETS = (*SMALL, "policy.learn.learner.train_iterations=400000")


class Patient:
    """Stops a run after ``env_steps`` and adds fields to its result."""

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps
        self.asked: list[dict[str, Any]] = []

    @hookimpl
    def dingsdk_should_stop(self, run_dir: Path, status: Mapping[str, Any]) -> str | None:
        assert (run_dir / "config.yaml").is_file()
        self.asked.append(dict(status))
        return "enough seen" if status["env_steps"] >= self.env_steps else None

    @hookimpl
    def dingsdk_result_fields(self, result: Mapping[str, Any]) -> dict[str, Any]:
        return {"cost": result["env_steps"] / 2, "endless": float("inf"), "bad": object()}


@pytest.fixture
def manager() -> Iterator[PluginManager]:
    with use_manager(PluginManager()) as manager:
        yield manager


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_plugin_ends_a_run_and_adds_to_its_result(
    tmp_path: Path, manager: PluginManager, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    patient = Patient(60)
    manager.register_plugin(patient, "patient")

    result = train("cartpole-dqn", mode=mode, sets=SETS, output=tmp_path)

    assert (result.reason, result.stopped_by, result.reached) == ("stopped", "enough seen", False)
    assert 60 <= result.env_steps < 4000
    if mode == "serial":  # in parallel mode the learner may train during the last evaluation
        assert result.evaluations[-1].train_iter == result.train_iter
    assert patient.asked[0].keys() == {
        "env_steps",
        "train_iter",
        "elapsed_s",
        "last_return",
        "best_return",
        "buffer_fill",
        "workers",
        "numbers",
    }
    written = json.loads((result.run_dir / "result.json").read_text())
    assert (written["reason"], written["stopped_by"]) == ("stopped", "enough seen")
    assert (written["cost"], written["endless"]) == (result.env_steps / 2, None)
    assert "bad" not in written
    assert "'bad' of a plugin is left out" in caplog.text


def test_run_stopped_by_a_plugin_can_be_resumed(tmp_path: Path, manager: PluginManager) -> None:
    manager.register_plugin(Patient(40), "patient")
    first = train("cartpole-dqn", sets=SETS, output=tmp_path)
    manager.unregister_plugin("patient")

    second = resume(
        first.run_dir, sets=[f"policy.learn.learner.train_iterations={first.train_iter + 8}"]
    )

    assert (second.reason, second.stopped_by) == ("limit", None)
    assert second.train_iter == first.train_iter + 8


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_without_an_iteration_ends_with_a_warning(
    tmp_path: Path, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    too_large = "policy.learn.batch_size=256"

    result = train(
        "cartpole-dqn", mode, sets=(*SETS, "system.max_env_steps=64", too_large), output=tmp_path
    )

    assert (result.reason, result.train_iter) == ("limit", 0)
    assert caplog.text.count("no iteration was trained") == 1
    assert "gave no batch" in caplog.text
    assert "or the run ended before the learner asked for one" in caplog.text


class Reversed:
    """Stores checkpoints with their bytes reversed."""

    @hookimpl
    def dingsdk_write_checkpoint(self, path: Path, contents: Mapping[str, Any]) -> bool:
        path.write_bytes(bytes(encode_safetensors("own", dict(contents)))[::-1])
        return True

    @hookimpl
    def dingsdk_read_checkpoint(self, path: Path) -> Mapping[str, Any]:
        found: Mapping[str, Any] = decode_safetensors("own", path.read_bytes()[::-1])
        return found


def test_checkpoints_are_written_and_read_by_a_plugin(
    tmp_path: Path, manager: PluginManager
) -> None:
    manager.register_plugin(Reversed(), "reversed")

    result = train("cartpole-dqn", sets=[*SETS[:-1], f"{SETS[-1][:-6]}8"], output=tmp_path)
    found = load_checkpoint(result.run_dir / "ckpt")

    assert result.train_iter == found.iteration == 8
    assert result.checkpoints.keys() == {"latest", "best"}
    assert b"safetensors" not in found.path.read_bytes()[:64]
    assert len(dingsdk.evaluate(result.run_dir, episodes=1).returns) == 1


def test_checkpoint_of_a_plugin_with_wrong_value_types_is_refused(
    tmp_path: Path, manager: PluginManager
) -> None:
    class Textual:
        @hookimpl
        def dingsdk_read_checkpoint(self, path: Path) -> Mapping[str, Any]:
            return {"iteration": "8", "envstep": 64, "meta": {}, "state": {}}

    manager.register_plugin(Textual(), "textual")

    with pytest.raises(CheckpointCorruptError, match="iteration"):
        load_checkpoint(tmp_path / "some.safetensors")
