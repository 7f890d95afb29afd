"""The parts of the parallel pipeline that need no workers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event

from dingsdk.pipeline.parallel import write_paces
from dingsdk.worker.coordinator import CoordinatorStatus
from dingsdk.worker.coordinator.on_policy import PolicyLag
from dingsdk.worker.coordinator.pace import Pace
from dingsdk.worker.run_logger import build_tb_logger


def scalars(events: bytes) -> Iterator[tuple[str, int, float]]:
    """Read an event file: records of a length, its checksum, the event and its checksum."""
    at = 0
    while at < len(events):
        (size,) = struct.unpack_from("<Q", events, at)
        event = Event.FromString(events[at + 12 : at + 12 + size])
        for value in event.summary.value:
            yield value.tag, event.step, value.simple_value
        at += 16 + size


def test_paces_are_written_over_the_env_steps(tmp_path: Path) -> None:
    status = CoordinatorStatus(
        env_steps=10,
        train_iter=0,
        buffer_count=0,
        workers={"collector": 2, "learner": 1},
        running_tasks=2,
        evicted={},
        held_up_by="",
        paces={
            "c0": Pace("collector", 50.0, 0.5, False),
            "e0": Pace("evaluator", 30.0, None, False),
        },
        policy_lag=PolicyLag(0.25, 1, 2),
    )
    with closing(build_tb_logger(tmp_path, "coordinator")) as tb_logger:
        write_paces(tb_logger, status)
    (path,) = (tmp_path / "coordinator_tb_logger").iterdir()
    assert sorted(scalars(path.read_bytes())) == [
        ("pace/c0", 10, 50.0),
        ("pace/e0", 10, 30.0),
        ("policy_lag/largest", 10, 2.0),
        ("policy_lag/mean", 10, 0.25),
        ("policy_lag/p99", 10, 1.0),
        ("relative_pace/c0", 10, 0.5),
    ]
