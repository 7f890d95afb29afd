"""Compiles a user's config: defaults below it, every key and value checked."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from easydict import EasyDict

from dingsdk.config import Part, PartSection, Section, complete, save_config, to_easydict
from dingsdk.data import SampleBatch
from dingsdk.data.files import ensure_dir
from dingsdk.data.list_samples import pack_samples
from dingsdk.errors import ConfigError, UnknownKeyError, UnknownPluginError
from dingsdk.pipeline.di_engine import convert_reference_shape, rename_all_aliases
from dingsdk.pipeline.di_engine_keys import NO_SECTION
from dingsdk.pipeline.run_folder import make_run_folder
from dingsdk.pipeline.sections import SECTION_BASES, RunSection
from dingsdk.plugins import default_manager

_log = logging.getLogger(__name__)

MULTI_BUFFER = "multi_buffer"
"""Key of ``policy.other.replay_buffer`` whose value True makes it sections of named buffers."""
ADDED_COLUMNS = ("env_id", "episode_return")
"""Columns that collectors add to samples where they are needed."""
_PARALLEL_KINDS = frozenset({"transports", "comm_collectors", "comm_learners"})
_OWN_CLASSES = {
    "env_manager": ("env_managers", "env_manager"),
    "policy": ("policies", "policy"),
    "learner": ("learners", "policy.learn.learner"),
    "collector": ("collectors", "policy.collect.collector"),
    "evaluator": ("evaluators", "policy.eval.evaluator"),
    "buffer": ("buffers", "policy.other.replay_buffer"),
}
"""Kind and config path of the parts for which ``compile_config`` takes a class."""


def compile_config(
    cfg: Mapping[str, Any],
    env_manager: type | None = None,
    policy: type | None = None,
    learner: type | None = None,
    collector: type | None = None,
    evaluator: type | None = None,
    buffer: type | None = None,
    env: type | None = None,
    reward_model: type | None = None,
    world_model: type | None = None,
    seed: int | None = None,
    auto: bool = False,
    create_cfg: Mapping[str, Any] | None = None,
    save_cfg: bool = False,
    save_path: str | Path = "total_config.yaml",
    renew_dir: bool = True,
    *,
    system_cfg: Mapping[str, Any] | None = None,
    mode: Literal["serial", "parallel"] = "serial",
) -> EasyDict:
    """Merge a config with the defaults of the classes it selects, and check all of it.

    The user's values win over those of the policy, which win over those of the component
    classes. Compiling a compiled config gives it back unchanged. The parameters before the star
    are those of DI-engine.

    Args:
        cfg: One dict of dingsdk's sections, or DI-engine's main config when ``create_cfg``
            is given or ``cfg`` itself holds ``main`` and ``create``.
        env_manager: Class whose section to use in place of the registry's; likewise
            ``policy``, ``learner``, ``collector``, ``evaluator`` and ``buffer``.
        env: None; the env is named by ``env.env_id``.
        reward_model: None; not part of dingsdk, like ``world_model``.
        seed: Replaces ``cfg["seed"]``.
        auto: Take the types from ``create_cfg``, which is done whenever there is one.
        create_cfg: DI-engine's create config.
        save_cfg: Also make the folder ``exp_name`` and write the compiled config there.
        save_path: Name of that file: YAML, whatever its suffix was.
        renew_dir: Where the folder exists, append a time stamp to ``exp_name``.
        system_cfg: DI-engine's system config.
        mode: In serial mode the transport's plugin need not be installed.

    Raises:
        UnknownKeyError: a key that nothing reads.
        UnknownPluginError: a type that nothing provides.
        UnknownEnvError: an env id that gymnasium does not know.
        ConfigTypeError: a value of the wrong type or out of range.
        ConfigError: values that cannot work together.
    """
    foreign = {"env": env, "reward_model": reward_model, "world_model": world_model}
    for name, cls in foreign.items():
        if cls is not None:
            reason = NO_SECTION.get(name, "an env is named by env.env_id")
            raise ConfigError(f"{name} cannot be given to compile_config: {reason}", path=name)
    if auto and create_cfg is None:
        raise ConfigError("auto=True takes the types from create_cfg; give it", path="create_cfg")
    if create_cfg is not None:
        cfg = {"main": cfg, "create": create_cfg, "system": system_cfg or {}}
    user = _without(rename_all_aliases(convert_reference_shape(cfg)), "cfg_type")
    if seed is not None:
        user["seed"] = seed
    given = {
        "env_manager": env_manager,
        "policy": policy,
        "learner": learner,
        "collector": collector,
        "evaluator": evaluator,
        "buffer": buffer,
    }
    own = {_OWN_CLASSES[name]: cls for name, cls in given.items() if cls is not None}
    for (_, path), cls in own.items():
        _section_at(user, path).setdefault("type", getattr(cls, "__name__", "own"))

    found: dict[str, Any] = {}
    manager = default_manager()

    def find(kind: str, type_key: Any, import_names: Sequence[str], path: str) -> Any:
        try:
            cls = own.get((kind, path)) or manager.get(kind, type_key, import_names, path)
        except UnknownPluginError:
            if mode == "parallel" or kind not in _PARALLEL_KINDS:
                raise
            _log.info("%s is not installed; serial mode does without it", path)
            cls = _NotInstalled
        found[path] = cls
        return cls

    buffers = _take_buffers(user)
    compiled = complete(RunSection, user, find, bases=SECTION_BASES)
    if buffers is not None:
        named = complete(_Buffers, {"replay_buffer": buffers}, find, "policy.other")
        compiled["policy"]["other"]["replay_buffer"] = {
            MULTI_BUFFER: True,
            **named["replay_buffer"],
        }
    _derive(compiled)
    _check_serial_workers(compiled["policy"], found)
    _check_collects(compiled, found, mode)
    _check_buffer(compiled["policy"], found, mode)
    _check_on_policy(compiled["policy"], found, mode)
    _check_device(compiled["policy"])
    _check_learners(compiled, found, mode)
    _check_recording(compiled, found, mode)
    _check_replay(compiled, found, mode)
    if mode == "parallel":
        _check_memory_limit(compiled["system"], found["system.transport"])
        _check_inference(compiled, found)
    names = _add_columns(compiled["policy"], found)
    _try_env(compiled, found, mode)
    if names:
        _check_columns(compiled, found, names, mode)
    if save_cfg:
        folder = Path(compiled["exp_name"])
        if renew_dir:
            folder = make_run_folder(Path(), compiled["exp_name"])
            compiled["exp_name"] = folder.name
        ensure_dir(folder)
        save_config(compiled, folder / Path(save_path).with_suffix(".yaml"))
    return to_easydict(compiled)


def compile_config_parallel(
    cfg: Mapping[str, Any],
    create_cfg: Mapping[str, Any] | None = None,
    system_cfg: Mapping[str, Any] | None = None,
    seed: int | None = None,
    save_cfg: bool = False,
    save_path: str | Path = "total_config.yaml",
    platform: Literal["local", "slurm", "k8s"] = "local",
) -> EasyDict:
    """Compile for parallel mode, split as a coordinator takes it.

    Args:
        cfg: As for ``compile_config``, like the rest.
        platform: Accepted for DI-engine's sake: workers dial the master, so that no hosts and
            ports are handed out, on any platform.

    Returns:
        ``{"main": the compiled config without system, "system": ..., "seed": ...}``.

    Raises:
        ConfigError: as ``compile_config``, or an unknown platform.
    """
    if platform not in ("local", "slurm", "k8s"):
        raise UnknownKeyError(
            f"platform is {platform!r}; known: k8s, local, slurm", path="platform", key=platform
        )
    compiled = compile_config(
        cfg,
        create_cfg=create_cfg,
        system_cfg=system_cfg,
        seed=seed,
        save_cfg=save_cfg,
        save_path=save_path,
        mode="parallel",
    )
    main = {key: value for key, value in compiled.items() if key != "system"}
    return to_easydict({"main": main, "system": compiled.system, "seed": compiled.seed})


class _Buffers(Section, frozen=True, kw_only=True):
    """Several replay buffers, each under a name of its own."""

    replay_buffer: Annotated[dict[str, Any], Part("buffers", many=True)]


def _take_buffers(user: dict[str, Any]) -> dict[str, Any] | None:
    """Take the named buffers out of a config with ``multi_buffer``; None without it."""
    section: Any = user
    for key in ("policy", "other", "replay_buffer"):
        section = section.get(key) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not section.get(MULTI_BUFFER):
        return None
    del user["policy"]["other"]["replay_buffer"]
    return {
        name: {"type": "advanced", **buffer} if isinstance(buffer, Mapping) else buffer
        for name, buffer in section.items()
        if name != MULTI_BUFFER
    }


class _NotInstalled:
    """Stands for a part of parallel mode that serial mode does without."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Any keys: nobody knows them."""

        is_open = True


