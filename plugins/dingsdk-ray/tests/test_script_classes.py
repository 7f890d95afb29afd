"""Actors cannot import the script of a run, so its classes are rejected before Ray starts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest

from dingsdk import train
from dingsdk.errors import ConfigError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import DQNPolicy
from dingsdk.runtime.spawn import is_importable


def make_env() -> Any:
    return gym.make("CartPole-v1")


@pytest.mark.parametrize("name", ["policy", "env"])
def test_class_of_the_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    script: Any = ModuleType("__main__")
    script.__file__ = __file__
    script.Own = type("Own", (DQNPolicy,), {"__module__": "__main__"})
    script.make_env = make_env
    monkeypatch.setattr(make_env, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    own = {"policy": script.Own, "env": make_env}[name]
    assert is_importable(own)
    with use_manager(PluginManager()), pytest.raises(ConfigError, match="not the script") as caught:
        train("cartpole-dqn", "parallel", "ray", output=tmp_path, **{name: own})
    assert caught.value.path == name
    assert list(tmp_path.iterdir()) == []
