"""The pace of workers is in tensorboard, now and then."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dingsdk.pipeline.pace_log import EVERY_S, PaceLog
from dingsdk.worker.coordinator import CoordinatorStatus
from dingsdk.worker.coordinator.pace import Pace


def test_paces_are_written_every_few_seconds_over_the_env_steps(tmp_path: Path) -> None:
    now = 100.0
    status = CoordinatorStatus(
        env_steps=10,
        train_iter=0,
        buffer_count=0,
        collectors=2,
        learners=0,
        running_tasks=2,
        evicted={},
        paces={
            "c0": Pace("collector", 50.0, 0.5, False),
            "e0": Pace("evaluator", 30.0, None, False),
        },
    )
    with PaceLog(tmp_path, lambda: now) as log:
        for step in range(4):
            log.write(dataclasses.replace(status, env_steps=step))
            now += EVERY_S / 2
    events = EventAccumulator(str(tmp_path / "log" / "coordinator_tb_logger")).Reload()
    assert set(events.Tags()["scalars"]) == {"pace/c0", "relative_pace/c0", "pace/e0"}
    written = [(each.step, each.value) for each in events.Scalars("relative_pace/c0")]
    assert written == [(2, 0.5)]
