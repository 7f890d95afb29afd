"""What the parts of a run must agree on, checked in a compiled config before anything starts.

Each check takes the compiled config, the classes of the parts by config path and the mode, changes
nothing, and raises ``ConfigError`` where the run could not do what the config says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.errors import ConfigError

MULTI_BUFFER = "multi_buffer"
"""Key of ``policy.other.replay_buffer`` whose value True makes it sections of named buffers."""

_BUFFER = "policy.other.replay_buffer"
_BUFFER_PARTS = (_BUFFER, f"{_BUFFER}.sampler", f"{_BUFFER}.remover")

Check = Callable[[Mapping[str, Any], Mapping[str, Any], str], None]


def buffer_parts(cfg: Mapping[str, Any], classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the classes of the one replay buffer that a run trains from, and of its parts.

    Returns:
        By config path; empty for on-policy training and for several named buffers.
    """
    policy = cfg["policy"]
    if policy["on_policy"] or policy["other"]["replay_buffer"].get(MULTI_BUFFER):
        return {}
    return {path: classes[path] for path in _BUFFER_PARTS if path in classes}


def needed_order(cfg: Mapping[str, Any], classes: Mapping[str, Any]) -> str:
    """Return what order of samples the replay buffer needs: none, sequence or episode."""
    parts = buffer_parts(cfg, classes).values()
    orders = [order for part in parts if (order := getattr(part, "needs_order", "none")) != "none"]
    return orders[-1] if orders else "none"


