"""The state of simulators that keep it in a library: MuJoCo and the Arcade Learning Environment.

An adapter is chosen by the type of what an env keeps; no simulator is imported for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dingsdk.data.capture import capture, revive
from dingsdk.errors import CheckpointCorruptError, NotSavableError


class Adapter(Protocol):
    """Saves and restores a simulator's state, in place."""

    def get(self, simulator: Any) -> dict[str, Any]:
        """Return all that decides what it does next, as plain data."""

    def set(self, simulator: Any, state: Mapping[str, Any]) -> None:
        """Go on from such a state; raises CheckpointCorruptError where it is of another one."""


class _MujocoData:
    """All arrays of an ``MjData``.

    The physical state would not do: a step ends with positions of the moment after it, and
    forces, velocities and inertias of the moment before it, which envs observe.
    """

    def get(self, simulator: Any) -> dict[str, Any]:
        if simulator.model.nplugin:
            raise NotSavableError(
                "a MuJoCo model with plugins keeps state in them, which cannot be saved",
                path="MjData",
                found="plugins",
            )
        return {"time": simulator.time, "arrays": capture(_arrays(simulator))}

    def set(self, simulator: Any, state: Mapping[str, Any]) -> None:
        import mujoco

        saved = revive(state["arrays"])
        mujoco.mj_resetData(simulator.model, simulator)
        for name, array in _arrays(simulator).items():
            # Contacts and constraints, which a step begins with, have no rows after the reset.
            if not array.size:
                continue
            if name not in saved or saved[name].shape != array.shape:
                raise CheckpointCorruptError(
                    f"the saved env has another MuJoCo model: {name} has the shape "
                    f"{list(array.shape)} here, {list(np.shape(saved.get(name)))} there"
                )
            array[...] = saved[name]
        simulator.time = state["time"]


class _AtariEmulator:
    """The emulator of an ALE env, with its random numbers and its sticky action.

    A sticky action is the one that the emulator may repeat in the next frame
    (``repeat_action_probability``). It tells nobody which one that is, and its state does not
    hold it, so it is found out by what the next frames are after each action.
    """

    def get(self, simulator: Any) -> dict[str, Any]:
        if simulator.getBool("sound_obs"):
            raise NotSavableError(
                "an emulator with sound_obs keeps sound that its state does not hold",
                path="ALEInterface",
                found="sound_obs",
            )
        state = simulator.cloneState(include_rng=True)
        return {
            "emulator": np.frombuffer(state.serialize(), np.uint8),
            "action": _find_sticky_action(simulator, state),
        }

    def set(self, simulator: Any, state: Mapping[str, Any]) -> None:
        import ale_py

        try:
            emulator = ale_py.ALEState(state["emulator"].tobytes())
            simulator.restoreState(emulator)
        except (SystemError, RuntimeError, ValueError) as error:
            raise CheckpointCorruptError(
                f"the saved state is of another game, or of another ale_py: {error}"
            ) from error
        _set_sticky_action(simulator, emulator, state["action"])


_NOOP = 0


def _find_sticky_action(simulator: Any, state: Any) -> int:
    """Return the action that may be repeated, or one that makes no difference from here on."""
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
    """Bring the emulator to a state, with an action that it may repeat."""
    now = simulator.cloneState(include_rng=False)
    for _ in range(_sticky_frames(simulator)):
        # From a state in which an action is taken, and with other random numbers each time.
        simulator.restoreState(now)
        simulator.act(action)
    simulator.restoreState(state)


def _next_frames(simulator: Any, state: Any) -> list[tuple[int, bytes]]:
    """Play until the action before has surely been forgotten; return what happened."""
    frames = []
    for _ in range(_sticky_frames(simulator)):
        reward = simulator.act(_NOOP)
        frames.append((reward, simulator.cloneState(include_rng=True).serialize()))
    simulator.restoreState(state)
    return frames


def _sticky_frames(simulator: Any) -> int:
    """Return in how many frames an action is repeated throughout with a probability of 1e-12."""
    repeated = simulator.getFloat("repeat_action_probability")
    return math.ceil(-12 / math.log10(repeated)) if 0 < repeated < 1 else 0


_ADAPTERS: Mapping[tuple[str, str], Adapter] = {
    ("mujoco", "MjData"): _MujocoData(),
    ("ale_py", "ALEInterface"): _AtariEmulator(),
}
_CONSTANT = {("mujoco", "MjModel"), ("gymnasium", "MujocoRenderer"), ("ale_py", "Action")}


def adapter_of(value: Any) -> Adapter | None:
    """Return what saves a simulator of this type, None for other values."""
    return _ADAPTERS.get(_key(value))


def is_constant(value: Any) -> bool:
    """Whether it, or all of a list, belongs to a simulator and does not change."""
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(_key(each) in _CONSTANT for each in values)


def _key(value: Any) -> tuple[str, str]:
    kind = type(value)
    return kind.__module__.partition(".")[0], kind.__qualname__


def _arrays(data: Any) -> dict[str, np.ndarray[Any, Any]]:
    found = {name: getattr(data, name) for name in dir(data) if not name.startswith("_")}
    return {name: each for name, each in found.items() if isinstance(each, np.ndarray)}
