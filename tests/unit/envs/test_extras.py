"""Which extra an env needs is known without importing it, and named where it is missing."""

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
def test_env_of_an_extra_is_known(env_id: str, extra: Extra) -> None:
    assert extra_of(env_id) == extra


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Absent-v1", "my_module:Pong", "ale_python:Env", "mine:ALE"]
)
def test_other_envs_need_none(env_id: str) -> None:
    assert extra_of(env_id) is None
    assert missing_extra_hint(env_id) == ""


def test_module_tells_whether_an_extra_is_installed() -> None:
    assert Extra("any", "json").is_installed
    assert not Extra("any", "no_such_module").is_installed


def test_missing_extra_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UnknownEnvError) as raised:
        EnvFn({"env_id": "ale_py:ALE/Pong-v5"})()
    command = re.escape(install_extra_command("atari"))
    assert re.search(rf"It needs the extra 'atari': {command}", str(raised.value))


def test_install_command_names_a_checkout_or_a_clone(tmp_path: Path) -> None:
    assert install_extra_command("box2d") == f"pip install '{ROOT}[box2d]'"
    expected = "pip install '.[box2d]', in a clone of the dingsdk repository"
    assert install_extra_command("box2d", tmp_path) == expected
