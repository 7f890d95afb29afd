"""Puts demonstrations, read from recorded data, beside the replay buffer of a run or into it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.data import Dataset, SampleBatch
from dingsdk.data.collected import NO_VERSION
from dingsdk.data.pytree import part_of
from dingsdk.data.seeding import derive_seed
from dingsdk.envs.space_description import make_space
from dingsdk.envs.spaces import ObservationSchema
from dingsdk.errors import DatasetError, SchemaMismatchError
from dingsdk.policy import create_policy
from dingsdk.worker.collector.dataset import samples_of_dataset
from dingsdk.worker.commander.tasks import demonstrations_task
from dingsdk.worker.dataset_spaces import check_dataset
from dingsdk.worker.datasets import read_dataset
from dingsdk.worker.factory import create_buffer
from dingsdk.worker.replay_buffer.config import demonstrations_in
from dingsdk.worker.replay_buffer.demonstrations import TableWithDemonstrations
from dingsdk.worker.replay_buffer.table import Table
from dingsdk.worker.run_view import BUFFER, RunView, refusal

PATH = "policy.other.demonstrations"
_OF_COLLECTED_ROWS = (
    *("limiter", "thruput_controller", "max_use", "max_staleness", "set_buffer_size", "remover"),
    *("enable_track_used_data", "data_root"),
)
"""Keys of a buffer's section that are about rows that come and go; the demonstrations stay."""
_log = logging.getLogger(__name__)


def add_demonstrations(
    buffer: Any,
    task: Mapping[str, Any],
    buffer_cfg: Mapping[str, Any],
    policy_cfg: Mapping[str, Any],
) -> Any:
    """Return the buffer of a run with the demonstrations of its config.

    Args:
        buffer: A new table.
        task: Result of ``demonstrations_task``.
        buffer_cfg: The section that the table was made of, with a seed.
        policy_cfg: The compiled section ``policy``.

    Returns:
        ``buffer`` itself if the demonstrations were pushed into it, else a
        ``TableWithDemonstrations``.

    Raises:
        DatasetError: the data cannot be read, or does not fit the env and the policy.
        ConfigError: there are too few rows, or too many.
    """
    data = read_dataset(task["path"], task["digest"])
    rows = demonstration_samples(data, task, policy_cfg)
    check_count(task, policy_cfg, len(rows))
    if task["preload"]:
        # The limiter relates training to what is collected.
        buffer.push_unlimited(rows, is_counted=True)
        _log.info("%s: %d rows of %s are in the replay buffer", PATH, len(rows), task["path"])
        return buffer
    table: Any = create_buffer(_section(buffer_cfg, len(rows)), instance_name="demonstrations")
    table.push(rows, 0)
    return TableWithDemonstrations(buffer, table, task["share"], task["path"])


def check_demonstrations(run: RunView) -> str:
    """Return why a run cannot train on demonstrations, beside what it collects or in its buffer."""
    share, size = run.demonstrations["share"], run.learn["batch_size"]
    collectors = run.collector_class, run.parallel_class
    storage, sampler = (run.classes.get(f"{BUFFER}.{part}") for part in ("storage", "sampler"))
    key, why = "path", ""
    if run.policy["on_policy"]:
        why = f"{run.of_policy} trains only on its newest samples"
    elif not run.is_base_policy:
        why = f"{run.of_policy} is no BasePolicy, which makes samples of them"
    elif getattr(run.policy_class, "piece", "steps") == "unroll":
        why = f"{run.of_policy} trains on unrolls"
    elif run.is_offline:
        why = f"{run.of_collector} collects nothing beside them"
    elif max(getattr(cls, "max_players", 1) for cls in collectors) > 1:
        why = "the env has several players"
    elif run.is_served:
        why = "system.replay.type is 'server', and a replay server holds collected samples only"
    elif getattr(sampler, "draws_oldest", False):
        why = f"{run.of_buffer} gives each row once, in order of arrival"
    elif run.drawn != "rows":
        why = f"{run.of_buffer} draws {run.drawn}"
    elif run.not_of(BUFFER, Table):
        why = f"{run.of_buffer} is no Table of dingsdk"
    elif getattr(storage, "holds_objects", False) and share is not None:
        why = f"{BUFFER}.storage.type {run.buffer['storage']['type']!r} holds no columns"
    elif share is not None and not 0 < (shown := demonstrations_in(share, size)) < size:
        key = "share"
        why = f"{share:g} of policy.learn.batch_size {size} is {shown} samples of each batch"
    return why and (
        f"{PATH}.{key}: demonstrations cannot be used, as {why}; leave them out, or change that"
    )


