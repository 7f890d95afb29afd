"""Runs that train on a data set and take no env steps: checks and sizes."""

from __future__ import annotations

import math

from dingsdk.config.plain import find
from dingsdk.data import Dataset
from dingsdk.errors import DatasetError
from dingsdk.worker.replay_buffer.config import is_limited
from dingsdk.worker.run_view import BUFFER, COLLECTOR, NO_LIMIT, RunView, refusal


def data_of(run: RunView) -> Dataset:
    """Return the data set that a run trains on, and fit the config to it.

    ``replay_buffer_size`` becomes the number of rows if the user's config does not have it;
    ``n_sample`` and ``n_episode``, which are defaults of the policy, become None; the collector's
    ``digest`` becomes that of the data.

    Raises:
        ConfigError: the data set cannot be used, or the run could not train on it.
    """
    if text := (run.mode == "parallel" and _why_not_parallel(run)) or _why_not(run):
        raise refusal(text)
    run.collect |= {"n_sample": None, "n_episode": None}
    collector = run.collect["collector"]
    try:
        data: Dataset = run.classes[COLLECTOR].recorded(collector)
    except DatasetError as error:
        raise refusal(f"{COLLECTOR}.path: {error}") from error
    if "digest" in collector:  # a collector of a plugin may have another section
        collector["digest"] = data.digest
    if find(run.given, f"{BUFFER}.replay_buffer_size") is None:
        run.buffer["replay_buffer_size"] = len(data)
    if text := _why_too_small(run, data):
        raise refusal(text)
    return data


def _why_not(run: RunView) -> str:
    own, train_iterations = run.of_collector, run.learn["learner"].get("train_iterations", 0)
    if run.policy["on_policy"]:
        return (
            f"policy.on_policy: {run.of_policy} trains on its own newest samples, and {own} gives "
            "recorded ones; choose another policy"
        )
    if not run.is_base_policy:
        return (
            f"policy.type: {run.of_policy} is no BasePolicy, whose samples are made of a data set"
        )
    for path in ("policy.collect.n_sample", "policy.collect.n_episode", "system.max_env_steps"):
        if (given := find(run.given, path)) is not None:
            return (
                f"{path} is {given}, but a run with {own} takes no env steps; leave it out, and "
                "set policy.learn.learner.train_iterations"
            )
    if run.cfg["env"]["env_id"] is None and train_iterations >= NO_LIMIT:
        return (
            "policy.learn.learner.train_iterations is not set, and without env.env_id no "
            "evaluation can end the run; set one of them"
        )
    for key in ("max_use", "max_staleness"):
        if run.buffer.get(key, math.inf) != math.inf:
            return (
                f"{BUFFER}.{key} is {run.buffer[key]:g}: rows would leave the buffer, and {own} "
                "gives no new ones; choose another type of buffer, or leave it out"
            )
    if is_limited(run.buffer):
        return (
            f"{BUFFER}.limiter.type: a limiter that relates pushes to samples would end the "
            f"training, because {own} gives all samples at once; leave it out"
        )
    return ""


def _why_not_parallel(run: RunView) -> str:
    """Return why the learner of a parallel run cannot read the data set."""
    from dingsdk.worker.comm.learner import BaseCommLearner
    from dingsdk.worker.commander.solo import SoloCommander

    bases = {"policy.other.commander": SoloCommander, "system.learner": BaseCommLearner}
    for path, base in bases.items():
        if why := run.not_of(path, base):
            return (
                f"{why}, as {run.of_collector} needs it in parallel mode; choose another, or use "
                "--mode serial"
            )
    if not run.is_served:
        return ""
    return (
        f"system.replay.type is 'server', but {run.of_collector} gives its samples to the "
        "learner's own buffer; leave it out"
    )


def _why_too_small(run: RunView, data: Dataset) -> str:
    """Return why the buffer cannot hold the data, or the data do not fill a batch."""
    buffer, rows, capacity = run.buffer, len(data), run.buffer["replay_buffer_size"]
    needed = run.learn["batch_size"] * buffer.get("sequence_length", 1)
    ratio = (buffer.get("thruput_controller") or {}).get("sample_min_limit_ratio", 0)
    for name, least in (
        ("policy.learn.batch_size", needed),
        (f"{BUFFER}.limiter.min_size", (buffer.get("limiter") or {}).get("min_size", 0)),
        (f"{BUFFER}.thruput_controller.sample_min_limit_ratio", ratio * needed),
    ):
        if least > rows:
            return (
                f"{name}: a batch needs {least:,.0f} rows, and {data.source} has {rows:,}; lower it"
            )
    if capacity < rows:
        return (
            f"{BUFFER}.replay_buffer_size is {capacity:,}, less than the {rows:,} rows of "
            f"{data.source}: leave it out to have it fit, or raise it"
        )
    return ""
