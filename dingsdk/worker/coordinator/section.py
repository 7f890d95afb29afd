"""The config section of the coordinator."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dingsdk.config import Count, NotNegative, Positive, Section


class JournalSection(Section, frozen=True, kw_only=True):
    """Section ``system.journal``: what is kept of a parallel run while it goes on.

    Attributes:
        enabled: Whether to keep a journal, from which ``train --resume`` goes on, and a coordinator
            that is started again; ``auto``: where workers are processes.
        fsync: Whether a sample is acknowledged once the disk has it in the journal, so that it
            survives a power cut; without, it survives the end of the process.
    """

    enabled: bool | Literal["auto"] = "auto"
    fsync: bool = False


class CoordinatorSection(Section, frozen=True, kw_only=True):
    """Section ``system.coordinator``: deadlines and limits of a parallel run.

    Attributes:
        collector_task_timeout: Seconds that a collector task may wait for a worker.
        learner_task_timeout: Seconds that a learner task may wait for a worker.
        start_timeout_s: Seconds for a worker to build the envs or the policy of a task.
        answer_timeout_s: Seconds for a worker to answer a demand or a close.
        learn_timeout_s: Seconds for a learner to train on the batches leased at once.
        lease_s: Seconds of silence after which a worker is lost.
        straggler_factor: Times as slow as the others of its kind: worth a warning.
        straggler_window_s: Seconds over which the pace of workers is averaged.
        max_attempts: Workers that may be lost over one task within ten minutes, without progress
            in between.
        storage_timeout_s: Seconds without room to store anything, before the run ends.
        orphan_grace_s: Age in seconds at which an unannounced payload is deleted.
        max_learner_tasks: The run ends when this many learner tasks have trained to their end, or
            one of each player where several train.
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
