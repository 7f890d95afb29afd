"""Envs are made from config sections. Errors say why that fails."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from dingsdk.envs import EnvFn, create_env_manager, get_vec_env_setting, make_env_fns
from dingsdk.errors import (
    ConfigError,
    ConfigTypeError,
    EnvError,
    UnknownEnvError,
    UnknownKeyError,
    UnknownPluginError,
)


def test_env_fn_is_picklable_and_makes_equal_envs() -> None:
    env_fn = EnvFn({"env_id": "CartPole-v1", "kwargs": {"max_episode_steps": 7}, "seed": 1})
    again = pickle.loads(pickle.dumps(env_fn))  # noqa: S301 - async mode does the same
    assert again == env_fn
    assert len({again, env_fn, EnvFn({"env_id": "CartPole-v1"})}) == 2
    env: Any = again()
    env.reset(seed=0)
    assert sum(1 for _ in iter(lambda: env.step(0)[3] or env.step(1)[3], True)) == 3
    env.close()


def test_make_env_fns_makes_as_many_as_asked() -> None:
    assert len(make_env_fns({"env_id": "CartPole-v1"}, 3)) == 3
    with pytest.raises(ConfigError, match="at least 1"):
        make_env_fns({"env_id": "CartPole-v1"}, 0)


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("qqqqqq", None),
        ("qzqz/Xyzw-v5", None),
    ],
)
def test_unknown_env_id_names_the_nearest(asked: str, nearest: str | None) -> None:
    with pytest.raises(UnknownEnvError) as caught:
        make_env_fns({"env_id": asked}, 1)
    assert (caught.value.env_id, caught.value.nearest) == (asked, nearest)
    assert caught.value.path == "env.env_id"
    hint = "installed the proper package for qzqz"  # of gymnasium
    assert (hint in str(caught.value)) == ("/" in asked)


def test_error_for_an_unregistered_atari_env_names_the_extra_and_the_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another test of the same process may have imported the package.
    for env_id in [each for each in gym.registry if each.startswith("ALE/")]:
        monkeypatch.delitem(gym.registry, env_id)
    with pytest.raises(UnknownEnvError, match=r"pip install .*\[atari\]") as caught:
        make_env_fns({"env_id": "ALE/Pong-v5"}, 1)

    assert caught.value.nearest == "ale_py:ALE/Pong-v5"


def test_vec_env_setting_gives_the_configured_numbers_of_envs() -> None:
    cfg = {"env_id": "CartPole-v1", "collector_env_num": 3, "evaluator_env_num": 2}

    env_fn, collector_cfgs, evaluator_cfgs = get_vec_env_setting(cfg)
    manager = create_env_manager(
        {"type": "in_process"}, [partial(env_fn, cfg=each) for each in collector_cfgs]
    )
    manager.launch()

    assert len(manager.ready_obs) == len(collector_cfgs) == 3
    assert len(evaluator_cfgs) == 2
    assert get_vec_env_setting(cfg, eval_=False)[2] == []
    manager.close()


def test_missing_package_error_includes_the_hint_of_gymnasium() -> None:
    def entry_point(**_: Any) -> None:
        raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[tiny]"`')

    gym.register("Tiny/Extra-v0", entry_point=entry_point)
    text = r"Tiny/Extra-v0.* is known but cannot be made: .*pip install .gymnasium\[tiny\]"
    with pytest.raises(UnknownEnvError, match=text):
        EnvFn({"env_id": "Tiny/Extra-v0"})()


def test_error_names_a_module_that_cannot_be_imported() -> None:
    with pytest.raises(UnknownEnvError, match="'no_such_module'"):
        make_env_fns({"env_id": "no_such_module:Env-v0"}, 1)


def test_error_names_the_line_at_which_a_module_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_envs.py").write_text("import gymnasium\n\ngymnasium.regster()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownEnvError, match=r"AttributeError.*regster.*broken_envs\.py, line 3"):
        make_env_fns({"env_id": "broken_envs:Env-v0"}, 1)


@pytest.mark.parametrize(
    ("cause", "kwargs", "error"),
    [
        (RuntimeError("no display"), {}, EnvError),
        # No kwargs were given, so they are not the cause.
        (TypeError("object of type 'int' has no len()"), {}, EnvError),
        (TypeError("unexpected keyword argument 'size'"), {"size": 3}, ConfigError),
    ],
)
def test_error_names_an_env_whose_constructor_raises(
    cause: Exception, kwargs: dict[str, Any], error: type[Exception]
) -> None:
    def entry_point(**_: Any) -> None:
        raise cause

    gym.register("Tiny/Raising-v0", entry_point=entry_point)
    text = f"Tiny/Raising-v0 cannot be made.*{re.escape(str(cause))}"
    with pytest.raises(error, match=text) as caught:
        EnvFn({"env_id": "Tiny/Raising-v0", "kwargs": kwargs})()
    if isinstance(caught.value, EnvError):
        assert (caught.value.env_id, caught.value.failures) == ("Tiny/Raising-v0", 1)


def test_module_of_an_env_id_is_imported_first(tmp_path: Path) -> None:
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Own-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    script = (
        "from dingsdk.envs import make_env_fns\n"
        "env = make_env_fns({'env_id': 'own_envs:Own-v0'}, 1)[0]()\n"
        "assert env.spec.id == 'Own-v0', env.spec\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": str(tmp_path)})


@pytest.mark.parametrize("mode", ["sync", "native"])
@pytest.mark.parametrize("name", ["gravitee", "self", "maker", "spec", "id", "num_envs"])
def test_kwargs_that_the_env_does_not_take_are_a_config_error(mode: str, name: str) -> None:
    env_fns = make_env_fns({"env_id": "CartPole-v1", "kwargs": {name: 1}}, 2)
    manager = create_env_manager({"type": "vector", "vectorization_mode": mode}, env_fns)
    with pytest.raises(ConfigError, match=name) as caught:
        manager.launch()
    assert caught.value.path == "env.kwargs"
    assert manager.closed


@pytest.mark.parametrize(
    ("env_cfg", "path", "error"),
    [
        ({}, "env.env_id", ConfigError),
        ({"env_id": 3}, "env.env_id", ConfigTypeError),
        ({"env_id": "CartPole-v1", "kwargs": [1]}, "env.kwargs", ConfigTypeError),
        ({"env_id": "CartPole-v1", "wrappers": [3]}, "env.wrappers[0]", ConfigTypeError),
        ({"env_id": "CartPole-v1", "wrappers": [{"limit": 3}]}, "env.wrappers", ConfigError),
    ],
)
def test_section_of_the_wrong_form_is_refused(
    env_cfg: dict[str, Any], path: str, error: type[ConfigError]
) -> None:
    with pytest.raises(error) as caught:
        make_env_fns(env_cfg, 1)
    assert caught.value.path == path


def test_wrappers_are_applied_from_the_inside_out() -> None:
    wrappers = [{"type": "TimeLimit", "max_episode_steps": 4}, "RecordEpisodeStatistics"]
    env: Any = EnvFn({"env_id": "CartPole-v1", "wrappers": wrappers})()
    assert isinstance(env, gym.wrappers.RecordEpisodeStatistics)
    assert isinstance(env.env, gym.wrappers.TimeLimit)
    with pytest.raises(ConfigError, match=r"env\.wrappers\[0\]"):
        EnvFn({"env_id": "CartPole-v1", "wrappers": ["TimeLimit"]})()


def test_unknown_manager_types_are_refused() -> None:
    with pytest.raises(UnknownPluginError):
        create_env_manager({"type": "vectr"}, make_env_fns({"env_id": "CartPole-v1"}, 1))
    with pytest.raises(UnknownKeyError):
        create_env_manager({"type": "base", "x": 1}, make_env_fns({"env_id": "CartPole-v1"}, 1))
