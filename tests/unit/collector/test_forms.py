"""The two forms of collecting, columns and rows: inputs and outputs of the policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import SchemaMismatchError
from dingsdk.worker.collector.policy_output import RandomActions
from dingsdk.worker.collector.rows import DictRollout


def test_row_form_passes_tensors_if_configured(make_policy, make_collector) -> None:
    seen: list[Any] = []
    policy = make_policy(form="rows")

    def forward(obs: dict[int, Any], **_: Any) -> Any:
        seen.extend(obs.values())
        return {env_id: {"action": np.int64(0)} for env_id in obs}

    policy = policy._replace(forward=forward)
    for transform in (True, False):
        collector, _ = make_collector(policy, transform_obs=transform)
        seen.clear()
        samples = collector.collect()
        if transform:
            assert {(type(obs), obs.dtype) for obs in seen} == {(torch.Tensor, torch.float32)}
        else:
            assert {type(obs) for obs in seen} == {np.ndarray}
        assert samples[0]["obs"].dtype == torch.float32


def test_deepcopied_transitions_share_no_observation(make_policy, make_collector) -> None:
    for deepcopy in (False, True):
        policy = make_policy(form="rows")._replace(get_train_sample=lambda rows: rows)
        collector, _ = make_collector(policy, deepcopy_obs=deepcopy)
        first, second = collector.collect()[:2]
        assert (first["next_obs"] is second["obs"]) is not deepcopy
        assert torch.equal(first["next_obs"], second["obs"])


def test_columns_missing_from_make_samples_are_added(make_policy, make_collector) -> None:
    policy = make_policy()
    policy = policy._replace(
        make_samples=lambda columns, ends: SampleBatch({"obs": columns["obs"]})
    )
    collector, _ = make_collector(policy)

    batch = collector.collect(train_iter=6, level_seeds=[50, 51])

    assert set(batch.columns) == {"obs", "collect_iter", "seed"}
    assert batch.columns["collect_iter"].tolist() == [6] * 8
    assert (batch.columns["seed"] == batch.columns["obs"][:, 0] + 50).all()


@pytest.mark.parametrize(
    ("change", "key", "found"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "reward"}, "reward", None),
        (lambda t: {**t, "reward": t["reward"].astype(np.float64)}, "reward", "float64[2]"),
        (lambda t: {**t, "obs": t["obs"][:, :2]}, "obs", "float32[2, 2]"),
        (lambda t: {**t, "obs": t["obs"][:1]}, "obs", "float32[1, 3]"),
        (lambda t: {**t, "obs": {"x": t["obs"]}}, "obs", None),
    ],
)
def test_transitions_that_change_their_form_are_refused(
    make_policy, make_collector, change, key, found
) -> None:
    policy = make_policy()
    rounds = []

    def make_transitions(*args: Any) -> Any:
        rounds.append(1)
        columns = policy.make_transitions(*args)
        return columns if len(rounds) < 3 else change(columns)

    collector, _ = make_collector(policy._replace(make_transitions=make_transitions))

    with pytest.raises(SchemaMismatchError) as caught:
        collector.collect()
    assert (caught.value.key, caught.value.facts["found"]) == (key, found)
    assert len(rounds) == 3


@pytest.mark.parametrize(
    ("value", "found"), [([0, 0], "list"), (np.zeros(3), "float64[3]"), (np.zeros(()), "float64[]")]
)
def test_new_column_needs_a_row_for_each_env(make_policy, make_collector, value, found) -> None:
    policy = make_policy()
    make = policy.make_transitions
    policy = policy._replace(make_transitions=lambda *args: {**make(*args), "deep": {"x": value}})
    collector, _ = make_collector(policy)

    with pytest.raises(SchemaMismatchError) as caught:
        collector.collect()
    assert (caught.value.key, caught.value.facts["found"]) == ("deep.x", found)


SPACES = [
    gym.spaces.Discrete(3),
    gym.spaces.Discrete(3, start=5),
    gym.spaces.Box(np.array([-1, 0], np.float32), np.array([0, 3], np.float32)),
    gym.spaces.Box(-2, 1, (2, 2), np.int8),
    gym.spaces.MultiDiscrete([2, 5]),
    gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_random_actions_lie_in_the_space_and_repeat_with_the_seed(space: Any) -> None:
    drawn = RandomActions(space, 3).draw(200)

    assert drawn.shape == (200, *space.shape)
    assert drawn.dtype == space.dtype
    assert all(space.contains(action) for action in drawn)
    np.testing.assert_array_equal(RandomActions(space, 3).draw(200), drawn)
    assert not np.array_equal(RandomActions(space, 4).draw(200), drawn)
    flat = drawn.reshape(200, -1)
    if isinstance(space, gym.spaces.Box) and space.dtype.kind == "f":
        assert len(np.unique(flat)) == flat.size
        if space.is_bounded("both"):
            spread = (flat.max(axis=0) - flat.min(axis=0)) / (space.high - space.low)
            assert (spread > 0.9).all()
    else:
        low = getattr(space, "start", getattr(space, "low", 0))
        count = getattr(space, "n", None) or getattr(space, "nvec", 4)
        every = np.broadcast_to(np.asarray(low) + np.asarray(count) - 1, space.shape).ravel()
        assert (flat.max(axis=0) == every).all()
        assert (flat.min(axis=0) == np.broadcast_to(low, space.shape).ravel()).all()


@pytest.mark.parametrize(
    ("obs", "allowed"),
    [
        (np.zeros(3, np.float32), {0, 1, 2}),
        ({"observation": np.zeros(3, np.float32)}, {0, 1, 2}),
        ({"observation": np.zeros(3, np.float32), "action_mask": np.array([1, 0, 1])}, {0, 2}),
    ],
    ids=["array", "dict", "masked"],
)
def test_random_actions_of_rows_respect_action_masks(
    make_policy, make_collector, obs, allowed
) -> None:
    policy = make_policy(form="rows")
    collector, _ = make_collector(policy, [(5,)] * 32)
    rollout = DictRollout(collector.env, policy)

    outputs = rollout.random_output(
        dict.fromkeys(range(32), obs), RandomActions(gym.spaces.Discrete(3), 0)
    )

    assert list(outputs) == list(range(32))
    assert {int(output["action"]) for output in outputs.values()} == allowed


def test_rewards_of_one_element_are_plain_numbers_in_both_forms(
    make_policy, make_collector, form
) -> None:
    collector, _ = make_collector(make_policy(n_sample=8, form=form))
    env = collector.env
    step, step_batch = env.step, env.step_batch
    # As the rewards of managers that are not dingsdk's.
    env.step = lambda actions: {
        env_id: each._replace(reward=np.array([each.reward], np.float32))
        for env_id, each in step(actions).items()
    }
    env.step_batch = lambda *given: (made := step_batch(*given))._replace(
        reward=made.reward[:, None]
    )

    samples = collector.collect()

    assert [(np.shape(each["reward"]), float(each["reward"])) for each in samples] == [
        ((), 1.0)
    ] * 8
