"""Checks of a config that need an env: its spaces and its players."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from dingsdk.config.plain import find, to_easydict
from dingsdk.data import Dataset
from dingsdk.data.pytree import flatten
from dingsdk.errors import DatasetError
from dingsdk.worker.run_view import BUFFER, COLLECTOR, RunView, refusal

_log = logging.getLogger(__name__)


def _check_evaluation_env(env: Mapping[str, Any], wrappers: list[Any], made: Any) -> None:
    """Raise ConfigError if a wrapper that only training has changes the spaces of ``made``."""
    from dingsdk.envs import EnvFn
    from dingsdk.envs.guard import close_quietly

    make_other = EnvFn({**env, "is_evaluation": True})
    if make_other.wrappers == wrappers:
        return
    other = make_other()
    try:
        for name in ("observation_space", "action_space"):
            own, found = getattr(made, name), getattr(other, name)
            if own != found:
                raise refusal(
                    f"env.wrappers: without the wrappers that only training has, the {name} of an "
                    f"evaluation is {found} instead of {own}; give the wrapper that changes it "
                    "'evaluate: true'"
                )
    finally:
        close_quietly(other)


def _warn_of_statistics(made: Any) -> None:
    """Warn of wrappers whose statistics differ between envs, as gymnasium's Normalize... do."""
    layer = made
    while (inner := vars(layer).get("env")) is not None:
        if hasattr(type(layer), "update_running_mean"):
            instead = (
                "policy.normalize.obs, or the wrapper normalize_obs with a file of "
                "dingsdk.envs.measure_observations"
                if hasattr(layer, "obs_rms")
                else "policy.normalize.reward, or the wrapper clip_reward"
            )
            _log.warning(
                "env.wrappers: %s measures its mean and deviation during the run, in each env for "
                "itself: envs give different values for the same state, evaluations begin without "
                "what training has measured, and a resumed run has lost it; use %s",
                type(layer).__name__,
                instead,
            )
        layer = inner


def try_env(run: RunView, data: Dataset | None = None) -> None:
    """Make one env, check the config against it, and close it; check what an evaluator imports.

    Sets the spaces of the env and the None values of ``policy.model`` in the config, and checks
    whether a full replay buffer of its observations fits into memory. If the run trains on a data
    set ``data``, it has to fit the spaces; without an env they are derived from it.

    Raises:
        UnknownEnvError: gymnasium does not know the env, or cannot make it.
        CheckpointError: the saved league whose players are opponents cannot be read.
        ConfigError: another value of the config does not fit the env.
    """
    from dingsdk.envs import EnvFn
    from dingsdk.envs.guard import check_spaces, close_quietly
    from dingsdk.envs.players import player_num, space_of_player
    from dingsdk.envs.space_description import describe_space

    compiled, classes, mode = run.cfg, run.classes, run.mode
    env, evaluator = compiled["env"], run.policy["eval"]["evaluator"]
    if hasattr(classes["policy.eval.evaluator"], "check_imports"):
        classes["policy.eval.evaluator"].check_imports(evaluator)
    if data is not None and env["env_id"] is None:
        _fill_from_data(run, data)
        return
    make = EnvFn(env)
    made = make()
    try:
        check_spaces(made)
        players = player_num(made)
        _check_players(run, players)
        # A manager refuses envs that it cannot run when it is created; nothing is launched.
        close_quietly(classes["env_manager"](to_easydict(compiled["env_manager"]), [make]))
        found = {name: getattr(made, name) for name in ("observation_space", "action_space")}
        if players > 1:
            found = {name: space_of_player(space, players) for name, space in found.items()}
        shapes = _shapes(run, found)
        render_mode = made.render_mode
        max_steps = None if made.spec is None else made.spec.max_episode_steps
        if make.wrappers:
            _check_evaluation_env(env, make.wrappers, made)
        _warn_of_statistics(made)
    finally:
        close_quietly(made)
    if data is not None:
        _check_data(data, f"env.env_id {env['env_id']}", *found.values())
    described = {name: describe_space(space) for name, space in found.items()}
    _fill_in(env, described, env["env_id"], "env")
    _fill_in(run.policy["model"], shapes, env["env_id"], "policy.model")
    normalize = run.policy["normalize"]
    if mode != "eval" and (normalize["obs"] or normalize["reward"]):
        # Only its networks show whether the policy can normalise.
        own = {**run.policy, "cuda": False, "compile": False}
        classes["policy"](to_easydict(own), enable_field=["collect"], seed=0)
    if mode != "eval":
        _check_memory(run, found["observation_space"])
    unroll_len = run.collect["unroll_len"]
    is_unroll = getattr(run.policy_class, "piece", "") == "unroll"
    if max_steps is not None and unroll_len > max_steps and not is_unroll:
        raise refusal(
            f"policy.collect.unroll_len is {unroll_len}, but an episode of {env['env_id']} has at "
            f"most {max_steps} steps: no train sample could ever be made; lower it"
        )
    is_rendering = (evaluator.get("render") or {}).get("render_freq", -1) != -1
    if is_rendering:
        _check_rendering(classes["env_manager"], render_mode)
    if mode == "parallel" and (is_rendering or evaluator.get("figure_path") is not None):
        key = "render.render_freq" if is_rendering else "figure_path"
        raise refusal(
            f"policy.eval.evaluator.{key} asks for pictures, which evaluations in parallel mode do "
            "not take; leave it out and add the wrapper record_video to env.wrappers, or use "
            "--mode serial"
        )


