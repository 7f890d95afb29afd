"""Configs in DI-engine's shape: ``main_config``, ``create_config``, ``system_config``."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from dingsdk.config import deep_merge_dicts
from dingsdk.config.aliases import rename_aliases
from dingsdk.errors import ConfigError, UnknownEnvError, nearest_name

_log = logging.getLogger(__name__)

_PARTS = {
    "replay_buffer": "policy.other.replay_buffer",
    "evaluator": "policy.eval.evaluator",
    "learner": "policy.learn.learner",
    "commander": "policy.other.commander",
    "env_manager": "env_manager",
}
_OTHER_PARTS = ("collector", "comm_collector", "comm_learner", "env", "policy")
_PARALLEL_COLLECTORS = frozenset({"zergling", "marine"})
_COMM_ALIASES = ("comm_learner_type", "comm_collector_type")

NOT_CARRIED: Mapping[str, str] = {
    "reward_model": "reward models are not part of dingsdk",
    "world_model": "world models are not part of dingsdk",
    "multi_gpu": "one device a learner; start more learners with system.learner_num",
    "ignore_done": "an episode that a time limit cuts is told from one that ends anyway",
}
"""Sections and switches of DI-engine that have no counterpart, with the reason."""

_NOT_CARRIED_COORDINATOR = {
    "operator_server": "workers dial the coordinator, and may be started and ended at any time",
}
_IGNORED_COORDINATOR = {
    "host": "the transport listens, see system.transport",
    "port": "the transport listens, see system.transport",
}
_IGNORED_POLICY = {
    "priority_IS_weight": "importance weights count wherever the buffer gives them",
}
_PROCESS_MANAGERS = frozenset({"subprocess", "subprocess_v2", "async_subprocess"})
_IGNORED_MANAGER = dict.fromkeys(
    (
        "connect_timeout",
        "context",
        "copy_on_get",
        "reset_inplace",
        "shared_memory",
        "step_wait_timeout",
        "wait_num",
    ),
    "gymnasium's vector envs need no such setting",
)
_IGNORED_SYSTEM = {
    "path_data": "the transport decides where payloads live",
    "path_policy": "the transport decides where policies live",
    "communication_mode": "workers dial the master",
    "learner_gpu_num": "set policy.cuda",
}


def convert_reference_shape(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in dingsdk's shape as a fresh dict; one that has it already is copied.

    Args:
        cfg: ``{"main": ..., "create": ..., "system": ...}``, the same with the suffix
            ``_config``, or a config in dingsdk's shape.

    Raises:
        ConfigError: something that has no counterpart here; says what, where and why.
        UnknownEnvError: the env of DI-engine's zoo is none of gymnasium's.
    """
    sections = {key.removesuffix("_config"): value for key, value in cfg.items()}
    if "main" not in sections or "create" not in sections:
        return deep_merge_dicts({}, cfg)
    main = deep_merge_dicts({}, sections["main"])
    create = deep_merge_dicts({}, sections["create"])
    system = deep_merge_dicts({}, sections.get("system"))
    for name, section in (("main_config", main), ("create_config", create)):
        policy = section.get("policy") or {}
        _refuse(name, section, NOT_CARRIED)
        _refuse(f"{name}.policy", policy, NOT_CARRIED)
        _refuse(f"{name}.policy.learn", policy.get("learn") or {}, NOT_CARRIED)
        _drop(f"{name}.policy", policy, _IGNORED_POLICY)

    _convert_env(main, create.pop("env", {}))
    _convert_policy(main, create.pop("policy", {}))
    _convert_collector(main, create.pop("collector", {}))
    for name, path in _PARTS.items():
        _merge_part(main, path, _clean(create.pop(name, {}), f"create_config.{name}"))
    _convert_learner(main)
    _convert_env_manager(main)
    _convert_system(main, create, system)
    _rename_deque(main)
    if create:
        name = sorted(create)[0]
        raise ConfigError(
            f"create_config.{name} has no counterpart in dingsdk; known: "
            f"{', '.join(sorted({*_PARTS, *_OTHER_PARTS}))}",
            path=f"create_config.{name}",
        )
    return main


