"""Compiles a user's config: component defaults below it, every key and value checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from easydict import EasyDict

from dingsdk.config import check_known_keys, deep_merge_dicts, save_config, to_easydict
from dingsdk.errors import ConfigError, UnknownPluginError
from dingsdk.pipeline.components import (
    COMPONENTS,
    NESTED,
    Component,
    defaults_of_class,
    has_defaults,
    section_of,
    set_section,
    type_of,
)
from dingsdk.pipeline.records import EnvSection, RunConfig, SystemSection, defaults_of, to_record
from dingsdk.pipeline.reference_shape import convert_reference_shape, rename_aliases
from dingsdk.pipeline.schema import check_capacity, check_ranges, check_types
from dingsdk.pipeline.spaces import fill_model_shapes
from dingsdk.plugins import default_manager
from dingsdk.worker.coordinator import Coordinator

_log = logging.getLogger(__name__)

_FREE_SECTIONS = frozenset({"env.kwargs", "policy.learn.learner.hook"})
_CLASS_PATHS = {
    "env_manager": "env_manager",
    "policy": "policy",
    "learner": "policy.learn.learner",
    "collector": "policy.collect.collector",
    "evaluator": "policy.eval.evaluator",
    "buffer": "policy.other.replay_buffer",
}


def compile_config(
    cfg: Mapping[str, Any],
    env_manager: type | None = None,
    policy: type | None = None,
    learner: type | None = None,
    collector: type | None = None,
    evaluator: type | None = None,
    buffer: type | None = None,
    *,
    create_cfg: Mapping[str, Any] | None = None,
    system_cfg: Mapping[str, Any] | None = None,
    seed: int | None = None,
    mode: Literal["serial", "parallel"] = "serial",
    save_path: str | Path | None = None,
) -> EasyDict:
    """Merge a config with the defaults of the classes it selects, and check all of it.

    The user's values win over those of the policy, which win over those of the component
    classes. Compiling a compiled config gives it back unchanged.

    Args:
        cfg: One dict of dingsdk's sections, or DI-engine's main config when ``create_cfg``
            is given or ``cfg`` itself holds ``main`` and ``create``.
        env_manager: Class whose defaults to use in place of the registry's; likewise
            ``policy``, ``learner``, ``collector``, ``evaluator`` and ``buffer``.
        create_cfg: DI-engine's create config.
        system_cfg: DI-engine's system config.
        seed: Replaces ``cfg["seed"]``.
        mode: In serial mode the transport's plugin need not be installed.
        save_path: Also write the compiled config there.

    Raises:
        UnknownKeyError: a key that nothing reads.
        UnknownPluginError: a type that nothing provides.
        UnknownEnvError: an env id that gymnasium does not know.
        ConfigTypeError: a value of the wrong type or out of range.
        ConfigError: values that cannot work together.
    """
    given = {
        "env_manager": env_manager,
        "policy": policy,
        "learner": learner,
        "collector": collector,
        "evaluator": evaluator,
        "buffer": buffer,
    }
    classes = {_CLASS_PATHS[name]: cls for name, cls in given.items() if cls is not None}
    if create_cfg is not None:
        cfg = {"main": cfg, "create": create_cfg, "system": system_cfg or {}}
    user = rename_aliases(convert_reference_shape(cfg))
    if seed is not None:
        user["seed"] = seed

    policy_cls, defaults, open_paths = _gather_defaults(user, classes, mode)
    check_known_keys(_without(user, "cfg_type"), defaults, open_paths=open_paths)
    merged = deep_merge_dicts(defaults, check_types(user, defaults, "", open_paths))
    compiled = _without(merged, "cfg_type")
    to_record(compiled, RunConfig)
    check_ranges(compiled)
    check_capacity(compiled)
    _derive(compiled)
    fill_model_shapes(policy_cls, compiled["policy"], compiled["env"])
    result = to_easydict(compiled)
    if save_path is not None:
        save_config(compiled, save_path)
    return result


def compile_config_parallel(
    cfg: Mapping[str, Any],
    create_cfg: Mapping[str, Any] | None = None,
    system_cfg: Mapping[str, Any] | None = None,
    seed: int | None = None,
    save_path: str | Path | None = None,
) -> EasyDict:
    """Compile for parallel mode, split as a coordinator takes it.

    Returns:
        ``{"main": the compiled config without system, "system": ..., "seed": ...}``. Unlike
        the reference, no hosts and ports are handed out: workers dial the master.

    Raises:
        ConfigError: as ``compile_config``.
    """
    compiled = compile_config(
        cfg,
        create_cfg=create_cfg,
        system_cfg=system_cfg,
        seed=seed,
        mode="parallel",
        save_path=save_path,
    )
    main = {key: value for key, value in compiled.items() if key != "system"}
    return to_easydict({"main": main, "system": compiled.system, "seed": compiled.seed})


def _gather_defaults(
    user: Mapping[str, Any], classes: Mapping[str, type], mode: str
) -> tuple[Any, dict[str, Any], frozenset[str]]:
    """Return the policy class, the defaults of every section, and the free-form sections."""
    defaults = defaults_of(RunConfig)
    defaults["env"] = defaults_of(EnvSection)
    defaults["system"] = defaults_of(SystemSection)
    defaults["system"]["coordinator"] = _without(Coordinator.default_config(), "cfg_type")
    open_paths = set(_FREE_SECTIONS)

    section = section_of(user, "policy")
    if not section:
        raise ConfigError(
            "the section policy is missing: name a policy, as in policy: {type: dqn}", path="policy"
        )
    if not section_of(user, "env").get("env_id"):
        raise ConfigError(
            "env.env_id is missing: name an environment, as in env: {env_id: CartPole-v1}",
            path="env.env_id",
        )
    own = classes.get("policy")
    policy_type = type_of(section, getattr(own, "__name__", None), "policy")
    cls = own or default_manager().get(
        "policies", policy_type, section.get("import_names") or (), "policy"
    )
    defaults["policy"] = defaults_of_class(cls, policy_type)
    if not has_defaults(cls):
        open_paths.add("policy")
    if not defaults["policy"].get("model"):
        open_paths.add("policy.model")

    roles = (
        Component(f"system.roles.{name}", "roles", name, parallel_only=True)
        for name in section_of(user, "system.roles")
    )
    for part in (*COMPONENTS, *roles):
        own = classes.get(part.path)
        try:
            found, is_open = _component_defaults(user, defaults, part, own)
        except UnknownPluginError:
            if mode == "parallel" or not part.parallel_only:
                raise
            _log.info("%s is not installed; serial mode does without it", part.path)
            open_paths.add(part.path)
            continue
        _put_below(defaults, part.path, found)
        open_paths |= is_open
    return cls, defaults, frozenset(open_paths)


def _component_defaults(
    user: Mapping[str, Any], defaults: Mapping[str, Any], part: Component, own: type | None
) -> tuple[dict[str, Any], set[str]]:
    section, preset = section_of(user, part.path), section_of(defaults, part.path)
    default_type = part.default_type or defaults["system"]["transport"]["type"]
    type_key = type_of(section, preset.get("type") or default_type, part.path)
    cls = own or default_manager().get(
        part.kind, type_key, section.get("import_names") or (), part.path
    )
    found = defaults_of_class(cls, type_key)
    is_open = set() if has_defaults(cls) else {part.path}
    for key, kind in NESTED.items():
        asked, default = section.get(key), found.get(key)
        if not isinstance(asked, Mapping) or not isinstance(default, Mapping):
            continue
        path = f"{part.path}.{key}"
        nested_type = type_of(asked, default.get("type"), path)
        if nested_type == default.get("type"):
            continue
        nested = default_manager().get(kind, nested_type, asked.get("import_names") or (), path)
        found[key] = defaults_of_class(nested, nested_type)
        if not has_defaults(nested):
            is_open.add(path)
    return found, is_open


def _put_below(defaults: dict[str, Any], path: str, found: dict[str, Any]) -> None:
    """Put component defaults below those that the policy states for the same section."""
    preset = section_of(defaults, path)
    if preset.get("type") not in (None, found["type"]):
        # The policy's values belong to the type that it prefers, not to the one asked for.
        preset = {key: value for key, value in preset.items() if key in found and key != "type"}
    *parents, last = path.split(".")
    target = defaults
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = deep_merge_dicts(found, preset)


def _derive(cfg: dict[str, Any]) -> None:
    """Fill what follows from other values."""
    env = cfg["env"]
    episodes, envs = env["n_evaluator_episode"], env["evaluator_env_num"]
    if episodes < envs:
        raise ConfigError(
            f"env.n_evaluator_episode is {episodes}, less than env.evaluator_env_num {envs}: "
            "every env plays at least one episode; raise the first or lower the second",
            path="env.n_evaluator_episode",
        )
    set_section(
        cfg,
        "policy.eval.evaluator",
        {"stop_value": env["stop_value"], "n_episode": episodes},
    )
    unroll_len = cfg["policy"].get("unroll_len")
    if unroll_len is not None and "unroll_len" in cfg["policy"].get("collect", {}):
        cfg["policy"]["collect"]["unroll_len"] = unroll_len


def _without(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    return value