def _shapes(run: RunView, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of ``policy.model`` that follow from the spaces."""
    read = getattr(run.policy_class, "model_from_spaces", None)
    return {} if read is None else read(*found.values())


def _fill_from_data(run: RunView, data: Dataset) -> None:
    """Set spaces and shapes of a run without env: those that the config states, or of the data."""
    from dingsdk.envs.space_description import describe_space, make_space
    from dingsdk.worker.dataset_spaces import spaces_of

    env, names = run.cfg["env"], ("observation_space", "action_space")
    found = dict(zip(names, spaces_of(data), strict=True))
    for name in names:
        if env[name] is not None:
            found[name] = make_space(env[name], f"env.{name}")
    _check_data(data, "the config", *found.values())
    for name, space in found.items():
        env[name] = describe_space(space)
    _fill_in(run.policy["model"], _shapes(run, found), data.source, "policy.model")
    _check_memory(run, found["observation_space"])


def _check_data(data: Dataset, name: str, observation_space: Any, action_space: Any) -> None:
    """Raise ConfigError unless a data set fits the spaces that ``name`` has."""
    from dingsdk.worker.dataset_spaces import check_dataset

    try:
        check_dataset(data, observation_space, action_space, name)
    except DatasetError as error:
        raise refusal(f"{COLLECTOR}.path: {error}") from error


def _check_memory(run: RunView, observation_space: Any) -> None:
    """Check that the memory of a full replay buffer can be allocated; none of it is used.

    Only the observations are counted, so a larger row may still be refused at the first push.
    """
    section = run.buffer
    if not run.buffer_parts or run.drawn == "episodes":  # episodes get their rows later
        return
    storage = section.get("storage", {}).get("type")
    if storage not in ("auto", "array", "memmap"):
        return
    # Of a row on disk, only its number is in memory, in parallel mode.
    one = {"number": 0} if storage == "memmap" else {"obs": observation_space.sample()}
    row = [np.asarray(leaf) for _, leaf in flatten(one)]
    capacity, row_bytes = section["replay_buffer_size"], sum(leaf.nbytes for leaf in row)
    try:
        # Unlike a comparison with the memory of the host, this respects the limits of the process.
        allocated = [np.empty((capacity, *leaf.shape), leaf.dtype) for leaf in row]
    except (MemoryError, ValueError) as error:
        raise refusal(
            f"{BUFFER}.replay_buffer_size is {capacity}: {row_bytes} bytes for each row are "
            f"{capacity * row_bytes / 1e9:,.0f} GB, which cannot be allocated; choose a smaller one"
        ) from error
    del allocated


_PLAYING = {
    "serial": {
        "policy.collect.collector": "sample_1v1 or episode_1v1",
        "policy.other.serial_commander": "one_vs_one",
    },
    "parallel": {
        "policy.collect.parallel_collector": "marine",
        "policy.other.commander": "one_vs_one",
    },
    "eval": {},
}
"""The parts that depend on the number of players, and their types for several players."""


def _check_players(run: RunView, players: int) -> None:
    """Check that the parts of a run fit the number of players of an env; check the opponents."""
    from dingsdk.envs.players import find_opponent
    from dingsdk.worker.commander.one_vs_one import saved_league

    cfg, classes, mode = run.cfg, run.classes, run.mode
    parts = dict(_PLAYING[mode])
    if players > 1:
        parts["env_manager"] = "vector, subprocess or async_subprocess"
    elif mode != "eval":
        parts["policy.collect.collector"] = ""
    most = {
        path: getattr(classes.get(path), "max_players", inf if path == "env_manager" else 1)
        for path in parts
    }
    wrong = [path for path in parts if players > most[path] or (players == 1 and most[path] > 1)]
    if wrong:
        path, *others = wrong
        advice = "one for envs of one player" if players == 1 else parts[path]
        if players > 2 and path.endswith("commander"):
            advice = "an env of two players"
        elif players == 2:
            advice += "".join(f"; {other}.type: {parts[other]}" for other in others)
        few = most[path]
        count = "one player" if few == 1 else "two players" if few == 2 else "several players"
        raise refusal(
            f"{path}.type is {find(cfg, path)['type']!r}, which plays {count}, but "
            f"{cfg['env']['env_id']} has {players}; choose {advice}"
        )
    if players > 1:
        if mode != "eval":
            league = run.policy["other"]["league"]
            _check_active(league.get("active_player_num", 1), run)
            past = league.get("load_path")
            if past is not None:
                saved_league(past)
        for name in cfg["env"]["eval_opponents"]:
            find_opponent(name)


def _check_active(count: int, run: RunView) -> None:
    """Raise ConfigError unless ``count`` players of a league can train in the same run."""
    if count == 1:
        return
    why = ""
    if run.system["learner_num"] > 1:
        why = "each of them is trained by one process; set system.learner_num to 1"
    elif run.mode == "parallel" and run.is_served:
        why = "a replay server holds the samples of one; leave out system.replay.type"
    if why:
        raise refusal(f"policy.other.league.active_player_num is {count}, but {why}")


def unknown_without_env(cfg: Mapping[str, Any]) -> list[str]:
    """Return the keys of a config whose values only its env can tell: those that are None."""
    spaces = [f"env.{name}" for name in ("observation_space", "action_space")]
    model = [f"policy.model.{name}" for name in cfg["policy"].get("model", {})]
    return [path for path in (*spaces, *model) if find(cfg, path) is None]


def _fill_in(section: dict[str, Any], read: Mapping[str, Any], source: str, path: str) -> None:
    """Replace None by the values that were read from an env or a data set; check the others."""
    for key, found in read.items():
        stated = section.get(key)
        if stated is None:
            section[key] = found
        elif _as_list(stated) != _as_list(found):
            raise refusal(
                f"{path}.{key} is {stated}, but {source} has {found}; leave the key out to have it "
                "read from there"
            )


def _check_rendering(env_manager: Any, render_mode: str | None) -> None:
    from dingsdk.worker.evaluator.interaction import why_no_video

    why = why_no_video(env_manager)
    if not why and render_mode != "rgb_array":
        why = (
            f"but env.kwargs.render_mode is {render_mode!r}; set it to rgb_array, or the "
            "frequency to -1"
        )
    if why:
        raise refusal(f"policy.eval.evaluator.render.render_freq asks for videos, {why}")


def _as_list(shape: Any) -> Any:
    if isinstance(shape, Mapping):
        return {key: _as_list(part) for key, part in shape.items()}
    return list(shape) if isinstance(shape, list | tuple) else [shape]
