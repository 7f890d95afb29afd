from __future__ import annotations

import pytest
import torch

from dingsdk.errors import ConfigError, ConfigTypeError
from dingsdk.policy import create_policy
from dingsdk.policy.dqn import DQNPolicy

CFG = {"type": "dqn", "model": {"obs_shape": 3, "action_shape": 2}}


def test_the_command_mode_needs_no_network_and_follows_the_schedule():
    policy = create_policy(
        {"type": "dqn", "other": {"eps": {"type": "linear", "start": 1, "end": 0, "decay": 10}}},
        enable_field=["command"],
    )

    assert policy.command_mode.get_setting_collect({"envstep": 5}) == {"eps": 0.5}
    assert policy.command_mode.get_setting_collect({}) == {"eps": 1.0}
    assert policy.command_mode.get_setting_learn({}) == {}
    assert policy.command_mode.get_setting_eval({}) == {}


@pytest.mark.parametrize(
    ("section", "error", "path"),
    [
        ({"nstep": 0}, ConfigError, "policy.nstep"),
        # Without an effect in float32.
        ({"learn": {"target_theta": 1e-12}}, ConfigError, "policy.learn.target_theta"),
        ({"learn": {"huber_delta": 1e-50}}, ConfigError, "policy.learn.huber_delta"),
        ({"learn": {"grad_clip_norm": 1e-300}}, ConfigError, "policy.learn.grad_clip_norm"),
        ({"learn": 3}, ConfigTypeError, "policy.learn"),
        ({"model": {"obs_shape": [3, 84, 0]}}, ConfigError, "policy.model.obs_shape[2]"),
        ({"model": {"action_shape": None}}, ConfigError, "policy.model.action_shape"),
        (
            {"model": {"encoder_hidden_size_list": 64}},
            ConfigTypeError,
            "policy.model.encoder_hidden_size_list",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(section, error, path):
    cfg = {**CFG, **section}
    if "model" in section:
        cfg["model"] = {**CFG["model"], **section["model"]}

    with pytest.raises(error) as caught:
        DQNPolicy(cfg)

    assert caught.value.facts["path"] == path


def test_cuda_without_a_device_is_refused():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ConfigError, match=r"policy\.cuda"):
        DQNPolicy({**CFG, "cuda": True})
