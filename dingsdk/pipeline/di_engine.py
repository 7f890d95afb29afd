"""Converts DI-engine's configs: ``main_config``, ``create_config``, ``system_config``."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from dingsdk.config import deep_merge_dicts
from dingsdk.config.aliases import rename_aliases
from dingsdk.config.plain import put, take
from dingsdk.errors import ConfigError, UnknownEnvError, listing, nearest_name
from dingsdk.pipeline.di_engine_keys import MOVED, NO_SECTION, NOT_USED, ONLY, OTHER_POLICIES
from dingsdk.plugins import default_manager

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
_ATARI_WRAPPERS = ("episode_statistics", "atari")


def convert_reference_shape(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in dingsdk's shape as a new dict; a config that has this shape is copied.

    Args:
        cfg: ``{"main": ..., "create": ..., "system": ...}``, the same with the suffix
            ``_config``, or a config in dingsdk's shape.

    Raises:
        ConfigError: keys have no counterpart here; the message gives path and reason of each.
        UnknownEnvError: gymnasium has no env of the name that DI-engine's zoo uses.
    """
    sections = {str(key).removesuffix("_config"): value for key, value in cfg.items()}
    if "main" not in sections or "create" not in sections:
        return deep_merge_dicts({}, cfg)
    shape = {
        f"{name}_config": deep_merge_dicts({}, sections.get(name))
        for name in ("main", "create", "system")
    }
    refused = _absent_sections(shape)
    main, create, system = shape.values()
    main["system"] = deep_merge_dicts(main.get("system"), system)
    _convert_env(main, create.pop("env", None) or {})
    for name, path in _PARTS.items():
        part = _without_own_imports(create.pop(name, None) or {}, name)
        put(main, path, deep_merge_dicts(take(main, path), part))
    transports = [create.pop(name, None) or {} for name in _COMM_PARTS]
    known = listing([*_PARTS, *_COMM_PARTS, "env"])
    refused |= {f"create_config.{name}": f"known sections are {known}" for name in sorted(create)}
    refused |= _convert_policy(main["policy"]) | _convert_keys(main)
    if refused:
        lines = "; ".join(f"{path} ({reason})" for path, reason in refused.items())
        raise ConfigError(
            f"what has no counterpart in dingsdk is to be removed: {lines}",
            path=next(iter(refused)),
        )
    _convert_transport(main, transports)
    _rename_types(main)
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


def _absent_sections(shape: dict[str, Any]) -> dict[str, str]:
    """Remove the sections without a counterpart; return the paths of used ones, with a reason."""
    places = ("main_config", "create_config", "main_config.policy", "main_config.policy.learn")
    reasons = {f"{place}.{name}": NO_SECTION[name] for place in places for name in NO_SECTION}
    return {path: reason for path, reason in reasons.items() if take(shape, path)}


def _convert_policy(policy: dict[str, Any]) -> dict[str, str]:
    """Convert the type and the network of the policy; return refused paths, with the reason."""
    if isinstance(policy.get("type"), str):
        # DI-engine has a second policy class for parallel mode; here one class serves both modes.
        policy["type"] = policy["type"].removesuffix("_command")
    kind = str(policy.get("type"))
    is_named = isinstance(policy.get("type"), str) and "import_names" not in policy
    is_of_theirs = is_named and kind not in default_manager().known("policies")
    if kind in OTHER_POLICIES or is_of_theirs:
        nearest = f": {OTHER_POLICIES[kind]}" if kind in OTHER_POLICIES else ""
        reason = f"{kind!r} is none of its policies{nearest}"
        return {"policy.type": f"{reason}; the plugin dingsdk-rl-di-engine runs DI-engine's own"}
    if kind == "r2d2":
        if policy.get("priority"):
            return {"policy.priority": "sequences are drawn uniformly; alpha and beta go with it"}
        take(policy, "unroll_len")  # the sum of the two lengths, like the next
        take(policy, "collect.unroll_len")
        buffer = policy["other"]["replay_buffer"]
        buffer["type"] = "sequence"
        if "learn_unroll_len" in policy:
            buffer["sequence_length"] = policy["learn_unroll_len"]
        if "burnin_step" in policy:
            own = {"type": "sequence", "burn_in": policy["burnin_step"], "pad": True}
            buffer["sampler"] = own
    if kind == "sac":
        take(policy, "model.action_space")  # only one kind is supported, so it needs no name
        width = take(policy, "model.actor_head_hidden_size")
        if width is not None:
            policy["model"].setdefault("encoder_hidden_size_list", [width, width])
    model = policy.get("model")
    shape = model.get("obs_shape") if isinstance(model, dict) else None
    if model and isinstance(shape, list | tuple) and len(shape) == 3:  # an image
        sizes = model.pop("encoder_hidden_size_list", None)
        if sizes:
            # The convolutions are fixed; only the size of the layer after them can be set.
            model["encoder_hidden_size_list"] = sizes[-1:]
    return {}


