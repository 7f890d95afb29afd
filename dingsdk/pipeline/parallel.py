"""The parallel pipeline: a coordinator, and workers that a transport connects to it."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dingsdk.config import deep_merge_dicts, to_easydict
from dingsdk.errors import (
    CheckpointError,
    RunDirLockedError,
    RunFolderError,
    TaskFailedError,
)
from dingsdk.pipeline.context import (
    Evaluation,
    Reason,
    RunContext,
    RunningTask,
    RunResult,
    RunStatus,
    WorkerStatus,
)
from dingsdk.pipeline.parallel_results import ParallelResults, write_paces
from dingsdk.pipeline.run_folder import JOURNAL_FOLDER, write_config
from dingsdk.pipeline.worker import (
    ThreadWorkers,
    WorkerGroup,
    leave_data,
    make_transport,
    transport_class,
)
from dingsdk.plugins import default_manager
from dingsdk.policy.threads import torch_threads
from dingsdk.runtime.files import Folder, ensure_dir, locked_folder
from dingsdk.worker import Coordinator
from dingsdk.worker.collector.factory import declared_piece, takes_env_steps, traj_len_of
from dingsdk.worker.comm.master import Master
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.commander.base import NO_PROGRESS, BaseParallelCommander, PlayerProgress
from dingsdk.worker.coordinator import TaskState
from dingsdk.worker.coordinator.journal import Journal
from dingsdk.worker.coordinator.pace import Pace
from dingsdk.worker.learner.hooks import first_checkpoint
from dingsdk.worker.replay_buffer.config import collected_in_batch, is_limited
from dingsdk.worker.replay_server.client import FOLDER as REPLAY_FOLDER
from dingsdk.worker.run_id import run_id
from dingsdk.worker.run_view import refusal

_log = logging.getLogger(__name__)

POLL_S = 0.1
"""Longest wait for the coordinator between two checks of the workers."""
PACES_S = 5.0
"""Interval at which the paces of workers are written to tensorboard."""
AHEAD_ROWS, AHEAD_UPDATES = 1024, 256
"""How far collectors may be ahead of the learner: in samples, and in updates for these samples."""
CLOSE_S = (10.0, 8.0, 5.0)
"""How long tasks, then workers, then the transport may take to end."""
INTERRUPTED_CLOSE_S = (2.5, 3.0, 0.5)
"""The same limits after Ctrl-C, when a user waits: 6 s in all."""


def parallel_pipeline(context: RunContext) -> RunResult:
    """Train until the stop value, a limit or ``context.stop``.

    Raises:
        TaskFailedError: the code of a worker raised; its traceback is a note of the error.
        DingError: a part failed with this error.
    """
    cfg = worker_config(context.cfg, context.run_dir)

    def time_to_close(part: int) -> float:
        return (INTERRUPTED_CLOSE_S if context.stop.is_set() else CLOSE_S)[part]

    def end_tasks() -> None:
        stuck = coordinator.close(time_to_close(0))
        if stuck:
            _log.warning("did not end in time: %s", ", ".join(stuck))

    def is_kept() -> bool:
        """Whether the run can be resumed from its journal."""
        is_open = context.has_begun or context.resumed is not None
        return journal is not None and is_open and "stop_value" not in ended_by

    def end_journal() -> None:
        if journal is not None and not is_kept():
            with Folder(context.run_dir) as folder:
                folder.remove_tree(JOURNAL_FOLDER)

    with ExitStack() as stack:
        stack.enter_context(torch_threads(cfg.system.torch_threads))
        if context.workers is None and context.on_address is None:
            stack.callback(remove_served, context.run_dir)  # otherwise its worker removes it
        journal = open_journal(context, stack)
        ended_by: list[Reason] = []
        stack.callback(end_journal)
        transport = make_transport(cfg, context.run_dir)
        stack.callback(lambda: leave_data(transport, is_kept=is_kept()))
        stack.callback(lambda: transport.close(time_to_close(2)))
        results = ParallelResults(context, stack)
        tb_logger, first = results.tb_logger(), _first_progress(cfg)
        coordinator = results.coordinator = Coordinator(
            cfg,
            transport,
            on_collecting=context.recorder.mark_first_step,
            on_collected=results.collected,
            on_evaluated=results.evaluated,
            journal=journal,
            rejoin_s=context.rejoin_s,
            begins_at=first,
        )
        # Of all players; the journal of a resumed run is read later.
        context.loaded = first._replace(env_steps=coordinator.status().env_steps)
        context.status = lambda: _status(context, coordinator)
        workers = _make_workers(context, cfg, transport, coordinator.master)
        # Tasks are closed before their workers, so that a learner can save its checkpoint.
        stack.callback(lambda: workers.close(time_to_close(1)))
        stack.callback(end_tasks)
        address = coordinator.start()
        if context.resumed is not None:
            evaluations = [Evaluation(**each) for each in coordinator.state.totals.evaluations]
            context.recorder.resume(evaluations, coordinator.state.clock.elapsed_s)
            write_config(context.run_dir, context.cfg)
        context.has_begun = True
        if context.on_address is not None:
            context.on_address(address, transport.joining_note())
        workers.start(address)
        if not takes_env_steps(cfg.policy):
            coordinator.deal_with_collecting()  # the clock of the run starts
        reason = _watch(context, coordinator, workers, results)
        # The updates that serial mode would have made until the last env step. They have no time
        # limit of their own; the deadlines of the tasks apply.
        while reason == "limit" and not coordinator.end.train_out(POLL_S):
            workers.poll()
            if context.stop.is_set():
                reason = "interrupted"
        fill = coordinator.status().buffer_count

        def with_fill() -> RunStatus:
            return dataclasses.replace(_status(context, coordinator), buffer_fill=fill)

        context.status = with_fill  # the buffer is closed before the last evaluation
        if reason in ("limit", "stopped") and cfg.env.env_id is not None:
            reason = _finish_evaluations(context, coordinator, workers, reason)
        while not (results.save_best() or context.stop.wait(POLL_S)):
            workers.poll()
        ended_by.append(reason)
        if cfg.system.validate_state:
            coordinator.validate_state()
        end_tasks()
        write_paces(tb_logger, coordinator.status())
        status = with_fill()
        context.status = lambda: status
        if (failure := coordinator.end.failure) is not None:
            trace = failure.facts.get("traceback") if isinstance(failure, TaskFailedError) else None
            if trace and not failure.is_user_mistake:
                failure.add_note(f"raised by the worker:\n{trace}")
            raise failure
        if (lag := status.policy_lag) is not None:
            text = "trained samples were %.2f versions old on average, 99 %% of them at most %d"
            _log.info(text, lag["mean"], lag["p99"])
        return context.finish(reason, "parallel")


def _first_progress(cfg: Any) -> PlayerProgress:
    """Return the progress of the checkpoint that the learner loads."""
    try:
        found = first_checkpoint(cfg.policy.learn.learner.get("hook") or {})
    except CheckpointError as error:
        _log.warning("env steps are counted from 0: %s", error)
        return NO_PROGRESS
    return NO_PROGRESS if found is None else PlayerProgress(found.iteration, max(0, found.envstep))


def keeps_journal(context: RunContext) -> bool:
    """Whether a run keeps a journal.

    Raises:
        ConfigError: the config asks for a journal, and the commander cannot be resumed.
    """
    cfg = context.cfg
    section = cfg.system.journal
    place = transport_class(cfg).place_of(cfg.system.transport)
    is_wanted = section.enabled is True or context.on_address is not None or place == "processes"
    if section.enabled is False or not is_wanted:
        return False
    commander = default_manager().class_of(
        "commanders", cfg.policy.other.commander, "policy.other.commander"
    )
    if commander.state_dict is BaseParallelCommander.state_dict:
        text = f"the commander {cfg.policy.other.commander.type!r} has no state_dict to resume from"
        if section.enabled is True:
            raise refusal(f"system.journal.enabled: {text}")
        _log.warning("the run keeps no journal: %s", text)
        return False
    return True


def remove_served(run_dir: Path) -> None:
    """Remove the files of the run's own replay server, unless the run can be resumed."""
    if not (run_dir / JOURNAL_FOLDER).is_dir():
        with Folder(run_dir) as folder:
            folder.remove_tree(REPLAY_FOLDER)


