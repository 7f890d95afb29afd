"""A plugin for worker processes: ``flask_fs`` that is killed, hangs or is slow at chosen points.

A test enables a point with a file ``at-<point>`` in the run folder. The first worker process that
reaches the point renames the file to ``seen-<point>``, writes facts about itself there, and fails.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
from dingsdk_flask_fs.transport import FlaskFSTransport
from dingsdk_flask_fs.workers import FlaskFileSystemCollector, FlaskFileSystemLearner
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk import hookimpl
from dingsdk.worker.learner import hooks

TYPE_KEY = "crashing"
ENV_ID = "CrashingCartPole-v0"
HANG_S = 3600
_run_dir: Path | None = None


def is_reached(point: str, **facts: Any) -> bool:
    """Return True once for an enabled point: then this process must fail there."""
    if _run_dir is None or multiprocessing.parent_process() is None:
        return False
    claimed = _run_dir / f"claimed-{point}-{os.getpid()}"
    try:
        (_run_dir / f"at-{point}").rename(claimed)
    except FileNotFoundError:
        return False
    claimed.write_text(json.dumps({"worker": multiprocessing.current_process().name, **facts}))
    claimed.rename(_run_dir / f"seen-{point}")
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def die_at(point: str, **facts: Any) -> None:
    if is_reached(point, **facts):
        die()


class CrashingTransport(FlaskFSTransport):
    def __init__(self, cfg: Any, run_dir: Path) -> None:
        global _run_dir
        super().__init__(cfg, run_dir)
        _run_dir = Path(run_dir)

    def data_store(self) -> Any:
        store: Any = super().data_store()
        put = store.put

        def crashing_put(data_id: str, batch: Any) -> None:
            if is_reached("mid-write", data_id=data_id):
                os.writev = _write_half_and_die
            put(data_id, batch)
            die_at("written", data_id=data_id)

        store.put = crashing_put
        return store

    def policy_store(self) -> Any:
        store: Any = super().policy_store()
        load: Callable[..., Any] = store.newest

        def crashing_newest(*args: Any, **kwargs: Any) -> Any:
            newest = load(*args, **kwargs)
            if newest is not None:
                die_at("policy-read", version=newest[0])
            return newest

        store.newest = crashing_newest
        return store


class CrashingLearner(FlaskFileSystemLearner):
    """Dies before it reports inserted rows, or rows that have left, or after a checkpoint."""

    def _create_home(self, task_info: Any) -> Any:
        home: Any = super()._create_home(task_info)
        report = home.report

        def crashing_report(confirmed: int) -> Any:
            if home._inserted:
                die_at("inserted")
            found = report(confirmed)
            if home._reports and home._reports[-1].left:
                die_at("evicted")
            return found

        home.report = crashing_report
        return home

    def _create_learner(self, task_info: Any) -> Any:
        save = hooks.save_checkpoint

        def crashing_save(*args: Any, **kwargs: Any) -> Path:
            path = save(*args, **kwargs)
            die_at("saved")
            return path

        hooks.save_checkpoint = crashing_save
        return super()._create_learner(task_info)


def _write_half_and_die(descriptor: int, buffers: Any, *args: Any) -> int:
    whole = b"".join(bytes(buffer) for buffer in buffers)
    os.write(descriptor, whole[: len(whole) // 2])
    die()
    return 0


class CrashingCartPole(CartPoleEnv):
    """CartPole whose step can die, hang, raise, return bad observations, or be slow."""

    def step(self, action: Any) -> Any:
        die_at("env-step")
        if is_reached("hang"):
            ctypes.PyDLL(None).sleep(HANG_S)  # keeps the GIL, so that all threads stop
        if is_reached("raise"):
            raise ValueError("the simulator fell over")
        obs, *rest = super().step(action)
        if is_reached("observe-nan"):
            obs = obs * float("nan")
        if is_reached("observe-other-shape"):
            obs = obs[:2]
        if _run_dir is not None and (_run_dir / "slow").exists():
            time.sleep(0.2)
        return obs, *rest


gymnasium.register(ENV_ID, CrashingCartPole, max_episode_steps=500)


@hookimpl
def dingsdk_register_transports(registry: Any) -> None:
    registry.register(TYPE_KEY, CrashingTransport)


@hookimpl
def dingsdk_register_comm_collectors(registry: Any) -> None:
    registry.register(TYPE_KEY, FlaskFileSystemCollector)


@hookimpl
def dingsdk_register_comm_learners(registry: Any) -> None:
    registry.register(TYPE_KEY, CrashingLearner)
