"""The state of single envs and of gymnasium's vector envs, as plain data.

An env can be saved if it has ``get_state()`` and ``set_state(state)``, or if all that it and its
wrappers keep is plain data: numbers, text, arrays, random generators, and containers of them.
gymnasium's classic control and toy text are of that kind, and so are envs of MuJoCo and ALE, whose
simulators ``simulators`` can save. An env that keeps its state in another library, such as Box2D,
needs the two methods.
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
from dingsdk.envs.simulators import adapter_of, is_constant
from dingsdk.errors import CheckpointCorruptError, NotSavableError

_CONSTANT = (
    gym.Space,
    EnvSpec,
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
_SIMULATOR, _MEMBER = "@simulator", "@member"


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
    found: dict[str, Any] = {}
    for key, value in vars(owner).items():
        if key == "metadata" or key in skipped:
            continue
        if adapter := adapter_of(value):
            if isinstance(owner, gym.Wrapper):
                continue  # it is the env's
            if getattr(owner, "continuous", False):
                raise NotSavableError(
                    f"{name} has continuous actions, one of which its emulator may repeat",
                    path=f"{name}.{key}",
                    found="continuous",
                )
            found[key] = {_SIMULATOR: adapter.get(value)}
        elif isinstance(value, enum.Enum):
            found[key] = {_MEMBER: value.name}
        elif not isinstance(value, _CONSTANT) and not is_constant(value):
            found[key] = capture(value, f"{name}.{key}")
    return found


def set_attributes(owner: Any, state: Mapping[str, Any]) -> None:
    """Take over what ``attributes_of`` returned.

    Raises:
        CheckpointCorruptError: it is of another object.
    """
    for key, value in state.items():
        tag = next(iter(value), None) if isinstance(value, dict) else None
        now = getattr(owner, key, None)
        if tag == _SIMULATOR and (adapter := adapter_of(now)):
            adapter.set(now, value[_SIMULATOR])
        elif tag == _MEMBER and value[_MEMBER] in (kinds := getattr(type(now), "__members__", {})):
            setattr(owner, key, kinds[value[_MEMBER]])
        elif tag in (_SIMULATOR, _MEMBER):
            raise CheckpointCorruptError(
                f"the saved {key} of {type(owner).__name__} is no {type(now).__name__}"
            )
        else:
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
