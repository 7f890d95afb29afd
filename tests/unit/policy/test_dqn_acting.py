from __future__ import annotations

import numpy as np
import pytest
import torch

from dingsdk.errors import NonFiniteError
from dingsdk.policy.dqn import DQNPolicy
from dingsdk.worker.replay_buffer import SequenceReplayBuffer

OBS = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
IDS = np.arange(6)


def test_eval_takes_the_best_action(make_policy):
    policy = make_policy()
    names = policy.learn_mode.state_dict()["model"]
    hidden = torch.relu(
        torch.from_numpy(OBS) @ names["encoder.0.weight"].T + names["encoder.0.bias"]
    )
    best = (hidden @ names["head.weight"].T + names["head.bias"]).argmax(1)

    action = policy.eval_mode.forward_batch(OBS, IDS)["action"]

    assert action.dtype == np.int64
    assert action.tolist() == best.tolist()
    assert policy.collect_mode.forward_batch(OBS, IDS, eps=0.0)["action"].tolist() == best.tolist()


@pytest.mark.parametrize("eps", [0.1, 0.5, 1.0])
def test_exploration_is_uniform_with_probability_eps(make_policy, eps):
    policy = make_policy(model={"action_shape": 3})
    greedy = policy.eval_mode.forward_batch(OBS, IDS)["action"]
    rounds = 4000

    drawn = np.stack(
        [policy.collect_mode.forward_batch(OBS, IDS, eps=eps)["action"] for _ in range(rounds)]
    )

    # Each of the three actions has probability eps / 3; the greedy one has 1 - eps more.
    for action in range(3):
        expected = np.where(greedy == action, 1 - eps + eps / 3, eps / 3)
        spread = 5 * np.sqrt(expected * (1 - expected) / rounds) + 1e-9
        assert (np.abs((drawn == action).mean(0) - expected) < spread).all()


def test_eps_defaults_to_the_start_of_the_schedule(make_policy):
    policy = make_policy(other={"eps": {"type": "constant", "start": 0.0}})
    best = policy.eval_mode.forward_batch(OBS, IDS)["action"].tolist()

    assert policy.collect_mode.forward_batch(OBS, IDS)["action"].tolist() == best


def test_other_dtypes_and_frozen_observations_are_accepted(make_policy):
    policy = make_policy()
    frozen = OBS.copy()
    frozen.setflags(write=False)
    expected = policy.eval_mode.forward_batch(OBS, IDS)["action"].tolist()

    for obs in (frozen, OBS.astype(np.float64)):
        assert policy.eval_mode.forward_batch(obs, IDS)["action"].tolist() == expected


def test_error_says_whether_weights_or_observations_are_nan(make_policy):
    policy = make_policy()
    broken = OBS.copy()
    broken[4, 0] = np.nan
    with pytest.raises(NonFiniteError, match="observations hold NaN") as caught:
        policy.collect_mode.forward_batch(broken, IDS, eps=0.1)
    assert caught.value.facts["env_ids"] == [4]

    policy.learn_mode.state_dict()["model"]["head.bias"].fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="weights diverged"):
        policy.eval_mode.forward({3: OBS[0]})


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_one_infinite_action_value_is_refused(make_policy, value):
    policy = make_policy()
    policy.learn_mode.state_dict()["model"]["head.bias"][0] = value
    with pytest.raises(NonFiniteError, match="env 3, 5 is not finite; the observations are"):
        policy.eval_mode.forward_batch(OBS[:2], [3, 5])


def test_large_action_values_whose_sum_overflows_are_accepted(make_policy):
    policy = make_policy()
    policy.learn_mode.state_dict()["model"]["head.bias"].fill_(3e38)
    assert len(policy.eval_mode.forward_batch(OBS, IDS)["action"]) == len(OBS)


def test_sequences_of_nstep_samples_reach_the_end_of_the_episode() -> None:
    cfg = {"nstep": 3, "discount_factor": 0.5, "model": {"obs_shape": 1, "action_shape": 2}}
    mode = DQNPolicy(cfg, ["collect"], seed=0).collect_mode
    steps = np.arange(10)
    columns = {
        "obs": steps[:, None].astype(np.float32),
        "next_obs": steps[:, None].astype(np.float32) + 1,
        "action": steps % 2,
        "reward": np.ones(10, np.float32),
        "terminated": steps == 9,
        "done": steps == 9,
    }
    buffer = SequenceReplayBuffer({"replay_buffer_size": 20, "seed": 0})
    buffer.push(mode.make_samples(columns, np.array([10])), 10)

    assert buffer.count_starts(4) == 7
    drawn = buffer.sample(64, 4, replace=True).columns
    (last, *_) = np.flatnonzero(drawn["obs"][:, 0, 0] == 6)
    assert drawn["next_obs"][last, :, 0].tolist() == [9.0, 10.0, 10.0, 10.0]
    assert drawn["reward"][last].tolist() == [1.75, 1.75, 1.5, 1.0]
    assert drawn["discount"][last].tolist() == [0.125, 0.0, 0.0, 0.0]
    assert drawn["done"][last].tolist() == [False, False, False, True]
