"""A DQN learn mode, batches for it, and learners that are closed after the test."""

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.policy import create_policy
from dingsdk.policy.modes import LearnMode
from dingsdk.worker.learner.base import BaseLearner


@pytest.fixture
def learn_mode():
    def create(seed=0, **cfg):
        cfg = {"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}, **cfg}
        return create_policy(cfg, enable_field=["learn"], seed=seed).learn_mode

    return create


@pytest.fixture
def batch():
    def create(size=8, seed=0, **columns):
        rng = np.random.default_rng(seed)
        return SampleBatch(
            {
                "obs": rng.normal(size=(size, 4)).astype(np.float32),
                "next_obs": rng.normal(size=(size, 4)).astype(np.float32),
                "action": rng.integers(0, 2, size),
                "reward": np.ones(size, np.float32),
                "discount": np.full(size, 0.97, np.float32),
                **columns,
            }
        )

    return create


@pytest.fixture
def scripted():
    """A learn mode with a given ``forward`` and a small state."""

    def create(forward, monitor_vars=("loss",)):
        state = {"model": {}, "count": 0}
        return LearnMode(
            forward=forward,
            reset=lambda ids=None: None,
            info=lambda: "scripted policy",
            monitor_vars=lambda: list(monitor_vars),
            get_attribute={"batch_size": 8}.__getitem__,
            set_attribute=lambda name, value: None,
            state_dict=lambda: dict(state),
            load_state_dict=state.update,
        )

    return create


@pytest.fixture
def make_learner(tmp_path):
    made = []

    def create(policy=None, cfg=None, **kwargs):
        kwargs.setdefault("exp_name", str(tmp_path / "run"))
        learner = BaseLearner(cfg or {}, policy, **kwargs)
        made.append(learner)
        return learner

    yield create
    for learner in made:
        learner.close()
