"""Functions that a config names as ``module:function``."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.envs import factory
from dingsdk.plugins.user_functions import find_function, why_refused


def plain(**kwargs: Any) -> None:
    """A function of the user, as this module is neither installed nor of Python."""


bound = functools.partial(plain, size=3)


def test_function_of_a_module_is_found() -> None:
    assert find_function(f"{__name__}:plain") == (plain, "")


@pytest.mark.parametrize(
    "name",
    [
        "subprocess:Popen",
        "subprocess:run",
        "os:system",
        "os:makedirs",
        "pathlib:Path",
        "_frozen_importlib:_gcd_import",
        "functools:partial",
        "numpy:save",
        "torch.hub:load",
        "gymnasium:register",
        "dingsdk.config:save_config",
        "dingsdk_ray.cluster:connect",
        "pytest:main",
        f"{__name__}:np.save",
    ],
)
def test_callable_that_is_not_made_for_a_config_is_refused(name: str) -> None:
    module, _, attribute = name.rpartition(":")
    found: Any = pytest.importorskip(module)
    for each in attribute.split("."):
        found = getattr(found, each)
    for is_env in (False, True):
        why = why_refused(found, name, is_env=is_env)
        assert "@dingsdk.envs.factory" in why
        assert ("not known to be an env," in why) is is_env


def test_accepted_are_the_users_functions_and_marked_annotated_or_conventional_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "acme_games.py").write_text(
        "from __future__ import annotations\n"
        "import functools\n"
        "import gymnasium as gym\n"
        "import dingsdk.envs\n"
        "class Game(gym.Env): pass\n"
        "class Duck:\n"
        "    def reset(self): ...\n"
        "    def step(self, action): ...\n"
        "def annotated(**kwargs) -> gym.Env[int, int]: ...\n"
        "def env(**kwargs): ...\n"
        "@dingsdk.envs.factory\n"
        "def marked(**kwargs): ...\n"
        "def other(**kwargs) -> int: ...\n"
        "bound = functools.partial(env)\n"
    )
    monkeypatch.syspath_prepend(package)
    games = importlib.import_module("acme_games")

    def takes(name: str, is_env: bool) -> bool:
        return not why_refused(getattr(games, name), f"acme_games:{name}", is_env=is_env)

    names = ["Game", "Duck", "annotated", "env", "marked", "other", "bound"]
    assert [name for name in names if takes(name, True)] == names[:5]
    assert [name for name in names if takes(name, False)] == ["annotated", "marked"]
    for own in (plain, bound):
        assert why_refused(own, f"{__name__}:x") == ""
    assert why_refused(np.save, f"{__name__}:x") != ""
    assert why_refused(factory(functools.cache(plain)), f"{__name__}:x") == ""
    assert why_refused(gym.Env, "gymnasium:Env") != ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dumps", "no module:function"),
        ("json:dumpz", "json has no function 'dumpz'"),
        ("json:__name__", "json has no function '__name__'"),
        ("no_such_module:f", "its import raised ModuleNotFoundError"),
    ],
)
def test_error_says_why_a_name_is_no_function(name: str, why: str) -> None:
    found, text = find_function(name)
    assert found is None
    assert text.startswith(why)


@pytest.mark.parametrize("raised", ["RuntimeError", "SystemExit"])
def test_failed_import_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    (tmp_path / "fails_at_import.py").write_text(f"x = 1\nraise {raised}('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found, text = find_function("fails_at_import:f")
    assert found is None
    assert text.endswith("fails_at_import.py, line 2)")
