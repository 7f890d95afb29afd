from __future__ import annotations

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.policy.dqn import DQNPolicy

MODEL = {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [16]}


@pytest.fixture
def make_policy():
    def make(fields=None, seed=0, **cfg):
        model = {**MODEL, **cfg.pop("model", {})}
        return DQNPolicy({"model": model, **cfg}, enable_field=fields, seed=seed)

    return make


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    size = 32
    return SampleBatch(
        {
            "obs": rng.normal(size=(size, 3)).astype(np.float32),
            "action": rng.integers(0, 2, size),
            "reward": rng.normal(size=size).astype(np.float32),
            "next_obs": rng.normal(size=(size, 3)).astype(np.float32),
            "done": np.zeros(size, dtype=bool),
            "discount": np.where(rng.random(size) < 0.2, 0, 0.9).astype(np.float32),
        }
    )
