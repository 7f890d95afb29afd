"""The config section of the coordinator."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dingsdk.config import Count, NotNegative, Positive, Section


class JournalSection(Section, frozen=True, kw_only=True):
    """Section ``system.journal``: the record on disk from which a parallel run can be resumed.

    Attributes:
        enabled: Whether to keep a journal, from which ``train --resume`` or a restarted coordinator
            continues the run; ``auto``: only if workers are processes.
        fsync: Whether to acknowledge a sample only after its journal entry is synced to disk, so
            that it survives a power cut; if false, it survives only a crash of the process.
    """

    enabled: bool | Literal["auto"] = "auto"
    fsync: bool = False


class CoordinatorSection(Section, frozen=True, kw_only=True):
    """Section ``system.coordinator``: deadlines and limits of a parallel run.

    Attributes:
        collector_task_timeout: Seconds that a collector task may wait for a worker.
        learner_task_timeout: Seconds that a learner task may wait for a worker.
        start_timeout_s: Seconds for a worker to build the envs or the policy of a task.
        answer_timeout_s: Seconds for a worker to answer a request for data or a request to close.
        learn_timeout_s: Seconds for a learner to take announcements and report its progress.
        lease_s: Seconds of silence after which a worker is considered lost.
        straggler_factor: A warning is logged for a worker that is this many times slower than the
            median of the other workers of its kind.
        straggler_window_s: Seconds over which the speed of workers is averaged.
        max_attempts: A task is given up after this many workers were lost while they ran it, within
            ten minutes and without progress in between.
        storage_timeout_s: The run ends after this many seconds without free storage.
        orphan_grace_s: Age in seconds at which a payload that no worker announced is deleted.
        max_learner_tasks: The run ends when this many learner tasks have finished their training,
            at least one for each player if several train.
        quiet_after_s: Seconds without progress after which a warning says what the run waits for.
        last_evaluation_s: Seconds for the last evaluation of a policy, after a limit has ended the
            training.
    """

    collector_task_timeout: Positive = 30.0
    learner_task_timeout: Positive = 600.0
    start_timeout_s: Positive = 120.0
    answer_timeout_s: Positive = 60.0
    learn_timeout_s: Positive = 600.0
    lease_s: Positive = 15.0
    straggler_factor: Annotated[float, Meta(gt=1)] = 3.0
    straggler_window_s: Positive = 20.0
    max_attempts: Count = 3
    storage_timeout_s: Positive = 600.0
    orphan_grace_s: NotNegative = 120.0
    max_learner_tasks: Count = 1
    quiet_after_s: Positive = 30.0
    last_evaluation_s: NotNegative = 30.0
