"""``load_policy``: loads the policy of a run, to choose actions with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from dingsdk.config import to_easydict
from dingsdk.data.pytree import map_leaves, to_tensor
from dingsdk.data.seeding import derive_seed
from dingsdk.envs import EnvFn
from dingsdk.envs.space_description import make_space
from dingsdk.envs.spaces import ActionChecker, ObservationSchema
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    SchemaMismatchError,
    listing,
    message_of,
    repr_of,
)
from dingsdk.pipeline import run_folder
from dingsdk.pipeline.run_folder import (
    CHECKPOINT_FOLDER,
    CONFIG_NAME,
    check_flag,
    no_run_text,
    run_path,
)
from dingsdk.pipeline.user_objects import name_env, name_policy
from dingsdk.policy import create_policy
from dingsdk.policy.threads import isolated
from dingsdk.runtime.files import checked_path, guarded
from dingsdk.worker.learner.checkpoint import LATEST, SUFFIX, Checkpoint, load_checkpoint

_STEMS = {"best": "ckpt_best", "latest": LATEST}


def open_run(run: str | os.PathLike[str], which: str | None = None) -> tuple[Path, Checkpoint]:
    """Return the folder of a run, and one of its checkpoints; arguments as for ``load_policy``.

    Raises:
        ConfigError: ``run`` is a checkpoint file, and ``which`` was also given.
        ConfigTypeError: ``which`` is no path.
        CheckpointError: the run or the checkpoint does not exist, or cannot be read.
    """
    given = run_path(run)
    text = no_run_text(given)
    if text is None:
        which = "best" if which is None else which
        asked = checked_path(which, "checkpoint")
        if which in _STEMS or (asked.name == which != "" and not os.path.exists(which)):
            with guarded(given):
                return given, _load_by_name(given, which)
        return given, load_checkpoint(asked)
    if not os.path.isfile(given):
        given = Path(f"{given}{SUFFIX}")
    if not os.path.isfile(given):
        raise CheckpointMissingError(text, path=str(run))
    if which is not None:
        raise ConfigError(
            f"{given} is a checkpoint, so {repr_of(which)} cannot be chosen too; name the run "
            "folder, or leave the choice out",
            path="checkpoint",
        )
    for folder in (given.parent, given.parent.parent):
        if (folder / CONFIG_NAME).is_file():
            with guarded(folder):
                return folder, load_checkpoint(given)
    load_checkpoint(given)
    raise CheckpointMissingError(
        f"{given} has no {CONFIG_NAME} beside it or in the folder above, so its policy is "
        f"unknown; put the run's {CONFIG_NAME} beside the checkpoint",
        path=str(given),
    )


def _load_by_name(run: Path, name: str) -> Checkpoint:
    """Load ``best``, ``latest`` or a file of the run's checkpoints; the error lists the files."""
    folder = run / CHECKPOINT_FOLDER
    try:
        return load_checkpoint(folder / _STEMS.get(name, name))
    except CheckpointMissingError as error:
        text = f"{run} has no checkpoint {name!r}. Known: "
        text += listing(path.stem for path in folder.glob(f"*{SUFFIX}"))
        raise CheckpointMissingError(text, path=str(folder)) from error


def load_weights(policy: Any, found: Checkpoint, folder: Path) -> None:
    """Load a checkpoint's weights into a mode of a policy.

    Raises:
        CheckpointCorruptError: the weights do not fit the policy.
    """
    try:
        policy.load_state_dict(found.state)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(
            f"{found.path} does not fit the policy of {folder / CONFIG_NAME}: {message_of(error)}",
            path=str(found.path),
        ) from error


def read_config(
    folder: Path, policy: type | None, env: str | Callable[..., Any] | None
) -> dict[str, Any]:
    """Return the config of a run folder, with the given policy class and env.

    Raises:
        ConfigError: the file is damaged, or names another policy than the class.
        ConfigTypeError: ``env`` cannot be an env.
    """
    config = run_folder.read_config(folder)
    for name in ("env", "policy"):
        if not isinstance(config.get(name), dict):
            raise ConfigError(f"{folder / CONFIG_NAME} has no section {name}", path=name)
    asked = config["policy"].get("type")
    if policy is not None and (name := name_policy(policy)) != asked:
        raise ConfigError(
            f"{folder} was trained with the policy {asked!r}, not {name!r}",
            path="policy.type",
            expected=asked,
            found=name,
        )
    if env is not None:
        config["env"]["env_id"] = name_env(env)
    return config


