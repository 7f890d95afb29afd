"""Policies do not take actions that ``action_mask`` forbids, nor use them as targets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.data.action_mask import (
    draw_legal,
    legal_action,
    legal_actions,
    sample_action,
    sample_obs,
)
from dingsdk.envs.steps import StepColumns
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.policy import DQNPolicy, PPOPolicy, R2D2Policy, SACPolicy

MASK = np.array([[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 0, 0]], np.int8)
OBS = {"observation": np.eye(4, 2, dtype=np.float32), "action_mask": MASK}
MODEL = {
    "obs_shape": {"observation": 2, "action_mask": 3},
    "action_shape": 3,
    "encoder_hidden_size_list": [4],
}


def make(cls: Any = DQNPolicy, **cfg: Any) -> Any:
    return cls({**cfg, "model": {**MODEL, **cfg.get("model", {})}}, seed=0)


def with_outputs(policy: Any, *outputs: float) -> Any:
    """Make the network return the same three outputs for all observations."""
    layer = policy._network.head if hasattr(policy._network, "head") else None
    if layer is None:
        heads = getattr(policy._network, "heads", None)
        layer = heads.head if heads is not None else policy._network.actor.layers[-1]
    layer.weight.data.zero_()
    layer.bias.data.copy_(torch.tensor(outputs))
    return policy


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dqn": (DQNPolicy, {}),
    "dueling dqn": (DQNPolicy, {"model": {"dueling": True}}),
    "r2d2": (R2D2Policy, {}),
    "ppo": (PPOPolicy, {}),
    "recurrent ppo": (PPOPolicy, {"model": {"recurrent": "gru", "recurrent_size": 4}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_best_legal_action_is_taken(kind: str) -> None:
    cls, cfg = KINDS[kind]
    policy = with_outputs(make(cls, **cfg), 3.0, 2.0, 1.0)

    action = policy.eval_mode.forward_batch(OBS, range(4))["action"]

    assert action.tolist() == [0, 1, 2, 0]
    rows = {i: {name: part[i] for name, part in OBS.items()} for i in range(4)}
    assert [each["action"] for each in policy.eval_mode.forward(rows).values()] == [0, 1, 2, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_exploration_takes_every_legal_action_and_no_other(kind: str) -> None:
    cls, cfg = KINDS[kind]
    policy = with_outputs(make(cls, **cfg), 0.0, 0.0, 0.0)
    setting = {} if cls is PPOPolicy else {"eps": 1.0}

    taken = np.zeros((4, 3), int)
    for _ in range(300):
        action = policy.collect_mode.forward_batch(OBS, range(4), **setting)["action"]
        taken[range(4), action] += 1

    expected = 300.0 * MASK / MASK.sum(1, keepdims=True)
    assert (np.abs(taken - expected) <= 5 * np.sqrt(expected)).all()
    assert (taken[MASK == 0] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_mask_without_a_legal_action_is_refused_by_env(kind: str) -> None:
    cls, cfg = KINDS[kind]
    policy = make(cls, **cfg)
    obs = {**OBS, "action_mask": MASK * np.array([[1], [0], [1], [1]], np.int8)}

    for mode in (policy.collect_mode, policy.eval_mode):
        with pytest.raises(SchemaMismatchError, match="env 8 allows none of the 3 actions") as got:
            mode.forward_batch(obs, [7, 8, 9, 10])
        assert got.value.facts["key"] == "obs.action_mask"


@pytest.mark.parametrize("double", [True, False])
def test_targets_use_the_best_legal_action(double: bool) -> None:
    policy = with_outputs(make(learn={"double": double}), 3.0, 2.0, 1.0)
    policy._target_flat.copy_(policy._optimizer.flat)
    policy._target.head.bias.data.copy_(torch.tensor([30.0, 20.0, 10.0]))
    # The last row's episode is over: no action is legal there.
    after = {"observation": OBS["observation"], "action_mask": MASK * [[1], [1], [1], [0]]}
    batch = SampleBatch(
        {
            "obs": OBS,
            "action": np.array([0, 1, 2, 0]),
            "reward": np.array([1.0, 2.0, 3.0, 4.0], np.float32),
            "next_obs": after,
            "discount": np.array([0.5, 0.5, 0.5, 0.0], np.float32),
            "done": np.zeros(4, np.bool_),
        }
    )

    log = policy.learn_mode.forward(batch)

    # 1 + 30 / 2, 2 + 20 / 2, 3 + 10 / 2, 4
    assert log["target_q_value"] == pytest.approx((16 + 12 + 8 + 4) / 4)
    assert log["q_value"] == pytest.approx((3 + 2 + 1 + 3) / 4)


def test_targets_of_sequences_use_the_best_legal_action() -> None:
    learn = {"sequence_length": 2, "burn_in": 0, "value_rescale": False}
    policy = with_outputs(
        make(R2D2Policy, learn=learn, other={"replay_buffer": {"type": "advanced"}}), 3.0, 2.0, 1.0
    )
    policy._target.load_state_dict(policy._network.state_dict())
    obs = {"observation": np.zeros((1, 2, 2), np.float32), "action_mask": MASK[None, [0, 1]]}
    after = {"observation": np.zeros((1, 2, 2), np.float32), "action_mask": MASK[None, [1, 2]]}
    batch = SampleBatch(
        {
            "obs": obs,
            "action": np.array([[0, 1]]),
            "reward": np.array([[1.0, 2.0]], np.float32),
            "next_obs": after,
            "terminated": np.zeros((1, 2), np.bool_),
            "done": np.zeros((1, 2), np.bool_),
            "state": np.zeros((1, 2, policy.state_size), np.float32),
        }
    )
    network = policy._network
    seen = {
        "observation": torch.zeros(1, 3, 2),
        "action_mask": torch.from_numpy(MASK[None, [0, 1, 2]]),
    }
    values = network.forward(seen, torch.zeros(1, policy.state_size))[0][0].detach().numpy()

    log = policy.learn_mode.forward(batch)

    gamma = policy.section.discount_factor
    expected = [1 + gamma * values[1, 1], 2 + gamma * values[2, 2]]
    assert log["target_q_value"] == pytest.approx(np.mean(expected), rel=1e-5)


def test_probabilities_and_entropy_use_only_legal_actions() -> None:
    policy = with_outputs(make(PPOPolicy), 0.0, float(np.log(3.0)), 0.0)

    found = [policy.act(OBS, explore=True) for _ in range(20)]

    # The ratio is 1 : 3 : 1; the rows allow all, the last two, the last, and the first.
    chances = np.array([[0.2, 0.6, 0.2], [0, 0.75, 0.25], [0, 0, 1], [1, 0, 0]])
    for output in found:
        chosen = chances[range(4), output["action"]]
        assert output["log_prob"] == pytest.approx(np.log(chosen), abs=1e-6)
    obs = policy.tensor(OBS)
    outputs, _ = policy._network.forward(obs)
    _, entropy = policy._network.distribution.evaluate(outputs, torch.tensor([0, 1, 2, 0]))
    terms = np.where(chances > 0, -chances * np.log(np.where(chances > 0, chances, 1)), 0)
    assert entropy.tolist() == pytest.approx(terms.sum(1).tolist(), abs=1e-6)


@pytest.mark.parametrize("kind", ["ppo", "recurrent ppo"])
def test_ppo_does_not_change_the_logits_of_illegal_actions(kind: str) -> None:
    cls, cfg = KINDS[kind]
    policy = make(cls, **cfg, learn={"batch_size": 4, "epoch_per_collect": 1})
    # The second action is illegal in all rows, so its logit must not change.
    obs = {**OBS, "action_mask": np.array([[1, 0, 1]] * 4, np.int8)}
    output = policy.collect_mode.forward_batch(obs, range(4))
    step = StepColumns(
        obs=obs,
        reward=np.ones(4, np.float32),
        terminated=np.array([False, False, False, True]),
        truncated=np.zeros(4, np.bool_),
        final_obs=obs,
    )
    columns = policy.collect_mode.make_transitions(obs, output, step)
    before = policy._network.actor.layers[-1].bias.detach().clone()

    logs = policy.learn_mode.forward(policy.collect_mode.make_samples(columns, np.array([4])))

    change = policy._network.actor.layers[-1].bias.detach() - before
    assert change[1] == 0
    assert change[0] != 0
    assert all(np.isfinite(list(log.values())).all() for log in logs)


def test_mask_is_not_an_input_of_the_network() -> None:
    policy = make(normalize={"obs": True})
    network = policy._network
    allowed = {**policy.tensor(OBS), "action_mask": torch.ones(4, 3)}

    values, masked = network.forward(allowed), network.forward(policy.tensor(OBS))
    over = network.forward({**allowed, "action_mask": torch.zeros(4, 3)})

    assert torch.equal(over, values)  # a mask of zeros (the episode is over) changes nothing
    assert network.encoder.features.width == 2
    legal = torch.from_numpy(MASK).bool()
    assert torch.equal(masked[legal], values[legal])
    assert (masked[~legal] < -1e7).all()


def test_draw_legal_chooses_among_the_legal_actions_by_a_fraction() -> None:
    legal = np.array([[False, True, False, True]] * 4)

    drawn = draw_legal(legal, np.array([0.0, 0.49, 0.5, 1.0]))

    assert drawn.tolist() == [1, 1, 3, 3]


def test_illegal_action_is_replaced_by_the_next_legal_one() -> None:
    found = legal_action(gym.spaces.Discrete(3), np.array([1, 0, 1, 2]), OBS)

    assert found.tolist() == [1, 1, 2, 0]
    shifted = gym.spaces.Discrete(3, start=5)
    one = legal_action(shifted, 7, {"action_mask": [0, 1, 0]})
    assert one == 6
    assert isinstance(one, np.integer)
    assert shifted.contains(one)
    assert legal_action(shifted, 7, np.zeros(3)) == 7
    players = gym.spaces.MultiDiscrete([2, 2], start=[1, 1])
    assert legal_action(players, [1, 2], {"action_mask": [[0, 1], [1, 0]]}).tolist() == [2, 1]
    # A mask of another shape is an observation like any other.
    assert legal_action(gym.spaces.Discrete(2), 1, {"action_mask": [1, 0, 0]}) == 1
    box = gym.spaces.Box(-1, 1, (3,))
    assert legal_action(box, [0.5] * 3, {"action_mask": [1, 0, 0]}) == [0.5] * 3


def test_examples_of_observations_and_actions_are_legal() -> None:
    space = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(2), "x": gym.spaces.Box(0, 1)})
    actions = gym.spaces.Discrete(2, start=3)
    space.seed(0)
    actions.seed(0)
    for _ in range(50):
        obs = sample_obs(space)
        action = sample_action(actions, obs)
        assert space.contains(obs)
        assert obs["action_mask"][action - 3]


def test_observations_without_a_mask_allow_everything() -> None:
    assert legal_actions(np.zeros((2, 3))) is None
    assert legal_actions({"observation": np.zeros((2, 3))}) is None
    assert legal_actions(torch.zeros(2, 3)) is None


BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
OTHER_COUNT = r"MultiBinary\(3\).*shape \(4,\).*Discrete\(4\)"


@pytest.mark.parametrize(
    ("policy", "actions", "text"),
    [
        (DQNPolicy, gym.spaces.Discrete(4), OTHER_COUNT),
        (PPOPolicy, gym.spaces.Discrete(4), OTHER_COUNT),
        (R2D2Policy, gym.spaces.Discrete(4), OTHER_COUNT),
        (PPOPolicy, BOX, "action_mask"),
        (SACPolicy, BOX, "action_mask"),
    ],
)
def test_mask_that_does_not_fit_the_actions_is_refused(
    policy: Any, actions: Any, text: str
) -> None:
    seen = gym.spaces.Dict({"observation": BOX, "action_mask": gym.spaces.MultiBinary(3)})

    if policy is not SACPolicy:
        assert policy.model_from_spaces(seen, gym.spaces.Discrete(3))["action_shape"] == 3
    with pytest.raises(ConfigError, match=text):
        policy.model_from_spaces(seen, actions)


def test_observation_with_only_a_mask_is_refused() -> None:
    with pytest.raises(ConfigError, match="name at least one part"):
        make(model={"obs_shape": {"action_mask": 3}})
