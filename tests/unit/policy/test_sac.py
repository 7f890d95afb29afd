from __future__ import annotations

import copy
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.policy.sac import SACPolicy, SquashedGaussian, TwinCritic

MODEL = {
    "obs_shape": 3,
    "action_shape": 2,
    "action_low": [-1.0, 0.0],
    "action_high": [3.0, 0.5],
    "encoder_hidden_size_list": [8, 6],
}


def make(fields: list[str] | None = None, seed: int = 0, **cfg: Any) -> SACPolicy:
    return SACPolicy({"model": MODEL, **cfg}, enable_field=fields, seed=seed)


def batch(rows: int = 16, **columns: Any) -> SampleBatch:
    rng = np.random.default_rng(0)
    return SampleBatch(
        {
            "obs": rng.normal(size=(rows, 3)).astype(np.float32),
            "action": rng.uniform([-1, 0], [3, 0.5], (rows, 2)).astype(np.float32),
            "reward": rng.normal(size=rows).astype(np.float32),
            "next_obs": rng.normal(size=(rows, 3)).astype(np.float32),
            "discount": np.where(rng.random(rows) < 0.3, 0, 0.9).astype(np.float32),
            **columns,
        }
    )


def plain_critic(critic: TwinCritic, index: int) -> nn.Sequential:
    """Return one of the two critics, made of layers of torch."""
    layers: list[nn.Module] = []
    for linear in critic.critics[index].children():
        layers += [copy.deepcopy(linear).requires_grad_(), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_log_probability_is_finite_when_tanh_is_one() -> None:
    actor = SquashedGaussian(1, 1, [])
    actor.net.layers[-1].weight.data.zero_()
    actor.net.layers[-1].bias.data.copy_(torch.tensor([50.0, 0.0]))

    action, log_prob = actor.sample(torch.zeros(1, 1), torch.zeros(1, 1))

    # log(1 - tanh(x)^2) is 2 log 2 - 2 x for large x.
    assert action.item() == 1.0
    expected = -0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 100)
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("bias", "expected"), [(100.0, 2.0), (-100.0, -20.0), (0.5, 0.5)])
def test_log_standard_deviation_stays_in_its_range(bias: float, expected: float) -> None:
    actor = SquashedGaussian(1, 1, [])
    actor.net.layers[-1].weight.data.zero_()
    actor.net.layers[-1].bias.data[1] = bias

    assert actor(torch.zeros(1, 1))[1].item() == expected


