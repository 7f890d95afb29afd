"""``record``: plays episodes with the policy of a run folder, and keeps their transitions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dingsdk.data import Dataset, SampleBatch
from dingsdk.errors import ConfigError, DatasetError
from dingsdk.pipeline.compile import compile_config
from dingsdk.pipeline.evaluate import EvalResult, facts_of, make_player, play
from dingsdk.pipeline.predict import open_run, read_config
from dingsdk.pipeline.run_folder import check_flag
from dingsdk.worker.datasets import has_dataset, write_dataset
from dingsdk.worker.evaluator.recording import RecordingEvaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult(EvalResult):
    """The result of ``record``: that of an evaluation, and what was recorded.

    Attributes:
        dataset: The recorded transitions, one piece for each episode, in the order in which the
            episodes ended.
    """

    dataset: Dataset


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
    folder, found = open_run(run_dir, checkpoint)
    cfg = compile_config(read_config(folder, policy, env), seed=seed, mode="eval")
    if to is not None and has_dataset(to) and not overwrite:
        raise DatasetError(
            f"{to} exists; choose another name, or replace it with --overwrite (overwrite=True)",
            source=str(to),
        )
    fields = ("eval", "collect", "command") if explore else ("eval",)
    player = make_player(cfg, found, folder, *fields)
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

    evaluator, info = play(cfg, episodes, make, policy_kwargs=setting)
    batch = SampleBatch.concat(evaluator.episodes)
    ends = np.cumsum([len(each) for each in evaluator.episodes])
    dataset = Dataset(batch.columns, ends, source=str(found.path))
    if to is not None:
        write_dataset(dataset, to)
    return RecordResult(**facts_of(cfg, found, info), dataset=dataset)
