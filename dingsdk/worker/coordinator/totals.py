"""Counts of a run that outlive its tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from dingsdk.worker.sample_counts import SampleCounts


class RunTotals(msgspec.Struct):
    """What a run has done, apart from its running tasks and open buffers.

    Attributes:
        ended_env_steps: Env steps of collecting tasks that have ended, and of before the run.
        episodes: Complete episodes of collecting tasks that have ended.
        ended_counts: Samples of buffers that are closed.
        unacknowledged_rows: Rows that were announced and will never be acknowledged.
        ended_iter: Train iteration of the learner task that ended last.
        learner_tasks: How many learner tasks have finished their training.
        evaluations: All recorded evaluations, as plain data.
    """

    ended_env_steps: int = 0
    episodes: int = 0
    ended_counts: SampleCounts = SampleCounts()
    unacknowledged_rows: int = 0
    ended_iter: int = 0
    learner_tasks: int = 0
    evaluations: list[dict[str, Any]] = []