def _section_at(cfg: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the section at a dotted path, made where it is absent; else an empty one."""
    section: Any = cfg
    for key in path.split("."):
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
        if not isinstance(section, dict):
            return {}  # what is wrong with it is found when it is checked
    return cast(dict[str, Any], section)


def _derive(cfg: dict[str, Any]) -> None:
    """Fill what follows from other values."""
    env, policy = cfg["env"], cfg["policy"]
    evaluator = policy["eval"]["evaluator"]
    for key, source in (("stop_value", "stop_value"), ("n_episode", "n_evaluator_episode")):
        if key in evaluator:
            evaluator[key] = env[source]
    commander = policy["other"]["commander"]
    interval = commander.get("eval_interval")
    if interval is not None and "eval_interval_s" in evaluator:
        if evaluator["eval_interval_s"] not in (None, interval):
            raise ConfigError(
                f"policy.other.commander.eval_interval {interval} is another name of "
                f"policy.eval.evaluator.eval_interval_s, which is {evaluator['eval_interval_s']}; "
                "state one of them",
                path="policy.other.commander.eval_interval",
            )
        evaluator["eval_interval_s"], commander["eval_interval"] = interval, None
    if policy["unroll_len"] is not None:
        policy["collect"]["unroll_len"] = policy["unroll_len"]


def _check_serial_workers(policy: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check that a run can use the serial collector and evaluator that the config names.

    Raises:
        ConfigError: one needs what no config can give.
    """
    for section, name in (("collect", "collector"), ("eval", "evaluator")):
        path = f"policy.{section}.{name}"
        reason = getattr(found.get(path), "not_for_runs", "")
        if reason:
            kind = policy[section][name]["type"]
            raise ConfigError(
                f"{path}.type: a run cannot use type {kind!r}: {reason}; use it from Python",
                path=f"{path}.type",
            )


def _check_collects(cfg: Mapping[str, Any], found: Mapping[str, Any], mode: str) -> None:
    """Check what one collect gives against the envs that give it and the buffer that takes it.

    Raises:
        ConfigError: the run would wait for ever, or drop what it collects.
    """
    policy, env_num = cfg["policy"], cfg["env"]["collector_env_num"]
    n_episode = policy["collect"]["n_episode"]
    if n_episode is not None and n_episode < env_num:
        raise ConfigError(
            f"policy.collect.n_episode is {n_episode}, less than env.collector_env_num {env_num}: "
            "every env plays at least one episode; raise the first or lower the second",
            path="policy.collect.n_episode",
        )
    collect = policy["collect"]
    key = getattr(found.get("policy.collect.collector"), "counts", "")
    is_used = mode == "serial" or collect["parallel_collector"]["type"] == "serial"
    if key and is_used and collect[key] is None:
        raise ConfigError(
            f"policy.collect.{key} is not set: a collector of type "
            f"{collect['collector']['type']!r} counts in it",
            path=f"policy.collect.{key}",
        )
    capacity = policy["other"]["replay_buffer"].get("replay_buffer_size")
    if policy["on_policy"] or capacity is None:
        return  # it trains on what a collect gave, without a buffer
    path = "policy.other.replay_buffer.replay_buffer_size"
    for section, key, outcome in (
        ("learn", "batch_size", "no batch could ever be sampled"),
        ("collect", "n_sample", "part of each collect would be dropped at once"),
    ):
        needed = policy[section][key]
        what = f"policy.{section}.{key} {needed}"
        length = policy["other"]["replay_buffer"].get("sequence_length", 1)
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


def _check_buffer(policy: dict[str, Any], found: Mapping[str, Any], mode: str) -> None:
    """Have samples collected in the order that the replay buffer needs.

    Raises:
        ConfigError: the buffer does not serve the mode, or the collector does not serve it.
    """
    section = policy["other"]["replay_buffer"]
    if policy["on_policy"] or section.get(MULTI_BUFFER):
        return
    path, order = "policy.other.replay_buffer", "none"
    for name in (path, f"{path}.sampler", f"{path}.remover"):
        part: Any = found.get(name)
        modes = getattr(part, "modes", (mode,))
        if mode not in modes:
            raise ConfigError(
                f"{name}.type names {part.__name__}, which serves {', '.join(sorted(modes))} mode "
                f"and not {mode} mode; choose another",
                path=f"{name}.type",
            )
        if getattr(part, "needs_order", "none") != "none":
            order = part.needs_order
    if order == "none":
        return
    policy["traj_len_inf"] = True
    collector, kind = policy["collect"]["collector"], policy["collect"]["collector"]["type"]
    by_episode = getattr(found.get("policy.collect.collector"), "gives_episodes", False)
    gives = "none"
    if by_episode:
        gives = "sequence" if collector.get("get_train_sample") else "episode"
    if mode == "serial":
        serves = order == gives or (order == "sequence" and not by_episode)
    else:
        is_own = kind == "sample" and policy["collect"]["parallel_collector"]["type"] != "serial"
        serves = is_own or order == gives
    if not serves:
        raise ConfigError(
            f"a buffer of type {section['type']!r} needs samples by {order}, and a collector of "
            f"type {kind!r} does not give them so in {mode} mode; choose another collector, "
            "buffer or mode",
            path=f"{path}.type",
        )


def _add_columns(policy: dict[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    """Have collectors add the columns that the replay buffer needs; return all that it needs."""
    path = "policy.other.replay_buffer"
    section, cls = policy["other"]["replay_buffer"], found.get(path)
    names: tuple[str, ...] = ()
    is_one = not policy["on_policy"] and not section.get(MULTI_BUFFER)
    parts = (cls, found.get(f"{path}.sampler"), found.get(f"{path}.remover"))
    # Most need none, and a buffer takes memory to be asked.
    if cls is not None and is_one and any(map(_may_need_columns, parts)):
        from dingsdk.worker.coordinator.experience import metadata_config

        with closing(cls(to_easydict(metadata_config(section)))) as buffer:
            names = buffer.columns_needed()
    collect = policy["collect"]
    wanted = dict.fromkeys([*collect["added_columns"], *(n for n in names if n in ADDED_COLUMNS)])
    collect["added_columns"] = list(wanted)
    if "episode_return" in wanted:
        policy["traj_len_inf"] = True  # it is known at the end of an episode
    return names


def _may_need_columns(part: Any) -> bool:
    """Whether a class names columns, or works them out from its config."""
    from dingsdk.worker.replay_buffer.interface import IBuffer
    from dingsdk.worker.replay_buffer.sampler import Sampler
    from dingsdk.worker.replay_buffer.table import Table

    plain = (None, IBuffer.columns_needed, Table.columns_needed, Sampler.columns_needed)
    return bool(
        getattr(part, "needs_columns", ()) or getattr(part, "columns_needed", None) not in plain
    )


def _check_columns(
    cfg: Mapping[str, Any], found: Mapping[str, Any], names: Sequence[str], mode: str
) -> None:
    """Check that the policy's samples have the columns that the replay buffer needs.

    Raises:
        ConfigError: they do not, or in parallel mode these columns are too large.
    """
    samples = _first_samples(cfg, found)
    if samples is None:
        return
    if mode == "serial":
        # There a sampler may do without columns that its section names.
        path = "policy.other.replay_buffer"
        parts = [found.get(each) for each in (path, f"{path}.sampler", f"{path}.remover")]
        names = [name for part in parts for name in getattr(part, "needs_columns", ())]
    from dingsdk.worker.comm.collector import announced_columns

    announced_columns(samples, names)


def _first_samples(cfg: Mapping[str, Any], found: Mapping[str, Any]) -> SampleBatch | None:
    """Return train samples of a few steps in one env, None where they cannot be had here."""
    from dingsdk.envs import create_env_manager, make_env_fns
    from dingsdk.policy import create_policy
    from dingsdk.worker.collector.episode import EpisodeSerialCollector
    from dingsdk.worker.collector.factory import create_collecting_rollout
    from dingsdk.worker.collector.sample import SampleSerialCollector

    own = (SampleSerialCollector, EpisodeSerialCollector)
    if not issubclass(found["policy.collect.collector"], own):
        return None
    section = to_easydict({**cfg["policy"], "cuda": False})
    steps = section.collect.unroll_len + section.nstep
    try:
        policy = create_policy(section, enable_field=["collect", "command"], seed=0)
        setting = policy.command_mode.get_setting_collect({"envstep": 0, "learner_step": 0})
        env = create_env_manager({"type": "in_process"}, make_env_fns(cfg["env"], 1))
        with closing(env):
            env.seed(0)
            env.launch()
            rollout, writer = create_collecting_rollout(env, policy.collect_mode, steps, True)
            for _ in range(10 * steps):
                rollout.round(0, setting)
                if writer.pending_rows:
                    break
            return pack_samples(writer.flush())
    except Exception as error:
        # What is wrong with the policy or the env is for the run to say, in its own words.
        _log.debug("no samples to check the replay buffer's columns with: %s", error)
        return None


def _check_on_policy(policy: Mapping[str, Any], found: Mapping[str, Any], mode: str) -> None:
    """Check what bounds the age of samples.

    Raises:
        ConfigError: an option that would do nothing, or a training without a size.
    """
    path = "policy.other.commander.max_policy_lag"
    lag = policy["other"]["commander"].get("max_policy_lag")
    if lag and not policy["on_policy"]:
        raise ConfigError(
            f"{path} is {lag}, but a policy of type {policy['type']!r} is trained on samples "
            "of any age; leave it 0",
            path=path,
        )
    if policy["on_policy"] and mode == "parallel":
        if not policy["collect"]["n_sample"]:
            raise ConfigError(
                "on-policy training in parallel mode needs policy.collect.n_sample, the samples of "
                "one training; set it, or use --mode serial",
                path="policy.collect.n_sample",
            )
        kind = policy["collect"]["collector"]["type"]
        if kind != "sample" or policy["collect"]["parallel_collector"]["type"] == "serial":
            raise ConfigError(
                "on-policy training in parallel mode holds collectors back between two env steps, "
                f"which a serial collector of type {kind!r} cannot do; choose sample with the "
                "parallel collector zergling, or --mode serial",
                path="policy.collect.collector.type",
            )
        if getattr(found.get("policy.collect.parallel_collector"), "max_players", 1) > 1:
            raise ConfigError(
                "on-policy training in parallel mode counts the steps of one player; choose an "
                "off-policy policy for an env of several, or use --mode serial",
                path="policy.type",
            )
        if policy["traj_len_inf"]:
            raise ConfigError(
                "policy.traj_len_inf keeps trajectories whole, but on-policy "
                "training in parallel mode cuts them where the policy changes; set it to false, or "
                "use --mode serial",
                path="policy.traj_len_inf",
            )


def _check_learners(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Check that several learners can train together.

    Raises:
        ConfigError: they cannot, or their parts of a batch would differ in size.
    """
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


def _check_replay(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Check that a replay server can hold the buffer of the run, if that is asked for.

    Raises:
        ConfigError: it cannot.
    """
    system, policy = cfg["system"], cfg["policy"]
    if system["replay"]["type"] != "server":
        return
    path, why = "system.replay.type", ""
    buffer = classes.get("policy.other.replay_buffer")
    if mode == "serial":
        why = "a serial run holds its replay buffer itself; use --mode parallel"
    elif policy["on_policy"]:
        why = f"a policy of type {policy['type']!r} trains on its newest samples alone"
    elif getattr(buffer, "needs_order", "none") == "episode":
        why = "a buffer of episodes stays with the learner; choose another buffer"
    elif system["record_schedule"]:
        why = "the schedule of a replay server is not recorded; leave out system.record_schedule"
    elif system["journal"]["enabled"] is True:
        why = (
            "the server keeps the rows, of which a journal of the coordinator would not know; "
            "leave system.journal.enabled at auto"
        )
    elif not hasattr(classes["system.learner"], "replay"):
        why = f"a comm learner of type {system['learner']['type']!r} does not sample from one"
    elif not hasattr(classes["system.collector"], "replay"):
        why = f"a comm collector of type {system['collector']['type']!r} does not insert into one"
    if why:
        raise ConfigError(f"{path} is 'server', but {why}", path=path)


def _check_recording(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Check that the run's schedule can be recorded, if that is asked for.

    Raises:
        ConfigError: it cannot.
    """
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


def _try_env(compiled: dict[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Make one env and close it again, and check against it what depends on it.

    Args:
        compiled: The compiled config; the env's spaces and the None values of ``policy.model``
            are filled in place.
        classes: The classes of the parts by config path.
        mode: ``serial`` or ``parallel``.

    Raises:
        ConfigError: a stated shape is not the env's, the policy cannot use its spaces, or it
            cannot be rendered as ``policy.eval.evaluator.render`` asks.
        UnknownEnvError: gymnasium does not know the env, or cannot make it.
    """
    from dingsdk.envs import EnvFn
    from dingsdk.envs.players import player_num, space_of_player
    from dingsdk.envs.space_description import describe_space

    env = compiled["env"]
    made = EnvFn(env)()
    try:
        players = player_num(made)
        _check_players(compiled, classes, players, mode)
        found = {name: getattr(made, name) for name in ("observation_space", "action_space")}
        if players > 1:
            found = {name: space_of_player(space, players) for name, space in found.items()}
        read = getattr(classes["policy"], "model_from_spaces", None)
        shapes = {} if read is None else read(*found.values())
        render_mode = made.render_mode
        max_steps = None if made.spec is None else made.spec.max_episode_steps
    finally:
        made.close()
    _fill_in(env, {name: describe_space(space) for name, space in found.items()}, env, "env")
    _fill_in(compiled["policy"]["model"], shapes, env, "policy.model")
    unroll_len = compiled["policy"]["collect"]["unroll_len"]
    if max_steps is not None and unroll_len > max_steps:
        raise ConfigError(
            f"policy.collect.unroll_len is {unroll_len}, but an episode of {env['env_id']} has at "
            f"most {max_steps} steps: no train sample could ever be made; lower it",
            path="policy.collect.unroll_len",
            found=unroll_len,
        )
    evaluator = compiled["policy"]["eval"]["evaluator"]
    is_rendering = (evaluator.get("render") or {}).get("render_freq", -1) != -1
    if is_rendering:
        _check_rendering(classes["env_manager"], render_mode)
    if mode == "parallel" and (is_rendering or evaluator.get("figure_path") is not None):
        path = f"policy.eval.evaluator.{'render.render_freq' if is_rendering else 'figure_path'}"
        raise ConfigError(
            f"{path} asks for pictures, which evaluations in parallel mode do not take; leave it "
            "out and add the wrapper record_video to env.wrappers, or use --mode serial",
            path=path,
        )


_PLAYING = {
    "serial": {
        "policy.collect.collector": "sample_1v1 or episode_1v1",
        "policy.other.serial_commander": "one_vs_one",
    },
    "parallel": {
        "policy.collect.parallel_collector": "marine",
        "policy.other.commander": "one_vs_one",
    },
}
"""The parts that play by the number of players, and the types for several."""


def _check_players(
    cfg: Mapping[str, Any], classes: Mapping[str, Any], players: int, mode: str
) -> None:
    """Check that the parts of a run play as many players as an env has, and whom they play.

    Raises:
        ConfigError: one does not, or there is no such opponent or league.
        CheckpointError: there is no such past.
    """
    from dingsdk.envs.players import find_opponent
    from dingsdk.worker.commander.one_vs_one import create_league, saved_league

    parts = {**_PLAYING[mode], "env_manager": "base, subprocess or async_subprocess"}
    if players == 1:
        parts = _PLAYING[mode] | {"policy.collect.collector": ""}
    for path, types in parts.items():
        most = getattr(classes.get(path), "max_players", inf if path == "env_manager" else 1)
        if players <= most and not (players == 1 and most > 1):
            continue
        section: Any = cfg
        for key in path.split("."):
            section = section[key]
        advice = "one for envs of one player" if players == 1 else types
        if players > 2 and path.endswith("commander"):
            advice = "an env of two players"
        count = "one player" if most == 1 else "two players" if most == 2 else "several players"
        raise ConfigError(
            f"{path}.type is {section['type']!r}, which plays {count}, but {cfg['env']['env_id']} "
            f"has {players}; choose {advice}",
            path=f"{path}.type",
            found=players,
        )
    if players > 1:
        create_league(cfg["policy"], None)
        past = cfg["policy"]["other"]["league"].get("load_path")
        if past is not None:
            saved_league(past)
        for name in cfg["env"]["eval_opponents"]:
            find_opponent(name)


def _fill_in(
    section: dict[str, Any], read: Mapping[str, Any], env: Mapping[str, Any], path: str
) -> None:
    """Fill what is None with what was read from the env, and check the rest against it."""
    for key, found in read.items():
        stated = section.get(key)
        if stated is None:
            section[key] = found
        elif _as_list(stated) != _as_list(found):
            path = f"{path}.{key}"
            raise ConfigError(
                f"{path} is {stated}, but {env['env_id']} has {found}; leave the key out to have "
                "it read from the env",
                path=path,
                stated=stated,
                found=found,
            )


def _check_rendering(env_manager: Any, render_mode: str | None) -> None:
    path = "policy.eval.evaluator.render.render_freq"
    if not hasattr(env_manager, "ready_imgs"):
        raise ConfigError(
            f"{path} asks for videos, but {env_manager.__name__} gives no images; set it to -1, "
            "or env_manager.type to in_process",
            path=path,
        )
    if render_mode != "rgb_array":
        raise ConfigError(
            f"{path} asks for videos, but env.kwargs.render_mode is {render_mode!r}; set it to "
            "rgb_array, or the frequency to -1",
            path=path,
            found=render_mode,
        )
    if importlib.util.find_spec("moviepy") is None:
        raise ConfigError(
            f"{path} asks for videos, which need moviepy: pip install moviepy, or set it to -1",
            path=path,
        )


def _check_memory_limit(system: Mapping[str, Any], transport: Any) -> None:
    """Check that workers are processes, where they are to be restarted by their memory."""
    if system["worker_memory_limit"] is None:
        return
    from dingsdk.pipeline.worker import place_of

    if place_of(transport, system["transport"]) == "threads":
        raise ConfigError(
            "system.worker_memory_limit is set, but the transport "
            f"{system['transport']['type']!r} runs workers as threads of one process; choose "
            "another one, such as flask_fs, or leave it out",
            path="system.worker_memory_limit",
        )


def _check_inference(cfg: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
    """Check that an inference server can act for the collectors, where there is one.

    Raises:
        ConfigError: it cannot.
    """
    if "inference" not in (cfg["system"].get("roles") or {}):
        return
    from dingsdk.pipeline.worker import place_of
    from dingsdk.policy import BasePolicy

    policy, transport = cfg["policy"], cfg["system"]["transport"]
    collector = policy["collect"]["parallel_collector"]["type"]
    serial = policy["collect"]["collector"]["type"]
    why = ""
    if place_of(classes["system.transport"], transport) == "threads":
        why = (
            f"the transport {transport['type']!r} runs all workers in one process; choose one "
            "whose workers are processes, such as flask_fs"
        )
    elif not issubclass(classes["policy"], BasePolicy):
        why = f"a policy of type {policy['type']!r} is no BasePolicy, whose act it calls"
    elif serial != "sample" or not getattr(
        classes["policy.collect.parallel_collector"], "acts_remotely", False
    ):
        why = (
            f"it acts for the parallel collector zergling, and this is {collector!r} with the "
            f"collector {serial!r}"
        )
    if why:
        path = "system.roles.inference"
        raise ConfigError(f"{path} is set, but {why}; or leave it out", path=path)


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _check_device(policy: Mapping[str, Any]) -> None:
    """Check that the GPU that a policy asks for is there."""
    if policy["cuda"] and not _gpu_count():
        raise ConfigError(
            "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false",
            path="policy.cuda",
        )


def _as_list(shape: Any) -> Any:
    if isinstance(shape, Mapping):
        return {key: _as_list(part) for key, part in shape.items()}
    return list(shape) if isinstance(shape, list | tuple) else [shape]


def _without(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    return value
