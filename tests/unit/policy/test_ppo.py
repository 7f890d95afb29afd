from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch, collate
from dingsdk.errors import ConfigError
from dingsdk.policy.ppo import PPOPolicy

MODEL = {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [8]}
ENDS = np.array([3, 8])
SEEN = np.array([[3, -1, 2], [-2, 4, 1], [1, 2, -3]], np.float32)


def make(fields: list[str] | None = None, seed: int = 0, **cfg: Any) -> PPOPolicy:
    return PPOPolicy({"model": MODEL, **cfg}, enable_field=fields, seed=seed)


def columns(policy: PPOPolicy, rows: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows, 3)).astype(np.float32)
    return {
        "obs": obs,
        **policy.act(obs, explore=True),
        "reward": rng.normal(size=rows).astype(np.float32),
        "next_obs": rng.normal(size=(rows, 3)).astype(np.float32),
        "terminated": np.array([False] * (rows - 1) + [True]),
        "done": np.array([False] * (rows - 1) + [True]),
    }


def batch(policy: PPOPolicy) -> SampleBatch:
    return policy.collect_mode.make_samples(columns(policy), ENDS)


def test_recorded_log_prob_and_value_come_from_the_network() -> None:
    policy = make()
    obs = np.random.default_rng(1).normal(size=(64, 3)).astype(np.float32)

    made = policy.collect_mode.forward_batch(obs, range(64))

    logits, value = policy._network(torch.from_numpy(obs))
    expected = torch.distributions.Categorical(logits=logits)
    assert set(made["action"].tolist()) == {0, 1}
    assert made["log_prob"] == pytest.approx(
        expected.log_prob(torch.from_numpy(made["action"])).detach().numpy(), abs=1e-6
    )
    assert made["value"] == pytest.approx(value.detach().numpy())


def test_evaluation_takes_the_most_probable_action_and_records_nothing() -> None:
    policy = make()
    obs = np.random.default_rng(1).normal(size=(16, 3)).astype(np.float32)

    made = policy.eval_mode.forward_batch(obs, range(16))

    logits, _ = policy._network(torch.from_numpy(obs))
    assert set(made) == {"action"}
    assert made["action"].tolist() == logits.argmax(1).tolist()


def test_cut_pieces_are_bootstrapped_and_terminated_ones_are_not() -> None:
    policy = make(discount_factor=0.5, gae_lambda=0.0)
    given = columns(policy)
    values = {name: np.array(given[name]) for name in ("reward", "value", "next_obs", "terminated")}

    made = policy.collect_mode.make_samples(given, ENDS).columns

    after = policy._network(torch.from_numpy(values["next_obs"]))[1].detach().numpy()
    # With lambda 0 an advantage is the TD error. Row 2 ends a cut piece, row 7 the episode.
    cut = values["reward"][2] + 0.5 * after[2] - values["value"][2]
    ended = values["reward"][7] - values["value"][7]
    inside = values["reward"][4] + 0.5 * values["value"][5] - values["value"][4]
    assert made["advantage"][[2, 7, 4]] == pytest.approx([cut, ended, inside], abs=1e-6)
    assert made["return"] == pytest.approx(made["advantage"] + values["value"], abs=1e-6)
    assert {"terminated", "next_obs"}.isdisjoint(made)


