"""``evaluate``: plays episodes with the policy of a run folder."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dingsdk.data.seeding import derive_seed
from dingsdk.pipeline.compile import compile_config
from dingsdk.pipeline.predict import load_weights, open_run, read_config
from dingsdk.pipeline.serial import make_eval_envs
from dingsdk.pipeline.user_objects import numbered_run
from dingsdk.policy import create_policy
from dingsdk.policy.threads import torch_threads
from dingsdk.worker import create_serial_evaluator
from dingsdk.worker.collector.episode_numbers import Summaries, summaries
from dingsdk.worker.evaluator.base import returns_of


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The result of ``evaluate``.

    Attributes:
        checkpoint: The checkpoint that was evaluated.
        train_iter: Iterations that its policy was trained for.
        returns: Undiscounted return of each episode.
        numbers: As in ``Evaluation``.
    """

    env_id: str
    checkpoint: Path
    train_iter: int
    returns: tuple[float, ...]
    numbers: Summaries = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean return of the episodes."""
        return statistics.fmean(self.returns)

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return statistics.pstdev(self.returns)

    @property
    def min(self) -> float:
        """Lowest return."""
        return min(self.returns)

    @property
    def max(self) -> float:
        """Highest return."""
        return max(self.returns)


def evaluate(
    run_dir: str | os.PathLike[str],
    checkpoint: str | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    policy: type | None = None,
    env: str | Callable[..., Any] | None = None,
) -> EvalResult:
    """Play episodes with a checkpoint of a run; the run folder is not changed.

    Args:
        run_dir: A run folder, or a checkpoint file in one.
        checkpoint: ``best``, ``latest``, or the path or name of a checkpoint, as for
            ``load_policy``. Only with a run folder, for which None means ``best``.
        episodes: Number of episodes, >= 1; None for the run's ``env.n_evaluator_episode``.
        seed: In place of the run's seed. The same seed plays the same episodes.
        policy, env: What was passed to ``train``, if that was in another process.

    Raises:
        CheckpointMissingError: the folder or the checkpoint does not exist.
        CheckpointCorruptError: it is truncated, is not a checkpoint, or is of another network.
        ConfigError: the saved config cannot work, for example because a plugin is missing.
    """
    folder, found = open_run(run_dir, checkpoint)
    cfg = compile_config(read_config(folder, policy, env), seed=seed, mode="eval")
    count = episodes or cfg.env.n_evaluator_episode
    envs = min(cfg.env.evaluator_env_num, count)
    player = create_policy(cfg.policy, enable_field=["eval"], seed=derive_seed(cfg.seed, "policy"))
    load_weights(player.eval_mode, found, folder)
    manager = make_eval_envs(cfg, "evaluation", envs)
    with (
        numbered_run(),
        torch_threads(cfg.system.torch_threads),
        tempfile.TemporaryDirectory() as scratch,
    ):
        # The evaluator writes logs; they must not mix with the logs of the run.
        evaluator = create_serial_evaluator(
            cfg.policy.eval.evaluator, env=manager, policy=player.eval_mode, exp_name=scratch
        )
        try:
            _, info = evaluator.eval() if manager is None else evaluator.eval(n_episode=count)
        finally:
            evaluator.close()
    return EvalResult(
        env_id=cfg.env.env_id,
        checkpoint=found.path,
        train_iter=found.iteration,
        returns=tuple(returns_of(info)),
        numbers=summaries(info) if isinstance(info, Mapping) else {},
    )
