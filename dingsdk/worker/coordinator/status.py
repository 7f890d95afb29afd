"""What a coordinator tells of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dingsdk.worker.coordinator.pace import Pace


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """A snapshot of the run, for progress displays."""

    env_steps: int
    train_iter: int
    buffer_count: int
    workers: Mapping[str, int]
    """Joined workers by role; 0 for a role without any."""
    running_tasks: int
    evicted: Mapping[str, int]
    """Samples that left the buffer, by reason."""
    held_up_by: str
    """Why workers wait for room to store what they have, where they do."""
    paces: Mapping[str, Pace]
    """How fast the workers that have tasks get on, by their ids."""
