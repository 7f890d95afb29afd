"""Observations and rewards are scaled by statistics of the collected steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.policy import PPOPolicy, R2D2Policy, create_policy, make_encoder
from dingsdk.policy.encoders import Scaled
from dingsdk.policy.spaces import Normalized
from tests.fakes import IdlePolicy

rng = np.random.default_rng(0)
SCALE, SHIFT = np.array([100.0, 0.01, 3.0]), np.array([-500.0, 2.0, 0.0])


def observations(count: int) -> np.ndarray[Any, Any]:
    return (rng.normal(size=(count, 3)) * SCALE + SHIFT).astype(np.float32)


def batch_of(obs: np.ndarray[Any, Any]) -> SampleBatch:
    size = len(obs)
    return SampleBatch(
        {
            "obs": obs,
            "next_obs": obs[::-1].copy(),
            "action": np.zeros(size, np.int64),
            "reward": np.ones(size, np.float32),
            "discount": np.full(size, 0.5, np.float32),
        }
    )


def make(fields: list[str] | None = None, normalize: Any = None, **model: Any) -> Any:
    cfg = {
        "type": "dqn",
        "model": {"obs_shape": 3, "action_shape": 2, **model},
        "normalize": {"obs": True} if normalize is None else normalize,
    }
    return create_policy(cfg, enable_field=fields, seed=0)


def statistics(policy: Any, part: str = "model") -> dict[str, Any]:
    """Return a copy of the statistics of observations in a part of the policy."""
    state = policy.learn_mode.state_dict()[part]
    return {
        name: state[f"encoder.features.{name}"].clone()
        for name in ("mean", "var", "count", "factor")
    }


def test_statistics_of_several_batches_equal_those_of_all_rows() -> None:
    parts = [observations(count) for count in (1, 7, 64)]
    layer = Scaled([3], clip=10.0)
    for part in parts:
        layer.measure(torch.from_numpy(part))
    rows = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(layer.mean.numpy(), rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(layer.var.numpy(), rows.var(0), rtol=1e-10)
    assert float(layer.count) == 72
    found = layer.forward(torch.from_numpy(parts[2])).numpy()
    expected = (parts[2] - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(found, expected, atol=1e-2)
    assert float(layer.forward(torch.full((1, 3), 1e9)).max()) == 10.0


@pytest.mark.parametrize(
    ("offset", "dtype"),
    [(0.0, "float32"), (5e6, "float32"), (5e6 + 0.25, "float64"), (1e9 + 7, "float64")],
)
def test_large_observations_are_scaled_by_their_exact_difference_to_the_mean(
    offset: float, dtype: str
) -> None:
    policy = make(obs_shape=1)
    scale = policy._network.encoder.features
    for batch in ([-5.0, -1.0], [1.0, 5.0]) * 100:
        obs = np.array(batch, dtype)[:, None] + np.array(offset, dtype)
        policy.learn_mode.observe(SampleBatch({"obs": obs}))
    # A variance of 4 in each batch, and of 9 between the two means.
    assert float(scale.mean) == pytest.approx(offset, abs=1e-6)
    assert float(scale.var) == pytest.approx(13.0, rel=1e-7)
    obs = np.array([[-1.0], [1.0]], dtype) + np.array(offset, dtype)
    found = scale.forward(policy.tensor(obs))
    assert (found.dtype, found.shape) == (torch.float32, (2, 1))
    assert found.flatten().tolist() == pytest.approx([-(13**-0.5), 13**-0.5], rel=1e-6)
    assert torch.equal(scale.forward(policy.tensor(torch.from_numpy(obs))), found)
    policy.collect_mode.forward_batch(obs, [0, 1])


def test_mean_that_float32_cannot_hold_is_subtracted_exactly() -> None:
    layer, obs = Scaled([1]), torch.tensor([[0.0], [2.0], [2.0]]) + 2**24
    layer.measure(obs)
    assert float(layer.centre) != float(layer.mean)
    assert layer.forward(obs).flatten().tolist() == pytest.approx([-(2**0.5), 0.5**0.5, 0.5**0.5])


def test_observations_that_never_change_are_scaled_to_zero() -> None:
    layer, obs = Scaled([3]), torch.tensor([[0.1, 3.3, 58141.93359375]]).repeat(61, 1)
    for _ in range(3):
        layer.measure(obs)
    assert float(layer.var.min()) >= 0
    layer.measure(obs[:0])
    assert float(layer.count) == 183
    assert layer.forward(obs).abs().max() < 0.1


def test_vectors_in_dicts_and_sequences_are_measured() -> None:
    encoder = make_encoder(Normalized({"image": [8, 8, 3], "speed": 2, "arm": [3]}))
    obs = {
        "image": torch.zeros(4, 5, 8, 8, 3),
        "speed": torch.arange(40.0).reshape(4, 5, 2),
        "arm": torch.ones(4, 5, 3),
    }
    encoder.features.measure(obs)  # type: ignore[union-attr, operator]
    arm, speed = (each for each in encoder.modules() if isinstance(each, Scaled))
    assert (arm.mean.tolist(), speed.mean.tolist()) == ([1.0] * 3, [19.0, 20.0])
    assert float(arm.count) == float(speed.count) == 20


def test_acting_uses_the_statistics_of_the_learner() -> None:
    learner = make()
    obs = observations(64)
    learner.learn_mode.observe(batch_of(obs))
    state = learner.learn_mode.state_dict()
    np.testing.assert_allclose(state["model"]["encoder.features.mean"], obs.mean(0), rtol=1e-4)
    for name, value in statistics(learner).items():
        assert torch.equal(statistics(learner, "target_model")[name], value)
    # The acting network shares the statistics; another process gets them with the weights.
    other = make(["eval"])
    other.eval_mode.load_state_dict({"model": state["model"]})
    seen = learner._acting_network.forward(torch.from_numpy(obs))
    assert torch.equal(seen, learner._network.forward(torch.from_numpy(obs)).detach())
    assert torch.equal(seen, other._acting_network.forward(torch.from_numpy(obs)))


def test_loading_only_the_model_copies_its_statistics_to_the_target() -> None:
    trained, fresh = make(), make()
    trained.learn_mode.observe(batch_of(observations(64)))
    fresh.learn_mode.load_state_dict({"model": trained.learn_mode.state_dict()["model"]})
    state = fresh.learn_mode.state_dict()
    assert state["target_model"].keys() == state["model"].keys()
    for key, value in state["target_model"].items():
        assert torch.equal(value, state["model"][key])


def test_padded_steps_of_sequences_do_not_count() -> None:
    policy = make()
    mask = np.array([[True, True, False], [True, False, False]])
    obs = np.where(mask[..., None], 4.0, 0.0).astype(np.float32).repeat(3, 2)
    policy.learn_mode.observe(SampleBatch({"obs": obs, "mask": mask}))
    found = statistics(policy)
    assert (found["mean"].tolist(), float(found["count"])) == ([4.0] * 3, 3)


@pytest.mark.parametrize("shape", ["Discrete(4)", [40, 40, 3]])
def test_observations_without_vectors_are_refused(shape: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make(obs_shape=shape)
    assert caught.value.facts["path"] == "policy.normalize.obs"


def test_samples_in_any_form_are_observed() -> None:
    obs = observations(12)
    whole = batch_of(obs)
    forms: dict[str, Any] = {
        "columns": whole,
        "rows": [dict(whole[row]) for row in range(12)],
        "episodes": [whole[:5], whole[5:]],
        "episodes of rows": [[dict(whole[row]) for row in range(12)]],
    }
    for form, samples in forms.items():
        policy = make()
        policy.learn_mode.observe(samples)
        found = statistics(policy)
        assert float(found["count"]) == 12, form
        np.testing.assert_allclose(found["mean"], obs.astype(np.float64).mean(0), rtol=1e-12)


def test_training_acting_and_loading_do_not_change_the_statistics() -> None:
    policy, obs = make(normalize={"obs": True, "reward": True}), observations(32)
    returns = rng.normal(size=32).astype(np.float32)
    policy.learn_mode.observe(SampleBatch({"obs": obs, DISCOUNTED_RETURN: returns}))
    before = policy.learn_mode.get_attribute("statistics")
    before = [{name: each.clone() for name, each in layer.items()} for layer in before]

    policy.learn_mode.forward(batch_of(observations(16)))
    policy.collect_mode.forward_batch(obs, range(32), eps=0.1)
    policy.eval_mode.forward_batch(obs, range(32))
    policy.eval_mode.load_state_dict({"model": policy.learn_mode.state_dict()["model"]})

    after = policy.learn_mode.get_attribute("statistics")
    assert len(after) == 3  # of the network, of its target, and of the returns
    for layer, old in zip(after, before, strict=True):
        assert all(torch.equal(layer[name], old[name]) for name in old)
    other = make(normalize={"obs": True, "reward": True})
    other.learn_mode.set_attribute("statistics", before)
    for name, value in policy.learn_mode.state_dict()["model"].items():
        if "features" in name or "reward_scale" in name:
            assert torch.equal(other.learn_mode.state_dict()["model"][name], value)


class Recording(IdlePolicy):
    """Records the batches that it would learn from."""

    batches: ClassVar[list[Mapping[str, Any]]] = []

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.batches.append(batch)
        return {"total_loss": 0.0}


@pytest.mark.parametrize("on_policy", [False, True])
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return(on_policy: bool) -> None:
    section = {"on_policy": on_policy, "normalize": {"reward": True, "clip": 3.0}}
    policy = Recording(section, seed=0)
    returns = np.array([1.0, 3.0, 5.0, 11.0], np.float32)  # deviation sqrt(14)
    rewards = np.array([2.0, -2.0, 0.0, 100.0], np.float32)
    scaled = [2 / 14**0.5, -2 / 14**0.5, 0.0, 3.0]
    columns = {"obs": rewards[:, None], "reward": rewards.copy(), DISCOUNTED_RETURN: returns}

    policy.learn_mode.observe(SampleBatch(dict(columns)))
    samples = policy.collect_mode.make_samples(dict(columns), np.array([4]))
    # On-policy the collector scales them, with the statistics of its version.
    assert samples.columns["reward"].tolist() == pytest.approx(scaled if on_policy else rewards)
    assert samples.columns[DISCOUNTED_RETURN].tolist() == returns.tolist()
    policy.learn_mode.forward(samples)

    batch = policy.batches.pop()
    assert batch.keys() == {"obs", "reward"}
    assert batch["reward"].tolist() == pytest.approx(scaled)
    assert batch["reward"].dtype is torch.float32
    assert samples.columns["reward"].tolist() == pytest.approx(scaled if on_policy else rewards)


def test_advantages_are_those_of_scaled_rewards() -> None:
    cfg = {"model": {"obs_shape": 3, "action_shape": 2}}
    plain = PPOPolicy(cfg, seed=0)
    policy = PPOPolicy({**cfg, "normalize": {"reward": True}}, seed=0)
    obs = rng.normal(size=(6, 3)).astype(np.float32)
    columns = {
        "obs": obs,
        **policy.act(obs, explore=True),
        "reward": rng.normal(size=6).astype(np.float32),
        "next_obs": obs,
        "terminated": np.zeros(6, np.bool_),
        "done": np.zeros(6, np.bool_),
        DISCOUNTED_RETURN: np.array([-4, 4, 4, -4, -4, 4], np.float32),
    }
    policy.learn_mode.observe(SampleBatch(dict(columns)))
    found = policy.collect_mode.make_samples(dict(columns), np.array([6])).columns
    smaller = {**columns, "reward": columns["reward"] / 4}
    expected = plain.collect_mode.make_samples(smaller, np.array([6])).columns
    np.testing.assert_allclose(found["advantage"], expected["advantage"], rtol=1e-5)


def test_each_step_of_overlapping_sequences_counts_once() -> None:
    section = {
        "model": {"obs_shape": 1, "action_shape": 2, "lstm_size": 2},
        "learn": {"sequence_length": 6, "burn_in": 2},
        "other": {"replay_buffer": {"type": "advanced"}},
        "normalize": {"obs": True, "reward": True},
    }
    policy: Any = R2D2Policy(section, seed=0)
    steps = np.arange(23, dtype=np.float32)
    columns = {
        "obs": steps[:, None],
        "state": np.zeros((23, policy.state_size), np.float32),
        DISCOUNTED_RETURN: 2 * steps,
    }
    samples = policy.collect_mode.make_samples(columns, np.array([9, 10, 23]))
    policy.learn_mode.observe(samples)
    *_, last = policy.learn_mode.get_attribute("statistics")
    found = statistics(policy)
    assert (float(found["count"]), float(last["count"])) == (23, 23)
    assert (float(found["mean"]), float(last["mean"])) == pytest.approx((11.0, 22.0))
    assert float(found["var"]) == pytest.approx(steps.var())


def test_samples_without_a_needed_column_are_refused_by_name() -> None:
    policy = make(normalize={"obs": True, "reward": True})
    with pytest.raises(SchemaMismatchError, match=DISCOUNTED_RETURN) as caught:
        policy.learn_mode.observe(batch_of(observations(4)))
    assert caught.value.key == DISCOUNTED_RETURN
    assert float(statistics(policy)["count"]) == 0


def test_policy_whose_networks_cannot_normalise_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"Recording.*make_encoder") as caught:
        Recording({"normalize": {"obs": True}}, seed=0)
    assert caught.value.facts["path"] == "policy.normalize.obs"
