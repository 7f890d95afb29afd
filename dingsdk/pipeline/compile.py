"""Compiles a user's config: defaults below it, every key and value checked."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from easydict import EasyDict

from dingsdk.config import PartSection, complete, save_config, to_easydict
from dingsdk.errors import ConfigError, UnknownPluginError
from dingsdk.pipeline.di_engine import convert_reference_shape, rename_all_aliases
from dingsdk.pipeline.sections import SECTION_BASES, RunSection
from dingsdk.plugins import default_manager

_log = logging.getLogger(__name__)

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
        env_manager: Class whose section to use in place of the registry's; likewise
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

    compiled = complete(RunSection, user, find, bases=SECTION_BASES)
    _derive(compiled)
    _check_capacity(compiled["policy"])
    _check_device(compiled["policy"])
    _try_env(compiled, found)
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
    if policy["unroll_len"] is not None:
        policy["collect"]["unroll_len"] = policy["unroll_len"]


def _check_capacity(policy: Mapping[str, Any]) -> None:
    """Check that the replay buffer can hold one batch, and what one collect gives.

    Raises:
        ConfigError: it cannot, so that the run would wait for ever, or drop what it collects.
    """
    if policy["on_policy"]:
        return  # it trains on what a collect gave, without a buffer
    path = "policy.other.replay_buffer.replay_buffer_size"
    capacity = policy["other"]["replay_buffer"].get("replay_buffer_size")
    for section, key, outcome in (
        ("learn", "batch_size", "no batch could ever be sampled"),
        ("collect", "n_sample", "part of each collect would be dropped at once"),
    ):
        needed = policy[section][key]
        if needed is not None and capacity is not None and capacity < needed:
            raise ConfigError(
                f"{path} is {capacity}, less than policy.{section}.{key} {needed}: "
                f"{outcome}; raise the first or lower the second",
                path=path,
                capacity=capacity,
                needed=needed,
            )


def _try_env(compiled: dict[str, Any], classes: Mapping[str, Any]) -> None:
    """Make one env and close it again, and check against it what depends on it.

    Args:
        compiled: The compiled config; the None values of ``policy.model`` are filled in place.
        classes: The classes of the parts by config path.

    Raises:
        ConfigError: a stated shape is not the env's, the policy cannot use its spaces, or it
            cannot be rendered as ``policy.eval.evaluator.render`` asks.
        UnknownEnvError: gymnasium does not know the env, or cannot make it.
    """
    from dingsdk.envs import EnvFn

    env = compiled["env"]
    made = EnvFn(env)()
    try:
        read = getattr(classes["policy"], "model_from_spaces", None)
        shapes = {} if read is None else read(made.observation_space, made.action_space)
        render_mode = made.render_mode
    finally:
        made.close()
    _fill_model(compiled["policy"]["model"], shapes, env["env_id"])
    render = compiled["policy"]["eval"]["evaluator"].get("render") or {}
    if render.get("render_freq", -1) != -1:
        _check_rendering(classes["env_manager"], render_mode)


def _fill_model(model: dict[str, Any], shapes: Mapping[str, Any], env_id: str) -> None:
    for key, found in shapes.items():
        stated = model.get(key)
        if stated is None:
            model[key] = found
        elif _as_list(stated) != _as_list(found):
            path = f"policy.model.{key}"
            raise ConfigError(
                f"{path} is {stated}, but {env_id} has {found}; leave the key out to have it "
                "read from the env",
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


def _check_device(policy: Mapping[str, Any]) -> None:
    """Check that the GPU that a policy asks for is there."""
    if not policy["cuda"]:
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false",
            path="policy.cuda",
        )


def _as_list(shape: Any) -> list[Any]:
    return list(shape) if isinstance(shape, list | tuple) else [shape]


def _without(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    return value