def test_update_equals_the_paper() -> None:
    """An independent reference: plain layers, torch's distributions, and Adam's first step."""
    policy = make(learn={"alpha": 0.3, "target_theta": 0.1}, discount_factor=0.9)
    for tensor in policy._target_flat.split(7):
        tensor += 0.05  # so that the target differs from the critics
    data = {name: torch.from_numpy(column) for name, column in batch().columns.items()}
    noises = [
        torch.from_numpy(np.random.default_rng(5).standard_normal((2, 16, 2), np.float32))[index]
        for index in (1, 0)
    ]
    policy.rng = np.random.default_rng(5)
    critics = [plain_critic(policy._critic, index) for index in (0, 1)]
    targets = [plain_critic(policy._target, index) for index in (0, 1)]
    actor = copy.deepcopy(policy._actor)
    center, half = torch.tensor([1.0, 0.25]), torch.tensor([2.0, 0.25])

    def draw(obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(obs)
        squashed = TransformedDistribution(
            Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=1)]
        )
        action = torch.tanh(mean + log_std.exp() * noise)
        return action, squashed.log_prob(action)

    def values(nets: list[nn.Sequential], obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.stack([net(torch.cat((obs, action), 1)).squeeze(1) for net in nets])

    with torch.no_grad():
        action, log_prob = draw(data["next_obs"], noises[0])
        soft = values(targets, data["next_obs"], action).min(0).values - 0.3 * log_prob
        target = data["reward"] + data["discount"] * soft
    normed = (data["action"] - center) / half
    first, second = values(critics, data["obs"], normed)
    critic_loss = 0.5 * ((first - target) ** 2).mean() + 0.5 * ((second - target) ** 2).mean()
    critic_weights = [weight for net in critics for weight in net.parameters()]
    optimizer = torch.optim.SGD(critic_weights, 1.0)
    critic_loss.backward()
    norm = torch.cat([weight.grad.reshape(-1) for weight in critic_weights]).norm()
    # Adam's first step has the sign of the gradient and the size of the learning rate.
    for weight in critic_weights:
        weight.grad = 3e-4 * weight.grad / (weight.grad.abs() + 1e-8)
    optimizer.step()
    action, log_prob = draw(data["obs"], noises[1])
    value = values(critics, data["obs"], action).min(0).values
    actor_loss = (0.3 * log_prob - value).mean()
    actor.zero_grad()
    actor_loss.backward()
    before = [weight.clone() for weight in policy._actor.parameters()]
    old_target = policy._target_flat.clone()

    log = policy.learn_mode.forward(SampleBatch({k: v.numpy() for k, v in data.items()}))

    assert isinstance(log, dict)
    assert log["critic_loss"] == pytest.approx(critic_loss.item(), rel=1e-4)
    assert log["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert log["actor_loss"] == pytest.approx(actor_loss.item(), rel=1e-3)
    assert log["total_loss"] == pytest.approx(log["critic_loss"] + log["actor_loss"])
    assert log["target_q_value"] == pytest.approx(target.mean().item(), rel=1e-3)
    assert log["q_value"] == pytest.approx(value.mean().item(), rel=1e-3)
    assert log["entropy"] == pytest.approx(-log_prob.mean().item(), rel=1e-3)
    for index in (0, 1):
        for ours, theirs in zip(
            plain_critic(policy._critic, index).parameters(),
            critics[index].parameters(),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)
    for ours, old, theirs in zip(
        policy._actor.parameters(), before, actor.parameters(), strict=True
    ):
        certain = theirs.grad.abs() > 1e-4
        torch.testing.assert_close(
            (ours - old)[certain], (-3e-4 * theirs.grad.sign())[certain], rtol=1e-2, atol=1e-6
        )
    torch.testing.assert_close(
        policy._target_flat, 0.9 * old_target + 0.1 * policy._critic_optimizer.flat
    )


@pytest.mark.parametrize(("target", "rises"), [(50.0, True), (-50.0, False)])
def test_temperature_rises_while_the_entropy_is_too_low(target: float, rises: bool) -> None:
    policy = make(learn={"alpha": 0.5, "target_entropy": target})

    log = policy.learn_mode.forward(batch())

    assert isinstance(log, dict)
    assert log["temperature"] == pytest.approx(0.5)
    expected = math.log(0.5) * (log["entropy"] - target)
    assert log["temperature_loss"] == pytest.approx(expected, rel=1e-5)
    alpha = float(policy._temperature.log_alpha.detach().exp())
    assert (alpha > 0.5) is rises
    assert math.log(alpha / 0.5) == pytest.approx(3e-4 if rises else -3e-4, rel=1e-2)


def test_target_entropy_is_minus_the_dimensions_and_fixed_temperature_stays() -> None:
    assert make()._target_entropy == -2.0
    policy = make(learn={"auto_alpha": False, "alpha": 0.2})

    for _ in range(3):
        policy.learn_mode.forward(batch())

    assert float(policy._temperature.log_alpha.detach().exp()) == pytest.approx(0.2)


def test_importance_weights_scale_the_critic_loss_but_not_the_priorities() -> None:
    policy, weighted = make(priority=True), make(priority=True)
    plain = policy.learn_mode.forward(batch())
    log = weighted.learn_mode.forward(batch(IS=np.full(16, 0.25, np.float32)))

    assert isinstance(plain, dict)
    assert isinstance(log, dict)
    assert log["critic_loss"] == pytest.approx(plain["critic_loss"] / 4, rel=1e-5)
    assert log["priority"] == pytest.approx(plain["priority"])
    assert len(log["priority"]) == 16
    # |a| and |b| are at least |a + b| / 2, and the loss is the mean of (a^2 + b^2) / 2.
    assert np.square(plain["priority"]).mean() <= plain["critic_loss"]


MAX, LEAST = float(np.finfo(np.float32).max), 2.0**-149


@pytest.mark.parametrize(
    ("low", "high", "middle"),
    [
        (-MAX, MAX, 0.0),
        (-1e300, 1e300, 0.0),
        (0.5 * MAX, MAX, 0.75 * MAX),
        (0.0, LEAST, 0.0),
        (-0.1, 0.1, 0.0),  # float32 cannot hold these: they are rounded inwards
    ],
)
def test_actions_fill_the_widest_and_the_narrowest_bounds(
    low: float, high: float, middle: float
) -> None:
    model = {"obs_shape": 3, "action_shape": 1, "action_low": [low], "action_high": [high]}
    policy = SACPolicy({"model": model}, seed=0)
    low, high = max(low, -MAX), min(high, MAX)
    policy._actor.net.layers[-1].weight.data.zero_()
    obs, found = np.zeros((1, 3), np.float32), []
    for bias in (-90.0, 0.0, 90.0):
        policy._actor.net.layers[-1].bias.data[0] = bias
        found.append(float(policy.act(obs, explore=False)["action"][0, 0]))
    assert found == pytest.approx([low, middle, high], rel=1e-6, abs=0.0)
    assert low <= found[0] <= found[2] <= high

    actions = np.array([low, high] * 8, np.float32)[:, None]
    policy.learn_mode.forward(batch(action=actions))
    assert policy._critic_optimizer.flat.isfinite().all()


def test_explored_actions_have_the_standard_deviation_of_the_network() -> None:
    policy = make()
    policy._actor.net.layers[-1].weight.data.zero_()
    policy._actor.net.layers[-1].bias.data.copy_(torch.tensor([0.2, -0.3, -2.0, -1.0]))

    actions = policy.act(np.zeros((20_000, 3), np.float32), explore=True)["action"]

    raw = np.arctanh((actions - [1.0, 0.25]) / [2.0, 0.25])
    assert raw.mean(0) == pytest.approx([0.2, -0.3], abs=0.01)
    assert raw.std(0) == pytest.approx([math.exp(-2), math.exp(-1)], rel=0.05)


def test_first_env_steps_are_uniform_if_configured() -> None:
    policy = make(random_collect_size=1000)
    ask = policy.command_mode.get_setting_collect
    assert ask({"envstep": 999}) == {"is_random": True}
    assert ask({"envstep": 1000}) == {"is_random": False}
    obs = np.zeros((20_000, 3), np.float32)

    found = policy.collect_mode.forward_batch(obs, range(len(obs)), is_random=True)["action"]

    assert found.mean(0) == pytest.approx([1.0, 0.25], abs=0.03)
    assert found.std(0) == pytest.approx(np.array([4.0, 0.5]) / math.sqrt(12), rel=0.02)
    assert found.min(0) == pytest.approx([-1.0, 0.0], abs=0.01)
    assert found.max(0) == pytest.approx([3.0, 0.5], abs=0.01)


def test_rounding_does_not_take_greedy_actions_beyond_the_bounds() -> None:
    # In float32, the center plus the half range of these bounds is beyond the bound.
    bounds = {"action_low": [0.3, -3.0], "action_high": [2.6, 1.9]}
    policy = SACPolicy({"model": {**MODEL, **bounds}}, seed=0)
    low, high = (policy.tensor(each) for each in (policy._box.low, policy._box.high))
    layer, obs = policy._actor.net.layers[-1], torch.zeros(1, 3)
    for bias, bound in ((-90.0, low), (90.0, high)):
        layer.bias.data[:2] = bias
        acted = policy.act(obs.numpy(), explore=False)["action"]
        (exported,) = policy.greedy(policy._actor, obs)
        assert acted[0].tolist() == exported[0].tolist() == bound.tolist()


@pytest.mark.parametrize(
    ("observation", "action", "named"),
    [
        (spaces.Box(-1, 1, (3,)), spaces.Discrete(3), "Discrete(3)"),
        (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, ()), "()"),
        (spaces.Box(-1, 1, (3,)), spaces.Box(-1, np.inf, (2,)), "inf"),
        (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,), np.int32), "int32"),
        (spaces.Box(-1, 1, (3,)), spaces.Box(1, 1, (2,)), "Box(1.0, 1.0"),
        (spaces.Box(-1, 1, (3,)), spaces.Box(1e9, 1e9 + 1, (2,), np.float64), "1000000001.0"),
        (spaces.Text(3), spaces.Box(-1, 1, (2,)), "Text"),
    ],
)
def test_error_for_unusable_spaces_names_both_sides(
    observation: Any, action: Any, named: str
) -> None:
    with pytest.raises(ConfigError, match=r"policy type sac cannot use the (\w+) space") as caught:
        SACPolicy.model_from_spaces(observation, action)
    assert named in str(caught.value)
    assert caught.value.facts["found"] in (str(observation), str(action))
    assert "Box" in caught.value.facts["expected"]