def load_policy(
    run: str | os.PathLike[str],
    which: str | None = None,
    policy: type | None = None,
    env: str | Callable[..., Any] | None = None,
) -> SavedPolicy:
    """Load the policy of a run, to choose actions with it; starts no env and no workers.

    Args:
        run: A run folder, or a checkpoint file in one.
        which: ``best``, ``latest``, the name of a checkpoint in the run folder, such as
            ``iteration_10``, or the path of any other. Only with a run folder; None means ``best``.
        policy, env: What was passed to ``train``, if that was in another process. Without ``env``,
            only plugins and the modules in ``import_names`` are imported.

    Returns:
        The policy. It uses the CPU if the run used a GPU and this machine has none.

    Raises:
        CheckpointError: the run or the checkpoint does not exist, or cannot be used.
        ConfigError: the run's config cannot work, or names a plugin that is not installed.

    Example::

        policy = dingsdk.load_policy("runs/cartpole-dqn")
        action, _ = policy.predict(obs)
    """
    folder, found = open_run(run, which)
    return SavedPolicy(read_config(folder, policy, env), found, folder)


class SavedPolicy:
    """A trained policy. Not safe for use from several threads at once.

    Attributes:
        observation_space, action_space: The gymnasium spaces of one observation and one action.
        checkpoint: The file that the weights were loaded from.
        train_iter: Iterations that the policy was trained for.
        config: The run's config, as plain data.
    """

    def __init__(self, config: Mapping[str, Any], found: Checkpoint, folder: Path) -> None:
        self.config, self.checkpoint, self.train_iter = config, found.path, found.iteration
        cfg = to_easydict(config)
        cfg.policy.cuda = bool(cfg.policy.get("cuda")) and torch.cuda.is_available()
        self._policy = create_policy(
            cfg.policy,
            enable_field=["collect", "eval", "command"],
            seed=derive_seed(cfg.get("seed", 0), "prediction"),
        )
        load_weights(self._policy.eval_mode, found, folder)
        self.observation_space = self._space("observation_space", folder)
        self.action_space = self._space("action_space", folder)
        self._observations = ObservationSchema(self.observation_space)
        self._actions = ActionChecker(self.action_space)
        self._state_size = getattr(self._policy, "state_size", 0)
        if self._state_size:
            self._act = isolated(self._policy.act)  # type: ignore[attr-defined]
        # Policies in the dict form get tensors in evaluations, in collection if this is set.
        collector = cfg.policy.get("collect", {}).get("collector", {})
        self._has_tensor_obs = bool(collector.get("transform_obs"))
        # The exploration settings depend on the env steps of the checkpoint.
        progress = {"envstep": found.envstep, "learner_step": found.iteration}
        self._setting = self._policy.command_mode.get_setting_collect(progress)

    def make_env(self) -> Any:
        """Make the env that the policy was evaluated in, with its wrappers.

        Wrappers that are only for training, such as ``clip_reward``, are left out.

        Raises:
            UnknownEnvError: the env is not installed here.
        """
        return EnvFn({**self.config["env"], "is_evaluation": True})()

    def predict(self, obs: Any, state: Any = None, deterministic: bool = True) -> tuple[Any, Any]:
        """Choose the action for one observation, or for each observation of a batch.

        Args:
            obs: One observation of ``observation_space``, or a batch of observations. A batch has
                one more dimension in front; in a Dict, each array has it.
            state: The state that the previous call returned; None at the start of an episode. Only
                recurrent policies have a state: float32[state_size], or float32[n, state_size] for
                a batch. In a batch, set the rows whose episode begins to zeros.
            deterministic: False: explore, as collectors did when the checkpoint was saved.

        Returns:
            The action, in the form that ``env.step`` takes (for a batch, an array of actions), and
            the new state, which is None for policies without one.

        Raises:
            SchemaMismatchError: the observation or the state has a wrong shape or type.
            PolicyOutputError: the policy chose an action that is not in ``action_space``.
            ConfigTypeError: ``deterministic`` is neither True nor False.
        """
        check_flag(deterministic, "deterministic")
        columns, count = self._columns_of(obs)
        mode: Any = self._policy.eval_mode if deterministic else self._policy.collect_mode
        setting = {} if deterministic else self._setting
        ids = list(range(count or 1))
        if self._state_size:
            rows = self._rows_of(state, count)
            output = self._act(columns, ids, explore=not deterministic, state=rows, **setting)
            actions, state = output["action"], output["next_state"]
        elif state is not None:
            raise _misfit("state", "None: the policy has no memory", type(state).__name__)
        elif mode.forward_batch is not None:
            actions = mode.forward_batch(columns, ids, **setting)["action"]
        else:
            by_id = {i: map_leaves(itemgetter(i), columns) for i in ids}
            if deterministic or self._has_tensor_obs:
                by_id = to_tensor(by_id, dtype=torch.float32)
            found = mode.forward(by_id, **setting)
            actions = np.stack([np.asarray(found[i]["action"]) for i in ids])
        if count is None:
            return self._actions.single(actions[0]), None if state is None else state[0]
        return self._actions.batch(actions, count), state

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Export the policy as a program that runs without dingsdk, and check the program.

        The program takes ``obs``, a batch of observations in the dtypes of ``observation_space``.
        For a Dict space this is a dict; in ONNX, each of its arrays is an input ``obs.<key>``. The
        program returns ``action``, as ``predict`` does, for each row. The program of a recurrent
        policy also takes ``state``, ``float32[n, state_size]``, and returns ``next_state``.

        Args:
            path: ``*.pt2`` for ``torch.export.load``; ``*.onnx`` for ONNX runtimes, which needs
                the extra ``export``.

        Raises:
            ConfigError: the path has another ending, or the policy cannot be exported.
            PluginNotInstalledError: the extra is not installed.
            RunFolderError: the file cannot be written.
            DingError: the program chooses other actions than the policy; nothing was written.
        """
        from dingsdk.pipeline.export import export_policy

        return export_policy(self._policy, self.observation_space, checked_path(path, "path"))

    def _columns_of(self, obs: Any) -> tuple[Any, int | None]:
        """Return observations as checked columns, and their number (None: not a batch)."""
        schema, count = self._observations, _count_of(self.observation_space, obs)
        try:
            if count is None:
                return schema.stack([schema.conform(obs)]), None
            return schema.conform_columns(obs, count), count
        except SchemaMismatchError as error:
            expected = f"{error.expected}, or a batch" if count is None else error.expected
            raise _misfit(error.key, expected, error.found) from None

    def _rows_of(self, state: Any, count: int | None) -> NDArray[np.float32]:
        """Return recurrent states as rows; None gives rows of zeros."""
        size = self._state_size
        if state is None:
            return np.zeros((count or 1, size), np.float32)
        expected = (size,) if count is None else (count, size)
        if np.shape(state) != expected:
            raise _misfit("state", f"float32{list(expected)}, or None", f"{np.shape(state)}")
        return np.asarray(state, np.float32).reshape(-1, size)

    def _space(self, name: str, folder: Path) -> Any:
        """Return a space that the run has saved in its config; the env is not imported."""
        described, path = self.config["env"].get(name), f"env.{name}"
        if described is None:
            raise ConfigError(
                f"{folder / CONFIG_NAME} has no {path}, which a run saves there; use the config "
                "that the run wrote",
                path=path,
            )
        return make_space(described, path)


def _count_of(space: Any, obs: Any) -> int | None:
    """Return the number of observations in a batch, which the first array shows; None for one."""
    while isinstance(space, spaces.Dict) and isinstance(obs, Mapping) and space.spaces:
        name, space = next(iter(space.spaces.items()))
        obs = obs.get(name)
    try:
        shape = np.shape(obs)
    except (TypeError, ValueError, RuntimeError):
        return None  # no array
    return shape[0] or None if len(shape) == len(space.shape or ()) + 1 else None


def _misfit(key: str, expected: str, found: str) -> SchemaMismatchError:
    text = f"predict: {key} is {found}, expected {expected}"
    return SchemaMismatchError(text, key=key, expected=expected, found=found)
