from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from dingsdk.errors import NonFiniteError, SchemaMismatchError


def reference_loss(policy, batch, *, double, weights=None):
    state = policy.learn_mode.state_dict()

    def values(part, obs):
        names = state[part]
        hidden = torch.relu(F.linear(obs, names["encoder.0.weight"], names["encoder.0.bias"]))
        return F.linear(hidden, names["head.weight"], names["head.bias"])

    columns = {key: torch.from_numpy(value.copy()) for key, value in batch.columns.items()}
    rows = torch.arange(len(batch))
    chosen = values("model", columns["obs"])[rows, columns["action"]]
    after = values("target_model", columns["next_obs"])
    chooser = values("model", columns["next_obs"]) if double else after
    target = columns["reward"] + columns["discount"] * after[rows, chooser.argmax(1)]
    losses = F.huber_loss(chosen, target, reduction="none")
    if weights is not None:
        losses = losses * weights
    return losses.mean(), (chosen - target).abs(), chosen.mean(), target.mean()


@pytest.mark.parametrize("double", [True, False])
def test_loss_equals_the_textbook_formula(make_policy, batch, double):
    policy = make_policy(learn={"double": double, "target_update_freq": 1000})
    policy._target_flat.neg_()  # so that the two networks prefer different actions
    loss, _, value, target = reference_loss(policy, batch, double=double)
    assert loss.item() != pytest.approx(
        reference_loss(policy, batch, double=not double)[0].item(), rel=1e-3
    )

    log_vars = policy.learn_mode.forward(batch)

    assert log_vars["total_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert log_vars["q_value"] == pytest.approx(value.item(), rel=1e-4)
    assert log_vars["target_q_value"] == pytest.approx(target.item(), rel=1e-4)
    assert set(policy.learn_mode.monitor_vars()) == set(log_vars)


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_vectors_of_other_dtypes_are_trained_on_as_float32(make_policy, batch, dtype):
    columns = {key: (batch.columns[key] * 50).astype(dtype) for key in ("obs", "next_obs")}
    floats = {key: column.astype(np.float32) for key, column in columns.items()}

    logs = [
        make_policy().learn_mode.forward(batch.with_columns(**each)) for each in (columns, floats)
    ]

    assert logs[0] == logs[1]


def test_importance_weights_scale_the_loss_and_priorities_are_td_errors(make_policy, batch):
    policy = make_policy(priority=True)
    weights = np.linspace(0.1, 1, len(batch), dtype=np.float32)
    loss, errors, _, _ = reference_loss(
        policy, batch, double=True, weights=torch.from_numpy(weights)
    )

    log_vars = policy.learn_mode.forward(batch.with_columns(IS=weights))

    assert log_vars["total_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert isinstance(log_vars["priority"], list)
    assert log_vars["priority"] == pytest.approx(errors.tolist(), rel=1e-4)


def test_target_network_is_copied_every_target_update_freq_updates(make_policy, batch):
    learn = make_policy(learn={"target_update_freq": 3}).learn_mode
    state = learn.state_dict()
    model, target = state["model"]["head.weight"], state["target_model"]["head.weight"]
    initial = model.clone()

    same_as_initial = []
    for _ in range(3):
        learn.forward(batch)
        same_as_initial.append(torch.equal(target, initial))

    assert same_as_initial == [True, True, False]
    assert torch.equal(target, model)


def test_soft_target_moves_by_target_theta(make_policy, batch):
    learn = make_policy(learn={"target_theta": 0.25}).learn_mode
    state = learn.state_dict()
    before = state["target_model"]["head.weight"].clone()

    learn.forward(batch)

    expected = 0.75 * before + 0.25 * state["model"]["head.weight"]
    torch.testing.assert_close(state["target_model"]["head.weight"], expected)


@pytest.mark.parametrize("column", ["reward", "obs", "next_obs", "discount"])
def test_nan_in_the_batch_is_named_and_leaves_the_weights_valid(make_policy, batch, column):
    learn = make_policy().learn_mode
    before = [tensor.clone() for tensor in learn.state_dict()["model"].values()]
    bad = batch.copy()
    bad.columns[column][3] = np.nan

    with pytest.raises(NonFiniteError, match=column) as caught:
        learn.forward(bad)

    assert caught.value.facts["key"] == column
    for old, new in zip(before, learn.state_dict()["model"].values(), strict=True):
        assert torch.equal(old, new)
    learn.forward(batch)  # still usable


def test_a_batch_that_does_not_fit_is_refused(make_policy, batch):
    learn = make_policy().learn_mode
    columns = dict(batch.columns)
    del columns["discount"]
    with pytest.raises(SchemaMismatchError, match="discount"):
        learn.forward(type(batch)(columns))
    with pytest.raises(SchemaMismatchError, match="does not fit"):
        learn.forward(batch.with_columns(obs=np.zeros((len(batch), 5), np.float32)))
    with pytest.raises(SchemaMismatchError, match="action"):
        learn.forward(batch.with_columns(action=np.full(len(batch), 9)))


@pytest.mark.parametrize("key", ["action", "reward", "discount"])
def test_rows_of_one_element_are_refused_by_name(make_policy, batch, key):
    learn = make_policy().learn_mode
    size = len(batch)
    with pytest.raises(SchemaMismatchError) as caught:
        learn.forward(batch.with_columns(**{key: batch.columns[key][:, None]}))
    facts = caught.value.facts
    assert (facts["key"], facts["expected"], facts["found"]) == (key, [size], [size, 1])
    rows = [{**row, key: np.array([row[key]])} for row in batch]
    with pytest.raises(SchemaMismatchError, match=f"column '{key}' of the batch"):
        learn.forward(rows)


def test_recorded_rows_without_terminated_are_refused_by_name(make_policy):
    mode = make_policy().collect_mode
    obs = np.zeros((3, 4), np.float32)
    columns = {"obs": obs, "next_obs": obs, "action": np.zeros(3, np.int64)}
    columns |= {"reward": np.ones(3, np.float32), "done": np.zeros(3, bool)}
    rows = [{key: column[row] for key, column in columns.items()} for row in range(3)]
    for make in (
        lambda: mode.make_samples(columns, np.array([3])),
        lambda: mode.get_train_sample(rows),
    ):
        with pytest.raises(SchemaMismatchError, match="'terminated' that the batch does not have"):
            make()


def test_compiler_of_torch_is_not_loaded():
    code = (
        "import sys; import numpy as np; from dingsdk.data import SampleBatch;"
        "from dingsdk.policy.dqn import DQNPolicy;"
        "learn = DQNPolicy({'model': {'obs_shape': 1, 'action_shape': 2}}, ['learn']).learn_mode;"
        "one = np.ones(4, np.float32);"
        "learn.forward(SampleBatch(dict(obs=one[:, None], next_obs=one[:, None], reward=one,"
        " discount=one, action=np.zeros(4, np.int64))));"
        "sys.exit('torch._dynamo' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
