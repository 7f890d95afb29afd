"""Plays episodes with the policy of a run: ``evaluate`` measures them, ``record`` keeps them."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dingsdk.data import Dataset, SampleBatch
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError, DatasetError
from dingsdk.pipeline.compile import compile_config
from dingsdk.pipeline.predict import load_weights, open_run, read_config
from dingsdk.pipeline.run_folder import check_flag
from dingsdk.pipeline.serial import make_eval_envs
from dingsdk.pipeline.user_objects import numbered_run
from dingsdk.policy import Policy, create_policy
from dingsdk.policy.threads import torch_threads
from dingsdk.worker import create_serial_evaluator
from dingsdk.worker.collector.episode_numbers import Summaries, summaries
from dingsdk.worker.datasets import has_dataset, write_dataset
from dingsdk.worker.evaluator.base import ISerialEvaluator, returns_of
from dingsdk.worker.evaluator.recording import RecordingEvaluator
from dingsdk.worker.learner.checkpoint import Checkpoint
from dingsdk.worker.replay_buffer.table import checked_size

Evaluator = TypeVar("Evaluator", bound=ISerialEvaluator)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult(EvalResult):
    """The result of ``record``: that of an evaluation, and what was recorded.

    Attributes:
        dataset: The recorded transitions, one piece for each episode, in the order in which the
            episodes ended.
    """

    dataset: Dataset


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
    cfg, found, player = _load(run_dir, checkpoint, seed, policy, env)

    def make(**parts: Any) -> ISerialEvaluator:
        return create_serial_evaluator(cfg.policy.eval.evaluator, policy=player.eval_mode, **parts)

    _, info = _play(cfg, cfg.env.n_evaluator_episode if episodes is None else episodes, make)
    return EvalResult(**_facts_of(cfg, found, info))


def record(
    run_dir: str | os.PathLike[str],
    episodes: int,
    to: str | os.PathLike[str] | None = None,
    checkpoint: str | None = None,
    seed: int | None = None,
    explore: bool = False,
    overwrite: bool = False,
    policy: type | None = None,
    env: str | Callable[..., Any] | None = None,
) -> RecordResult:
    """Play whole episodes with a checkpoint of a run, and write them; the run is not changed.

    The envs are those of evaluations: without ``clip_reward`` and other wrappers for training, in
    games against ``env.eval_opponents``. Without ``explore``, the episodes are those that
    ``evaluate`` plays with the same seed.

    Args:
        run_dir: A run folder, or a checkpoint file in one.
        episodes: Number of episodes, >= 1.
        to: The file or ``scheme:name`` to write, as for ``write_dataset``; None: write nothing.
        checkpoint: As for ``evaluate``; None for ``best``.
        seed: In place of the run's seed. The same seed plays the same episodes.
        explore: Explore as collectors did when the checkpoint was saved.
        overwrite: Replace what is at ``to``.
        policy, env: What was passed to ``train``, if that was in another process.

    Raises:
        CheckpointMissingError: the folder or the checkpoint does not exist.
        CheckpointCorruptError: it is truncated, is not a checkpoint, or is of another network.
        ConfigError: the saved config cannot work, or its evaluations play no episodes.
        DatasetError: there is something at ``to`` already, no plugin has its scheme, or it cannot
            be written.
    """
    check_flag(explore, "explore")
    check_flag(overwrite, "overwrite")
    fields = ("eval", "collect", "command") if explore else ("eval",)
    cfg, found, player = _load(run_dir, checkpoint, seed, policy, env, fields)
    if to is not None and has_dataset(to) and not overwrite:
        raise DatasetError(
            f"{to} exists; choose another name, or replace it with --overwrite (overwrite=True)",
            source=str(to),
        )
    progress = {"envstep": found.envstep, "learner_step": found.iteration}
    setting = player.command_mode.get_setting_collect(progress) if explore else {}

    def make(**parts: Any) -> RecordingEvaluator:
        if parts["env"] is None:
            raise ConfigError(
                f"policy.eval.evaluator: {cfg.policy.eval.evaluator.type!r} plays no episodes that "
                "could be recorded",
                path="policy.eval.evaluator.type",
            )
        mode = player.collect_mode if explore else player.eval_mode
        evaluator = RecordingEvaluator({}, policy=mode, **parts)
        if explore:
            evaluator.transforms_obs = bool(cfg.policy.collect.collector.get("transform_obs"))
        return evaluator

    evaluator, info = _play(cfg, episodes, make, policy_kwargs=setting)
    batch = SampleBatch.concat(evaluator.episodes)
    ends = np.cumsum([len(each) for each in evaluator.episodes])
    dataset = Dataset(batch.columns, ends, source=str(found.path))
    if to is not None:
        write_dataset(dataset, to)
    return RecordResult(**_facts_of(cfg, found, info), dataset=dataset)


def _load(
    run_dir: str | os.PathLike[str],
    checkpoint: str | None,
    seed: int | None,
    policy: type | None,
    env: str | Callable[..., Any] | None,
    fields: Sequence[str] = ("eval",),
) -> tuple[Any, Checkpoint, Policy]:
    """Return a run's compiled config, a checkpoint, and the policy with its weights.

    ``fields`` are the modes of the policy, one of which must be ``eval``; the others share its
    weights.
    """
    folder, found = open_run(run_dir, checkpoint)
    cfg = compile_config(read_config(folder, policy, env), seed=seed, mode="eval")
    player = create_policy(cfg.policy, enable_field=fields, seed=derive_seed(cfg.seed, "policy"))
    load_weights(player.eval_mode, found, folder)
    return cfg, found, player


def _facts_of(cfg: Any, found: Checkpoint, info: Any) -> dict[str, Any]:
    """Return the fields of an ``EvalResult``, from the info of an evaluation."""
    return {
        "env_id": cfg.env.env_id,
        "checkpoint": found.path,
        "train_iter": found.iteration,
        "returns": tuple(returns_of(info)),
        "numbers": summaries(info) if isinstance(info, Mapping) else {},
    }


def _play(
    cfg: Any, episodes: int, make: Callable[..., Evaluator], **kwargs: Any
) -> tuple[Evaluator, Any]:
    """Play episodes in the evaluation envs of a compiled config.

    Args:
        cfg: The config.
        episodes: Number of episodes, >= 1. A run whose evaluator plays none measures once.
        make: Makes the evaluator from ``env``, a manager, and ``exp_name``, its folder.
        kwargs: Passed to ``eval`` of an evaluator that plays episodes.

    Returns:
        The evaluator, closed, and the info of its ``eval``.

    Raises:
        ConfigError, ConfigTypeError: the number of episodes is not an integer, or below 1.
    """
    episodes = checked_size(episodes, "episodes", least=1)
    manager = make_eval_envs(cfg, "evaluation", min(cfg.env.evaluator_env_num, episodes))
    with (
        numbered_run(),
        torch_threads(cfg.system.torch_threads),
        tempfile.TemporaryDirectory() as scratch,
    ):
        # The evaluator writes logs; they must not mix with the logs of the run.
        evaluator = make(env=manager, exp_name=scratch)
        try:
            if manager is None:
                _, info = evaluator.eval()
            else:
                _, info = evaluator.eval(n_episode=episodes, **kwargs)
        finally:
            evaluator.close()
    return evaluator, info
