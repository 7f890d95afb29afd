"""Compiles a user's config: adds the defaults, and checks every key and value."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from easydict import EasyDict

from dingsdk.config import (
    PartSection,
    complete,
    deep_merge_dicts,
    documentation_of,
    save_config,
    to_easydict,
)
from dingsdk.config.aliases import rename_all_aliases
from dingsdk.config.plain import check_bounds, find, put
from dingsdk.errors import (
    ConfigError,
    PluginLoadError,
    PluginNotInstalledError,
    UnknownKeyError,
    UnknownPluginError,
)
from dingsdk.pipeline.checks import add_columns, check_run
from dingsdk.pipeline.env_probe import try_env
from dingsdk.pipeline.run_folder import make_run_folder
from dingsdk.pipeline.sections import EnvSection, RunSection
from dingsdk.plugins import ask, default_manager
from dingsdk.plugins.discovery import SHIPPED, install_command
from dingsdk.plugins.interfaces import check_interface
from dingsdk.plugins.kinds import OBSERVERS
from dingsdk.runtime.files import ensure_dir
from dingsdk.worker.run_view import COLLECTOR, RunView, refusal

_log = logging.getLogger(__name__)

_PARALLEL_KINDS = frozenset({"transports", "comm_collectors", "comm_learners"})
_PLAYING_KINDS = frozenset({"policies", "env_managers", "env_wrappers", "evaluators"})


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
    mode: Literal["serial", "parallel", "eval"] = "serial",
    makes_env: bool = True,
) -> EasyDict:
    """Merge a config with the defaults of the classes that it selects, and check all of it.

    The user's values replace the values of the policy, which replace those of the component
    classes. Compiling a compiled config returns it unchanged. The parameters before the star
    are those of DI-engine.

    Args:
        cfg: A dict with dingsdk's sections, or a config that a plugin converts, such as
            DI-engine's main config if ``create_cfg`` is given.
        env_manager: Class to use in place of the one that the config names; likewise
            ``policy``, ``learner``, ``collector``, ``evaluator`` and ``buffer``.
        env: Must be None: ``env.env_id`` names the env.
        reward_model: Must be None, like ``world_model``: dingsdk has neither.
        seed: Replaces ``cfg["seed"]``.
        auto: True requires ``create_cfg``. Types are taken from it in any case, if it is given.
        create_cfg: DI-engine's create config.
        save_cfg: Also make the folder ``exp_name`` and write the compiled config there.
        save_path: Name of that file. It is written as YAML, and its suffix becomes ``.yaml``.
        renew_dir: If the folder exists, append a time stamp to ``exp_name``.
        system_cfg: DI-engine's system config.
        mode: In mode ``serial``, the plugin of the transport need not be installed. In mode
            ``eval``, which plays with a trained policy, plugins for training need not be.
        makes_env: False imports plugins and ``import_names`` only; the values that are read from
            the env stay None, and what depends on them is not checked.

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
            reason = "env.env_id names the env" if name == "env" else "dingsdk has none"
            raise ConfigError(f"{name} cannot be given to compile_config: {reason}", path=name)
    if auto and create_cfg is None:
        raise ConfigError("auto=True takes the types from create_cfg; give it", path="create_cfg")
    if create_cfg is not None:
        cfg = {"main": cfg, "create": create_cfg, "system": system_cfg or {}}
    user = rename_all_aliases(convert_config(cfg))
    if seed is not None:
        user["seed"] = seed
    given = {
        ("env_managers", "env_manager"): env_manager,
        ("policies", "policy"): policy,
        ("learners", "policy.learn.learner"): learner,
        ("collectors", "policy.collect.collector"): collector,
        ("evaluators", "policy.eval.evaluator"): evaluator,
        ("buffers", "policy.other.replay_buffer"): buffer,
    }
    own = {place: cls for place, cls in given.items() if cls is not None}
    for (_, path), cls in own.items():
        if find(user, f"{path}.type") is None:
            put(user, f"{path}.type", getattr(cls, "__name__", "own"))

    find_class, found = _ClassFinder(own, mode), dict[str, Any]()
    compiled = complete(RunSection, user, find_class, known=find_class.known, found=found)
    _derive(compiled, user)
    run, data = RunView(compiled, user, found, mode), None
    if mode == "eval" or not run.is_offline:
        _check_env_given(run)
    elif makes_env:
        from dingsdk.worker.offline import data_of

        data = data_of(run)
    if mode != "eval":
        if run.drawn != "rows":
            run.policy["traj_len_inf"] = True
        add_columns(run)
        check_run(run)
    if makes_env:
        try_env(run, data)
        if mode != "eval" and run.demonstrations:
            from dingsdk.worker.demonstrations import try_demonstrations

            try_demonstrations(compiled)
    result = to_easydict(compiled)
    if mode != "eval":
        _check_importable(result, found, mode)
    if save_cfg:
        folder = Path(result.exp_name)
        if renew_dir:
            folder = make_run_folder(Path(), result.exp_name)
            result.exp_name = folder.name
        ensure_dir(folder)
        save_config(result, folder / Path(save_path).with_suffix(".yaml"))
    return result


