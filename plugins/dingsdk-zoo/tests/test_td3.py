"""TD3: targets, delayed updates and noise, against numbers that were computed by hand."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_zoo.td3 import TD3Policy
from gymnasium import spaces

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError

MODEL = {
    "obs_shape": 1,
    "action_shape": 1,
    "action_low": [-2.0],
    "action_high": [2.0],
    "encoder_hidden_size_list": [],
}


class Prepared:
    """Replaces the random generator: returns prepared standard normal numbers."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = numbers

    def standard_normal(self, shape: Any, dtype: Any) -> Any:
        return np.array(self._numbers, dtype).reshape(shape)


def set_linear(network: Any, weight: list[list[float]], bias: list[float]) -> None:
    network.layers[0].weight.data.copy_(torch.tensor(weight))
    network.layers[0].bias.data.copy_(torch.tensor(bias))


def make(**cfg: Any) -> TD3Policy:
    """Return a policy whose target networks have the weights in ``test_targets_...``."""
    policy = TD3Policy({"model": MODEL, **cfg}, seed=0)
    set_linear(policy._target_actor.net, [[0.0]], [math.atanh(0.5)])
    for critic, weight in zip(policy._target_critic.critics, ([1.0, 2.0], [0.0, 4.0]), strict=True):
        set_linear(critic, [weight], [0.0])
    policy.rng = Prepared([0.5, -10.0])  # type: ignore[assignment]
    return policy


BATCH = SampleBatch(
    {
        "obs": np.array([[1.0], [0.0]], np.float32),
        "action": np.array([[1.0], [-2.0]], np.float32),
        "reward": np.array([1.0, 5.0], np.float32),
        "next_obs": np.array([[1.0], [2.0]], np.float32),
        "discount": np.array([0.9, 0.5], np.float32),
    }
)


def test_targets_are_those_computed_by_hand() -> None:
    # The noise 0.1 and -2, clipped to -0.5, makes the next actions 0.6 and 0. The critics say
    # 2.2 and 2 (obs + 2 action), 2.4 and 0 (4 action).
    found = make().targets({k: torch.from_numpy(v) for k, v in BATCH.columns.items()})

    assert found.tolist() == pytest.approx([1 + 0.9 * 2.2, 5.0])


def test_noisy_next_actions_stay_within_the_bounds() -> None:
    policy = make()
    set_linear(policy._target_actor.net, [[0.0]], [math.atanh(0.95)])

    found = policy.targets({k: torch.from_numpy(v) for k, v in BATCH.columns.items()})

    assert found.tolist() == pytest.approx([1 + 0.9 * 3.0, 5 + 0.5 * 1.8])


def test_critics_get_the_error_of_scaled_actions() -> None:
    policy = make()
    for critic in policy._critic.critics:
        set_linear(critic, [[0.0, 2.0]], [1.0])  # 1 + 2 action: 2 and -1 for actions 0.5 and -1

    log = policy.learn_mode.forward(BATCH)

    errors = [2 - 2.98, -1 - 5.0]
    assert log["critic_loss"] == pytest.approx(2 * sum(e * e for e in errors) / 2)
    assert (log["q_value"], log["target_q_value"]) == pytest.approx((0.5, (2.98 + 5.0) / 2))


def test_actor_and_targets_change_at_every_second_update_only() -> None:
    policy = make(learn={"target_theta": 0.25, "learning_rate_actor": 0.01})
    parts = ("model", "target_model", "target_critic")

    def state() -> dict[str, Any]:
        found = policy.learn_mode.state_dict()
        return copy.deepcopy({name: found[name] for name in (*parts, "critic")})

    states = [state()]
    for _ in range(4):
        policy.learn_mode.forward(BATCH)
        states.append(state())

    for name in parts:
        same = [
            all(torch.equal(one[name][key], other[name][key]) for key in one[name])
            for one, other in itertools.pairwise(states)
        ]
        assert same == [True, False, True, False], name
    for key, before in states[1]["target_critic"].items():
        expected = before.lerp(states[2]["critic"][key], 0.25)
        torch.testing.assert_close(states[2]["target_critic"][key], expected)


def test_actor_climbs_the_first_critic() -> None:
    policy = make(learn={"actor_update_freq": 1, "learning_rate_critic": 1e-9})
    set_linear(policy._critic.critics[0], [[0.0, 3.0]], [0.0])
    set_linear(policy._critic.critics[1], [[0.0, -9.0]], [0.0])
    set_linear(policy._actor.net, [[0.0]], [0.0])

    log = policy.learn_mode.forward(BATCH)

    assert policy._actor.net.layers[0].bias.item() == pytest.approx(3e-4, rel=1e-3)
    assert log["actor_loss"] == pytest.approx(0.0, abs=1e-6)


def test_collected_actions_have_noise_within_the_bounds() -> None:
    policy = make(collect={"noise": 0.1})
    set_linear(policy._actor.net, [[0.0]], [math.atanh(0.5)])
    obs = np.zeros((2, 1), np.float32)

    assert policy.act(obs, explore=False)["action"] == pytest.approx(np.full((2, 1), 1.0))
    explored = policy.act(obs, explore=True)["action"]
    assert explored == pytest.approx(np.array([[2 * 0.55], [-2 * 0.5]]))


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="policy type td3 cannot use the action space Discrete"):
        TD3Policy.model_from_spaces(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
