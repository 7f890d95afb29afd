"""Networks that normalise observations with statistics of the training data."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
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


def in_ranks(layers: list[Scaled], batches: list[list[list[float]]]) -> None:
    """Measure one batch in each layer, with sums that are averaged over all of them."""
    barrier, given = threading.Barrier(len(layers)), [torch.zeros(())] * len(layers)

    def measure(rank: int) -> None:
        def average(sums: torch.Tensor) -> None:
            given[rank] = sums.clone()
            barrier.wait(10)
            sums.copy_(torch.stack(given).mean(0))
            barrier.wait(10)

        layers[rank].measure(torch.tensor(batches[rank], dtype=torch.float64), average)

    with ThreadPoolExecutor(len(layers)) as pool:
        list(pool.map(measure, range(len(layers))))


def test_ranks_with_different_numbers_of_rows_have_the_statistics_of_all_rows() -> None:
    ranks = [Scaled([1]), Scaled([1])]
    in_ranks(ranks, [[[1.0], [2.0], [3.0]], [[8.0]]])
    in_ranks(ranks, [[[10.0]], [[4.0], [6.0]]])
    for rank in ranks:
        assert float(rank.mean) == pytest.approx(34 / 7)
        assert float(rank.var) == pytest.approx(230 / 7 - (34 / 7) ** 2)
        assert float(rank.count) == 3.5  # of 7 rows, a half


def test_learner_averages_its_statistics_over_the_ranks() -> None:
    policy = make(["learn"])
    averaged: list[int] = []
    policy.learn_mode.set_attribute("average_over_ranks", lambda sums: averaged.append(sums.ndim))
    policy.learn_mode.forward(batch_of(observations(16)))
    # The gradient; then, of the network and of its target, the sums and the squares.
    assert averaged == [1, 2, 1, 2, 1]


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
        policy._measure({"obs": torch.from_numpy(obs)})
    # A variance of 4 in each batch, and of 9 between the two means.
    assert float(scale.mean) == pytest.approx(offset, abs=1e-6)
    assert float(scale.var) == pytest.approx(13.0, rel=1e-7)
    obs = np.array([[-1.0], [1.0]], dtype) + np.array(offset, dtype)
    found = scale.forward(policy.tensor(obs))
    assert (found.dtype, found.shape) == (torch.float32, (2, 1))
    assert found.flatten().tolist() == pytest.approx([-(13**-0.5), 13**-0.5], rel=1e-6)
    assert torch.equal(scale.forward(policy.tensor(torch.from_numpy(obs))), found)
    policy.collect_mode.forward_batch(obs, [0, 1])


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
    encoder.features.measure(obs)  # type: ignore[union-attr, operator]
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
