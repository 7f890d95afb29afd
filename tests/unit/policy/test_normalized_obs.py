"""Networks that normalise observations with statistics of the training data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.policy import create_policy, make_encoder
from dingsdk.policy.encoders import Scaled
from dingsdk.policy.spaces import Normalized

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


def make(fields: list[str] | None = None, **model: Any) -> Any:
    cfg = {"obs_shape": 3, "action_shape": 2, "normalize_obs": True, **model}
    return create_policy({"type": "dqn", "model": cfg}, enable_field=fields, seed=0)


def test_statistics_of_several_batches_equal_those_of_all_rows() -> None:
    parts = [observations(count) for count in (1, 7, 64)]
    layer = Scaled([3])
    for part in parts:
        layer.measure(torch.from_numpy(part))
    rows = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(layer.mean.numpy(), rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.var.numpy(), rows.var(0), rtol=1e-3)
    assert float(layer.count) == 72
    found = layer.forward(torch.from_numpy(parts[2])).numpy()
    expected = (parts[2] - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(found, expected, atol=1e-2)
    assert float(layer.forward(torch.full((1, 3), 1e9)).max()) == 10.0


def test_all_ranks_have_the_statistics_of_the_whole_batch() -> None:
    obs = torch.from_numpy(observations(64))
    whole, layers = Scaled([3]), [Scaled([3]), Scaled([3])]
    whole.measure(obs)
    moments: list[torch.Tensor] = []
    for layer, half in zip(layers, obs.split(32), strict=True):
        layer.measure(half, moments.append)
    mean = (moments[0] + moments[1]) / 2
    for layer, half in zip(layers, obs.split(32), strict=True):
        layer.count.zero_()
        layer.measure(half, lambda found: found.copy_(mean))
        torch.testing.assert_close(layer.mean, whole.mean)
        torch.testing.assert_close(layer.var, whole.var)


def test_learner_averages_its_statistics_over_the_ranks() -> None:
    policy = make(["learn"])
    averaged: list[torch.Tensor] = []
    policy.learn_mode.set_attribute("average_over_ranks", averaged.append)
    obs = observations(16)
    policy.learn_mode.forward(batch_of(obs))
    sums = averaged[-1]
    np.testing.assert_allclose(sums[0].numpy() / 16, obs.mean(0), rtol=1e-4)
    squares = np.square(obs.astype(float))
    np.testing.assert_allclose(sums[1].numpy() / 16, squares.mean(0), rtol=1e-4)
    assert sums[2].tolist() == [16.0] * 3


def test_ranks_with_different_numbers_of_rows_keep_the_statistics_of_all_rows() -> None:
    # Two batches, of which one rank has the rows 1, 2, 3 and then 10, the other 8 and then 4, 6.
    parts = [([[1.0], [2.0], [3.0]], [[8.0]]), ([[10.0]], [[4.0], [6.0]])]
    ranks = Scaled([1]), Scaled([1])
    for batches in parts:
        given: list[torch.Tensor] = []
        for batch in batches:
            Scaled([1]).measure(torch.tensor(batch), given.append)
        mean = (given[0] + given[1]) / 2
        for rank, batch in zip(ranks, batches, strict=True):
            rank.measure(torch.tensor(batch), lambda sums: sums.copy_(mean))  # noqa: B023
    rows = np.array([1.0, 2.0, 3.0, 8.0, 10.0, 4.0, 6.0])
    for rank in ranks:
        assert float(rank.mean) == pytest.approx(rows.mean())
        assert float(rank.var) == pytest.approx(rows.var())
        assert float(rank.count) == 3.5  # of 7 rows, a half


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_the_mean_of_large_numbers_follows_their_change(offset: float) -> None:
    layer = Scaled([1])
    for center in (-1.0, 1.0):
        batch = torch.tensor([[offset + center - 2.0], [offset + center + 2.0]])
        for _ in range(3000):
            layer.measure(batch)
    assert float(layer.mean) == pytest.approx(offset, abs=1e-3)
    assert float(layer.var) == pytest.approx(5.0, rel=1e-3)  # 4 of each batch, 1 of the centers
    scaled = layer.forward(torch.tensor([[offset + 5.0]]))
    assert (scaled.dtype, float(scaled)) == (torch.float32, pytest.approx(5 / 5**0.5, rel=1e-3))


def test_observations_that_never_change_are_scaled_to_zero() -> None:
    layer, obs = Scaled([3]), torch.tensor([[0.1, 3.3, 58141.93359375]]).repeat(61, 1)
    for _ in range(3):
        layer.measure(obs)
    assert float(layer.var.min()) >= 0
    assert layer.forward(obs).abs().max() < 0.1


def test_vectors_in_dicts_and_sequences_are_measured() -> None:
    encoder = make_encoder(Normalized({"image": [8, 8, 3], "speed": 2, "arm": [3]}))
    obs = {
        "image": torch.zeros(4, 5, 8, 8, 3),
        "speed": torch.arange(40.0).reshape(4, 5, 2),
        "arm": torch.ones(4, 5, 3),
    }
    averaged: list[torch.Tensor] = []
    encoder.features.measure(obs, averaged.append)  # type: ignore[union-attr, operator]
    assert [each[0].tolist() for each in averaged] == [[20.0] * 3, [380.0, 400.0]]
    arm, speed = (each for each in encoder.modules() if isinstance(each, Scaled))
    assert (arm.mean.tolist(), speed.mean.tolist()) == ([1.0] * 3, [19.0, 20.0])
    assert float(arm.count) == float(speed.count) == 20


def test_acting_uses_the_statistics_of_the_learner() -> None:
    learner = make()
    obs = observations(64)
    learner.learn_mode.forward(batch_of(obs))
    state = learner.learn_mode.state_dict()
    np.testing.assert_allclose(state["model"]["encoder.features.mean"], obs.mean(0), rtol=1e-4)
    for name in ("mean", "var", "count"):
        key = f"encoder.features.{name}"
        assert torch.equal(state["model"][key], state["target_model"][key])
    # The acting network shares the statistics; another process gets them with the weights.
    other = make(["eval"])
    other.eval_mode.load_state_dict({"model": state["model"]})
    seen = learner._acting_network.forward(torch.from_numpy(obs))
    assert torch.equal(seen, learner._network.forward(torch.from_numpy(obs)).detach())
    assert torch.equal(seen, other._acting_network.forward(torch.from_numpy(obs)))


def test_loading_only_the_model_copies_its_statistics_to_the_target() -> None:
    trained, fresh = make(), make()
    trained.learn_mode.forward(batch_of(observations(64)))
    fresh.learn_mode.load_state_dict({"model": trained.learn_mode.state_dict()["model"]})
    state = fresh.learn_mode.state_dict()
    assert state["target_model"].keys() == state["model"].keys()
    for key, value in state["target_model"].items():
        assert torch.equal(value, state["model"][key])


def test_padded_steps_of_sequences_do_not_count() -> None:
    policy = make()
    mask = np.array([[True, True, False], [True, False, False]])
    obs = np.where(mask[..., None], 4.0, 0.0).astype(np.float32).repeat(3, 2)
    policy._measure({"obs": torch.from_numpy(obs), "mask": torch.from_numpy(mask)})
    mean = policy.learn_mode.state_dict()["model"]["encoder.features.mean"]
    assert mean.tolist() == [4.0] * 3


@pytest.mark.parametrize("shape", ["Discrete(4)", [40, 40, 3]])
def test_observations_without_vectors_are_refused(shape: Any) -> None:

    with pytest.raises(ConfigError) as caught:
        make(obs_shape=shape)
    assert caught.value.facts["path"] == "policy.model.normalize_obs"
