"""Trains the weights of a recorded run again, and compares them bit for bit."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dingsdk.data.pytree import different_leaves, flatten, map_leaves
from dingsdk.errors import CheckpointMissingError
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import SCHEDULE_NAME
from dingsdk.pipeline.run_folder import no_run_text, read_config, run_path
from dingsdk.pipeline.train import compile_run, run_pipeline
from dingsdk.pipeline.user_objects import callbacks_registered
from dingsdk.runtime.files import guarded
from dingsdk.worker.learner.checkpoint import load_checkpoint


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of comparing a replay with its run.

    Attributes:
        iteration: Iteration of the run's newest checkpoint.
        reached: Iteration that the replay reached: ``iteration``, or less if it ended too early.
        different: Names of the values in the policy's state that differ.
        signal: Number of the signal that ended the replay too early; None otherwise.
    """

    iteration: int
    reached: int
    different: tuple[str, ...]
    signal: int | None = None

    @property
    def is_same(self) -> bool:
        """Whether the whole state of the policy is the same, bit for bit."""
        return self.reached == self.iteration and not self.different


def replay(
    run: str | os.PathLike[str], announce: Callable[[str], None] | None = None
) -> ReplayResult:
    """Train a run of parallel mode again, in the order of its schedule; changes no file of the run.

    The result is the same if the package versions and the machine are the same, the envs depend
    only on their seeds, and all parts take the time from their scheduler.

    Args:
        run: Folder of a run with ``system.record_schedule``.

    Raises:
        CheckpointMissingError: the run has no schedule or no checkpoint.
        CheckpointCorruptError: the schedule or the checkpoint is damaged.
        DingError: a part failed, as in ``train``.
    """
    folder = run_path(run)
    if (text := no_run_text(folder)) is not None:
        raise CheckpointMissingError(text, path=str(folder))
    schedule = folder / SCHEDULE_NAME
    if not schedule.is_file():
        raise CheckpointMissingError(
            f"{folder} has no {SCHEDULE_NAME}: only a run in parallel mode with "
            "--set system.record_schedule=true writes one, and not if it is killed",
            path=str(schedule),
        )
    with guarded(folder):
        final = load_checkpoint(folder / "ckpt")
    if final.iteration == 0:
        raise CheckpointMissingError(
            f"{folder} was not trained: nothing to compare", path=str(folder)
        )
    cfg = compile_run(read_config(folder), "parallel")
    with tempfile.TemporaryDirectory(prefix="dingsdk-replay-") as own:
        context = RunContext(cfg=cfg, run_dir=Path(own) / "run", replays=schedule)
        context.run_dir.mkdir()
        watch = _Watch(final.iteration, context.stop)
        with callbacks_registered([watch], in_processes=False):
            result = run_pipeline(context, "parallel", announce=announce)
    if watch.state is None:
        return ReplayResult(final.iteration, watch.reached, (), result.signal)
    different = different_leaves(dict(flatten(final.state)), dict(flatten(watch.state)))
    return ReplayResult(final.iteration, final.iteration, tuple(different))


class _Watch:
    """A callback that keeps the learner's state after a given iteration, and ends the run."""

    def __init__(self, iteration: int, stop: threading.Event) -> None:
        self._iteration = iteration
        self._stop = stop
        self.reached = 0
        self.state: Mapping[str, Any] | None = None

    def after_iter(self, learner: Any, iteration: int) -> None:
        self.reached = iteration + 1
        if self.reached == self._iteration:
            self.state = map_leaves(_copied, learner.policy.state_dict())
            self._stop.set()


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
