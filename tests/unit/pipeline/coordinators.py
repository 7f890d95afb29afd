"""The status of a coordinator, for tests of what is made of it."""

from __future__ import annotations

from dingsdk.worker.coordinator import CoordinatorStatus
from dingsdk.worker.coordinator.pace import Pace
from dingsdk.worker.policy_lag import PolicyLag
from dingsdk.worker.sample_counts import SampleCounts


def status() -> CoordinatorStatus:
    return CoordinatorStatus(
        env_steps=10,
        train_iter=7,
        buffer_count=0,
        workers={"collector": 2, "learner": 1},
        episodes=12,
        samples=SampleCounts(),
        held_up_by="",
        paces={
            "c0": Pace("collector", 50.0, 0.5, False),
            "e0": Pace("evaluator", 30.0, None, False),
        },
        policy_lag=PolicyLag(0.25, 1, 2),
    )