def test_model_holds_the_bounds_of_the_env() -> None:
    box = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 0.1], np.float32))

    found = SACPolicy.model_from_spaces(spaces.Box(-1, 1, (3,)), box)

    assert found["obs_shape"] == 3
    assert found["action_shape"] == 2
    assert found["action_low"] == [-2.0, 0.0]
    assert np.array(found["action_high"], np.float32).tolist() == box.high.tolist()


@pytest.mark.parametrize(
    ("model", "key", "expected"),
    [
        ({"action_low": None}, "action_low", 2),
        ({"action_high": [1.0]}, "action_high", 2),
        ({"action_high": [1.0, float("inf")]}, "action_high", 2),
        ({"action_low": [3.0, 0.0]}, "action_low", MODEL["action_high"]),
        # 1e9 and 1e9 + 1 are the same number in float32.
        ({"action_low": [1e9, 0.0], "action_high": [1e9 + 1, 1.0]}, "action_low", [1e9 + 1, 1.0]),
    ],
)
def test_invalid_bounds_are_refused(model: dict[str, Any], key: str, expected: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make(model={**MODEL, **model})
    assert caught.value.path == f"policy.model.{key}"
    assert (caught.value.facts["expected"], caught.value.facts["found"]) == (expected, model[key])


@pytest.mark.parametrize("learn", [{"alpha": 1e-50}, {"target_entropy": -math.inf}])
def test_temperature_and_entropy_that_float32_cannot_hold_are_refused(learn: Any) -> None:
    with pytest.raises(ConfigError, match=f"policy.learn.{next(iter(learn))}"):
        make(learn=learn)


def test_actor_and_critics_normalise_observations() -> None:
    policy = make(normalize={"obs": True})
    data = batch(64)
    data.columns["obs"] = data.columns["obs"] * 100 + 1000

    policy.learn_mode.observe(data)

    for encoder in (policy._actor.encoder, policy._critic.encoder, policy._target.encoder):
        scaled = encoder.features.forward(torch.from_numpy(data.columns["obs"]))
        assert scaled.mean(0).tolist() == pytest.approx([0.0] * 3, abs=1e-3)


def test_actions_of_several_axes_are_scaled_and_trained_on() -> None:
    low = np.array([[-1.0, 0.0, 2.0], [-3.0, 4.0, 5.0]], np.float32)
    space = spaces.Box(low, low + 2)
    model = SACPolicy.model_from_spaces(spaces.Box(-1, 1, (3,)), space)
    assert model["action_shape"] == [2, 3]
    policy = SACPolicy({"model": {**model, "encoder_hidden_size_list": [8]}}, seed=0)
    policy._actor.net.layers[-1].weight.data.zero_()
    policy._actor.net.layers[-1].bias.data[:6] = torch.tensor([-90.0, 0, 90, 0, 0, 0])
    obs = batch().columns["obs"]

    actions = policy.act(obs, explore=False)["action"]
    policy.learn_mode.forward(batch(action=actions))

    assert actions[0] == pytest.approx(low + np.array([[0, 1, 2], [1, 1, 1]]))
    (exported,) = policy.greedy(policy._actor, torch.from_numpy(obs))
    assert exported.shape == (16, 2, 3)
    with pytest.raises(SchemaMismatchError, match=r"expected \[16, 2, 3\]"):
        policy.learn_mode.forward(batch(action=actions.reshape(16, 6)))


def test_subclass_replaces_the_networks() -> None:
    class Actor(SquashedGaussian):
        def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            mean, log_std = super().forward(obs)
            return mean + 7, log_std

    class Critic(TwinCritic):
        def forward(self, obs: Any, action: torch.Tensor) -> torch.Tensor:
            return super().forward(obs, action) * 0 + 5

    class OwnSAC(SACPolicy):
        def make_actor(self) -> SquashedGaussian:
            return Actor(3, 2, [8])

        def make_critic(self) -> nn.Module:
            return Critic(3, 2, [8])

    policy = OwnSAC({"model": MODEL}, seed=0)

    assert policy.act(np.zeros((1, 3), np.float32), explore=False)["action"][0] == pytest.approx(
        [3.0, 0.5], abs=1e-3
    )
    assert policy.learn_mode.forward(batch())["q_value"] == 5.0


class Noise:
    """Replaces the random generator: returns prepared noise for each update."""

    def __init__(self, updates: list[np.ndarray[Any, Any]]) -> None:
        self._updates = iter(updates)

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        found = next(self._updates)
        assert found.shape == shape
        return found


def test_two_ranks_train_like_one_learner_with_the_whole_batch() -> None:
    noise = np.random.default_rng(3).standard_normal((3, 2, 16, 2), np.float32)
    alone = make()
    alone.rng = Noise([each.reshape(32, 2) for each in noise])  # type: ignore[assignment]
    ranks, barrier, given = [make(), make()], threading.Barrier(2, timeout=10), [None, None]
    halves = [slice(0, 8), slice(8, 16)]

    def train(rank: int) -> list[dict[str, Any]]:
        def average(vector: torch.Tensor) -> None:
            given[rank] = vector.clone()  # type: ignore[call-overload]
            barrier.wait()
            vector.copy_((given[0] + given[1]) / 2)  # type: ignore[operator]
            barrier.wait()

        policy = ranks[rank]
        policy.learn_mode.set_attribute("average_over_ranks", average)
        part = noise[:, :, halves[rank]].reshape(3, 16, 2)
        policy.rng = Noise(list(part))  # type: ignore[assignment]
        return [policy.learn_mode.forward(batch()[halves[rank]]) for _ in noise]  # type: ignore[misc]

    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(train, (0, 1)))
    whole = [alone.learn_mode.forward(batch()) for _ in noise]

    assert whole[2]["grad_norm"] == pytest.approx(logs[0][2]["grad_norm"], rel=1e-3)  # type: ignore[call-overload]
    for part in ("model", "critic", "target_critic", "temperature"):
        for name, weight in alone.state()[part].state_dict().items():
            for rank in ranks:
                torch.testing.assert_close(
                    rank.state()[part].state_dict()[name], weight, rtol=1e-3, atol=2e-5
                )
