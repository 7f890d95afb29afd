"""The extra that an env needs is found without importing it. Errors name a missing extra."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dingsdk.envs import EnvFn
from dingsdk.envs.extras import Extra, extra_of, missing_extra_hint
from dingsdk.errors import UnknownEnvError
from dingsdk.plugins.discovery import install_extra_command

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("env_id", "extra"),
    [
        ("LunarLander-v3", Extra("box2d", "Box2D")),
        ("BipedalWalker-v3", Extra("box2d", "Box2D")),
        ("Hopper-v5", Extra("mujoco", "mujoco")),
        ("envpool:Pong-v5", Extra("envpool", "envpool")),
        ("ALE/Pong-v5", Extra("atari", "ale_py")),
        ("ALE/NoSuchGame-v9", Extra("atari", "ale_py")),
        ("ale_py:ALE/Pong-v5", Extra("atari", "ale_py")),
        ("ale_py.env:AtariEnv", Extra("atari", "ale_py")),
        ("pettingzoo.classic.tictactoe_v3:env", Extra("multiagent", "pettingzoo")),
    ],
)
def test_extra_of_an_env_is_found(env_id: str, extra: Extra) -> None:
    assert extra_of(env_id) == extra


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Absent-v1", "my_module:Pong", "ale_python:Env", "mine:ALE"]
)
def test_other_envs_need_no_extra(env_id: str) -> None:
    assert extra_of(env_id) is None
    assert missing_extra_hint(env_id) == ""


def test_extra_is_installed_if_its_module_is_found() -> None:
    assert Extra("any", "json").is_installed
    assert not Extra("any", "no_such_module").is_installed


def test_error_names_a_missing_extra_and_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UnknownEnvError) as raised:
        EnvFn({"env_id": "ale_py:ALE/Pong-v5"})()
    command = re.escape(install_extra_command("atari"))
    assert re.search(rf"It needs the extra 'atari': {command}", str(raised.value))


def test_install_command_names_a_checkout_or_a_clone(tmp_path: Path) -> None:
    assert install_extra_command("box2d") == f"pip install '{ROOT}[box2d]'"
    expected = "pip install '.[box2d]', in a clone of the dingsdk repository"
    assert install_extra_command("box2d", tmp_path) == expected
