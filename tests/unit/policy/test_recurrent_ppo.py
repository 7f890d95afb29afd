from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.policy.networks import RecurrentActorCritic
from dingsdk.policy.ppo import PPOPolicy

MODEL = {
    "obs_shape": 3,
    "action_shape": 2,
    "encoder_hidden_size_list": [5],
    "recurrent_size": 4,
}
ENDS = np.array([3, 8, 10])


def make(kind: str = "gru", seed: int = 0, **cfg: Any) -> PPOPolicy:
    return PPOPolicy({"model": {**MODEL, "recurrent": kind}, **cfg}, seed=seed)


def network_of(policy: PPOPolicy) -> RecurrentActorCritic:
    network = policy._network
    assert isinstance(network, RecurrentActorCritic)
    return network


def collected(policy: PPOPolicy) -> dict[str, Any]:
    """Collect three pieces of trajectories with one env, step by step."""
    rng, rows = np.random.default_rng(0), []
    mode = policy.collect_mode
    assert mode.forward_batch is not None
    for row in range(ENDS[-1]):
        if row in {0, *ENDS.tolist()}:
            mode.reset([4])
        obs = rng.normal(size=(1, 3)).astype(np.float32)
        rows.append({"obs": obs, **mode.forward_batch(obs, [4])})
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return {
        **columns,
        "reward": rng.normal(size=len(rows)).astype(np.float32),
        "next_obs": rng.normal(size=(len(rows), 3)).astype(np.float32),
        "terminated": np.isin(np.arange(len(rows)), [7]),
        "done": np.isin(np.arange(len(rows)), [7]),
    }


def step_by_step(
    network: RecurrentActorCritic, obs: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    outputs, values = [], []
    for row in obs:
        output, value, state = network(row[None], state)
        outputs.append(output)
        values.append(value)
    return torch.cat(outputs), torch.cat(values), state


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_state_is_kept_between_steps_and_recorded_before_each_step(kind: str) -> None:
    policy = make(kind)
    columns = collected(policy)
    network = network_of(policy)

    assert columns["state"].shape == (10, 4 if kind == "gru" else 8)
    for start, stop in ((0, 3), (3, 8), (8, 10)):
        state = torch.zeros(1, network.state_size)
        for row in range(start, stop):
            assert columns["state"][row] == pytest.approx(state[0].detach().numpy(), abs=1e-6)
            obs = torch.from_numpy(columns["obs"][row : row + 1])
            _, value, state = network(obs, state)
            assert columns["value"][row] == pytest.approx(value.item(), abs=1e-6)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_unrolled_sequences_equal_single_steps(kind: str) -> None:
    network = network_of(make(kind))
    generator = torch.Generator().manual_seed(0)
    lengths = [2, 4, 1]
    parts = [torch.randn(length, 3, generator=generator) for length in lengths]
    state = torch.randn(3, network.state_size, generator=generator)
    mask = torch.arange(4)[:, None] < torch.tensor(lengths)
    obs = torch.stack([parts[k][t] for t in range(4) for k in range(3) if mask[t, k]])

    outputs, values = network.unroll(obs, state, mask)

    for k, part in enumerate(parts):
        expected = step_by_step(network, part, state[k : k + 1])
        rows = [i for i, (_, of) in enumerate(mask.nonzero().tolist()) if of == k]
        torch.testing.assert_close(outputs[rows], expected[0])
        torch.testing.assert_close(values[rows], expected[1])


def test_cut_piece_is_bootstrapped_with_the_state_after_its_last_step() -> None:
    policy = make(discount_factor=0.5, gae_lambda=0.0)
    given = collected(policy)
    kept = {name: column.copy() for name, column in given.items()}

    made = policy.collect_mode.make_samples(given, ENDS).columns

    network = network_of(policy)
    for row, is_terminated in ((2, False), (7, True), (9, False)):
        obs, after, state = (
            torch.from_numpy(kept[name][row : row + 1]) for name in ("obs", "next_obs", "state")
        )
        _, _, state = network(obs, state)
        bootstrap = 0.0 if is_terminated else network(after, state)[1].item()
        expected = kept["reward"][row] + 0.5 * bootstrap - kept["value"][row]
        assert made["advantage"][row] == pytest.approx(expected, abs=1e-6)


def test_sequences_end_with_their_piece_and_have_at_most_sequence_len_steps() -> None:
    policy = make(learn={"sequence_len": 2})

    made = policy.collect_mode.make_samples(collected(policy), ENDS).columns

    assert made["is_first"].nonzero()[0].tolist() == [0, 2, 3, 5, 7, 8]


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_loss_and_gradient_equal_separate_sequences(kind: str) -> None:
    """An independent reference: each sequence separately, step by step from its recorded state."""
    learn = {"epoch_per_collect": 1, "batch_size": 64, "sequence_len": 4, "grad_clip_norm": None}
    policy = make(kind, learn=learn)
    data = policy.collect_mode.make_samples(collected(policy), ENDS)
    data.columns["log_prob"] += np.linspace(-0.3, 0.3, 10).astype(np.float32)
    twin = make(kind, seed=1)
    twin.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    network, found = network_of(twin), {k: torch.from_numpy(v) for k, v in data.columns.items()}
    outputs, values = [], []
    for start, stop in ((0, 3), (3, 7), (7, 8), (8, 10)):
        state = found["state"][start : start + 1]
        output, value, _ = step_by_step(network, found["obs"][start:stop], state)
        outputs.append(output)
        values.append(value)
    chosen = torch.distributions.Categorical(logits=torch.cat(outputs))
    advantage = found["advantage"].double()
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    ratio = (chosen.log_prob(found["action"]) - found["log_prob"]).exp()
    gains = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    errors = (torch.cat(values) - found["return"]) ** 2
    loss = -gains.mean() + 0.5 * errors.mean() - 0.01 * chosen.entropy().mean()
    gradient = torch.autograd.grad(loss, list(network.parameters()))
    norm = torch.cat([part.reshape(-1) for part in gradient]).norm()

    (log,) = policy.learn_mode.forward(data)

    assert log["total_loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert log["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_every_epoch_trains_once_on_every_row_in_whole_sequences() -> None:
    policy = make(learn={"epoch_per_collect": 2, "batch_size": 4, "sequence_len": 4})
    data = policy.collect_mode.make_samples(collected(policy), ENDS)
    seen: list[list[float]] = []
    step = policy._step
    policy._step = lambda rows, *rest: seen.append(rows["return"].tolist()) or step(rows, *rest)  # type: ignore[assignment,method-assign,func-returns-value]

    logs = policy.learn_mode.forward(data)

    returns = data.columns["return"].tolist()
    sequences = [set(returns[a:b]) for a, b in ((0, 3), (3, 7), (7, 8), (8, 10))]
    assert len(logs) == len(seen) == 4
    for epoch in (seen[:2], seen[2:]):
        assert sorted(row for part in epoch for row in part) == sorted(returns)
        for part in epoch:
            assert all(each <= set(part) or each.isdisjoint(part) for each in sequences)


def test_batch_that_starts_within_a_sequence_uses_the_recorded_state() -> None:
    policy, twin = make(learn={"epoch_per_collect": 1}), make(learn={"epoch_per_collect": 1})
    data = policy.collect_mode.make_samples(collected(policy), ENDS)
    later = SampleBatch({name: column[1:] for name, column in data.columns.items()})
    twin.rng = copy.deepcopy(policy.rng)
    marked = later.with_columns(is_first=np.isin(np.arange(9), [0, 2, 7]))

    assert policy.learn_mode.forward(later) == twin.learn_mode.forward(marked)
