"""R2D2 compared with step-by-step computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.policy import R2D2Policy
from dingsdk.policy.networks import RecurrentQNetwork
from dingsdk.policy.r2d2 import rescale, unrescale

ROWS = {"type": "advanced"}


def make(fields=None, seed=0, length=4, burn_in=3, other=None, **cfg):
    learn = {"sequence_length": length, "burn_in": burn_in, **cfg.pop("learn", {})}
    model = {
        "obs_shape": 2,
        "action_shape": 3,
        "encoder_hidden_size_list": [5],
        "lstm_size": 4,
        **cfg.pop("model", {}),
    }
    section = {"model": model, "learn": learn, "other": other or {"replay_buffer": ROWS}, **cfg}
    return R2D2Policy(section, enable_field=fields, seed=seed)


def steps(n, seed=0, *, terminated=True, state_size=8):
    """Return the columns of one episode of ``n`` steps."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(n + 1, 2)).astype(np.float32)
    end = np.arange(n) == n - 1
    return {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "action": rng.integers(0, 3, n),
        "reward": rng.normal(size=n).astype(np.float32),
        "terminated": end & terminated,
        "done": end,
        "state": rng.normal(size=(n, state_size)).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, 0.0), (3.0, 1.003), (-8.0, -2.008), (99.0, 9.099)]
)
def test_values_are_rescaled_by_the_square_root(value, expected) -> None:
    assert float(rescale(torch.tensor(value))) == pytest.approx(expected)


def test_unrescale_is_the_inverse_of_rescale() -> None:
    values = torch.tensor([-1e4, -20.0, -0.5, 0.0, 1e-3, 0.1, 1.0, 300.0, 1e5])

    torch.testing.assert_close(unrescale(rescale(values)), values, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        unrescale(torch.tensor([1.003, -2.008])), torch.tensor([3.0, -8.0]), rtol=1e-5, atol=0
    )


def test_network_equals_the_same_layers_of_torch() -> None:
    network = RecurrentQNetwork(2, 3, [5], 4, dueling=True)
    obs, state = torch.randn(6, 7, 2), torch.randn(6, 8)
    lstm = nn.LSTM(5, 4, batch_first=True)
    lstm.load_state_dict({f"{k}_l0": v for k, v in network.lstm.state_dict().items()})
    named = network.state_dict()

    features = torch.relu(obs @ named["encoder.0.weight"].T + named["encoder.0.bias"])
    hidden, (output, cell) = lstm(features, (state[None, :, :4], state[None, :, 4:]))
    advantage = hidden @ named["heads.head.weight"].T + named["heads.head.bias"]
    value = hidden @ named["heads.value.weight"].T + named["heads.value.bias"]
    expected = value + advantage - advantage.mean(2, keepdim=True)

    values, last = network(obs, state)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(last, torch.cat((output[0], cell[0]), 1))
    first, following = network(obs[:, :1], state)
    torch.testing.assert_close(first, expected[:, :1])
    torch.testing.assert_close(network(obs[:, 1:2], following)[0], expected[:, 1:2])


def test_acting_step_by_step_equals_the_unrolled_network() -> None:
    policy = make()
    obs = np.random.default_rng(1).normal(size=(5, 2, 2)).astype(np.float32)
    network, mode = policy._network, policy.collect_mode

    outputs = [mode.forward_batch(each, [0, 1], eps=0.0) for each in obs]
    values, _ = network(torch.from_numpy(obs).transpose(0, 1), torch.zeros(2, 8))

    found = np.stack([each["action"] for each in outputs], 1)
    assert found.tolist() == values.argmax(2).tolist()
    for step in range(1, 5):
        before = torch.from_numpy(obs[:step]).transpose(0, 1)
        expected = network(before, torch.zeros(2, 8))[1]
        np.testing.assert_allclose(outputs[step]["state"], expected.detach().numpy(), atol=1e-6)


def test_sequences_overlap_by_half_and_end_with_their_episode() -> None:
    policy = make(length=4, burn_in=3)
    columns = {"t": np.arange(8), "collect_iter": np.full(8, 7)}

    made = policy.samples(columns, np.array([5, 8]))

    mask, t = made.columns["mask"], made.columns["t"]
    shown = [row[inside].tolist() for row, inside in zip(t, mask, strict=True)]
    assert shown == [
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [1, 2, 3, 4],
        [5, 6, 7],
        [5, 6, 7],
    ]
    assert mask.astype(int).tolist() == [
        [0, 0, 0, 1, 1, 1, 1],
        [0, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0],
        [0, 1, 1, 1, 0, 0, 0],
    ]
    # The age of a sequence is read from all of its rows.
    assert (made.columns["collect_iter"] == 7).all()


@pytest.mark.parametrize(("length", "starts"), [(1, [0, 1, 2, 3]), (3, [0, 1, 2, 3]), (4, [0, 2])])
def test_sequences_start_every_half_length_but_at_least_one_step_apart(length, starts) -> None:
    policy = make(length=length, burn_in=0)

    made = policy.samples({"t": np.arange(4)}, np.array([4]))

    assert made.columns["t"][:, 0].tolist() == starts


def test_sequence_buffer_gets_single_steps() -> None:
    policy = R2D2Policy({"model": {"obs_shape": 2, "action_shape": 3}}, seed=0)

    assert list(policy.samples(steps(5), np.array([5])).columns["action"].shape) == [5]


