"""Which extra of dingsdk an env needs, and how to install it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import NamedTuple

import gymnasium as gym

from dingsdk.plugins.discovery import install_extra_command


class Extra(NamedTuple):
    """An extra that an env needs.

    Attributes:
        name: Name of the extra in pyproject.toml.
        module: Module that it installs.
    """

    name: str
    module: str

    @property
    def is_installed(self) -> bool:
        """Whether the module can be imported; does not import it."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def install(self) -> str:
        """The command that installs it."""
        return install_extra_command(self.name)


_EXTRAS: Mapping[str, Extra] = {
    "ALE": Extra("atari", "ale_py"),
    "ale_py": Extra("atari", "ale_py"),
    "gymnasium.envs.box2d": Extra("box2d", "Box2D"),
    "envpool": Extra("envpool", "envpool"),
    "gymnasium.envs.mujoco": Extra("mujoco", "mujoco"),
    "pettingzoo": Extra("multiagent", "pettingzoo"),
}
"""The keys are a namespace of env ids, the module before their colon, or the module of gymnasium's
entry point."""


def extra_of(env_id: str) -> Extra | None:
    """Return the extra that an env needs, or None; does not import it."""
    module, _, name = env_id.rpartition(":")
    spec = None if module else gym.registry.get(name)
    entry = spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else ""
    namespace = name.rpartition("/")[0]
    return next(
        (
            extra
            for start, extra in _EXTRAS.items()
            if start == namespace or f"{module or entry}.".startswith((f"{start}.", f"{start}:"))
        ),
        None,
    )


def missing_extra_hint(env_id: str) -> str:
    """Return how to install a missing extra of an env, for an error message; else an empty text."""
    extra = extra_of(env_id)
    if extra is None or extra.is_installed:
        return ""
    return f". It needs the extra {extra.name!r}: {extra.install}"
