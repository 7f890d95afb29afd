"""Runs that train on a data set and take no env steps: checks, sizes and spaces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dingsdk.config import documentation_of
from dingsdk.config.plain import find
from dingsdk.data import Dataset
from dingsdk.errors import ConfigError, DatasetError
from dingsdk.pipeline.checks import refusal
from dingsdk.pipeline.context import NO_LIMIT
from dingsdk.pipeline.sections import EnvSection
from dingsdk.worker.replay_buffer.config import is_limited

_COLLECTOR = "policy.collect.collector"
_BUFFER = "policy.other.replay_buffer"


def is_offline(classes: Mapping[str, Any]) -> bool:
    """Whether the collector of a run takes no env steps; ``classes`` are by config path."""
    return not getattr(classes.get(_COLLECTOR), "needs_env", True)


def task_of(cfg: Any) -> str:
    """Return what a run trains on, for people: the id of its env, or the path of its data set."""
    return str(cfg.env.env_id or cfg.policy.collect.collector.get("path", "a data set"))


def check_env_given(compiled: Mapping[str, Any]) -> None:
    """Raise ConfigError if the config names no env."""
    if compiled["env"]["env_id"] is None:
        text = documentation_of(EnvSection)["env_id"].replace("``", "`")
        raise ConfigError(f"env.env_id is missing. {text}", path="env.env_id")


def prepare(
    compiled: dict[str, Any], user: Mapping[str, Any], classes: Mapping[str, Any], mode: str
) -> Dataset | None:
    """Read the data set of a run, check the config against it, and fit the replay buffer to it.

    Args:
        compiled: The complete config. ``replay_buffer_size`` becomes the number of rows if
            ``user``, the given config, does not have it; ``n_sample`` and ``n_episode`` become
            None; the collector's ``digest`` becomes that of the data.
        classes: The classes of the parts, by config path.
        mode: ``serial`` or ``parallel``.

    Returns:
        The data set; None for a run that collects.

    Raises:
        ConfigError: the data set cannot be used, or the run could not train on it.
    """
    policy = compiled["policy"]
    if not is_offline(classes):
        if getattr(classes["policy"], "is_offline", False):
            raise refusal(
                f"policy.type: a policy of type {policy['type']!r} learns only from recorded data: "
                f"it needs {_COLLECTOR}.type=dataset"
            )
        check_env_given(compiled)
        return None
    if text := _why_not(compiled, user, classes, mode):
        raise refusal(text)
    policy["collect"] |= {"n_sample": None, "n_episode": None}  # defaults of the policy
    collector = policy["collect"]["collector"]
    try:
        data: Dataset = classes[_COLLECTOR].recorded(collector)
    except DatasetError as error:
        raise ConfigError(f"{_COLLECTOR}.path: {error}", path=f"{_COLLECTOR}.path") from error
    if "digest" in collector:  # a collector of a plugin may have another section
        collector["digest"] = data.digest
    buffer = policy["other"]["replay_buffer"]
    if find(user, f"{_BUFFER}.replay_buffer_size") is None:
        buffer["replay_buffer_size"] = len(data)
    if text := _why_too_small(compiled, data):
        raise refusal(text)
    return data


def _why_not(
    compiled: Mapping[str, Any], user: Mapping[str, Any], classes: Mapping[str, Any], mode: str
) -> str:
    """Return why a run cannot train on a data set, as in ``checks``."""
    from dingsdk.policy import BasePolicy

    policy, collect = compiled["policy"], compiled["policy"]["collect"]
    kind, own = policy["type"], f"a collector of type {collect['collector']['type']!r}"
    learner, buffer = policy["learn"]["learner"], policy["other"]["replay_buffer"]
    if mode == "parallel" and (text := _why_not_parallel(compiled, classes, own)):
        return text
    if policy["on_policy"]:
        return (
            f"policy.on_policy: a policy of type {kind!r} trains on its own newest samples, and "
            f"{own} gives recorded ones; choose another policy"
        )
    if not issubclass(classes["policy"], BasePolicy):
        return (
            f"policy.type: a policy of type {kind!r} is no BasePolicy, whose samples are made of a "
            "data set"
        )
    for key in ("n_sample", "n_episode"):
        if (given := find(user, f"policy.collect.{key}")) is not None:
            return (
                f"policy.collect.{key} is {given}, but {own} gives all samples at once; leave it "
                "out"
            )
    if compiled["system"]["max_env_steps"] is not None:
        return (
            f"system.max_env_steps is {compiled['system']['max_env_steps']}, but a run with {own} "
            "takes no env steps; set policy.learn.learner.train_iterations instead"
        )
    if compiled["env"]["env_id"] is None and learner.get("train_iterations", 0) >= NO_LIMIT:
        return (
            "policy.learn.learner.train_iterations is not set, and without env.env_id no "
            "evaluation can end the run; set one of them"
        )
    for key in ("max_use", "max_staleness"):
        if buffer.get(key, math.inf) != math.inf:
            return (
                f"{_BUFFER}.{key} is {buffer[key]:g}: rows would leave the buffer, and {own} gives "
                "no new ones; choose another type of buffer, or leave it out"
            )
    if is_limited(buffer):
        return (
            f"{_BUFFER}.limiter.type: a limiter that relates pushes to samples would end the "
            f"training, because {own} gives all samples at once; leave it out"
        )
    return ""


def _why_not_parallel(compiled: Mapping[str, Any], classes: Mapping[str, Any], own: str) -> str:
    """Return why the learner of a parallel run cannot read the data set, as in ``checks``."""
    from dingsdk.worker.comm.learner import BaseCommLearner
    from dingsdk.worker.commander.solo import SoloCommander

    for path, base in (
        ("policy.other.commander", SoloCommander),
        ("system.learner", BaseCommLearner),
    ):
        if not issubclass(classes[path], base):
            return (
                f"{path}.type is {find(compiled, f'{path}.type')!r}, which is no {base.__name__}, "
                f"as {own} needs it in parallel mode; choose another, or use --mode serial"
            )
    if compiled["system"]["replay"]["type"] == "server":
        return (
            f"system.replay.type is 'server', but {own} gives its samples to the learner's own "
            "buffer; leave it out"
        )
    return ""


def _why_too_small(compiled: Mapping[str, Any], data: Dataset) -> str:
    """Return why the buffer cannot hold the data, or the data do not fill a batch."""
    buffer, learn = compiled["policy"]["other"]["replay_buffer"], compiled["policy"]["learn"]
    rows, capacity = len(data), buffer["replay_buffer_size"]
    needed = learn["batch_size"] * buffer.get("sequence_length", 1)
    controller = buffer.get("thruput_controller") or {}
    for name, least in (
        ("policy.learn.batch_size", needed),
        (f"{_BUFFER}.limiter.min_size", (buffer.get("limiter") or {}).get("min_size", 0)),
        (
            f"{_BUFFER}.thruput_controller.sample_min_limit_ratio",
            controller.get("sample_min_limit_ratio", 0) * needed,
        ),
    ):
        if least > rows:
            return (
                f"{name}: a batch needs {least:,.0f} rows, and {data.source} has {rows:,}; lower it"
            )
    if capacity < rows:
        return (
            f"{_BUFFER}.replay_buffer_size is {capacity:,}, less than the {rows:,} rows of "
            f"{data.source}: leave it out to have it fit, or raise it"
        )
    return ""
