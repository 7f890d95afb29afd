"""Envs of envpool in the manager ``vector``, compared with envpool without a manager."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

from dingsdk.envs import EnvFn, EnvManager, create_env_manager, make_env_fns
from dingsdk.envs.pooled import PooledEnv
from dingsdk.errors import ConfigError, NotSavableError, UnknownEnvError

CARTPOLE = {"env_id": "envpool:CartPole-v1", "kwargs": {"max_episode_steps": 12}}


def test_error_names_the_missing_envpool_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UnknownEnvError, match=r"needs the extra 'envpool': pip install"):
        EnvFn({"env_id": "envpool:Pong-v5"})()


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:envpool")


@pytest.fixture
def envpool() -> Any:
    return pytest.importorskip("envpool", reason="the extra envpool is not installed")


def launched(cfg: dict[str, Any], n: int = 3, seed: int = 1, **section: Any) -> EnvManager:
    manager = create_env_manager({"type": "vector", **section}, make_env_fns(cfg, n))
    manager.seed(seed)
    manager.launch()
    return manager


def test_steps_and_ends_equal_those_of_envpool(envpool: Any) -> None:
    with launched(CARTPOLE) as manager:
        assert manager.capabilities.reset_takes_step
        vec = manager._vec  # type: ignore[attr-defined]
        for many, one in (
            (vec.observation_space, manager.observation_space),
            (vec.action_space, manager.action_space),
        ):
            assert many == batch_space(one, 3)
        pool = vec._pool
        seeds = pool.config["env_seed"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = envpool.make_gymnasium(
                "CartPole-v1", num_envs=3, env_seed=seeds, max_episode_steps=12
            )
            obs, _ = plain.reset()
        assert manager.current_obs().tolist() == obs.tolist()
        was_over, ends, resets = np.zeros(3, bool), 0, 0
        for actions in np.random.default_rng(0).integers(0, 2, (60, 3)):
            obs, reward, terminated, truncated, _ = plain.step(actions)
            step = manager.step_batch(actions)
            valid = np.ones(3, bool) if step.valid is None else step.valid
            assert valid.tolist() == (~was_over).tolist()
            assert step.obs.tolist() == step.final_obs.tolist() == obs.tolist()
            assert step.reward.tolist() == np.where(was_over, 0, reward).tolist()
            assert step.terminated.tolist() == terminated.tolist()
            assert step.truncated.tolist() == truncated.tolist()
            was_over = terminated | truncated
            ends, resets = ends + truncated.sum(), resets + (~valid).sum()
        assert ends
        assert resets
        plain.close()


@pytest.mark.usefixtures("envpool")
def test_seed_fixes_the_episodes_and_all_envs_differ() -> None:
    starts = []
    for seed in (1, 1, 2):
        with launched(CARTPOLE, seed=seed) as manager:
            starts.append(manager.current_obs().tolist())
            manager.reset()
            again = manager.current_obs().tolist()
    assert starts[0] == starts[1]
    assert len({tuple(row) for row in [*starts[0], *starts[2], *again]}) == 9


@pytest.mark.usefixtures("envpool")
def test_atari_takes_envpool_options() -> None:
    cfg = {
        "env_id": "envpool:Pong-v5",
        "kwargs": {"stack_num": 2, "img_height": 42, "num_threads": 1},
    }
    manager = create_env_manager({"type": "vector"}, make_env_fns(cfg, 2))
    assert manager.observation_space.shape == (2, 42, 84)
    with manager:
        manager.launch()
        assert manager.step_batch(np.zeros(2, np.int64)).obs.shape == (2, 2, 42, 84)


@pytest.mark.usefixtures("envpool")
def test_single_envs_without_a_seed_play_different_episodes() -> None:
    with create_env_manager({"type": "in_process"}, make_env_fns(CARTPOLE, 2)) as manager:
        manager.launch()
        assert manager.current_obs()[0].tolist() != manager.current_obs()[1].tolist()
        steps = [manager.step_batch(np.array([number % 2, 1])) for number in range(12)]
        assert [bool(each.truncated[0]) for each in steps] == [False] * 11 + [True]
        assert [bool(each.terminated[1]) for each in steps].count(True) == 1
        assert all(each.reward.tolist() == [1.0, 1.0] for each in steps)


@pytest.mark.parametrize(
    ("cfg", "error", "text"),
    [
        ({"env_id": "envpool:Pongg-v5"}, UnknownEnvError, "did you mean 'Pong-v5'"),
        (
            {"env_id": "envpool:Pong-v5", "kwargs": {"stak": 2}},
            ConfigError,
            r"env\.kwargs: envpool:Pong-v5",
        ),
        ({"env_id": "envpool:IntersectionMultiAgent-v1"}, ConfigError, "players"),
    ],
)
@pytest.mark.usefixtures("envpool")
def test_unsupported_envs_are_refused(cfg: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        create_env_manager({"type": "vector"}, make_env_fns(cfg, 2)).launch()


@pytest.mark.usefixtures("envpool")
def test_state_in_c_is_not_savable() -> None:
    with launched(CARTPOLE) as manager, pytest.raises(NotSavableError, match="PooledEnvs"):
        manager.get_state()


def test_env_closes_its_pool_once(envpool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = PooledEnv("CartPole-v1")
    env.close()  # there is no pool yet
    env.reset(seed=1)
    pool: Any = env._envs._pool
    assert (pool.config["num_envs"], pool.config["num_threads"]) == (1, 0)
    closed: list[Any] = []
    monkeypatch.setattr(type(pool), "close", lambda self: closed.append(self))
    env.close()
    env.close()
    assert len(closed) == 1
    assert closed[0] is pool
