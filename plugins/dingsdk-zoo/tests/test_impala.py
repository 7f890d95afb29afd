"""Targets and losses of IMPALA and APPO, against numbers that were computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_zoo.appo import APPOPolicy
from dingsdk_zoo.impala import IMPALAPolicy, vtrace
from gymnasium import spaces

from dingsdk.data import SampleBatch
from dingsdk.errors import SchemaMismatchError
from dingsdk.pipeline.export import export_policy

RATIO = [0.5, 2.0, 1.0]


@pytest.mark.parametrize(
    ("ends", "next_value", "clips", "value", "advantage"),
    [
        # delta = 0.9, 2.7, 3.6
        ([], [2.0, 3.0, 4.0], {}, [4.573, 7.94, 6.6], [7.146, 5.94, 3.6]),
        # The task ends after the second step: delta = 0.9, 0, 3.6.
        ([1], [2.0, 0.0, 4.0], {}, [1.9, 2.0, 6.6], [1.8, 0.0, 3.6]),
        # It is truncated in a state of value 5: delta = 0.9, 4.5, 3.6.
        ([1], [2.0, 5.0, 4.0], {}, [3.925, 6.5, 6.6], [5.85, 4.5, 3.6]),
        # rho = 0.5, 1.5, 1, so delta = 0.9, 4.05, 3.6; c = 0.25, 0.5, 0.5.
        (
            [],
            [2.0, 3.0, 4.0],
            {"rho_clip": 1.5, "trace_lambda": 0.5},
            [3.17575, 7.67, 6.6],
            [6.903, 5.94, 3.6],
        ),
        # c = 0.5, 0.8, 0.8
        ([], [2.0, 3.0, 4.0], {"c_clip": 0.8}, [4.2814, 7.292, 6.6], [6.5628, 5.94, 3.6]),
    ],
    ids=["whole", "terminated", "truncated", "rho_clip and lambda", "c_clip"],
)
def test_targets_are_those_computed_by_hand(
    ends: list[int],
    next_value: list[float],
    clips: dict[str, float],
    value: list[float],
    advantage: list[float],
) -> None:
    done = torch.zeros(2, 3, dtype=torch.bool)
    done[:, ends] = True
    rows = [[1.0, 2.0, 3.0]] * 2  # the values, and the rewards

    found = vtrace(
        torch.tensor([RATIO] * 2).log(),
        *(torch.tensor(rows), torch.tensor(rows), torch.tensor([next_value] * 2), done),
        gamma=0.9,
        **clips,
    )

    torch.testing.assert_close(found.value, torch.tensor([value] * 2))
    torch.testing.assert_close(found.advantage, torch.tensor([advantage] * 2))
    rho = [min(each, clips.get("rho_clip", 1.0)) for each in RATIO]
    torch.testing.assert_close(found.rho, torch.tensor([rho] * 2))


def make(cls: Any = IMPALAPolicy, **cfg: Any) -> Any:
    """Return a policy whose actor is uniform; the value of an observation is its first number."""
    model = {"obs_shape": 2, "action_shape": 2, "encoder_hidden_size_list": []}
    policy = cls({"model": model, "discount_factor": 0.5, **cfg}, seed=0)
    network = policy._network
    for parameter in network.parameters():
        parameter.data.zero_()
    network.critic.layers[0].weight.data[0, 0] = 1.0
    return policy


def unrolls(**columns: Any) -> SampleBatch:
    """Return two unrolls of two steps; in the second one, an episode is truncated after a step."""
    made = {
        "obs": np.full((2, 2, 2), 2.0, np.float32),
        "action": np.array([[0, 1], [1, 0]]),
        # The trained policy has 0.5 for each action.
        "log_prob": np.log(np.array([[0.5, 0.25], [0.5, 0.5]], np.float32)),
        "reward": np.array([[1.0, 3.0], [1.0, 3.0]], np.float32),
        "next_obs": np.array([[[9, 9], [6, 9]], [[4, 9], [2, 9]]], np.float32),
        "terminated": np.zeros((2, 2), bool),
        "done": np.array([[False, False], [True, False]]),
    }
    return SampleBatch({**made, **columns})


def test_losses_with_and_without_a_terminal_step_are_those_computed_by_hand() -> None:
    # Unroll 1: delta = 0, 4; v = 4, 6; advantages 2, 4. Unroll 2: the value after the first step
    # is 4, so delta = 1, 2; v = 3, 4; advantages 1, 2.
    log = make().learn_mode.forward(unrolls())

    assert log["rho"] == pytest.approx(1.0)
    assert log["policy_loss"] == pytest.approx(2.25 * math.log(2))
    assert log["value_loss"] == pytest.approx(6.25)
    assert log["entropy"] == pytest.approx(math.log(2))
    assert log["total_loss"] == pytest.approx(2.24 * math.log(2) + 3.125)

    # A terminal step: in unroll 2, delta = -1, 2; v = 1, 4; advantages -1, 2.
    terminated = np.array([[False, False], [True, False]])
    log = make().learn_mode.forward(unrolls(terminated=terminated))
    assert log["policy_loss"] == pytest.approx(1.75 * math.log(2))
    assert log["value_loss"] == pytest.approx(6.25)


def test_clipped_objective_is_that_computed_by_hand() -> None:
    # Ratios 1, 2 and 1, 1; advantages 2, 4 and 1, 2: the second is clipped to 1.2 * 4.
    log = make(APPOPolicy).learn_mode.forward(unrolls())

    assert log["policy_loss"] == pytest.approx(-(2 + 4.8 + 1 + 2) / 4)


def test_batch_of_rows_is_refused_by_name() -> None:
    rows = SampleBatch({name: column[:, 0] for name, column in unrolls().columns.items()})

    with pytest.raises(SchemaMismatchError):
        make().learn_mode.forward(rows)


def test_exported_program_acts_like_the_policy(tmp_path: Path) -> None:
    policy = IMPALAPolicy({"model": {"obs_shape": 3, "action_shape": 4}}, enable_field=["eval"])
    space = spaces.Box(-1, 1, (3,), np.float32)
    assert export_policy(policy, space, tmp_path / "policy.pt2").is_file()
