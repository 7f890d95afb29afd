"""Defects in delivery, homes of rows, leases, time and disk; simulated runs must find each."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_COMM, _COORDINATOR = "dingsdk.worker.comm", "dingsdk.worker.coordinator"
_PAYLOADS = f"{_COORDINATOR}.live_payloads:LivePayloads"
_HOME = "dingsdk.worker.replay_buffer.home"
_REQUESTS = "dingsdk.worker.comm.requests"
_LEARNER = "dingsdk.worker.learner"


@dataclass(frozen=True)
class Mutant:
    """A defect: one piece of a function's source is replaced.

    Attributes:
        name: Describes the defect.
        where: ``module:Class.function``.
        line: Part of the function's source; occurs exactly once.
        instead: The replacement.
        seed: The first seed whose simulated run breaks a promise with the defect, when it was last
            searched from 0; the defect must be found with 10,000 seeds at most.
    """

    name: str
    where: str
    line: str
    instead: str
    seed: int

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the defect within the context."""
        module_name, _, path = self.where.partition(":")
        module = importlib.import_module(module_name)
        owner: Any = module
        *classes, name = path.split(".")
        for each in classes:
            owner = getattr(owner, each)
        before = owner.__dict__[name]
        function = before.fget if isinstance(before, property) else before
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
        assert source.count(self.line) == 1, f"{self.name}: {self.line!r} in {self.where}"
        assert "super()" not in source, "super() raises in the compiled copy, with any defect"
        # Use the globals of the module, so that patches there have an effect here too.
        found: dict[str, Any] = {}
        exec(
            compile(
                "from __future__ import annotations\n" + source.replace(self.line, self.instead),
                f"<{self.name}>",
                "exec",
            ),
            function.__globals__,
            found,
        )
        setattr(owner, name, found[name])
        try:
            yield
        finally:
            setattr(owner, name, before)


