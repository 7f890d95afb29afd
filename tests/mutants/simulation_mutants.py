"""Defects in delivery, homes of rows, leases, time and disk; simulated runs must find each."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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


# Under each fault the defects that it reveals, each with a name, the function (below ``dingsdk``)
# and the seed, the line, and what replaces the line.
_TEXT = """
# A collector is killed: idle, at work, while it stores or announces

a task whose worker was lost is forgotten
worker.coordinator.scheduler_state:SchedulerState._end 6
- self._queue(retried)
+ str(retried)

payloads of running tasks are swept
worker.coordinator.scheduler_state:SchedulerState.find_live 34
- or data_id.partition("-")[0] in owners

payloads of tasks that have ended are swept
worker.coordinator.scheduler_state:SchedulerState.find_live 2
- data_id in known or data_id
+ data_id

# A worker is stopped for longer than its lease, then continues

a worker that was stopped continues its task
worker.comm.worker:CommWorker._is_overdue 2
- > FENCE * lease_s
+ > 60 * lease_s

a silent worker keeps its lease
worker.coordinator.scheduler_state:WorkerPool.silent 13
- <= now
+ <= now - 60

# The work of a task raises

a task that raises ends the loop of its worker
worker.comm.slave:Slave._run 8
- (Exception, SystemExit)
+ (KeyError, SystemExit)

# A task kills every worker that gets it

a task that kills its workers is retried forever
worker.coordinator.retries:Retries._losses 16
- (*(at for at in before if now - at < LOSS_WINDOW_S), now)
+ (now,)

# The learner is killed

a new home is not told payloads that an earlier one has inserted
worker.coordinator.live_payloads:LivePayloads.restart 15
- dict.fromkeys(self._live)
+ {name: None for name, each in self._live.items() if not each.is_inserted}

rows that left an earlier home count as gone from the new one
worker.coordinator.live_payloads:LivePayloads.restart 18
- payload.left.clear()
+ pass

the limiter of a new home counts from zero
worker.coordinator.live_payloads:LivePayloads.for_new_home 78
- self.home_counts or None
+ None

the limiter of a new home counts rows twice
worker.replay_buffer.home:TableHome._insert 61
- is_counted=True
+ is_counted=False

a learner that continues from a checkpoint forgets how often it used rows
worker.replay_buffer.home:TableHome.restore_uses 18
- uses.items()
+ ()

# The learner is killed while it saves a checkpoint

a checkpoint becomes the newest before it is written
worker.learner.hooks:save_checkpoint 20
- if ask().write_checkpoint(path=path, contents=contents) is not True:
+ pointer = encode_json(_POINTER_KIND, {'stem': stem, 'iteration': iteration})
+         folder.write_atomic(_POINTER, [pointer])
+         if ask().write_checkpoint(path=path, contents=contents) is not True:

# The job of a worker ends or hangs, but its process lives

a worker whose job hangs renews its lease
worker.comm.worker:CommWorker._is_alive 13
- now - self._moved_at < self._cfg.progress_timeout_s
+ True

# The coordinator is killed and started again

a sample is acknowledged before it is in the journal
worker.coordinator.keeper:Keeper.acknowledge 10
- self._journal.append(fact)
+ str(fact)

the reports of a home are not in the journal
worker.coordinator.coordinator:Coordinator.deal_with_learner_send_info 0
- self.keeper.note(Settled(task_id, train_iter, home))
+ pass

a home that rejoins is not told what it has missed
worker.coordinator.live_payloads:LivePayloads.rejoin 11
- if name not in had
+ if not had

rows trained on before a restart count twice
worker.coordinator.live_payloads:LivePayloads.load_state_dict 11
- state["earlier_trained_rows"]
+ state["trained_rows"]

the leases of an earlier coordinator never end
worker.coordinator.recovery:OrphanTasks.expire 33
- self._end(task)
+ pass

# The learner is killed, and then the coordinator

the journal does not record a new home
worker.coordinator.recovery:apply 35
- state.begin_home(task)
+ task.buffer_id in state.buffers or state.begin_home(task)

# A worker reports while the coordinator is down

