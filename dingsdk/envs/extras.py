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
        name: As in pyproject.toml.
        module: What it installs.
    """

    name: str
    module: str

    @property
    def is_installed(self) -> bool:
        """Whether the module can be imported; it is not."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def install(self) -> str:
        """What to type to install it."""
        return install_extra_command(self.name)


_EXTRAS: Mapping[str, Extra] = {
    "ALE": Extra("atari", "ale_py"),
    "ale_py": Extra("atari", "ale_py"),
    "gymnasium.envs.box2d": Extra("box2d", "Box2D"),
    "envpool": Extra("envpool", "envpool"),
    "gymnasium.envs.mujoco": Extra("mujoco", "mujoco"),
    "pettingzoo": Extra("multiagent", "pettingzoo"),
}
"""Namespace of an env id, module before its colon, or module that gymnasium makes it from."""


def extra_of(env_id: str) -> Extra | None:
    """Return the extra that an env needs, or None; imports nothing of it."""
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
    """Return how to install what an env needs, for an error message; empty where it is there."""
    extra = extra_of(env_id)
    if extra is None or extra.is_installed:
        return ""
    return f". It needs the extra {extra.name!r}: {extra.install}"