DEFECTS: Mapping[str, Sequence[Mutant]] = {
    "A collector is killed: idle, at work, while it stores or announces": [
        Mutant(
            "a task whose worker was lost is forgotten",
            f"{_COORDINATOR}.scheduler_state:SchedulerState._end",
            "self._queue(retried)",
            "str(retried)",
            6,
        ),
        Mutant(
            "payloads of running tasks are swept",
            f"{_COORDINATOR}.scheduler_state:SchedulerState.find_live",
            'or data_id.partition("-")[0] in owners',
            "",
            34,
        ),
        Mutant(
            "payloads of tasks that have ended are swept",
            f"{_COORDINATOR}.scheduler_state:SchedulerState.find_live",
            "data_id in known or ",
            "",
            2,
        ),
    ],
    "A worker is stopped for longer than its lease, then continues": [
        Mutant(
            "a worker that was stopped continues its task",
            f"{_COMM}.worker:CommWorker._is_overdue",
            "> FENCE * lease_s",
            "> 60 * lease_s",
            2,
        ),
        Mutant(
            "a silent worker keeps its lease",
            f"{_COORDINATOR}.scheduler_state:WorkerPool.silent",
            "<= now",
            "<= now - 60",
            13,
        ),
    ],
    "The work of a task raises": [
        Mutant(
            "a task that raises ends the loop of its worker",
            f"{_COMM}.slave:Slave._run",
            "(Exception, SystemExit)",
            "(KeyError, SystemExit)",
            8,
        ),
    ],
    "A task kills every worker that gets it": [
        Mutant(
            "a task that kills its workers is retried forever",
            f"{_COORDINATOR}.scheduler_state:SchedulerState._losses",
            "(*(at for at in before if now - at < LOSS_WINDOW_S), now)",
            "(now,)",
            16,
        ),
    ],
    "The learner is killed": [
        Mutant(
            "a new home is not told payloads that an earlier one has inserted",
            f"{_PAYLOADS}.restart",
            "dict.fromkeys(self._live)",
            "{name: None for name, each in self._live.items() if not each.is_inserted}",
            15,
        ),
        Mutant(
            "rows that left an earlier home count as gone from the new one",
            f"{_PAYLOADS}.restart",
            "payload.left.clear()",
            "pass",
            18,
        ),
        Mutant(
            "the limiter of a new home counts from zero",
            f"{_COORDINATOR}.coordinator:Coordinator.new_home",
            "payloads.home_counts or None",
            "None",
            78,
        ),
        Mutant(
            "the limiter of a new home counts rows twice",
            f"{_HOME}:TableHome._insert",
            "is_counted=True",
            "is_counted=False",
            61,
        ),
    ],
    "The learner is killed while it saves a checkpoint": [
        Mutant(
            "a checkpoint becomes the newest before it is written",
            f"{_LEARNER}.hooks:save_checkpoint",
            "if ask().write_checkpoint(path=path, contents=contents) is not True:",
            "pointer = encode_json(_POINTER_KIND, {'stem': stem, 'iteration': iteration})\n"
            "        folder.write_atomic(_POINTER, [pointer])\n"
            "        if ask().write_checkpoint(path=path, contents=contents) is not True:",
            149,
        ),
    ],
    "The job of a worker ends or hangs, but its process lives": [
        Mutant(
            "a worker whose job hangs renews its lease",
            f"{_COMM}.worker:CommWorker._is_alive",
            "now - self._moved_at < self._cfg.progress_timeout_s",
            "True",
            13,
        ),
    ],
    "The coordinator is killed and started again": [
        Mutant(
            "a sample is acknowledged before it is in the journal",
            f"{_COORDINATOR}.keeper:Keeper.acknowledge",
            "self._journal.append(fact)",
            "str(fact)",
            10,
        ),
        Mutant(
            "the reports of a home are not in the journal",
            f"{_COORDINATOR}.coordinator:Coordinator.deal_with_learner_send_info",
            "self.keeper.note(Settled(task_id, train_iter, home))",
            "pass",
            0,
        ),
        Mutant(
            "a home that rejoins is not told what it has missed",
            f"{_PAYLOADS}.rejoin",
            "if name not in had",
            "if not had",
            11,
        ),
        Mutant(
            "rows trained on before a restart count twice",
            f"{_PAYLOADS}.load_state_dict",
            'state["earlier_trained_rows"]',
            'state["trained_rows"]',
            11,
        ),
        Mutant(
            "the leases of an earlier coordinator never end",
            f"{_COORDINATOR}.dispatcher:Dispatcher.expire_orphans",
            "self._state.expire_orphan(task)",
            "pass",
            33,
        ),
    ],
    "The learner is killed, and then the coordinator": [
        Mutant(
            "the journal does not record a new home",
            f"{_COORDINATOR}.recovery:apply",
            "state.begin_home(task)",
            "task.buffer_id in state.buffers or state.begin_home(task)",
            35,
        ),
    ],
    "A worker reports while the coordinator is down": [
        Mutant(
            "a join waits until its deadline for a single answer",
            f"{_REQUESTS}.slave_end:RequestSlaveEnd.join",
            "min(deadline, self._clock() + self._request_timeout_s)",
            "deadline",
            6,
        ),
    ],
    "The coordinator is killed while it writes its journal": [
        Mutant(
            "an incomplete record counts as damage",
            "dingsdk.runtime.records:records_in",
            "if torn := len(view) - at:",
            "if torn := len(view) - at:\n        raise damaged_at(path, at, advice)",
            0,
        ),
    ],
    "A payload is missing": [
        Mutant(
            "a payload that cannot be read is not counted",
            f"{_HOME}:Home._loaded",
            "self._lost.append((announced.data_id, reason))",
            "pass",
            15,
        ),
    ],
    "A payload becomes visible late": [
        Mutant(
            "a payload that becomes visible late is given up",
            f"{_COMM}.learner:BaseCommLearner.deal_with_learner_learn",
            "self._clock() + LOAD_TIMEOUT_S",
            "self._clock()",
            5,
        ),
    ],
    "A payload is damaged or replaced": [
        Mutant(
            "the digest of a payload is not checked before training",
            f"{_COMM}.learner:BaseCommLearner._load_payload",
            "return self.data_store.get(data_id, timeout_s, digest)",
            "return self.data_store.get(data_id, timeout_s)",
            15,
        ),
    ],
    "The disk of the payloads is full": [
        Mutant(
            "a payload that was not stored is announced",
            f"{_COMM}.collector:BaseCommCollector.send_stepdata",
            "continue",
            "return",
            11,
        ),
    ],
    "The disk is full for a long time, or for all processes": [
        Mutant(
            "time of a stopped coordinator counts as a full disk",
            f"{_COORDINATOR}.scheduler_state:SchedulerState.__init__",
            "StorageOutage(cfg.storage_timeout_s, clock)",
            "StorageOutage(cfg.storage_timeout_s, clock._clock)",
            25,
        ),
        Mutant(
            "journal records that did not fit on the disk are lost",
            f"{_COORDINATOR}.keeper:Keeper.note",
            "self.is_behind = True",
            "pass",
            11,
        ),
    ],
    "A worker hangs while it builds its envs or policy": [
        Mutant(
            "a worker that hangs while building is never given up",
            f"{_COORDINATOR}.dispatcher:Dispatcher.run_task",
            "self.master.lose(worker.worker_id, str(raised), worker.incarnation)",
            "pass",
            13,
        ),
    ],
    "A worker is slow": [
        Mutant(
            "progress is not recorded",
            f"{_COMM}.worker:CommWorker._note_round",
            "self._moved_at = self._clock()",
            "pass",
            1,
        ),
    ],
    "A payload is announced several times": [
        Mutant(
            "a payload counts as often as it is announced",
            f"{_PAYLOADS}.push",
            "if self.knows(data_id):",
            "if False:",
            4,
        ),
    ],
    "Two payloads have one id": [
        Mutant(
            "a second payload under a known id counts as a repetition",
            f"{_PAYLOADS}.push",
            "known is not None and (",
            "False and (",
            19,
        ),
    ],
    "Rows leave the home": [
        Mutant(
            "evictions are counted by another reason",
            f"{_PAYLOADS}._leave",
            "self._evicted[reason] += rows",
            'self._evicted["overwritten"] += rows',
            0,
        ),
        Mutant(
            "a payload is deleted although one row of it is left",
            f"{_PAYLOADS}._leave",
            ">= payload.rows",
            ">= payload.rows - 1",
            1,
        ),
        Mutant(
            "a report of the home is processed twice",
            f"{_PAYLOADS}.note_reports",
            "report.number > self.confirmed",
            "True",
            1,
        ),
        Mutant(
            "the last report of a learner is dropped",
            f"{_COORDINATOR}.roles:LearnerRole._train",
            'coordinator.deal_with_learner_send_info(*ids, finished["info"])',
            "pass",
            6,
        ),
    ],
    "An answer is repeated, late, or for another worker's task": [
        Mutant(
            "an answer counts as often as it is delivered",
            f"{_REQUESTS}.handler:Mailbox.take",
            "if number > self.answered and not self.is_closed:",
            "if not self.is_closed:",
            12,
        ),
        Mutant(
            "an answer for another worker's task is accepted",
            f"{_COMM}.master:Master.task_answered",
            "self._open.get(worker_id, {}).pop(answer.task_id, None)",
            "next((each.pop(answer.task_id) for each in self._open.values()"
            " if answer.task_id in each), None)",
            7,
        ),
        Mutant(
            "an unexpected answer ends a request",
            f"{_COMM}.master:Master.task_answered",
            "if task is None:",
            "if False:",
            7,
        ),
    ],
    "Messages are lost, late, repeated or reordered": [
        Mutant(
            "tasks are forgotten when they are sent",
            f"{_REQUESTS}.handler:Mailbox.fetch",
            "return first_that_fit(self._tasks, self._max_bytes)",
            "found = first_that_fit(self._tasks, self._max_bytes)\n    self._tasks.clear()\n"
            "    return found",
            12,
        ),
        Mutant(
            "a lost answer is not sent again",
            f"{_REQUESTS}.slave_end:RequestSlaveEnd._unconfirmed",
            "return first_that_fit(self._answers, self._max_bytes)",
            "found = first_that_fit(self._answers, self._max_bytes)\n    self._answers.clear()\n"
            "    return found",
            3,
        ),
    ],
    "A second coordinator takes over the run": [
        Mutant(
            "a replaced coordinator continues",
            f"{_COORDINATOR}.keeper:Keeper.check_owner",
            "self._journal.check_owner()",
            "pass",
            30,
        ),
    ],
    "The file that names the coordinator is removed": [
        Mutant(
            "a coordinator whose file was removed continues",
            f"{_COORDINATOR}.journal:Journal._read_owner",
            "return _NOBODY",
            "return _Owner(self.epoch, self._owner)",
            21,
        ),
    ],
    "The run is closed while workers wait": [
        Mutant(
            "close waits for room in the buffer",
            f"{_COORDINATOR}.roles:_acknowledge",
            "coordinator.is_ending or coordinator.deal_with_collector_send_data",
            "coordinator.deal_with_collector_send_data",
            26,
        ),
    ],
    "A clock jumps, or the coordinator is stopped": [
        Mutant(
            "time of a stopped coordinator counts against leases",
            f"{_COORDINATOR}.clock:RunClock.look",
            "self._stopped_s += stalled_s",
            "pass",
            17,
        ),
    ],
    "Collectors are faster than the learner": [
        Mutant(
            "a payload without room is acknowledged",
            f"{_COORDINATOR}.coordinator:Coordinator.deal_with_collector_send_data",
            "return False",
            "return True",
            24,
        ),
    ],
    "A policy is read while others replace it": [
        Mutant(
            "an older policy replaces a newer one",
            f"{_COMM}.files.policy_versions:VersionedPolicyStore.publish",
            "if there and there[0].number >= version:",
            "if False:",
            71,
        ),
    ],
    "The newest policy or checkpoint is damaged": [
        Mutant(
            "a damaged policy ends the worker that reads it",
            f"{_COMM}.files.policy_versions:VersionedPolicyStore._load",
            "self._damaged.add((policy_id, version))",
            "raise",
            27,
        ),
        Mutant(
            "a damaged checkpoint ends the run although there is an older one",
            f"{_LEARNER}.checkpoint:_load_newest",
            "skipped.append(error)",
            "raise",
            198,
        ),
    ],
    "The disk of the run folder is full": [
        Mutant(
            "a disk without room for a policy ends the learner",
            f"{_COMM}.publisher:PolicyPublisher._try",
            "except StorageFullError as error:",
            "except KeyError as error:",
            24,
        ),
        Mutant(
            "a disk without room for a checkpoint ends the learner",
            f"{_LEARNER}.hooks:SaveCkptHook.__call__",
            'if self.position != "after_iter":',
            "if True:",
            24,
        ),
    ],
    "A worker is lost again and again in a long run": [
        Mutant(
            "the losses of a task are never forgotten",
            f"{_COORDINATOR}.scheduler_state:SchedulerState._losses",
            "() if has_progressed else state.losses",
            "state.losses",
            36,
        ),
    ],
    "The whole run dies, and its memory is lost": [
        Mutant(
            "collectors wait for a policy from before the checkpoint",
            f"{_COORDINATOR}.admission:Admission.begin",
            "self._began_at.pop()",
            "break",
            33,
        ),
    ],
    "Collectors of an on-policy learner are slow, or differ in speed": [
        Mutant(
            "payloads that arrive while the learner publishes are not noticed",
            f"{_COMM}.learner:BaseCommLearner._wait_for_samples",
            "if home.announced > announced:",
            "if False:",
            9,
        ),
        Mutant(
            "a training does not wait for rows of old policies",
            f"{_COORDINATOR}.admission:Admission.may_train",
            "self.version_of(grant.policy_iter) < oldest",
            "False",
            7,
        ),
        Mutant(
            "a collector continues with an old policy",
            "dingsdk.worker.collector.zergling:ZerglingParallelCollector._is_admitted",
            "and self._policy_iter < policy_iter",
            "and False",
            0,
        ),
    ],
    "A worker of on-policy training is lost": [
        Mutant(
            "a training waits for a lost collector",
            f"{_COORDINATOR}.admission:Admission.forget",
            "self._grants.pop(task_id, None)",
            "str(task_id)",
            0,
        ),
        Mutant(
            "rows of a saved but unreported training are trained on again",
            f"{_COORDINATOR}.on_policy:OnPolicyPayloads.begin_training",
            "self.began_at = train_iter",
            "self.began_at = train_iter + 1",
            192,
        ),
        Mutant(
            "unacknowledged rows count as delivered",
            f"{_COMM}.collector:BaseCommCollector.deal_with_collector_go_on",
            "{} if self._reports else self._delivered",
            "self._delivered",
            583,
        ),
    ],
    "The newest policy of an on-policy learner is damaged": [
        Mutant(
            "collectors wait for a damaged policy",
            f"{_COMM}.training:OnPolicyTraining.while_waiting",
            "elif self._read_version != self._version:",
            "elif False:",
            586,
        ),
    ],
    "The disk is full when an on-policy training ends": [
        Mutant(
            "payloads are deleted before the journal records their training",
            f"{_COORDINATOR}.coordinator:Coordinator._take_garbage",
            "[] if self.keeper.is_behind else ",
            "",
            11,
        ),
    ],
}
"""Defects by the fault that reveals them; every fault has at least one."""
MUTANTS = [each for found in DEFECTS.values() for each in found]