a join waits until its deadline for a single answer
worker.comm.requests.slave_end:RequestSlaveEnd.join 6
- min(deadline, self._clock() + self._request_timeout_s)
+ deadline

# The coordinator is killed while it writes its journal

an incomplete record counts as damage
runtime.records:records_in 0
- if torn := len(view) - at:
+ if torn := len(view) - at:
+         raise damaged_at(path, at, advice)

# A payload is missing

a payload that cannot be read is not counted
worker.replay_buffer.home:Home._loaded 15
- self._lost.append((announced.data_id, reason))
+ pass

# A payload becomes visible late

a payload that becomes visible late is given up
worker.comm.learner:BaseCommLearner.deal_with_learner_learn 5
- self._clock() + LOAD_TIMEOUT_S
+ self._clock()

# A payload is damaged or replaced

the digest of a payload is not checked before training
worker.comm.learner:BaseCommLearner._load_payload 15
- return self.data_store.get(data_id, timeout_s, digest)
+ return self.data_store.get(data_id, timeout_s)

# The disk of the payloads is full

a payload that was not stored is announced
worker.comm.collector:BaseCommCollector.send_stepdata 11
- continue
+ return

# The disk is full for a long time, or for all processes

time of a stopped coordinator counts as a full disk
worker.coordinator.scheduler_state:SchedulerState.__init__ 25
- StorageOutage(cfg.storage_timeout_s, clock)
+ StorageOutage(cfg.storage_timeout_s, clock._clock)

journal records that did not fit on the disk are lost
worker.coordinator.keeper:Keeper.note 11
- self.is_behind = True
+ pass

# A worker hangs while it builds its envs or policy

a worker that hangs while building is never given up
worker.coordinator.dispatcher:Dispatcher.run_task 13
- self.master.lose(worker.worker_id, str(raised), worker.incarnation)
+ pass

# A worker is slow

progress is not recorded
worker.comm.worker:CommWorker._note_round 1
- self._moved_at = self._clock()
+ pass

# A payload is announced several times

a payload counts as often as it is announced
worker.coordinator.live_payloads:LivePayloads.push 4
- if self.knows(data_id):
+ if False:

# Two payloads have one id

