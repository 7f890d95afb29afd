from __future__ import annotations

import numpy as np
import pytest
import torch

from dingsdk.errors import NonFiniteError

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
