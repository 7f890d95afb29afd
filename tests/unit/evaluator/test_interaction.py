from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.errors import ConfigError, NotSetError
from dingsdk.policy import create_policy
from dingsdk.worker.evaluator.interaction import InteractionSerialEvaluator


class FixedLengthEnv(gym.Env[Any, Any]):
    """Ends after ``length`` steps with reward 1 each; breaks where ``fails`` says so."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int, fails: list[int]) -> None:
        self.length, self.fails, self.time = length, fails, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.fails and self.time == self.fails[0]:
            self.fails.pop(0)
            raise RuntimeError("breaks")
        is_over = self.time == self.length
        info = {"episode_info": {"length": self.length}} if is_over else {}
        return np.zeros(3, np.float32), 1.0, is_over, False, info


@pytest.fixture(params=["columns", "rows"])
def policy(request) -> Any:
    mode = create_policy(
        {"type": "dqn", "model": {"obs_shape": 3, "action_shape": 2}},
        enable_field=["eval"],
        seed=0,
    ).eval_mode
    return mode if request.param == "columns" else mode._replace(forward_batch=None)


@pytest.fixture
def make_evaluator(tmp_path):
    made = []

    def make(policy: Any, lengths=(2, 30), kind="in_process", fails=(), manager=None, **cfg: Any):
        fails = list(fails)
        fns = [lambda n=n: FixedLengthEnv(n, fails if n == lengths[0] else []) for n in lengths]
        env = create_env_manager({"type": kind, **(manager or {})}, fns)
        evaluator = InteractionSerialEvaluator(
            {"n_episode": 5, **cfg}, env, policy, exp_name=str(tmp_path)
        )
        made.append(evaluator)
        return evaluator

    yield make
    for evaluator in made:
        evaluator.close()


@pytest.mark.parametrize("kind", ["in_process", "vector"])
def test_short_episodes_do_not_crowd_out_long_ones(make_evaluator, policy, kind) -> None:
    evaluator = make_evaluator(policy, kind=kind)

    is_reached, info = evaluator.eval()

    assert not is_reached
    assert info["eval_episode_return"] == [2.0, 2.0, 2.0, 30.0, 30.0]
    assert info["eval_episode_return_mean"] == pytest.approx(13.2)
    assert info["length"] == [2, 2, 2, 30, 30]
    assert info["length_mean"] == pytest.approx(13.2)
    # And once more, with another number.
    assert evaluator.eval(n_episode=2)[1]["eval_episode_return"] == [2.0, 30.0]


def test_a_failed_episode_is_played_again(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, lengths=(4, 3), fails=[3, 2])
    assert evaluator.eval()[1]["eval_episode_return"] == [4.0, 4.0, 4.0, 3.0, 3.0]


def test_a_manager_with_an_episode_limit_can_be_evaluated_again(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, manager={"episode_num": 3})
    for _ in range(2):
        assert len(evaluator.eval()[1]["eval_episode_return"]) == 5
    with pytest.raises(ConfigError):
        evaluator.eval(n_episode=8)


def test_real_cartpole_in_its_native_vector_env(tmp_path) -> None:
    mode = create_policy(
        {"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}},
        enable_field=["eval"],
        seed=0,
    ).eval_mode
    env = create_env_manager({"type": "vector"}, make_env_fns({"env_id": "CartPole-v1"}, 4))
    evaluator = InteractionSerialEvaluator({}, env, mode, exp_name=str(tmp_path))

    _, info = evaluator.eval(n_episode=10)
    evaluator.close()

    assert len(info["eval_episode_return"]) == 10
    assert all(8 <= value <= 500 for value in info["eval_episode_return"])


def test_only_a_new_best_saves_a_checkpoint(make_evaluator, policy) -> None:
    saved: list[str] = []
    evaluator = make_evaluator(policy, lengths=(3,))
    evaluator.eval(saved.append, train_iter=1)
    evaluator.eval(saved.append, train_iter=2)
    assert saved == ["ckpt_best"]
    evaluator.reset()
    evaluator.eval(saved.append, train_iter=3)
    assert saved == ["ckpt_best"] * 2


def test_stops_at_the_stop_value_but_never_before_training(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, lengths=(3,), stop_value=3)
    assert evaluator.eval(train_iter=1)[0] is True
    assert evaluator.eval(train_iter=0)[0] is False
    assert evaluator.eval()[0] is False
    assert make_evaluator(policy, lengths=(3,), stop_value=3.5).eval(train_iter=1)[0] is False


def test_when_to_evaluate(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, eval_freq=10)
    asked = [0, 0, 3, 10, 10, 15, 20, 25, 31]
    assert [i for i in asked if evaluator.should_eval(i)] == [0, 10, 20, 31]


def test_what_is_missing_is_named(tmp_path, make_evaluator, policy) -> None:
    evaluator = InteractionSerialEvaluator({"n_episode": 1}, exp_name=str(tmp_path / "late"))
    with pytest.raises(NotSetError, match="env"):
        evaluator.eval()
    evaluator.close()
    with pytest.raises(NotSetError, match="n_episode"):
        make_evaluator(policy, n_episode=None).eval()
    with pytest.raises(ConfigError):
        make_evaluator(policy).eval(n_episode=1)


def test_rendering_needs_a_manager_that_can(make_evaluator, policy) -> None:
    with pytest.raises(ConfigError, match="in_process"):
        make_evaluator(policy, kind="vector").eval(force_render=True)
    with pytest.raises(ConfigError, match=r"render\.mode"):
        make_evaluator(policy, render={"render_freq": -1, "mode": "hourly"})