a second payload under a known id counts as a repetition
worker.coordinator.live_payloads:LivePayloads.push 19
- known is not None and (
+ False and (

# Rows leave the home

evictions are counted by another reason
worker.coordinator.live_payloads:LivePayloads._leave 0
- self._evicted[reason] += rows
+ self._evicted["overwritten"] += rows

a payload is deleted although one row of it is left
worker.coordinator.live_payloads:LivePayloads._leave 1
- >= payload.rows
+ >= payload.rows - 1

a report of the home is processed twice
worker.coordinator.live_payloads:LivePayloads.settle 1
- report.number > self.confirmed
+ True

the last report of a learner is dropped
worker.coordinator.roles:LearnerRole._train 6
- coordinator.deal_with_learner_send_info(*ids, finished["info"])
+ pass

# An answer is repeated, late, or for another worker's task

an answer counts as often as it is delivered
worker.comm.requests.handler:Mailbox.take 56
- if number > self.answered and not self.is_closed:
+ if not self.is_closed:

an answer for another worker's task is accepted
worker.comm.master:Master.task_answered 7
- self._open.get(worker_id, {}).pop(answer.task_id, None)
+ next((each.pop(answer.task_id) for each in self._open.values() if answer.task_id in each), None)

an unexpected answer ends a request
worker.comm.master:Master.task_answered 7
- if task is None:
+ if False:

# Messages are lost, late, repeated or reordered

tasks are forgotten when they are sent
worker.comm.requests.handler:Mailbox.fetch 12
- return first_that_fit(self._tasks, self._max_bytes)
+ found = first_that_fit(self._tasks, self._max_bytes)
+     self._tasks.clear()
+     return found

a lost answer is not sent again
worker.comm.requests.slave_end:RequestSlaveEnd._unconfirmed 3
- return first_that_fit(self._answers, self._max_bytes)
+ found = first_that_fit(self._answers, self._max_bytes)
+     self._answers.clear()
+     return found

# A second coordinator takes over the run

a replaced coordinator continues
worker.coordinator.keeper:Keeper.check_owner 30
- self._journal.check_owner()
+ pass

# The file that names the coordinator is removed

a coordinator whose file was removed continues
worker.coordinator.journal:Journal._read_owner 21
- return _NOBODY
+ return _Owner(self.epoch, self._owner)

# The run is closed while workers wait

close waits for room in the buffer
worker.coordinator.roles:_acknowledge 37
- coordinator.is_ending or coordinator.deal_with_collector_send_data
+ coordinator.deal_with_collector_send_data

# A clock jumps, or the coordinator is stopped

time of a stopped coordinator counts against leases
worker.coordinator.clock:RunClock.look 17
- self._stopped_s += stalled_s
+ pass

# Collectors are faster than the learner

a payload without room is acknowledged
worker.coordinator.coordinator:Coordinator.deal_with_collector_send_data 24
- return False
+ return True

# A policy is read while others replace it

an older policy replaces a newer one
worker.comm.files.policy_versions:VersionedPolicyStore.publish 69
- if there and there[0].number >= version:
+ if False:

# The newest policy or checkpoint is damaged

a damaged policy ends the worker that reads it
worker.comm.files.policy_versions:VersionedPolicyStore._load 27
- self._damaged.add((policy_id, version))
+ raise

a damaged checkpoint ends the run although there is an older one
worker.learner.checkpoint:_load_newest 198
- skipped.append(error)
+ raise

# The disk of the run folder is full

a disk without room for a policy ends the learner
worker.comm.publisher:PolicyPublisher._try 24
- except StorageFullError as error:
+ except KeyError as error:

a disk without room for a checkpoint ends the learner
worker.learner.hooks:SaveCkptHook.__call__ 24
- if self.position != "after_iter":
+ if True:

# A worker is lost again and again in a long run

the losses of a task are never forgotten
worker.coordinator.retries:Retries._losses 36
- () if has_progressed else state.losses
+ state.losses

# The whole run dies, and its memory is lost

collectors wait for a policy from before the checkpoint
worker.coordinator.admission:Admission.begin 33
- self._began_at.pop()
+ break

# Collectors of an on-policy learner are slow, or differ in speed

payloads that arrive while the learner publishes are not noticed
worker.comm.learner:BaseCommLearner._wait_for_samples 90
- self._starved_at = announced
+ self._starved_at = announced = home.announced

a training does not wait for rows of old policies
worker.coordinator.admission:Admission.may_train 7
- self.version_of(grant.policy_iter) < oldest
+ False

a collector continues with an old policy
worker.collector.zergling:ZerglingParallelCollector._is_admitted 0
- and self._policy_iter < policy_iter
+ and False

# A worker of on-policy training is lost

a training waits for a lost collector
worker.coordinator.admission:Admission.forget 0
- self._grants.pop(task_id, None)
+ str(task_id)

rows of a saved but unreported training are trained on again
worker.coordinator.on_policy:OnPolicyPayloads.begin_training 139
- self.began_at = train_iter
+ self.began_at = train_iter + 1

unacknowledged rows count as delivered
worker.comm.collector:BaseCommCollector.deal_with_collector_go_on 329
- {} if self._reports else self._delivered
+ self._delivered

# The newest policy of an on-policy learner is damaged

collectors wait for a damaged policy
worker.comm.publisher:PolicyPublisher.while_waiting 586
- elif self.send_policy_freq is None and self._read_version != self.version:
+ elif False:

# The disk is full when an on-policy training ends

payloads are deleted before the journal records their training
worker.coordinator.live_payloads:LivePayloads.take_garbage 11
- if self.is_behind():
+ if False:
"""


def _read(block: str) -> Mutant:
    name, place, *change = block.splitlines()
    where, _, seed = place.partition(" ")
    line, instead = (
        "\n".join(each[2:] for each in change if each.startswith(sign)) for sign in "-+"
    )
    return Mutant(name, f"dingsdk.{where}", line, instead, int(seed))


MUTANTS = [_read(block) for block in _TEXT.strip().split("\n\n") if not block.startswith("# ")]
