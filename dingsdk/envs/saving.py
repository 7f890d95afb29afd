"""The state of single envs and of gymnasium's vector envs, as plain data.

An env can be saved if it has ``get_state()`` and ``set_state(state)``, or if all that it and its
wrappers keep is plain data: numbers, text, arrays, random generators, and containers of them.
gymnasium's classic control and toy text are of that kind; a simulator that keeps its state in a
library (Box2D, MuJoCo, ALE) is not, and needs the two methods.
"""

from __future__ import annotations

import enum
import functools
import logging
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from dingsdk.data.capture import capture, revive
from dingsdk.errors import CheckpointCorruptError, NotSavableError

_CONSTANT = (
    gym.Space,
    EnvSpec,
    enum.Enum,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    pathlib.PurePath,
    logging.Logger,
)
"""What an env is made with, and does not change."""


def env_state(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Return the state of an env and its wrappers.

    Raises:
        NotSavableError: it keeps something else than data, and has no ``get_state``.
    """
    return {"layers": [_layer_state(layer) for layer in _layers(env)]}


def set_env_state(env: gym.Env[Any, Any], state: Mapping[str, Any]) -> None:
    """Take over the state of an env that was made in the same way.

    Raises:
        CheckpointCorruptError: it is the state of another env.
    """
    layers, saved = _layers(env), state["layers"]
    if [type(layer).__name__ for layer in layers] != [each["type"] for each in saved]:
        raise CheckpointCorruptError(
            f"the saved env is {' in '.join(each['type'] for each in saved)}, this one is "
            f"{' in '.join(type(layer).__name__ for layer in layers)}"
        )
    for layer, each in zip(layers, saved, strict=True):
        if "own" in each:
            layer.set_state(revive(each["own"]))
        else:
            set_attributes(layer, each["attributes"])


def attributes_of(owner: Any, skipped: Sequence[str] = ()) -> dict[str, Any]:
    """Return what an object keeps but constants, as plain data.

    Raises:
        NotSavableError: an attribute is no data.
    """
    name = type(owner).__name__
    return {
        key: capture(value, f"{name}.{key}")
        for key, value in vars(owner).items()
        if key != "metadata" and key not in skipped and not isinstance(value, _CONSTANT)
    }


def set_attributes(owner: Any, state: Mapping[str, Any]) -> None:
    """Take over what ``attributes_of`` returned."""
    for key, value in state.items():
        setattr(owner, key, revive(value))


def _layers(env: Any) -> list[Any]:
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def _layer_state(layer: Any) -> dict[str, Any]:
    kind = type(layer).__name__
    # Not of a wrapper, which would find the methods of the env in it.
    if not isinstance(layer, gym.Wrapper) and callable(getattr(layer, "get_state", None)):
        if not callable(getattr(layer, "set_state", None)):
            raise NotSavableError(f"{kind} has get_state but no set_state", path=kind, found=kind)
        return {"type": kind, "own": capture(layer.get_state(), f"{kind}.get_state()")}
    return {"type": kind, "attributes": attributes_of(layer, skipped=("env",))}