def test_loss_and_gradient_equal_the_paper() -> None:
    """An independent reference: a loop over samples with autograd and torch.distributions."""
    policy = make(
        learn={
            "epoch_per_collect": 1,
            "batch_size": 8,
            "clip_ratio": 0.1,
            "value_weight": 0.7,
            "entropy_weight": 0.05,
            "grad_clip_norm": None,
        }
    )
    data = batch(policy)
    data.columns["log_prob"] += np.linspace(-0.3, 0.3, 8).astype(np.float32)
    twin = make()
    twin.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    advantage = data.columns["advantage"].astype(np.float64)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    objective = value_error = entropy = torch.zeros(())
    for row in range(8):
        logits, value = twin._network(torch.from_numpy(data.columns["obs"][row : row + 1]))
        chosen = torch.distributions.Categorical(logits=logits)
        log_prob = chosen.log_prob(torch.tensor(data.columns["action"][row]))
        ratio = (log_prob - float(data.columns["log_prob"][row])).exp()
        scale = float(advantage[row])
        objective = objective + torch.min(ratio * scale, ratio.clamp(0.9, 1.1) * scale) / 8
        value_error = value_error + (value - float(data.columns["return"][row])) ** 2 / 8
        entropy = entropy + chosen.entropy() / 8
    loss = (-objective + 0.7 * value_error - 0.05 * entropy).sum()
    gradient = torch.autograd.grad(loss, list(twin._network.parameters()))
    norm = torch.cat([part.reshape(-1) for part in gradient]).norm()

    (log,) = policy.learn_mode.forward(data)

    assert log["total_loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert log["policy_loss"] == pytest.approx(-objective.item(), abs=1e-5)
    assert log["value_loss"] == pytest.approx(value_error.item(), abs=1e-5)
    assert log["entropy"] == pytest.approx(entropy.item(), abs=1e-5)
    assert log["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert 0 < log["clip_fraction"] < 1


def test_every_epoch_trains_on_every_sample_once() -> None:
    policy = make(learn={"epoch_per_collect": 3, "batch_size": 3})
    seen: list[tuple[int, ...]] = []
    step = policy._step

    def noted(rows: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        seen.append(tuple(rows["obs"][:, 0].tolist()))
        return step(rows, **options)

    policy._step = noted  # type: ignore[method-assign]
    data = batch(policy)

    logs = policy.learn_mode.forward(data)

    assert len(logs) == 9
    for epoch in range(3):
        rows = [row for part in seen[3 * epoch : 3 * epoch + 3] for row in part]
        assert sorted(rows) == sorted(data.columns["obs"][:, 0].tolist())
    assert seen[:3] != seen[3:6]
    assert all(set(log) >= set(policy.learn_mode.monitor_vars()) for log in logs)


def test_the_advantage_of_a_single_sample_is_not_normalised() -> None:
    policy = make(learn={"batch_size": 1, "entropy_weight": 0.0})
    one = collate(batch(policy)[:1])
    # Before the first step the ratio is 1, so the loss is minus the advantage.
    found = policy._step({name: one[name] for name in one if name != "done"})
    assert found["policy_loss"] == pytest.approx(-float(one["advantage"]), rel=1e-5)


def test_adam_uses_an_eps_of_1e_5() -> None:
    policy = make(learn={"learning_rate": 0.25})
    before = policy._optimizer.flat.clone()

    policy._optimizer.step(torch.full_like(before, 1e-5))

    # learning_rate * gradient / (|gradient| + eps)
    torch.testing.assert_close(before - policy._optimizer.flat, torch.full_like(before, 0.125))


def test_value_clip_ignores_gains_from_larger_changes() -> None:
    learn = {"epoch_per_collect": 1, "batch_size": 8, "clip_ratio": 0.1, "value_clip": True}
    policy = make(learn=learn)
    data = batch(policy)
    value = data.columns["value"].astype(np.float64)
    old = value + np.array([0.5, -0.5, 0.05, -0.05, 0.5, -0.5, 0.0, 0.3])
    target = value + np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 0.2, 0.1])
    data.columns["value"], data.columns["return"] = old.astype("f"), target.astype("f")

    (log,) = policy.learn_mode.forward(data)

    expected = 0.0
    for now, before, goal in zip(value, old, target, strict=True):
        clipped = min(max(now, before - 0.1), before + 0.1)
        expected += max((now - goal) ** 2, (clipped - goal) ** 2) / 8
    assert log["value_loss"] == pytest.approx(expected, rel=1e-5)
    assert expected > np.square(value - target).mean() + 0.01


def test_training_stops_when_the_kl_exceeds_its_target() -> None:
    learn = {"epoch_per_collect": 50, "batch_size": 4, "learning_rate": 0.05}
    free = make(learn=learn).learn_mode.forward(batch(make()))
    kls = [log["approx_kl"] for log in free]
    first = next(index for index, kl in enumerate(kls) if kl > 0.01)

    stopped = make(learn={**learn, "target_kl": 0.01}).learn_mode.forward(batch(make()))

    assert len(kls) == 100
    assert 0 < first < 99
    assert [log["approx_kl"] for log in stopped] == kls[: first + 1]


def test_approximate_kl_is_the_mean_of_ratio_minus_one_minus_its_logarithm() -> None:
    policy = make(learn={"epoch_per_collect": 1, "batch_size": 8, "clip_ratio": 0.25})
    data = batch(policy)
    data.columns["log_prob"] -= np.log([1.0, 2.0, 0.5, 1.0, 1.2, 1.0, 1.0, 1.0]).astype(np.float32)

    (log,) = policy.learn_mode.forward(data)

    ratios = [1.0, 2.0, 0.5, 1.0, 1.2, 1.0, 1.0, 1.0]
    expected = sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 8
    assert log["approx_kl"] == pytest.approx(expected, abs=1e-6)
    assert log["clip_fraction"] == pytest.approx(2 / 8)


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ({"on_policy": False}, "policy.on_policy"),
        ({"priority": True}, "policy.priority"),
        ({"nstep": 3}, "policy.nstep"),
        ({"learn": {"clip_ratio": 1e-20}}, "policy.learn.clip_ratio"),  # 1 + 1e-20 is 1
        ({"learn": {"entropy_weight": math.inf}}, "policy.learn.entropy_weight"),
    ],
)
def test_value_without_a_use_is_refused(option: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        make(**option)


@pytest.mark.parametrize(
    ("shape", "is_normalized", "obs"),
    [
        (3, False, SEEN),
        (3, True, SEEN),
        ("Discrete(3)", False, np.arange(3)),
        ({"arm": 1, "speed": 1}, False, {"arm": SEEN[:, :1], "speed": SEEN[:, 1:2]}),
    ],
    ids=["vector", "normalized", "number", "dict"],
)
def test_value_errors_do_not_change_actions_without_images(
    shape: Any, is_normalized: bool, obs: Any
) -> None:
    section = {
        "model": {**MODEL, "obs_shape": shape},
        "learn": {"entropy_weight": 0.0},
        "normalize": {"obs": is_normalized},
    }
    policy = PPOPolicy(section, seed=0)
    network, seen = policy.state()["model"], policy.tensor(obs)
    far = {"advantage": np.zeros(3, np.float32), "return": np.full(3, 100, np.float32)}
    batch = collate(SampleBatch({"obs": obs, **policy.act(obs, explore=True), **far}))
    outputs, value = (each.detach() for each in network.forward(seen))

    policy.learn(batch)

    after, learned = network.forward(seen)
    assert torch.equal(after, outputs)
    assert (learned - value).abs().min() > 1e-4


def test_activation_and_sizes_of_the_critic_are_configured() -> None:
    policy = make(model={**MODEL, "activation": "relu", "critic_hidden_size_list": [5, 4]})
    obs = torch.from_numpy(SEEN)

    outputs, values = policy._network.forward(obs)

    def plain(layers: list[torch.nn.Linear]) -> torch.Tensor:
        found = obs
        for layer in layers[:-1]:
            found = torch.relu(layer(found))
        return layers[-1](found)

    actor, critic = policy._network.actor.layers, policy._network.critic.layers
    assert [each.out_features for each in actor] == [8, 2]
    assert [each.out_features for each in critic] == [5, 4, 1]
    torch.testing.assert_close(outputs, plain(actor))
    torch.testing.assert_close(values, plain(critic).squeeze(1))


@pytest.mark.parametrize("model", [{}, {"recurrent": "gru", "recurrent_size": 4}])
def test_values_are_learned_on_the_scale_of_returns(model: dict[str, Any]) -> None:
    model = {**MODEL, **model, "value_norm": True}
    policy = make(model=model, learn={"epoch_per_collect": 1, "batch_size": 8, "value_clip": True})
    for parameter in policy._network.critic.parameters():
        parameter.data.zero_()
    obs = np.zeros((8, 3), np.float32)
    given = {
        **columns(make()),
        **policy.collect_mode.forward_batch(obs, range(8)),
        "obs": obs,
        "reward": np.arange(1000, 1080, 10, dtype=np.float32),
    }
    data = policy.collect_mode.make_samples(given, ENDS)
    returns = data.columns["return"]

    (log,) = policy.learn_mode.forward(data)

    # The scaled value is 0, so the error is that of the mean, in deviations.
    assert log["value_loss"] == pytest.approx(1.0, rel=1e-4)
    scale = policy._network.value_scale
    assert scale is not None
    assert (scale.mean.item(), scale.var.item()) == pytest.approx((returns.mean(), returns.var()))
    acted = policy.collect_mode.forward_batch(obs, range(8))["value"]
    assert acted == pytest.approx(np.full(8, returns.mean()), rel=0.05)
    other = make(["collect"], seed=1, model=model)
    other.collect_mode.load_state_dict({"model": policy.learn_mode.state_dict()["model"]})
    other.collect_mode.reset()
    policy.collect_mode.reset()
    assert other.collect_mode.forward_batch(obs, range(8))["value"] == pytest.approx(
        policy.collect_mode.forward_batch(obs, range(8))["value"]
    )


def test_standard_deviation_begins_as_configured() -> None:
    box = {"action_space": "continuous", "action_low": [-1.0] * 2, "action_high": [1.0] * 2}
    policy = make(model={**MODEL, **box, "log_std_init": -1.5})

    assert policy._network.distribution.log_std.tolist() == [-1.5, -1.5]


def test_random_actions_are_refused_for_on_policy_training() -> None:
    with pytest.raises(ConfigError, match="trains only on its own actions") as caught:
        make(random_collect_size=5)
    assert caught.value.path == "policy.random_collect_size"


def test_encoder_of_images_is_trained_in_every_minibatch() -> None:
    section = {"model": {"obs_shape": [8, 8, 1], "action_shape": 2}, "learn": {"batch_size": 3}}
    policy = PPOPolicy(section, seed=0)
    obs = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), np.uint8)
    zeros = np.zeros(6, np.bool_)
    steps = {
        "obs": obs,
        **policy.act(obs, explore=True),
        "reward": np.arange(6, dtype=np.float32),
        "next_obs": obs,
        "terminated": zeros,
        "done": zeros,
    }
    samples = policy.collect_mode.make_samples(steps, np.array([6]))  # type: ignore[misc]
    before = [each.detach().clone() for each in policy.state()["model"].encoder.parameters()]  # type: ignore[attr-defined]

    assert len(policy.learn_mode.forward(samples)) == 20

    after = policy.state()["model"].encoder.parameters()  # type: ignore[attr-defined]
    assert not any(torch.equal(*each) for each in zip(before, after, strict=True))
