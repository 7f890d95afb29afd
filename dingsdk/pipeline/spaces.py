"""Reads the spaces of the configured environment, once, to size the networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.errors import ConfigError


def fill_model_shapes(policy_cls: Any, policy: dict[str, Any], env: Mapping[str, Any]) -> None:
    """Fill the None values of ``policy["model"]`` from the env's spaces.

    A policy class that can be sized has ``model_from_spaces(observation_space, action_space)
    -> dict``, a static method; any other must be given its whole ``model`` section.

    Args:
        policy_cls: The class.
        policy: Compiled ``policy`` section, edited in place.
        env: Compiled ``env`` section. One env is made and closed again, for any policy:
            what is wrong with it shows before the run starts.

    Raises:
        ConfigError: a shape that the config states and that is not the env's, or a space
            that the policy cannot use.
        UnknownEnvError: gymnasium does not know the env, or cannot make it.
    """
    from dingsdk.envs import EnvFn

    made = EnvFn(env)()
    try:
        read = getattr(policy_cls, "model_from_spaces", None)
        if read is None:
            return
        shapes = read(made.observation_space, made.action_space)
    finally:
        made.close()
    model = policy["model"]
    for key, found in shapes.items():
        stated = model.get(key)
        if stated is None:
            model[key] = found
        elif _as_list(stated) != _as_list(found):
            path = f"policy.model.{key}"
            raise ConfigError(
                f"{path} is {stated}, but {env['env_id']} has {found}; leave the key out to "
                "have it read from the env",
                path=path,
                stated=stated,
                found=found,
            )


def _as_list(shape: Any) -> list[Any]:
    return list(shape) if isinstance(shape, list | tuple) else [shape]