def _convert_keys(main: dict[str, Any]) -> dict[str, str]:
    """Move and remove keys as the tables say; return refused paths, with the reason."""
    for old, new in MOVED.items():
        value = take(main, old)
        if value is not None:
            put(main, new, value)
    for path, reason in NOT_USED.items():
        if take(main, path) is not None:
            _log.info("%s is not used: %s", path, reason)
    refused = {}
    for path, (only, reason) in ONLY.items():
        value = take(main, path)
        if value is not None and value != only and (only or not _is_off(value)):
            refused[path] = reason
    return refused


def _is_off(value: Any) -> bool:
    """Whether a switch is off: false, or a section of false values: ``{"use_norm": False}``."""
    return not any(value.values()) if isinstance(value, Mapping) else not value


def _without_own_imports(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section of the create config without imports of DI-engine's own modules."""
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
    stack = env.pop("frame_stack", None)
    if zoo_name == "atari":
        env["env_id"] = f"ale_py:{env.get('env_id', '')}".replace("ale_py:ale_py:", "ale_py:")
        env.setdefault("wrappers", [*_ATARI_WRAPPERS])
    elif isinstance(env.get("env_id"), str):
        env["env_id"] = _newest_version(env["env_id"])
    if stack:
        env.setdefault("wrappers", []).append({"type": "frame_stack", "stack_size": stack})
    if "env_id" not in env and zoo_name is not None:
        env["env_id"] = find_env_id(str(zoo_name))
        _log.info("create_config.env.type %r is %s here", zoo_name, env["env_id"])
    per_env = env.get("evaluator_episode_num")
    if isinstance(per_env, int) and isinstance(env.get("evaluator_env_num"), int):
        # DI-engine's parallel configs do not give the total number.
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
        put(main, "system.transport.type", kind)


def _rename_types(main: dict[str, Any]) -> None:
    """Replace the types by those that do the same here."""
    policy, manager = main["policy"], main["env_manager"]
    collect = policy["collect"]
    if collect["collector"].get("type") in _PARALLEL_COLLECTORS:
        collect["parallel_collector"] = collect.pop("collector")
    buffer = policy["other"]["replay_buffer"]
    if buffer.get("type") == "deque" or (policy.get("priority") and "type" not in buffer):
        # DI-engine's deque samples by priority if the policy says so, else uniformly.
        buffer["type"] = "advanced" if policy.get("priority") else "naive"
        _log.info("policy.other.replay_buffer.type: deque is called %s here", buffer["type"])
    for key in ("step_timeout", "reset_timeout"):
        if manager.get(key, 0) is None:
            del manager[key]
    if manager.get("type") == "subprocess_v2":
        manager["type"] = "subprocess"


def _newest_version(env_id: str) -> str:
    """Return the id, or the id of the newest version if gymnasium has removed this one."""
    import gymnasium
    from gymnasium.envs.registration import find_highest_version, parse_env_id

    if env_id in gymnasium.registry or ":" in env_id:
        return env_id
    namespace, name, asked = parse_env_id(env_id)
    newest = find_highest_version(namespace, name)
    if newest is None or newest <= (asked or 0):
        return env_id
    found = f"{env_id.removesuffix(f'-v{asked}')}-v{newest}"
    _log.info("env.env_id: %s is %s now", env_id, found)
    return found


def find_env_id(zoo_name: str) -> str:
    """Return the newest gymnasium id whose bare name is ``zoo_name``, as ``CartPole-v1``.

    Case, punctuation and versions are ignored; an id without a namespace is preferred.

    Raises:
        UnknownEnvError: no env has that name, or several envs in different namespaces have it.
    """
    import gymnasium

    versions: dict[str, list[tuple[int, str]]] = {}
    for env_id, spec in gymnasium.registry.items():
        if _bare(spec.name) == _bare(zoo_name):
            base = env_id.removesuffix(f"-v{spec.version}")
            versions.setdefault(base, []).append((spec.version or 0, env_id))
    versions = {base: ids for base, ids in versions.items() if "/" not in base} or versions
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
    nearest = nearest_name(
        _bare(zoo_name), {_bare(each.name) for each in gymnasium.registry.values()}
    )
    hint = f"; did you mean {nearest!r}?" if nearest else "."
    raise UnknownEnvError(
        f"create_config.env.type {zoo_name!r} is no env of gymnasium{hint} Set env.env_id in "
        "main_config to a gymnasium id",
        env_id=zoo_name,
        nearest=nearest,
    )


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
