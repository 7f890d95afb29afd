from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dingsdk.errors import ConfigError
from dingsdk.policy import PPOPolicy
from dingsdk.policy.distributions import Categorical, Gaussian, make_distribution

BOUNDED = {"action_shape": 2, "action_low": [-1.0, 0.0], "action_high": [3.0, 0.5]}


def gaussian(**model: Any) -> Gaussian:
    section = PPOPolicy({"model": {"action_space": "continuous", **BOUNDED, **model}}, ["command"])
    found = make_distribution(section.section.model)
    assert isinstance(found, Gaussian)
    return found


def test_probabilities_of_several_actions_are_independent() -> None:
    several = Categorical([3, 2], is_scalar=False)
    outputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    drawn = torch.tensor([[0, 1], [2, 0], [1, 1], [0, 0], [2, 1], [1, 0], [0, 1]])

    log_prob, entropy = several.evaluate(outputs, drawn)

    parts = [
        torch.distributions.Categorical(logits=outputs[:, :3]),
        torch.distributions.Categorical(logits=outputs[:, 3:]),
    ]
    torch.testing.assert_close(
        log_prob, parts[0].log_prob(drawn[:, 0]) + parts[1].log_prob(drawn[:, 1])
    )
    torch.testing.assert_close(entropy, parts[0].entropy() + parts[1].entropy())


def test_each_action_is_drawn_with_its_own_probabilities() -> None:
    several = Categorical([2, 3], is_scalar=False)
    probabilities = np.array([0.25, 0.75, 0.5, 0.2, 0.3], np.float32)
    outputs = np.tile(np.log(probabilities), (20_000, 1))

    drawn = several.draw(outputs, np.random.default_rng(0))

    action = drawn["action"]
    assert action.shape == (20_000, 2)
    assert (action[:, 0] == 1).mean() == pytest.approx(0.75, abs=0.02)
    assert [(action[:, 1] == k).mean() for k in range(3)] == pytest.approx(
        [0.5, 0.2, 0.3], abs=0.02
    )
    expected = np.log(probabilities[action[:, 0]] * probabilities[2 + action[:, 1]])
    assert drawn["log_prob"] == pytest.approx(expected, abs=1e-5)
    assert several.mode(outputs)[0].tolist() == [1, 0]


def test_gaussian_probabilities_and_entropies_equal_torch() -> None:
    found = gaussian()
    found.log_std.data.copy_(torch.tensor([0.3, -0.7]))
    generator = torch.Generator().manual_seed(0)
    mean, raw = (torch.randn(6, 2, generator=generator) for _ in "ab")

    log_prob, entropy = found.evaluate(mean, raw)

    normal = torch.distributions.Normal(mean, torch.tensor([0.3, -0.7]).exp())
    torch.testing.assert_close(log_prob, normal.log_prob(raw).sum(1))
    torch.testing.assert_close(entropy, normal.entropy().sum(1))


def test_gaussian_action_is_clipped_and_the_raw_action_is_recorded() -> None:
    found = gaussian()
    found.log_std.data.copy_(torch.tensor([math.log(2.0), math.log(0.1)]))
    outputs = np.tile(np.array([1.0, 0.25], np.float32), (20_000, 1))

    drawn = found.draw(outputs, np.random.default_rng(0))

    raw = drawn["raw_action"]
    assert raw.mean(0) == pytest.approx([1.0, 0.25], abs=0.05)
    assert raw.std(0) == pytest.approx([2.0, 0.1], rel=0.03)
    assert drawn["action"].tolist() == np.clip(raw, [-1.0, 0.0], [3.0, 0.5]).tolist()
    assert raw[:, 0].max() > 3.0
    log_prob, _ = found.evaluate(torch.from_numpy(outputs), torch.from_numpy(raw))
    assert drawn["log_prob"] == pytest.approx(log_prob.detach().numpy(), abs=1e-5)
    assert found.mode(np.array([[9.0, -9.0]], np.float32)).tolist() == [[3.0, 0.0]]


def test_gaussian_without_bounds_is_not_clipped() -> None:
    found = gaussian(action_low=[-math.inf, 0.0], action_high=[math.inf, 0.5])

    assert found.mode(np.array([[99.0, 99.0]], np.float32)).tolist() == [[99.0, 0.5]]


def test_model_of_each_action_space() -> None:
    seen = spaces.Box(-1, 1, (3,))

    def read(space: spaces.Space[Any]) -> dict[str, Any]:
        return PPOPolicy.model_from_spaces(seen, space)

    assert read(spaces.Discrete(4)) == {
        "obs_shape": 3,
        "action_space": "discrete",
        "action_shape": 4,
    }
    assert read(spaces.MultiDiscrete([4])) == {
        "obs_shape": 3,
        "action_space": "multi_discrete",
        "action_shape": [4],
    }
    assert read(spaces.Box(-2, np.inf, (1,))) == {
        "obs_shape": 3,
        "action_space": "continuous",
        "action_shape": 1,
        "action_low": [-2.0],
        "action_high": [math.inf],
    }


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([[2, 2]]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, ()),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Box(1, 1, (2,)),
    ],
)
def test_error_for_an_unsupported_action_space_names_both_sides(
    space: spaces.Space[Any],
) -> None:
    with pytest.raises(ConfigError, match="MultiDiscrete of one dimension") as caught:
        PPOPolicy.model_from_spaces(spaces.Box(-1, 1, (3,)), space)
    assert "policy type ppo cannot use the action space" in str(caught.value)
    assert caught.value.facts["found"] == str(space)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"action_space": "box"}, "action_space"),
        ({"action_space": "continuous", "action_shape": [2, 2]}, "action_shape"),
        ({"action_shape": [2, 2]}, "multi_discrete"),
        ({"action_space": "multi_discrete", "action_shape": []}, "action_shape"),
        ({"action_space": "continuous", "action_shape": 1, "action_low": [-1.0]}, "action_high"),
        (
            {
                "action_space": "continuous",
                "action_shape": 1,
                "action_low": [math.nan],
                "action_high": [1.0],
            },
            "action_low",
        ),
    ],
)
def test_invalid_action_settings_are_refused(model: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PPOPolicy({"model": {"obs_shape": 3, **model}})


def test_multi_discrete_shape_may_be_a_single_number() -> None:
    cfg = {"action_space": "multi_discrete", "action_shape": 3}
    found = make_distribution(PPOPolicy({"model": cfg}, ["command"]).section.model)
    assert found.mode(np.array([[0.0, 2.0, 1.0]], np.float32)).tolist() == [[1]]
