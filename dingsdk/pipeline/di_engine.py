"""Configs in DI-engine's shape: ``main_config``, ``create_config``, ``system_config``."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from dingsdk.config import deep_merge_dicts
from dingsdk.config.aliases import rename_aliases
from dingsdk.errors import ConfigError, UnknownEnvError, listing, nearest_name

_log = logging.getLogger(__name__)

_PARTS = {
    "policy": "policy",
    "collector": "policy.collect.collector",
    "replay_buffer": "policy.other.replay_buffer",
    "evaluator": "policy.eval.evaluator",
    "learner": "policy.learn.learner",
    "commander": "policy.other.commander",
    "env_manager": "env_manager",
}
_COMM_PARTS = ("comm_learner", "comm_collector")
_COMM_ALIASES = ("comm_learner_type", "comm_collector_type")
_PARALLEL_COLLECTORS = frozenset({"zergling", "marine"})

NOT_CARRIED: Mapping[str, str] = {
    "reward_model": "reward models are not part of dingsdk",
    "world_model": "world models are not part of dingsdk",
    "multi_gpu": "several learners train together on the CPU, see system.learner_num",
    "ignore_done": "an episode that a time limit cuts is told from one that ends anyway",
}
"""Sections and switches of DI-engine that have no counterpart, with the reason."""

_MOVED = {
    "policy.collect.collector.collector_num": "system.collector_num",
    "policy.learn.learner.learner_num": "system.learner_num",
    "policy.learn.learner.send_policy_freq": "system.learner.send_policy_freq",
}
_LISTENS = "the transport listens, see system.transport"
_NO_SUCH_SETTING = "gymnasium's vector envs need no such setting"
_IGNORED = {
    "policy.priority_IS_weight": "importance weights count wherever the buffer gives them",
    "system.coordinator.host": _LISTENS,
    "system.coordinator.port": _LISTENS,
    "system.path_data": "the transport decides where payloads live",
    "system.path_policy": "the transport decides where policies live",
    "system.communication_mode": "workers dial the master",
    "system.learner_gpu_num": "set policy.cuda",
    "env_manager.connect_timeout": _NO_SUCH_SETTING,
    "env_manager.context": _NO_SUCH_SETTING,
    "env_manager.copy_on_get": _NO_SUCH_SETTING,
    "env_manager.reset_inplace": _NO_SUCH_SETTING,
    "env_manager.shared_memory": _NO_SUCH_SETTING,
    "env_manager.step_wait_timeout": _NO_SUCH_SETTING,
    "env_manager.wait_num": _NO_SUCH_SETTING,
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
    shape = {
        f"{name}_config": deep_merge_dicts({}, sections.get(name))
        for name in ("main", "create", "system")
    }
    _refuse_what_is_absent(shape)
    main, create, system = shape.values()
    main["system"] = deep_merge_dicts(main.get("system"), system)
    _convert_env(main, create.pop("env", None) or {})
    for name, path in _PARTS.items():
        part = _without_own_imports(create.pop(name, None) or {}, name)
        _put(main, path, deep_merge_dicts(_take(main, path), part))
    for old, new in _MOVED.items():
        value = _take(main, old)
        if value is not None:
            _put(main, new, value)
    for path, reason in _IGNORED.items():
        if _take(main, path) is not None:
            _log.info("%s is not used: %s", path, reason)
    _convert_transport(main, [create.pop(name, None) or {} for name in _COMM_PARTS])
    _rename_types(main)
    for name in sorted(create):
        known = listing([*_PARTS, *_COMM_PARTS, "env"])
        raise ConfigError(
            f"create_config.{name} has no counterpart in dingsdk; known: {known}",
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


def _refuse_what_is_absent(shape: dict[str, Any]) -> None:
    """Refuse what has no counterpart where it is in use, and drop it where it is off."""
    reasons = {
        "system_config.coordinator.operator_server": (
            "workers dial the coordinator, and may be started and ended at any time"
        )
    }
    for place in ("", ".policy", ".policy.learn"):
        for name, reason in NOT_CARRIED.items():
            reasons[f"main_config{place}.{name}"] = reasons[f"create_config{place}.{name}"] = reason
    for path, reason in reasons.items():
        if _take(shape, path):
            raise ConfigError(f"{path} cannot be carried over: {reason}; remove it", path=path)


def _take(section: Any, path: str) -> Any:
    """Remove and return what is at a dotted path, or None."""
    *parents, last = path.split(".")
    for key in parents:
        section = section.get(key) if isinstance(section, dict) else None
    return section.pop(last, None) if isinstance(section, dict) else None


def _put(section: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
    section[last] = value


def _without_own_imports(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a create section without imports of the reference's own modules."""
    names = section.get("import_names") or []
    kept = [module for module in names if module.split(".")[0] not in ("ding", "dizoo")]
    if len(kept) < len(names):
        _log.info("create_config.%s: left out imports of the reference's own modules", name)
    rest = {key: value for key, value in section.items() if key != "import_names"}
    return {**rest, "import_names": kept} if kept else rest


def _convert_env(main: dict[str, Any], create_env: Mapping[str, Any]) -> None:
    env = main.setdefault("env", {})
    if manager := env.pop("manager", None):
        main["env_manager"] = deep_merge_dicts(main.get("env_manager"), manager)
    zoo_name = create_env.get("type")
    if "env_id" not in env and zoo_name is not None:
        env["env_id"] = find_env_id(str(zoo_name))
        _log.info("create_config.env.type %r is %s here", zoo_name, env["env_id"])
    per_env = env.get("evaluator_episode_num")
    if isinstance(per_env, int) and isinstance(env.get("evaluator_env_num"), int):
        # The reference's parallel configs state no total.
        env.setdefault("n_evaluator_episode", per_env * env["evaluator_env_num"])


def _convert_transport(main: dict[str, Any], comm_parts: list[dict[str, Any]]) -> None:
    kinds = {part["type"] for part in comm_parts if part.get("type") is not None}
    if len(kinds) > 1:
        raise ConfigError(
            f"create_config names the transports {listing(kinds)}; collectors and learner share "
            "one",
            path="create_config.comm_learner.type",
        )
    for kind in kinds:
        _put(main, "system.transport.type", kind)


def _rename_types(main: dict[str, Any]) -> None:
    """Name the types by what does the same here."""
    policy, manager = main["policy"], main["env_manager"]
    if isinstance(policy.get("type"), str):
        # The reference has a second policy class for parallel mode; here one serves both.
        policy["type"] = policy["type"].removesuffix("_command")
    collect = policy["collect"]
    if collect["collector"].get("type") in _PARALLEL_COLLECTORS:
        collect["parallel_collector"] = collect.pop("collector")
    buffer = policy["other"]["replay_buffer"]
    if buffer.get("type") == "deque":
        # That one samples by priority where the policy asks for it, else uniformly.
        buffer["type"] = "advanced" if policy.get("priority") else "naive"
        _log.info("policy.other.replay_buffer.type: deque is called %s here", buffer["type"])
    for key in ("step_timeout", "reset_timeout"):
        if manager.get(key, 0) is None:
            del manager[key]
    if manager.get("type") == "subprocess_v2":
        manager["type"] = "subprocess"


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
