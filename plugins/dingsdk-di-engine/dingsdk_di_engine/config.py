"""Converts DI-engine's configs: ``main_config``, ``create_config``, ``system_config``."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from dingsdk.config import deep_merge_dicts, put
from dingsdk.errors import ConfigError, ConfigTypeError, UnknownEnvError
from dingsdk.plugins import default_manager
from dingsdk_di_engine.keys import ENVS, LEFT_OUT, MOVED, NO_SECTION, NOT_OURS, ONLY, WITHOUT

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_SMALLEST_FACTOR = 1e-6
"""Factor in place of a final learning rate of 0, which is no value of ``learning_rate``."""
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
_PARALLEL_COLLECTORS = frozenset({"zergling", "marine"})
_ATARI_WRAPPERS = ("episode_statistics", "atari")
_ENV_MANAGERS = {"subprocess_v2": "subprocess", "env_pool": "vector"}
_SHARED = {
    "": ("cuda", "discount_factor", "model", "nstep", "priority", "traj_len_inf", "unroll_len"),
    "learn": ("update_per_collect", "batch_size", "learner"),
    "collect": ("n_sample", "n_episode", "unroll_len", "collector"),
    "eval": ("evaluator",),
    "other": ("replay_buffer", "commander"),
}
"""The keys of ``policy`` that the policy ``di_engine`` takes; all others are in its ``config``."""


def convert(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of DI-engine in dingsdk's shape, as a new dict.

    Args:
        cfg: ``{"main_config": ..., "create_config": ..., "system_config": ...}``; the suffixes
            may be left out, and other names are ignored.

    Raises:
        ConfigError: keys have no counterpart here; the message gives path and reason of each.
        UnknownEnvError: gymnasium has no env of the name that DI-engine's zoo uses.
    """
    sections = {str(key).removesuffix("_config"): value for key, value in cfg.items()}
    shape = {}
    for name in ("main", "create", "system"):
        section = sections.get(name, {} if name == "system" else None)
        _check_section(section, f"{name}_config", "; a config has main_config and create_config")
        shape[f"{name}_config"] = deep_merge_dicts({}, section)
    _check_sections(shape)
    refused = _absent_sections(shape)
    main, create, system = shape.values()
    main["system"] = deep_merge_dicts(main.get("system"), system)
    if isinstance(main.get("exp_name"), str):
        main["exp_name"] = re.sub(r"\A\.+|[^A-Za-z0-9._-]", "_", main["exp_name"])
    _convert_env(main, create.pop("env", None) or {})
    for name, path in _PARTS.items():
        part = _without_own_imports(create.pop(name, None) or {}, name)
        put(main, path, deep_merge_dicts(_take(main, path), part))
    transports = [create.pop(name, None) or {} for name in _COMM_PARTS]
    known = ", ".join(sorted([*_PARTS, *_COMM_PARTS, "env"]))
    refused |= {f"create_config.{name}": f"known sections are {known}" for name in sorted(create)}
    refused |= _convert_policy(main)
    if refused:
        lines = "; ".join(f"{path} ({reason})" for path, reason in refused.items())
        raise ConfigError(
            f"what has no counterpart in dingsdk is to be removed: {lines}",
            path=next(iter(refused)),
            refused=refused,
        )
    _convert_transport(main, transports)
    _rename_types(main)
    return main


def _check_sections(shape: Mapping[str, dict[str, Any]]) -> None:
    """Check that a section of DI-engine is a dict wherever one is read.

    Raises:
        ConfigTypeError: it is something else.
    """
    for name, section in shape["create_config"].items():
        _check_section(section or {}, f"create_config.{name}")
    main = shape["main_config"]
    for path in ("env", "env.manager", "policy.model", "system", *_PARTS.values()):
        section, where = main, "main_config"
        for key in path.split("."):
            section, where = section.get(key) or {}, f"{where}.{key}"
            _check_section(section, where)


def _check_section(section: Any, path: str, advice: str = "") -> None:
    if not isinstance(section, Mapping):
        raise ConfigTypeError(
            f"{path} is {section!r:.80}, not a dict{advice}",
            path=path,
            expected="mapping",
            found=type(section).__name__,
        )


def _absent_sections(shape: dict[str, Any]) -> dict[str, str]:
    """Remove the sections without a counterpart; return the paths of used ones, with a reason."""
    places = ("main_config", "create_config", "main_config.policy", "main_config.policy.learn")
    reasons = {f"{place}.{name}": NO_SECTION[name] for place in places for name in NO_SECTION}
    return {path: reason for path, reason in reasons.items() if _take(shape, path)}