def open_journal(context: RunContext, stack: ExitStack) -> Journal | None:
    """Return the journal of a run, locked until the stack closes; None if the run keeps none.

    Raises:
        RunDirLockedError: a coordinator of the run is running.
    """
    if not keeps_journal(context):
        return None
    path = ensure_dir(context.run_dir / JOURNAL_FOLDER)
    try:
        stack.enter_context(locked_folder(path, f"a coordinator is running in {path}"))
    except RunFolderError as error:
        raise RunDirLockedError(
            f"{error}: {Journal(Folder(path)).owner_text()}; wait for its end, or stop it",
            path=str(path),
        ) from error
    fsync = context.cfg.system.journal.fsync
    own = stack.enter_context(Folder(path))
    return Journal(own, run=run_id(context.run_dir), fsync=fsync)


def _make_workers(
    context: RunContext, cfg: Any, transport: Transport, master: Master
) -> WorkerGroup:
    if context.workers is not None:
        return context.workers(master)
    if context.on_address is not None:  # the user starts the workers
        return WorkerGroup()
    return ThreadWorkers(cfg, transport)


def worker_config(cfg: Any, run_dir: Path) -> Any:
    """Return the config for workers, with the run folder and a limiter for the replay buffer.

    Serial mode trains ``update_per_collect`` batches for every ``n_sample`` samples, or for every
    ``n_episode`` episodes. The limiter enforces the same ratio in parallel mode: collectors wait if
    they are too far ahead of the learner, and the learner does not train more than in serial mode.
    If a buffer of rows is filled with episodes, its home does this without a limiter. A
    limiter that the config names is not changed.
    """
    buffer_cfg, path = cfg.policy.other.replay_buffer, "policy.other.replay_buffer"
    learn, collect = cfg.policy.learn, cfg.policy.collect
    changes: dict[str, Any] = {"exp_name": str(run_dir)}
    if cfg.policy.on_policy:  # the buffer holds a few collects for the learner
        size = max(4 * collect.n_sample, buffer_cfg.replay_buffer_size)
        own = {"replay_buffer_size": size, "limiter": {"type": "min_size"}}
        changes["policy"] = {"other": {"replay_buffer": own}}
        return to_easydict(deep_merge_dicts(cfg, changes))
    limiter = dict(buffer_cfg.get("limiter") or {})
    kind = default_manager().class_of("buffers", buffer_cfg, path)
    # The limiter of such a buffer counts episodes, whose number of rows is not known.
    is_of_episodes = getattr(kind, "draws", "rows") == "episodes"
    # Demonstrations, which are the rest of a batch, are not drawn from the buffer.
    batch_rows = collected_in_batch(cfg.policy) * int(buffer_cfg.get("sequence_length", 1))
    # For episodes in a buffer of rows its home has an EpisodePace.
    count = collect.n_episode if is_of_episodes or collect.n_episode else collect.n_sample
    is_paced = count and (is_of_episodes or not collect.n_episode)
    if is_paced and not is_limited(buffer_cfg):
        per_insert = learn.update_per_collect * batch_rows / count
        env_num = cfg.env.collector_env_num
        piece = declared_piece(cfg)
        traj_len = traj_len_of(piece, collect.n_sample, collect.unroll_len, env_num)
        if piece == "unroll":
            traj_len = 1  # each is one sample
        # The largest payload: it is almost full, and then the trajectory of every env is cut. Whole
        # episodes can have any length.
        payload_rows = count + env_num * traj_len if traj_len else 2 * (env_num + 1) * count
        # Rows ahead of the learner come from a policy that is not yet trained on earlier rows, so
        # allow only as many as are needed to keep the learner busy.
        ahead = min(AHEAD_ROWS, AHEAD_UPDATES * batch_rows / per_insert)
        slack_rows = math.ceil(max(ahead, payload_rows + batch_rows / per_insert))
        if is_of_episodes:
            slack_rows = 2 * count * cfg.system.collector_num
        limiter = {
            "type": "samples_per_insert",
            "samples_per_insert": per_insert,
            "min_size": max(int(limiter.get("min_size") or 1), batch_rows),
            "error_buffer": per_insert * slack_rows,
            "samples_ahead": 0,
        }
        changes["policy"] = {"other": {"replay_buffer": {"limiter": limiter}}}
    return to_easydict(deep_merge_dicts(cfg, changes))


