from __future__ import annotations

import numpy as np
import pytest

from dingsdk.errors import ConfigError, NonFiniteError
from dingsdk.policy import DQNPolicy, PolicySection

OBS = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
IDS = np.arange(6)


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


def test_first_env_steps_are_uniform_and_legal_if_configured():
    shape = {"pos": 2, "action_mask": 3}
    model = {"obs_shape": shape, "action_shape": 3, "action_start": -1}
    policy = DQNPolicy({"model": model, "random_collect_size": 100}, seed=0)
    obs = {
        "pos": np.zeros((3000, 2), np.float32),
        "action_mask": np.tile(np.array([1, 0, 1], np.int8), (3000, 1)),
    }
    ask = policy.command_mode.get_setting_collect
    assert [ask({"envstep": step})["is_random"] for step in (0, 99, 100)] == [True, True, False]

    setting = {**ask({"envstep": 0}), "eps": 0.0}
    drawn = policy.collect_mode.forward_batch(obs, range(3000), **setting)["action"]
    free = policy.collect_mode.forward_batch(
        {**obs, "action_mask": obs["action_mask"] | 1}, **setting
    )
    greedy = policy.eval_mode.forward_batch(obs, range(3000))["action"]

    assert (drawn == -1).mean() == pytest.approx(0.5, abs=0.05)
    assert set(drawn.tolist()) == {-1, 1}
    counts = np.unique(free["action"], return_counts=True)
    assert counts[0].tolist() == [-1, 0, 1]
    assert counts[1] / 3000 == pytest.approx([1 / 3] * 3, abs=0.05)
    assert len(set(greedy.tolist())) == 1


def test_random_actions_need_a_section_with_the_action_space():
    class Own(DQNPolicy):
        class Config(PolicySection, frozen=True, kw_only=True):
            type: str = "own"

    with pytest.raises(ConfigError, match="declares no ModelSection") as caught:
        Own({"random_collect_size": 5})
    assert caught.value.path == "policy.random_collect_size"