def _convert_policy(main: dict[str, Any]) -> dict[str, str]:
    """Convert the policy and move keys; return refused paths, with the reason."""
    policy = main["policy"]
    if isinstance(policy.get("type"), str):
        # DI-engine has a second policy class for parallel mode; here one class serves both modes.
        policy["type"] = policy["type"].removesuffix("_command")
    kind = str(policy.get("type"))
    is_named = isinstance(policy.get("type"), str) and "import_names" not in policy
    own = not is_named or kind in set(default_manager().known("policies")) - NOT_OURS
    # SAC has no heads: the width of the actor's is that of its layers.
    width = _take(policy, "model.actor_head_hidden_size") if kind == "sac" else None
    refused = _convert_keys(main, kind, "") if own else _convert_keys(main, "di_engine", "policy.")
    if "import_names" not in policy:
        _convert_shapes(policy, is_own=own)
    if not own:
        main["policy"] = _run_by_di_engine(policy, kind)
    elif kind == "r2d2":
        buffer = policy["other"]["replay_buffer"]
        buffer["type"] = "sequence"
        learn = policy["learn"]
        if "sequence_length" in learn:
            buffer["sequence_length"] = learn["sequence_length"]
        if "burn_in" in learn:
            buffer["sampler"] = {"type": "sequence", "burn_in": learn["burn_in"], "pad": True}
    elif kind == "ppo":
        _convert_learning_rates(policy)
    elif width is not None:
        policy["model"].setdefault("encoder_hidden_size_list", [width, width])
    return refused


def _convert_keys(main: dict[str, Any], kind: str, kept: str) -> dict[str, str]:
    """Move and remove keys as the tables say; return refused paths, with the reason.

    Args:
        kind: Type of the policy; keys of other policies are not touched.
        kept: Prefix of paths that are not converted, except below a worker's own section.
    """

    def of_kind(table: Mapping[str, _T]) -> Iterator[tuple[str, _T]]:
        for entry, value in table.items():
            only, colon, path = entry.rpartition(":")
            is_worker = path.startswith(("policy.learn.learner.", "policy.collect.collector."))
            is_kept = kept and path.startswith(kept) and not is_worker
            if only == kind or (not colon and not is_kept):
                yield path, value

    for old, new in of_kind(MOVED):
        value = _take(main, old)
        if value is not None:
            put(main, new, value)
    for path, reason in of_kind(LEFT_OUT):
        if _take(main, path) is not None:
            _log.info("%s is not used: %s", path, reason)
    for path, (only, reason) in of_kind(WITHOUT):
        value = _take(main, path)
        if value is not None and value != only:
            _log.warning("%s %r is not used: %s", path, value, reason)
    refused = {}
    for path, (only, reason) in of_kind(ONLY):
        value = _take(main, path)
        if value is not None and value != only and (only or not _is_off(value)):
            refused[path] = reason
    return refused


def _convert_shapes(policy: dict[str, Any], is_own: bool) -> None:
    """Remove the shapes of observations and actions: they are read from the env."""
    shape = _take(policy, "model.obs_shape")
    _take(policy, "model.action_shape")
    if is_own and isinstance(shape, list | tuple) and len(shape) == 3:  # an image
        sizes = _take(policy, "model.encoder_hidden_size_list")
        if sizes:
            # The convolutions are fixed; only the size of the layer after them can be set.
            policy["model"]["encoder_hidden_size_list"] = sizes[-1:]


def _is_off(value: Any) -> bool:
    """Whether a switch is off: false, or a section of false values: ``{"use_norm": False}``."""
    return not any(value.values()) if isinstance(value, Mapping) else not value