def rename_all_aliases(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config without the documented aliases of ``type`` and ``import_names``.

    Raises:
        ConfigError: an alias that contradicts the name it stands for.
    """
    system = cfg.get("system")
    if isinstance(system, Mapping) and not system.keys().isdisjoint(_COMM_ALIASES):
        kinds = {alias: system[alias] for alias in _COMM_ALIASES if alias in system}
        rest = {key: value for key, value in system.items() if key not in kinds}
        transport = rename_aliases({**rest.get("transport", {}), **kinds}, "system.transport")
        cfg = {**cfg, "system": {**rest, "transport": transport}}
    return rename_aliases(cfg)


def _refuse(path: str, section: dict[str, Any], reasons: Mapping[str, str]) -> None:
    """Refuse the keys of ``reasons`` where they are in use, and drop them where they are off."""
    for key, reason in reasons.items():
        if section.pop(key, None):
            raise ConfigError(
                f"{path}.{key} cannot be carried over: {reason}; remove it", path=f"{path}.{key}"
            )


def _drop(path: str, section: dict[str, Any], reasons: Mapping[str, str]) -> None:
    for key, reason in reasons.items():
        if section.pop(key, None) is not None:
            _log.info("%s.%s is not used: %s", path, key, reason)


def _clean(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a create section without imports of the reference's own modules."""
    cleaned = dict(section)
    names = cleaned.get("import_names") or []
    kept = [name for name in names if name.split(".")[0] not in ("ding", "dizoo")]
    if len(kept) < len(names):
        _log.info("%s.import_names: left out the reference's own modules", path)
    if kept:
        cleaned["import_names"] = kept
    else:
        cleaned.pop("import_names", None)
    return cleaned


def _rename_deque(main: Mapping[str, Any]) -> None:
    """Name the buffer that does what the reference's ``deque`` does with the policy's settings."""
    policy = main.get("policy") or {}
    buffer = (policy.get("other") or {}).get("replay_buffer") or {}
    if buffer.get("type") == "deque":
        # That one samples by priority where the policy asks for it, else uniformly.
        buffer["type"] = "advanced" if policy.get("priority") else "naive"
        _log.info("policy.other.replay_buffer.type: deque is called %s here", buffer["type"])


def _merge_part(main: dict[str, Any], path: str, section: Mapping[str, Any]) -> None:
    *parents, last = path.split(".")
    target = main
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = deep_merge_dicts(target.get(last), section)


def _convert_env(main: dict[str, Any], create_env: Mapping[str, Any]) -> None:
    env = main.setdefault("env", {})
    manager = env.pop("manager", None)
    if manager:
        _merge_part(main, "env_manager", manager)
    zoo_name = create_env.get("type")
    if "env_id" not in env and zoo_name is not None:
        env["env_id"] = find_env_id(str(zoo_name))
        _log.info("create_config.env.type %r is %s here", zoo_name, env["env_id"])
    per_env = env.get("evaluator_episode_num")
    if isinstance(per_env, int) and isinstance(env.get("evaluator_env_num"), int):
        # The reference's parallel configs state no total.
        env.setdefault("n_evaluator_episode", per_env * env["evaluator_env_num"])


def _convert_env_manager(main: dict[str, Any]) -> None:
    manager = main.get("env_manager") or {}
    _drop("env_manager", manager, _IGNORED_MANAGER)
    for key in ("step_timeout", "reset_timeout"):
        if manager.get(key, 0) is None:
            del manager[key]
    kind = manager.get("type")
    if kind in _PROCESS_MANAGERS:
        manager.update(type="vector", vectorization_mode="async")
        _log.info("env_manager.type: %s is vector with vectorization_mode async here", kind)


def _convert_policy(main: dict[str, Any], create_policy: Mapping[str, Any]) -> None:
    cleaned = _clean(create_policy, "create_config.policy")
    # The reference has a second policy class for parallel mode; here one serves both.
    if isinstance(cleaned.get("type"), str):
        cleaned["type"] = cleaned["type"].removesuffix("_command")
    _merge_part(main, "policy", cleaned)


def _convert_collector(main: dict[str, Any], create_collector: Mapping[str, Any]) -> None:
    collect = main["policy"].get("collect") or {}
    stated = dict(collect.get("collector") or {})
    collector_num = stated.pop("collector_num", None)
    if collector_num is not None:
        main.setdefault("system", {})["collector_num"] = collector_num
    section = deep_merge_dicts(stated, _clean(create_collector, "create_config.collector"))
    is_parallel = section.get("type") in _PARALLEL_COLLECTORS
    if section or "collector" in collect:
        collect.pop("collector", None)
        collect["parallel_collector" if is_parallel else "collector"] = section
        main["policy"]["collect"] = collect


def _convert_learner(main: dict[str, Any]) -> None:
    learner = (main["policy"].get("learn") or {}).get("learner") or {}
    if "learner_num" in learner:
        main.setdefault("system", {})["learner_num"] = learner.pop("learner_num")
    if "send_policy_freq" in learner:
        _merge_part(main, "system.learner", {"send_policy_freq": learner.pop("send_policy_freq")})


def _convert_system(
    main: dict[str, Any], create: dict[str, Any], system: Mapping[str, Any]
) -> None:
    converted = dict(system)
    _drop("system_config", converted, _IGNORED_SYSTEM)
    coordinator, path = converted.get("coordinator") or {}, "system_config.coordinator"
    _refuse(path, coordinator, _NOT_CARRIED_COORDINATOR)
    _drop(path, coordinator, _IGNORED_COORDINATOR)
    kinds = {
        section.get("type")
        for name in ("comm_learner", "comm_collector")
        if (section := create.pop(name, None))
    } - {None}
    if len(kinds) > 1:
        raise ConfigError(
            f"create_config names the transports {sorted(map(str, kinds))}; collectors and "
            "learner share one",
            path="create_config.comm_learner.type",
        )
    if kinds:
        converted.setdefault("transport", {})["type"] = kinds.pop()
    main["system"] = deep_merge_dicts(main.get("system"), converted)


_VERSION = re.compile(r"-v(\d+)$")


def find_env_id(zoo_name: str) -> str:
    """Return the newest gymnasium id whose bare name is ``zoo_name``, as ``CartPole-v1``.

    Case, punctuation and versions do not count; an id without a namespace is preferred.

    Raises:
        UnknownEnvError: none has that name, or more than one in different namespaces.
    """
    import gymnasium

    versions: dict[str, list[tuple[int, str]]] = {}
    for env_id in gymnasium.registry:
        base, version = _split(env_id)
        if _bare(base) == _bare(zoo_name):
            versions.setdefault(base, []).append((version, env_id))
    plain = {base: ids for base, ids in versions.items() if "/" not in base}
    versions = plain or versions
    if len(versions) == 1:
        return max(next(iter(versions.values())))[1]
    if versions:
        found = sorted(versions)
        raise UnknownEnvError(
            f"create_config.env.type {zoo_name!r} could be any of {', '.join(found)}; "
            "set env.env_id in main_config",
            env_id=zoo_name,
            nearest=None,
            known=found,
        )
    nearest = nearest_name(_bare(zoo_name), {_bare(_split(each)[0]) for each in gymnasium.registry})
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    raise UnknownEnvError(
        f"create_config.env.type {zoo_name!r} is no env of gymnasium{hint} Set env.env_id in "
        "main_config to a gymnasium id",
        env_id=zoo_name,
        nearest=nearest,
    )


def _split(env_id: str) -> tuple[str, int]:
    match = _VERSION.search(env_id)
    return (env_id, 0) if match is None else (env_id[: match.start()], int(match.group(1)))


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())