def check_run(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Make all checks.

    Raises:
        ConfigError: of the first that fails.
    """
    for check in (*_ALWAYS, *(_IN_PARALLEL if mode == "parallel" else ())):
        check(cfg, classes, mode)


def _check_serial_workers(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """A run can use the serial collector and evaluator that the config names."""
    for section, name in (("collect", "collector"), ("eval", "evaluator")):
        path = f"policy.{section}.{name}"
        reason = getattr(classes.get(path), "not_for_runs", "")
        if reason:
            kind = cfg["policy"][section][name]["type"]
            raise ConfigError(
                f"{path}.type: a run cannot use type {kind!r}: {reason}; use it from Python",
                path=f"{path}.type",
            )


def _check_collects(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """A collect has a size, and every env plays at least one of its episodes."""
    collect, env_num = cfg["policy"]["collect"], cfg["env"]["collector_env_num"]
    n_episode = collect["n_episode"]
    if n_episode is not None and n_episode < env_num:
        raise ConfigError(
            f"policy.collect.n_episode is {n_episode}, less than env.collector_env_num {env_num}: "
            "every env plays at least one episode; raise the first or lower the second",
            path="policy.collect.n_episode",
        )
    from dingsdk.worker.commander.tasks import runs_serial_part

    key = getattr(classes.get("policy.collect.collector"), "counts", "")
    is_named = collect["parallel_collector"]["type"] == "serial"
    is_used = mode == "serial" or is_named or runs_serial_part(cfg["policy"], eval_flag=False)
    if key and is_used and collect[key] is None:
        raise ConfigError(
            f"policy.collect.{key} is not set: a collector of type "
            f"{collect['collector']['type']!r} counts in it",
            path=f"policy.collect.{key}",
        )
    if key == "n_sample" and is_used and n_episode is not None:
        raise ConfigError(
            f"policy.collect.n_episode is {n_episode}, but a collector of type "
            f"{collect['collector']['type']!r} counts samples; leave it out, or choose a "
            "collector that counts episodes, such as 'episode'",
            path="policy.collect.n_episode",
        )
    keys = getattr(classes.get("policy.collect.parallel_collector"), "counts_one_of", ())
    if keys and not is_used and not any(collect[each] for each in keys):
        raise ConfigError(
            f"policy.collect names neither {' nor '.join(keys)}, and a parallel collector of type "
            f"{collect['parallel_collector']['type']!r} counts in one of them; set the first",
            path=f"policy.collect.{keys[0]}",
        )


def _check_capacity(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """The replay buffer holds a batch, and what one collect gives."""
    policy = cfg["policy"]
    buffer = policy["other"]["replay_buffer"]
    capacity = buffer.get("replay_buffer_size")
    if policy["on_policy"] or capacity is None:
        return  # it trains on what a collect gave, without a buffer
    path = f"{_BUFFER}.replay_buffer_size"
    for section, key, outcome in (
        ("learn", "batch_size", "no batch could ever be sampled"),
        ("collect", "n_sample", "part of each collect would be dropped at once"),
    ):
        needed = policy[section][key]
        what = f"policy.{section}.{key} {needed}"
        length = buffer.get("sequence_length", 1)
        if key == "batch_size" and length > 1:
            what += f" times sequence_length {length}"
            needed *= length
        if needed is not None and capacity < needed:
            raise ConfigError(
                f"{path} is {capacity}, less than {what}: "
                f"{outcome}; raise the first or lower the second",
                path=path,
                capacity=capacity,
                needed=needed,
            )


def _check_min_size(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """The replay buffer can hold the rows that its limiter waits for."""
    if not buffer_parts(cfg, classes):
        return
    buffer, path = cfg["policy"]["other"]["replay_buffer"], f"{_BUFFER}.limiter.min_size"
    capacity = buffer.get("replay_buffer_size")
    needed = (buffer.get("limiter") or {}).get("min_size")
    if capacity is not None and needed is not None and needed > capacity:
        raise ConfigError(
            f"{path} is {needed}, more than {_BUFFER}.replay_buffer_size {capacity}: no batch "
            "could ever be sampled; lower the first or raise the second",
            path=path,
            capacity=capacity,
            needed=needed,
        )


def _check_priority(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """The replay buffer draws by the priorities that training gives it."""
    if not cfg["policy"]["priority"]:
        return
    bases = getattr(buffer_parts(cfg, classes).get(_BUFFER), "__mro__", ())
    owner = next((cls for cls in bases if "update" in vars(cls)), None)
    if vars(owner or object).get("ignores_priorities"):
        kind = cfg["policy"]["other"]["replay_buffer"]["type"]
        raise ConfigError(
            f"policy.priority is true, but a buffer of type {kind!r} draws its rows without "
            f"priorities; set {_BUFFER}.type to advanced, or the first to false",
            path="policy.priority",
        )


def _check_endless_envs(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Envs play one episode after the other for as long as the run lasts."""
    manager = cfg["env_manager"]
    for key, wanted in (("auto_reset", True), ("episode_num", math.inf)):
        found = manager.get(key, wanted)
        if found != wanted:
            raise ConfigError(
                f"env_manager.{key} is {found}, but a run needs envs that begin a new episode "
                "wherever one ends; leave the key out, or use the manager from Python",
                path=f"env_manager.{key}",
                found=found,
            )


def _check_buffer(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """The replay buffer serves the mode, and gets samples in the order that it needs."""
    for path, part in buffer_parts(cfg, classes).items():
        modes = getattr(part, "modes", (mode,))
        if mode not in modes:
            raise ConfigError(
                f"{path}.type names {part.__name__}, which serves {', '.join(sorted(modes))} mode "
                f"and not {mode} mode; choose another",
                path=f"{path}.type",
            )
    order = needed_order(cfg, classes)
    collect = cfg["policy"]["collect"]
    kind = collect["collector"]["type"]
    by_episode = getattr(classes.get("policy.collect.collector"), "gives_episodes", False)
    gives = "none"
    if by_episode:
        gives = "sequence" if collect["collector"].get("get_train_sample") else "episode"
    if order == "none":
        if gives == "episode":
            _check_rows(cfg, classes, kind)
        return
    if mode == "serial":
        serves = order == gives or (order == "sequence" and not by_episode)
    else:
        players = getattr(classes.get("policy.collect.parallel_collector"), "max_players", 1)
        own = "sample" if players == 1 else "sample_1v1"
        is_own = kind == own and collect["parallel_collector"]["type"] != "serial"
        serves = is_own or order == gives
    if not serves:
        buffer = cfg["policy"]["other"]["replay_buffer"]["type"]
        raise ConfigError(
            f"a buffer of type {buffer!r} needs samples by {order}, and a collector of "
            f"type {kind!r} does not give them so in {mode} mode; choose another collector, "
            "buffer or mode",
            path=f"{_BUFFER}.type",
        )


def _check_rows(cfg: Mapping[str, Any], classes: Mapping[str, Any], kind: str) -> None:
    """No whole episodes are collected for a policy that trains on samples of steps."""
    from dingsdk.policy import BasePolicy

    policy, path = cfg["policy"], "policy.collect.collector.get_train_sample"
    has_several = policy["other"]["replay_buffer"].get(MULTI_BUFFER)
    if not has_several and issubclass(classes["policy"], BasePolicy):
        raise ConfigError(
            f"{path} is false, so a collector of type {kind!r} gives whole episodes, and a policy "
            f"of type {policy['type']!r} trains on train samples; set it to true",
            path=path,
        )


def _check_policy_lag(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """The age of samples is bounded for on-policy training alone."""
    policy, path = cfg["policy"], "policy.other.commander.max_policy_lag"
    lag = policy["other"]["commander"].get("max_policy_lag")
    if lag and not policy["on_policy"]:
        raise ConfigError(
            f"{path} is {lag}, but a policy of type {policy['type']!r} is trained on samples "
            "of any age; leave it 0",
            path=path,
        )


def _check_device(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """The GPU that a policy asks for is there."""
    if cfg["policy"]["cuda"] and not _gpu_count():
        raise ConfigError(
            "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false",
            path="policy.cuda",
        )


def _check_learners(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Several learners can train together, on equal parts of a batch."""
    num, policy, path = cfg["system"]["learner_num"], cfg["policy"], "system.learner_num"
    if num == 1:
        return
    why = ""
    if policy["on_policy"] or not getattr(classes["policy"], "is_data_parallel", False):
        why = f"a policy of type {policy['type']!r} is trained by one learner"
    elif policy["cuda"] and (count := _gpu_count()) < num:
        why = (
            f"each of them needs a GPU of this machine, and torch finds {count} here: set "
            "policy.cuda to false"
        )
    elif mode == "parallel" and not hasattr(classes["system.learner"], "learner_num"):
        why = f"a comm learner of type {cfg['system']['learner']['type']!r} is one learner"
    if why:
        raise ConfigError(f"{path} is {num}, but {why}; leave the first 1", path=path)
    batch_size = policy["learn"]["batch_size"]
    if batch_size % num:
        raise ConfigError(
            f"policy.learn.batch_size is {batch_size}, no multiple of {path} {num}: it is the "
            "batch of all learners together, and each takes an equal part",
            path="policy.learn.batch_size",
        )


def _check_recording(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """The run's schedule can be recorded, if that is asked for."""
    path, transport = "system.record_schedule", cfg["system"]["transport"]
    if not cfg["system"]["record_schedule"]:
        return
    why = ""
    if mode == "serial":
        why = "a serial run is the same for the same seed, and has no schedule"
    elif not classes["system.transport"].takes_turns(transport):
        why = (
            f"with the transport {transport['type']!r} jobs run side by side; use in_memory with "
            "concurrency greenlets"
        )
    elif cfg["env_manager"]["type"] == "async_subprocess":
        why = "async_subprocess steps whatever env comes back first; use another env manager"
    if why:
        raise ConfigError(f"{path} is true, but {why}", path=path)


def _check_replay(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """A replay server can hold the buffer of the run, if that is asked for."""
    system, policy = cfg["system"], cfg["policy"]
    if "replay-server" in system["roles"]:
        text = "system.replay.type=server starts the role 'replay-server'; leave it out here"
        raise ConfigError(f"system.roles: {text}", path="system.roles.replay-server")
    if system["replay"]["type"] != "server":
        return
    why = ""
    if mode == "serial":
        why = "a serial run holds its replay buffer itself; use --mode parallel"
    elif policy["on_policy"]:
        why = f"a policy of type {policy['type']!r} trains on its newest samples alone"
    elif getattr(classes.get(_BUFFER), "needs_order", "none") == "episode":
        why = "a buffer of episodes stays with the learner; choose another buffer"
    elif system["record_schedule"]:
        why = "the schedule of a replay server is not recorded; leave out system.record_schedule"
    elif not hasattr(classes["system.learner"], "replay"):
        why = f"a comm learner of type {system['learner']['type']!r} does not sample from one"
    elif not hasattr(classes["system.collector"], "replay"):
        why = f"a comm collector of type {system['collector']['type']!r} does not insert into one"
    if why:
        path = "system.replay.type"
        raise ConfigError(f"{path} is 'server', but {why}", path=path)


def _check_on_policy(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """On-policy training in parallel mode can hold its collectors back between two env steps."""
    policy = cfg["policy"]
    if not policy["on_policy"]:
        return
    collect = policy["collect"]
    kind, parallel = collect["collector"]["type"], "policy.collect.parallel_collector"
    is_held = kind == "sample" and collect["parallel_collector"]["type"] != "serial"
    own = "sample with the parallel collector zergling"
    if getattr(classes.get(parallel), "max_players", 1) > 1:
        counts = getattr(classes.get("policy.collect.collector"), "counts", "")
        is_held, own = counts != "n_episode", "sample_1v1"
    path = why = ""
    if not collect["n_sample"]:
        path = "policy.collect.n_sample"
        why = "needs policy.collect.n_sample, the samples of one training; set it"
    elif not is_held:
        path = "policy.collect.collector.type"
        why = (
            "holds collectors back between two env steps, which a serial collector of type "
            f"{kind!r} cannot do; choose {own}"
        )
    elif policy["traj_len_inf"]:
        path = "policy.traj_len_inf"
        why = (
            "cuts trajectories where the policy changes, and policy.traj_len_inf keeps them "
            "whole; set that to false"
        )
    if why:
        text = f"on-policy training in parallel mode {why}, or use --mode serial"
        raise ConfigError(text, path=path)


def _check_memory_limit(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Workers are processes, where they are to be restarted by their memory."""
    system = cfg["system"]
    if system["worker_memory_limit"] is not None and _are_threads(cfg, classes):
        raise ConfigError(
            "system.worker_memory_limit is set, but the transport "
            f"{system['transport']['type']!r} runs workers as threads of one process; choose "
            "another one, such as flask_fs, or leave it out",
            path="system.worker_memory_limit",
        )


def _check_inference(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """An inference server can act for the collectors, where there is one."""
    if "inference" not in (cfg["system"].get("roles") or {}):
        return
    from dingsdk.policy import BasePolicy

    policy = cfg["policy"]
    collector = policy["collect"]["parallel_collector"]["type"]
    serial = policy["collect"]["collector"]["type"]
    parallel_cls = classes["policy.collect.parallel_collector"]
    why = ""
    if _are_threads(cfg, classes):
        why = (
            f"the transport {cfg['system']['transport']['type']!r} runs all workers in one "
            "process; choose one whose workers are processes, such as flask_fs"
        )
    elif not issubclass(classes["policy"], BasePolicy):
        why = f"a policy of type {policy['type']!r} is no BasePolicy, whose act it calls"
    elif serial != "sample" or not getattr(parallel_cls, "acts_remotely", False):
        why = (
            f"it acts for the parallel collector zergling, and this is {collector!r} with the "
            f"collector {serial!r}"
        )
    if why:
        path = "system.roles.inference"
        raise ConfigError(f"{path} is set, but {why}; or leave it out", path=path)


def _are_threads(cfg: Mapping[str, Any], classes: Mapping[str, Any]) -> bool:
    from dingsdk.pipeline.worker import place_of

    return place_of(classes["system.transport"], cfg["system"]["transport"]) == "threads"


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


_ALWAYS: tuple[Check, ...] = (
    _check_serial_workers,
    _check_collects,
    _check_capacity,
    _check_min_size,
    _check_priority,
    _check_endless_envs,
    _check_buffer,
    _check_policy_lag,
    _check_device,
    _check_learners,
    _check_recording,
    _check_replay,
)
_IN_PARALLEL: tuple[Check, ...] = (_check_on_policy, _check_memory_limit, _check_inference)
