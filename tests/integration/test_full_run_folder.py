"""The disk of the run folder is full during training or at the end of the run."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from dingsdk import train
from dingsdk.errors import StorageFullError
from dingsdk.pipeline.resume import find_save
from dingsdk.pipeline.signals import PATIENCE_S
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker import LearnerHook, register_learner_hook
from tests.small_disk import small_disk

SMALL = (
    "system.max_env_steps=1200",
    "env.n_evaluator_episode=2",
    "env.evaluator_env_num=2",
    "env.collector_env_num=4",
    "policy.collect.n_sample=32",
    "policy.learn.update_per_collect=2",
    "policy.learn.batch_size=32",
    "policy.eval.evaluator.eval_freq=1000",
    "policy.learn.learner.hook.log_show_after_iter=1",
    "policy.learn.learner.hook.save_ckpt_after_iter=10",
)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "4m") as path:
        yield path


class FillDisk(LearnerHook):
    """Fills the disk at one iteration; frees it at another, or after some seconds."""

    def __init__(self, name, priority, *, ext_args, **kwargs):  # type: ignore[no-untyped-def]
        super().__init__(name, priority, **kwargs)
        self._args = ext_args

    def __call__(self, engine) -> None:  # type: ignore[no-untyped-def]
        filler = Path(self._args.filler)
        if engine.last_iter.val == self._args.full_at or self.position == "after_run":
            if seconds := self._args.get("seconds"):
                threading.Timer(seconds, filler.unlink).start()
            with filler.open("wb", buffering=0) as file:
                for size in (1 << 16, 1):
                    try:
                        while True:
                            file.write(bytes(size))
                    except OSError:
                        continue
        elif engine.last_iter.val == self._args.room_at:
            filler.unlink()


def sets(
    disk: Path, full_at: int, room_at: int, seconds: float = 0.0, position: str = "before_iter"
) -> list[str]:
    times = {"full_at": full_at, "room_at": room_at, "seconds": seconds}
    entry = {
        "type": "fill_disk",
        "position": position,
        "ext_args": {"filler": str(disk / "filler"), **times},
    }
    return [*SMALL, f"policy.learn.learner.hook.fill={json.dumps(entry)}"]


@pytest.fixture(autouse=True)
def hook_type() -> Iterator[None]:
    with use_manager(PluginManager()):
        register_learner_hook("fill_disk", FillDisk)
        yield


def test_run_continues_when_logs_and_checkpoints_have_no_room(
    tiny_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train("cartpole-dqn", sets=sets(tiny_disk, 15, 35), output=tiny_disk)

    assert result.reason == "limit"
    assert result.train_iter > 60
    saved = {path.stem for path in (result.run_dir / "ckpt").glob("iteration_*")}
    assert f"iteration_{result.train_iter}" in saved
    for left_out in ("no checkpoint of iteration 20", "no checkpoint of iteration 30"):
        assert left_out in caplog.text
    ended = [text for text in caplog.messages if "the run continues" in text]
    assert len(ended) == len(set(ended)) > 0
    assert not list(result.run_dir.rglob(".tmp-*"))


def test_last_checkpoint_without_room_raises_storage_full_error(tiny_disk: Path) -> None:
    limit = "system.coordinator.storage_timeout_s=1.5"
    began = time.monotonic()
    with pytest.raises(StorageFullError, match=r"there was no room for 2 s \(system\.") as caught:
        train("cartpole-dqn", sets=[*sets(tiny_disk, 15, 10**6), limit], output=tiny_disk)

    assert 1.5 < time.monotonic() - began < 30.0
    assert caught.value.reason == "ENOSPC"
    assert str(tiny_disk) in caught.value.path
    assert caught.value.is_user_mistake
    assert not list(tiny_disk.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("mode", "full_at", "position", "missing"),
    [
        # The evaluation at iteration 12 is the first of a trained policy, so it is the best.
        ("serial", 11, "before_iter", "ckpt/ckpt_best.safetensors"),
        ("parallel", 11, "before_iter", "ckpt/ckpt_best.safetensors"),
        ("serial", 39, "before_iter", "ckpt/iteration_40.safetensors"),
        ("serial", 39, "before_iter", "resume/000001/state.safetensors"),
        ("parallel", 39, "before_iter", "ckpt/iteration_40.safetensors"),
        ("serial", -1, "after_run", "result.json"),
    ],
)
def test_write_that_the_run_needs_waits_for_room(
    tiny_disk: Path,
    mode: Literal["serial", "parallel"],
    full_at: int,
    position: str,
    missing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = (
        "policy.learn.learner.train_iterations=40",
        "policy.eval.evaluator.eval_freq=12",
        "policy.learn.learner.hook.save_ckpt_after_iter=0",
        "system.max_env_steps=null",
        "system.transport.type=in_memory",
    )
    seconds = 3.0
    filled = [*sets(tiny_disk, full_at, -1, seconds, position), *own]
    result = train("cartpole-dqn", mode, sets=filled, output=tiny_disk)

    assert result.reason == "limit"
    assert result.train_iter == 40
    assert (result.run_dir / missing).stat().st_size > 0
    for text in ("the run waits for up to 600 s: cannot write", "there is room again"):
        assert text in caplog.text
    assert not (tiny_disk / "filler").exists()
    assert not list(result.run_dir.rglob(".tmp-*"))


class Interrupt:
    def after_iter(self, iteration: int) -> None:
        if iteration == 15:
            os.kill(os.getpid(), signal.SIGINT)


def test_last_save_of_an_interrupted_run_waits_for_room(tiny_disk: Path) -> None:
    # Longer than the time after which a part that does not return is broken off.
    filled = sets(tiny_disk, 15, -1, PATIENCE_S + 2.0)
    result = train("cartpole-dqn", sets=filled, output=tiny_disk, callbacks=[Interrupt()])

    assert result.reason == "interrupted"
    assert find_save(result.run_dir).state.parts["learner"]["train_iter"] == result.train_iter


def test_interrupted_run_without_room_for_its_last_save_ends_by_name(tiny_disk: Path) -> None:
    own = [*sets(tiny_disk, 15, 10**6), "system.coordinator.storage_timeout_s=1.5"]
    with pytest.raises(StorageFullError, match=r"there was no room for 2 s \(system\.") as caught:
        train("cartpole-dqn", sets=own, output=tiny_disk, callbacks=[Interrupt()])

    assert "/resume/" in caught.value.path