def _watch(
    context: RunContext,
    coordinator: Coordinator,
    workers: WorkerGroup,
    results: ParallelResults,
) -> Reason:
    """Wait for the end of the run; return its reason."""
    tb_logger = results.tb_logger()
    paces_at = time.monotonic()
    while True:  # asks once at least, however short the run is
        if context.stop.is_set():
            return "interrupted"
        results.save_best()
        status = coordinator.status()
        if time.monotonic() - paces_at >= PACES_S:
            paces_at = time.monotonic()
            write_paces(tb_logger, status)
            if context.cfg.system.validate_state:
                coordinator.validate_state()
        # At its last iteration a learner ends its task by itself, after its last checkpoint.
        if (reason := context.why_end(status.env_steps, 0)) is not None:
            return reason
        workers.poll()
        if coordinator.end.wait(POLL_S):
            break
    if coordinator.end.failure is not None:
        return "error"
    return "stop_value" if coordinator.end.has_reached_goal else "limit"


def _finish_evaluations(
    context: RunContext, coordinator: Coordinator, workers: WorkerGroup, reason: Reason
) -> Reason:
    """Wait for the last evaluation, which may be the best one or reach the stop value."""
    left_s = coordinator.cfg.last_evaluation_s * max(1, len(coordinator.status().players))
    while not coordinator.end.finish_evaluations(min(POLL_S, left_s)):
        left_s -= POLL_S
        if context.stop.is_set():
            _log.warning("the last evaluation was cut off; it does not count")
            break
        if left_s <= 0:
            _log.warning(
                "the last evaluation was cut off; it does not count. An env whose episodes do not "
                "end needs a limit, such as env.kwargs.max_episode_steps; long episodes may need "
                "a larger system.coordinator.last_evaluation_s"
            )
            break
        workers.poll()
    return "stop_value" if coordinator.end.has_reached_goal else reason