def _check_env_given(run: RunView) -> None:
    """Raise ConfigError for a run that needs an env, or recorded data, which the config lacks."""
    if run.mode != "eval" and getattr(run.policy_class, "is_offline", False):
        raise refusal(
            f"policy.type: {run.of_policy} learns only from recorded data: it needs "
            f"{COLLECTOR}.type=dataset"
        )
    if run.cfg["env"]["env_id"] is None:
        text = documentation_of(EnvSection)["env_id"].replace("``", "`")
        raise refusal(f"env.env_id is missing. {text}")


def convert_config(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config, converted by a plugin if it has the format of another library.

    Raises:
        PluginNotInstalledError: it has the format of DI-engine, and the plugin for that is absent.
        ConfigError: the plugin cannot convert it.
    """
    converted = ask().convert_config(config=cfg)
    if converted is not None:
        check_bounds(converted)
    elif {"main", "create"} & {str(key).removesuffix("_config") for key in cfg}:
        name = SHIPPED[OBSERVERS, "di_engine"]
        manager = default_manager()
        advice = f"is not installed; to get it: {install_command(name)}"
        for advert in manager.adverts(OBSERVERS, "di_engine"):
            why_not = manager.why_not(advert) or manager.failures.get(advert.module)
            advice = f"is not loaded: {why_not}"
        raise PluginNotInstalledError(
            "main_config and create_config are the format of DI-engine, which the plugin "
            f"{name} converts; it {advice}",
            name="main_config",
            install=name,
        )
    return deep_merge_dicts({}, cfg if converted is None else converted)


def compile_config_parallel(
    cfg: Mapping[str, Any],
    create_cfg: Mapping[str, Any] | None = None,
    system_cfg: Mapping[str, Any] | None = None,
    seed: int | None = None,
    save_cfg: bool = False,
    save_path: str | Path = "total_config.yaml",
    platform: Literal["local", "slurm", "k8s"] = "local",
) -> EasyDict:
    """Compile for parallel mode, and return the config in the parts that a coordinator takes.

    Args:
        cfg: As for ``compile_config``, like the other arguments.
        platform: Accepted as in DI-engine, without effect: workers connect to the master, so no
            hosts and ports need to be assigned on any platform.

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


class _ClassFinder:
    """Finds the class of each part that a config names.

    Args:
        own: Classes to use instead of the registry's, by kind and path of the part.
        mode: As for ``compile_config``; decides which parts may be missing.
    """

    def __init__(self, own: Mapping[tuple[str, str], type], mode: str) -> None:
        self._own = own
        self._mode = mode
        self._manager = default_manager()
        adverts = self._manager.adverts()
        self.known = {kind: registry.own for kind, registry in self._manager.registries.items()}
        """Classes of dingsdk by kind and type that need neither a search nor a check."""
        contested = {a.kind for a in adverts if a.key in self.known.get(a.kind, ())}
        for kind in contested.union(kind for kind, _ in own):
            del self.known[kind]

    def __call__(self, kind: str, type_key: Any, import_names: Sequence[str], path: str) -> Any:
        """Return the class of a part, checked against the interface of its kind.

        Raises:
            UnknownPluginError, PluginLoadError: it cannot be loaded, and the mode needs it.
        """
        try:
            cls = self._own.get((kind, path))
            if cls is None:
                cls = self._manager.get(kind, type_key, import_names, path)
        except (UnknownPluginError, PluginLoadError) as error:
            if self._needs(kind, error):
                raise
            _log.info("%s cannot be had; mode %s does without it", path, self._mode)
            return _NotInstalled
        check_interface(kind, cls, f"{path}.type: {type_key!r} is wrong: ")
        return cls

    def _needs(self, kind: str, error: Exception) -> bool:
        if self._mode == "serial":
            return kind not in _PARALLEL_KINDS or isinstance(error, PluginLoadError)
        return self._mode == "parallel" or kind in _PLAYING_KINDS


def _check_importable(cfg: Any, found: Mapping[str, Any], mode: str) -> None:
    """Check that the processes of a run can import the parts that they use."""
    from dingsdk.pipeline.user_objects import check_importable
    from dingsdk.pipeline.worker import has_env_processes, has_processes, transport_class

    has_script = True
    if mode == "parallel" and has_processes(cfg, mode):
        used, has_script = list(found), not transport_class(cfg).starts_workers
    else:
        used = ["policy"] if cfg.system.learner_num > 1 else []
        used += [path for path in found if path.startswith("env.") and has_env_processes(cfg)]
    for path in used:
        check_importable(path, found[path], has_script=has_script)


class _NotInstalled:
    """Replaces the class of a part that is not installed and that the mode does not need."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Accepts any keys, because the keys of the part are not known."""

        is_open = True


def _derive(cfg: dict[str, Any], user: Mapping[str, Any]) -> None:
    """Set the values that follow from others in a complete config; ``user`` is the given config."""
    env, policy = cfg["env"], cfg["policy"]
    evaluator = policy["eval"]["evaluator"]
    for key, source in (("stop_value", "stop_value"), ("n_episode", "n_evaluator_episode")):
        if key in evaluator:
            _agree(env, source, evaluator, key, is_given=source in (user.get("env") or {}))
    commander = policy["other"]["commander"]
    interval = commander.get("eval_interval")
    if interval is not None and "eval_interval_s" in evaluator:
        if evaluator["eval_interval_s"] not in (None, interval):
            raise refusal(
                f"policy.other.commander.eval_interval {interval} is another name of "
                f"policy.eval.evaluator.eval_interval_s, which is {evaluator['eval_interval_s']}; "
                "state one of them"
            )
        evaluator["eval_interval_s"], commander["eval_interval"] = interval, None
    if policy["unroll_len"] is not None:
        policy["collect"]["unroll_len"] = policy["unroll_len"]


def _agree(
    env: dict[str, Any], source: str, evaluator: dict[str, Any], key: str, is_given: bool
) -> None:
    """Make a key of the evaluator equal to the key of ``env`` with the same meaning.

    If both are given, the value in ``env`` counts: it may be an override of a compiled config.
    """
    own, unset = evaluator[key], (None, math.inf)
    if own in unset or own == env[source]:
        evaluator[key] = env[source]
    elif is_given:
        _log.warning(
            "policy.eval.evaluator.%s %s gives way to env.%s %s", key, own, source, env[source]
        )
        evaluator[key] = env[source]
    elif isinstance(own, int | float):
        env[source] = own
        complete(EnvSection, env, path="env")