def _run_by_di_engine(policy: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the section of the policy ``di_engine`` for a policy that dingsdk does not have.

    Raises:
        ConfigError: DI-engine has none of that name, or cannot be imported.
    """
    from dingsdk_di_engine.policy import find_policy

    on_policy = bool(find_policy(kind).default_config().on_policy)
    _log.info("policy.type: %s is DI-engine's own policy, run by the policy di_engine", kind)
    rest = deep_merge_dicts({}, policy)
    section: dict[str, Any] = {}
    for place, names in _SHARED.items():
        for path in (f"{place}.{name}".lstrip(".") for name in names):
            value = _take(rest, path)
            if value is not None:
                put(section, path, value)
    for name in ("type", "on_policy"):
        rest.pop(name, None)
    return {**section, "type": "di_engine", "name": kind, "on_policy": on_policy, "config": rest}


def _convert_learning_rates(policy: dict[str, Any]) -> None:
    """Replace PPO's ``lr_scheduler``, which counts collects, by a schedule over env steps."""
    found, learn = policy["learn"].get("lr_scheduler"), policy["learn"]
    if not isinstance(found, Mapping):
        return
    from dingsdk.policy import PPOPolicy

    counts = policy["collect"].get("n_sample"), found.get("epoch_num")
    rate = learn.get("learning_rate", PPOPolicy.config["learn"]["learning_rate"])
    factor = found.get("min_lr_lambda")
    if not all(isinstance(count, int) and count > 0 for count in counts):
        return  # the check of the config names the key
    if not (isinstance(rate, int | float) and isinstance(factor, int | float)):
        return
    del learn["lr_scheduler"]
    learn["learning_rate"] = {
        "type": "linear",
        "start": rate,
        "end": rate * max(factor, _SMALLEST_FACTOR),
        "env_steps": counts[0] * counts[1],
    }


def _without_own_imports(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section of the create config without imports of DI-engine's own modules."""
    names = section.get("import_names") or []
    if not isinstance(names, list) or not all(isinstance(module, str) for module in names):
        return {**section}  # the check of the config names the key
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
    env_id = env.get("env_id")
    if zoo_name == "atari":
        env["env_id"] = f"ale_py:{env_id or ''}".replace("ale_py:ale_py:", "ale_py:")
        env.setdefault("wrappers", [*_ATARI_WRAPPERS])
    elif isinstance(env_id, str) or (env_id is None and zoo_name is not None):
        env["env_id"] = newest_version(env_id or ENVS.get(str(zoo_name), str(zoo_name)))
    if stack:
        wrappers = env.setdefault("wrappers", [])
        if isinstance(wrappers, list):
            wrappers.append({"type": "frame_stack", "stack_size": stack})
    per_env = env.get("evaluator_episode_num")
    if isinstance(per_env, int) and isinstance(env.get("evaluator_env_num"), int):
        # DI-engine's parallel configs do not give the total number.
        env.setdefault("n_evaluator_episode", per_env * env["evaluator_env_num"])


def _convert_transport(main: dict[str, Any], comm_parts: list[dict[str, Any]]) -> None:
    kinds = {str(part["type"]) for part in comm_parts if part.get("type") is not None}
    if len(kinds) > 1:
        raise ConfigError(
            f"create_config names the transports {', '.join(sorted(kinds))}; collectors and "
            "learner share one",
            path="create_config.comm_learner.type",
        )
    for kind in kinds:
        put(main, "system.transport.type", kind)


def _rename_types(main: dict[str, Any]) -> None:
    """Replace the types by those that do the same here."""
    policy, manager = main["policy"], main["env_manager"]
    collect = policy["collect"]
    if str(collect["collector"].get("type")) in _PARALLEL_COLLECTORS:
        collect["parallel_collector"] = collect.pop("collector")
    buffer = policy["other"]["replay_buffer"]
    if buffer.get("type") == "deque" or (policy.get("priority") and "type" not in buffer):
        # DI-engine's deque samples by priority if the policy says so, else uniformly.
        buffer["type"] = "advanced" if policy.get("priority") else "naive"
        _log.info("policy.other.replay_buffer.type: deque is called %s here", buffer["type"])
    for key in ("step_timeout", "reset_timeout"):
        if manager.get(key, 0) is None:
            del manager[key]
    manager_type = str(manager.get("type"))
    if manager_type in _ENV_MANAGERS:
        manager["type"] = _ENV_MANAGERS[manager_type]
    if manager_type == "env_pool":
        env = main["env"]
        game = str(env.get("env_id")).removeprefix("ale_py:")
        env["env_id"] = "envpool:" + re.sub(r"NoFrameskip-v\d+$", "-v5", game)
        env.pop("wrappers", None)  # envpool has the same ones


def newest_version(env_id: str) -> str:
    """Return the id, or the id of the newest version if gymnasium has removed this one.

    Raises:
        UnknownEnvError: gymnasium has no env of that name in any version.
    """
    import gymnasium
    from gymnasium.envs.registration import find_highest_version, parse_env_id

    spec = gymnasium.registry.get(env_id)
    # The entry point of a removed env is a function of gymnasium's that raises.
    is_removed = getattr(getattr(spec, "entry_point", None), "__module__", "") == "gymnasium.envs"
    if ":" in env_id or (spec is not None and not is_removed):
        return env_id
    try:
        namespace, name, asked = parse_env_id(env_id)
    except gymnasium.error.Error:
        return env_id  # the check of the config reports it
    newest = find_highest_version(namespace, name)
    if newest is None:
        near = difflib.get_close_matches(env_id, list(gymnasium.registry), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UnknownEnvError(
            f"{env_id!r} is no env of gymnasium{hint} Set env.env_id in main_config to a gymnasium "
            "id, or to module:Class for an env of your own",
            env_id=env_id,
            nearest=near[0] if near else None,
        )
    if newest <= (asked or 0):
        return env_id
    found = f"{env_id.removesuffix(f'-v{asked}')}-v{newest}"
    _log.info("env.env_id: %s is %s now", env_id, found)
    return found


def _take(cfg: dict[str, Any], path: str) -> Any:
    """Remove and return the value at a dotted path; return None if there is none."""
    *parents, last = path.split(".")
    section: Any = cfg
    for key in parents:
        section = section.get(key) if isinstance(section, dict) else None
    return section.pop(last, None) if isinstance(section, dict) else None