def reference(policy, episode, first, *, nstep, gamma, double=True, scaled=True):
    """Return values and targets of one sequence, computed step by step in plain loops."""
    learn = policy.section.learn
    online, target_network = policy._network, policy._target
    n = len(episode["action"])
    begin, end = max(0, first - learn.burn_in), min(n, first + learn.sequence_length)
    obs = np.concatenate([episode["obs"], episode["next_obs"][-1:]])

    def values_of(network):
        state, found = torch.from_numpy(episode["state"][begin])[None], {}
        for t in range(begin, end + 1):
            found[t], state = network(torch.from_numpy(obs[t])[None, None], state)
        return {t: row[0, 0].detach() for t, row in found.items()}

    values, targets = values_of(online), values_of(target_network)
    chosen, wanted = [], []
    for t in range(first, end):
        stop = min(t + nstep, end)
        total = sum(gamma ** (k - t) * float(episode["reward"][k]) for k in range(t, stop))
        if not episode["terminated"][stop - 1]:
            best = int((values if double else targets)[stop].argmax())
            following = targets[stop][best]
            total += gamma ** (stop - t) * float(unrescale(following) if scaled else following)
        wanted.append(float(rescale(torch.tensor(total)) if scaled else total))
        chosen.append(float(values[t][int(episode["action"][t])]))
    return np.array(chosen), np.array(wanted)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("burn_in", [0, 3])
def test_loss_and_priorities_equal_plain_loops(double, scaled, terminated, burn_in) -> None:
    policy = make(
        burn_in=burn_in,
        priority=True,
        nstep=3,
        discount_factor=0.9,
        learn={"double": double, "value_rescale": scaled, "loss": "mse", "learning_rate": 1e-9},
    )
    with torch.no_grad():
        policy._target_flat.neg_()  # so that the two networks prefer different actions
    episode = steps(9, terminated=terminated)
    batch = policy.samples(dict(episode), np.array([9]))
    weights = np.linspace(0.5, 1, len(batch)).astype(np.float32)

    log = policy.learn_mode.forward(batch.with_columns(IS=weights))

    total, priorities, q_values, targets = 0.0, [], [], []
    for row, first in enumerate(range(0, 9, 2)):
        value, target = reference(
            policy, episode, first, nstep=3, gamma=0.9, double=double, scaled=scaled
        )
        error = np.abs(value - target)
        total += weights[row] * (error**2).sum()
        priorities.append(0.9 * error.max() + 0.1 * error.mean())
        q_values += value.tolist()
        targets += target.tolist()
    assert log["total_loss"] == pytest.approx(total / (5 * 4), rel=1e-4)
    assert log["priority"] == pytest.approx(priorities, rel=1e-4)
    assert log["q_value"] == pytest.approx(np.mean(q_values), rel=1e-4)
    assert log["target_q_value"] == pytest.approx(np.mean(targets), rel=1e-4)


def test_no_gradient_flows_through_the_burn_in() -> None:
    policy = make(burn_in=3, length=1)
    batch = policy.samples(steps(4), np.array([4])).tensors()
    rows = {key: column[3:4] for key, column in batch.items()}
    assert rows["mask"].all()
    seen = []
    policy._optimizer.minimize = lambda loss: seen.append(loss) or 0.0
    policy.learn_mode.forward(SampleBatch(rows))
    found = torch.autograd.grad(seen[0], policy._network.lstm.weight_hh)[0]

    network, last = policy._network, slice(3, 4)
    obs = torch.cat((rows["obs"], rows["next_obs"][:, -1:]), 1)
    with torch.no_grad():
        state = network(obs[:, :3], rows["state"][:, 0])[1]
        warm = policy._target(obs[:, :3], rows["state"][:, 0])[1]
        target = policy._target(obs[:, 3:], warm)[0]
    values = network(obs[:, 3:], state)[0]
    best = target[:, 1:].gather(2, values[:, 1:].argmax(2, keepdim=True)).squeeze(2)
    alive = ~rows["terminated"][:, last]
    wanted = rescale(rows["reward"][:, last] + 0.99 * alive * unrescale(best))
    chosen = values[:, :1].gather(2, rows["action"][:, last, None]).squeeze(2)
    loss = nn.functional.huber_loss(chosen, wanted.detach())
    expected = torch.autograd.grad(loss, network.lstm.weight_hh)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("buffer", "key"),
    [
        ({"sequence_length": 5}, "sequence_length is 5, but learn.sequence_length is 4"),
        ({"sampler": {"type": "sequence", "burn_in": 1}}, "sampler.burn_in is 1, but .* is 3"),
        ({"sampler": {"type": "uniform"}}, "sampler.burn_in is 0, but .* is 3"),
        ({"sampler": None}, "sampler.burn_in is 0, but .* is 3"),
    ],
)
def test_a_sequence_buffer_must_agree_with_the_policy(buffer, key) -> None:
    fitting = {"sequence_length": 4, "sampler": {"type": "sequence", "burn_in": 3, "pad": True}}
    make(other={"replay_buffer": {"type": "sequence", **fitting}})

    with pytest.raises(ConfigError, match=key):
        make(other={"replay_buffer": {"type": "sequence", **fitting, **buffer}})


def test_sampler_without_burn_in_is_accepted_when_burn_in_is_0() -> None:
    buffer = {"type": "sequence", "sequence_length": 4, "sampler": {"type": "of_a_plugin"}}
    make(burn_in=0, other={"replay_buffer": buffer})


def test_gradients_of_two_halves_average_to_the_whole_gradient() -> None:
    batch = make().samples(steps(9), np.array([9]))

    def gradient(rows: SampleBatch) -> torch.Tensor:
        policy = make(learn={"grad_clip_norm": None})
        seen = []
        policy._optimizer.step = lambda found: seen.append(found.clone())
        policy.learn_mode.forward(rows)
        return seen[0]

    halves = (gradient(batch[:2]) + gradient(batch[2:4])) / 2

    torch.testing.assert_close(gradient(batch[:4]), halves)