def try_demonstrations(cfg: dict[str, Any]) -> None:
    """Read the demonstrations of a config with the spaces of its env, if any; set their digest.

    Raises:
        ConfigError: they cannot be read, do not fit the env and the policy, or are too few or too
            many.
    """
    if (task := demonstrations_task(cfg)) is None:
        return
    try:
        data = read_dataset(task["path"], task["digest"])
        cfg["policy"]["other"]["demonstrations"]["digest"] = data.digest
        rows = len(demonstration_samples(data, task, cfg["policy"]))
    except (DatasetError, SchemaMismatchError) as error:
        raise refusal(f"{PATH}.path: {error}") from error
    check_count(task, cfg["policy"], rows)


def check_count(task: Mapping[str, Any], policy_cfg: Mapping[str, Any], rows: int) -> None:
    """Check that there are enough demonstrations for a batch, or not too many for the buffer.

    Raises:
        ConfigError: there are not; the error names the data.
    """
    capacity = policy_cfg["other"]["replay_buffer"]["replay_buffer_size"]
    shown = demonstrations_in(task["share"], policy_cfg["learn"]["batch_size"])
    if task["preload"] and rows > capacity:
        raise refusal(
            f"{PATH}.preload is true, but {task['path']} makes {rows} rows, more than "
            f"policy.other.replay_buffer.replay_buffer_size {capacity}; raise that, or use share"
        )
    if rows < shown:
        raise refusal(
            f"{PATH}.share is {task['share']:g}, {shown} rows of each batch, but {task['path']} "
            f"makes only {rows}; lower the share, or give more data"
        )


def demonstration_samples(
    data: Dataset, task: Mapping[str, Any], policy_cfg: Mapping[str, Any]
) -> SampleBatch:
    """Return the train samples that the policy makes of recorded data.

    They have the columns, shapes and dtypes of samples that a collector makes in the env. Their
    ``collect_iter`` is ``NO_VERSION``.

    Args:
        data: The recorded data; its columns get the dtypes of the env.
        task: Result of ``demonstrations_task``.
        policy_cfg: The compiled section ``policy``.

    Raises:
        DatasetError: a column does not fit; with its name.
        ConfigError: the policy records more of each step than recorded data has.
    """
    _fit_to_spaces(data, task)
    on_cpu = {**policy_cfg, "cuda": False, "compile": False}
    policy: Any = create_policy(on_cpu, enable_field=["collect"], seed=0).collect_mode
    first = part_of(data.columns["obs"], slice(0, 1))
    output = policy.forward_batch(first, np.arange(1))
    if lacking := sorted(output.keys() - {"action", "state"}):
        raise refusal(
            f"{PATH}.path: a policy of type {policy_cfg['type']!r} trains on {', '.join(lacking)} "
            "of each step, which recorded data does not have; choose another policy"
        )
    data.columns["action"] = data.columns["action"].astype(output["action"].dtype, copy=False)
    samples = samples_of_dataset(data, policy)
    return samples.with_columns(collect_iter=np.full(len(samples), NO_VERSION, np.int64))


def _fit_to_spaces(data: Dataset, task: Mapping[str, Any]) -> None:
    """Check a data set against the spaces of the env, and give observations the env's dtypes.

    Spaces that a config cannot hold are None; then nothing is checked.
    """
    names = ("observation_space", "action_space")
    if None in (task[name] for name in names):
        return
    observation_space, action_space = (make_space(task[name], f"env.{name}") for name in names)
    check_dataset(data, observation_space, action_space, f"env.env_id {task['env_id']}")
    schema = ObservationSchema(observation_space)
    for name in ("obs", "next_obs"):
        data.columns[name] = schema.conform_columns(data.columns[name], len(data))


def _section(buffer_cfg: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the section of the table of demonstrations."""
    section = {key: buffer_cfg[key] for key in buffer_cfg if key not in _OF_COLLECTED_ROWS}
    section["replay_buffer_size"] = rows
    if section["seed"] is not None:
        section["seed"] = derive_seed(section["seed"], "demonstrations")
    return section