def _status(context: RunContext, coordinator: Coordinator) -> RunStatus:
    now, tasks = coordinator.status(), list(coordinator.state.running.values())
    capacity = context.cfg.policy.other.replay_buffer.replay_buffer_size
    for each in tasks:
        if each.kind == "collector":
            section = each.task.get("collector_cfg") or {}
            context.note_exploration(each.collect_setting or section.get("collect_setting") or {})
    return RunStatus(
        env_steps=now.env_steps,
        # Of several players the coordinator counts only those whose learner trains.
        train_iter=min((each.train_iter for each in now.players.values()), default=now.train_iter),
        buffer_fill=now.buffer_count,
        buffer_capacity=capacity * max(1, len(now.players)),
        workers=sum(now.workers.values()),
        held_up_by=now.held_up_by,
        samples=now.samples,
        tasks=tuple(_task_status(each, now.paces) for each in tasks),
        policy_lag=None if now.policy_lag is None else now.policy_lag._asdict(),
        connected=tuple(
            WorkerStatus(info.worker_id, info.role, lease_s) for info, lease_s in now.leases
        ),
        loss=now.loss,
        **context.known(now.players),
    )


def _task_status(state: TaskState, paces: Mapping[str, Pace]) -> RunningTask:
    worker_id = "" if state.worker is None else state.worker.worker_id
    pace = paces.get(worker_id)
    return RunningTask(
        task_id=state.task_id,
        kind=state.kind,
        worker_id=worker_id,
        progress=state.progress,
        per_s=None if pace is None else pace.per_s,
        is_straggler=pace is not None and pace.is_straggler,
        attempt=state.attempt,
        player=state.player,
        waits_for=state.waits_for,
    )
