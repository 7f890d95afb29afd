"""The state of single envs and of gymnasium's vector envs, as plain data.

An env can be saved if it has ``get_state()`` and ``set_state(state)``, or if all that it and its
wrappers keep is plain data: numbers, text, arrays, random generators, and containers of them.
This is the case for gymnasium's classic control and toy text. The state of MuJoCo and of the Arcade
Learning Environment is saved too. An env that keeps its state in another library, such as Box2D,
needs the two methods.
"""

from __future__ import annotations

import enum
import functools
import logging
import math
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from dingsdk.data.capture import capture
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
"""Types of attributes that an env does not change; they are not saved."""
_SIMULATOR, _MEMBER = "@simulator", "@member"


def env_state(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Return the state of an env and its wrappers.

    Raises:
        NotSavableError: the env has state that is not plain data, and no ``get_state``.
    """
    return {"layers": [_layer_state(layer) for layer in _layers(env)]}


def set_env_state(env: gym.Env[Any, Any], state: Mapping[str, Any]) -> None:
    """Restore the state of an env that was made in the same way.

    Raises:
        CheckpointCorruptError: the state is of another env.
    """
    layers, saved = _layers(env), state["layers"]
    if [type(layer).__name__ for layer in layers] != [each["type"] for each in saved]:
        raise CheckpointCorruptError(
            f"the saved env is {' in '.join(each['type'] for each in saved)}, this one is "
            f"{' in '.join(type(layer).__name__ for layer in layers)}"
        )
    for layer, each in zip(layers, saved, strict=True):
        if "own" in each:
            layer.set_state(capture(each["own"]))
        else:
            set_attributes(layer, each["attributes"])


def attributes_of(owner: Any, skipped: Sequence[str] = ()) -> dict[str, Any]:
    """Return the attributes of an object except constants, as plain data.

    Raises:
        NotSavableError: an attribute is not plain data.
    """
    name = type(owner).__name__
    found: dict[str, Any] = {}
    for key, value in vars(owner).items():
        if key == "metadata" or key in skipped:
            continue
        if functions := _SIMULATORS.get(_key(value)):
            if isinstance(owner, gym.Wrapper):
                continue  # the env inside saves its simulator
            if getattr(owner, "continuous", False):
                raise NotSavableError(
                    f"{name} has continuous actions, one of which its emulator may repeat",
                    path=f"{name}.{key}",
                    found="continuous",
                )
            found[key] = {_SIMULATOR: functions[0](value)}
        elif isinstance(value, enum.Enum):
            found[key] = {_MEMBER: value.name}
        elif not isinstance(value, _CONSTANT) and not _is_of_simulator(value):
            found[key] = capture(value, f"{name}.{key}")
    return found


def set_attributes(owner: Any, state: Mapping[str, Any]) -> None:
    """Set the attributes that ``attributes_of`` returned.

    Raises:
        CheckpointCorruptError: the attributes are those of another object.
    """
    for key, value in state.items():
        tag = next(iter(value), None) if isinstance(value, dict) else None
        now = getattr(owner, key, None)
        if tag == _SIMULATOR and (functions := _SIMULATORS.get(_key(now))):
            functions[1](now, value[_SIMULATOR])
        elif tag == _MEMBER and value[_MEMBER] in (kinds := getattr(type(now), "__members__", {})):
            setattr(owner, key, kinds[value[_MEMBER]])
        elif tag in (_SIMULATOR, _MEMBER):
            raise CheckpointCorruptError(
                f"the saved {key} of {type(owner).__name__} is no {type(now).__name__}"
            )
        else:
            setattr(owner, key, capture(value))


def _layers(env: Any) -> list[Any]:
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def _layer_state(layer: Any) -> dict[str, Any]:
    kind = type(layer).__name__
    # Not for wrappers, where getattr would find the methods of the env inside.
    if not isinstance(layer, gym.Wrapper) and callable(getattr(layer, "get_state", None)):
        if not callable(getattr(layer, "set_state", None)):
            raise NotSavableError(f"{kind} has get_state but no set_state", path=kind, found=kind)
        return {"type": kind, "own": capture(layer.get_state(), f"{kind}.get_state()")}
    return {"type": kind, "attributes": attributes_of(layer, skipped=("env",))}


def _mujoco_state(data: Any) -> dict[str, Any]:
    """Return all arrays of an ``MjData``.

    The physical state is not enough: when a step ends, the positions are those after the step, but
    the forces, velocities and inertias, which envs observe, are those before the step.
    """
    if data.model.nplugin:
        raise NotSavableError(
            "a MuJoCo model with plugins keeps state in them, which cannot be saved",
            path="MjData",
            found="plugins",
        )
    return {"time": data.time, "arrays": capture(_arrays(data))}


def _set_mujoco_state(data: Any, state: Mapping[str, Any]) -> None:
    import mujoco

    saved = state["arrays"]
    mujoco.mj_resetData(data.model, data)
    for name, array in _arrays(data).items():
        # Contacts and constraints have no rows after the reset; each step computes them first.
        if not array.size:
            continue
        if name not in saved or saved[name].shape != array.shape:
            raise CheckpointCorruptError(
                f"the saved env has another MuJoCo model: {name} has the shape "
                f"{list(array.shape)} here, {list(np.shape(saved.get(name)))} there"
            )
        array[...] = saved[name]
    data.time = state["time"]


def _emulator_state(emulator: Any) -> dict[str, Any]:
    """Return the state of an ALE emulator, with its random numbers and its sticky action.

    A sticky action is the one that the emulator may repeat in the next frame
    (``repeat_action_probability``). Neither the emulator's interface nor its state contains it.
    It is found by trying each action and comparing the next frames.
    """
    if emulator.getBool("sound_obs"):
        raise NotSavableError(
            "an emulator with sound_obs keeps sound that its state does not hold",
            path="ALEInterface",
            found="sound_obs",
        )
    state = emulator.cloneState(include_rng=True)
    action = _find_sticky_action(emulator, state)
    return {"emulator": np.frombuffer(state.serialize(), np.uint8), "action": action}


def _set_emulator_state(emulator: Any, state: Mapping[str, Any]) -> None:
    import ale_py

    try:
        saved = ale_py.ALEState(state["emulator"].tobytes())
        emulator.restoreState(saved)
    except (SystemError, RuntimeError, ValueError) as error:
        raise CheckpointCorruptError(
            f"the saved state is of another game, or of another ale_py: {error}"
        ) from error
    _set_sticky_action(emulator, saved, state["action"])


_NOOP = 0


def _find_sticky_action(simulator: Any, state: Any) -> int:
    """Return the action that may be repeated, or one with the same effect on the next frames."""
    if not 0 < simulator.getFloat("repeat_action_probability") < 1:
        return _NOOP
    expected = _next_frames(simulator, state)
    actions: list[int] = [each.value for each in simulator.getLegalActionSet()]
    for action in actions:
        _set_sticky_action(simulator, state, action)
        if _next_frames(simulator, state) == expected:
            _set_sticky_action(simulator, state, action)
            return action
    raise NotSavableError(
        "the sticky action of an emulator was not found", path="ALEInterface", found="an action"
    )


def _set_sticky_action(simulator: Any, state: Any, action: int) -> None:
    """Set the state of the emulator, and the action that it may repeat."""
    now = simulator.cloneState(include_rng=False)
    for _ in range(_sticky_frames(simulator)):
        # Act in a state that accepts actions, with different random numbers each time.
        simulator.restoreState(now)
        simulator.act(action)
    simulator.restoreState(state)


def _next_frames(simulator: Any, state: Any) -> list[tuple[int, bytes]]:
    """Play until the previous action is surely not repeated any more; return all frames."""
    frames = []
    for _ in range(_sticky_frames(simulator)):
        reward = simulator.act(_NOOP)
        frames.append((reward, simulator.cloneState(include_rng=True).serialize()))
    simulator.restoreState(state)
    return frames


def _sticky_frames(simulator: Any) -> int:
    """Return the number of frames that all repeat an action with a probability of at most 1e-12."""
    repeated = simulator.getFloat("repeat_action_probability")
    return math.ceil(-12 / math.log10(repeated)) if 0 < repeated < 1 else 0


def _is_of_simulator(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(_key(each) in _OF_SIMULATORS for each in values)


def _key(value: Any) -> tuple[str, str]:
    kind = type(value)
    return kind.__module__.partition(".")[0], kind.__qualname__


def _arrays(data: Any) -> dict[str, np.ndarray[Any, Any]]:
    found = {name: getattr(data, name) for name in dir(data) if not name.startswith("_")}
    return {name: each for name, each in found.items() if isinstance(each, np.ndarray)}


_SIMULATORS: Mapping[tuple[str, str], tuple[Callable[..., Any], Callable[..., None]]] = {
    ("mujoco", "MjData"): (_mujoco_state, _set_mujoco_state),
    ("ale_py", "ALEInterface"): (_emulator_state, _set_emulator_state),
}
"""The functions that save and restore a simulator in place, by its module and type."""
_OF_SIMULATORS = {("mujoco", "MjModel"), ("gymnasium", "MujocoRenderer"), ("ale_py", "Action")}
"""Types that belong to a simulator and do not change."""
