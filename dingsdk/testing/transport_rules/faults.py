"""Rules 36 to 40: a bad network, for transports that declare ``survives_faults``."""

from __future__ import annotations

from functools import partial

from dingsdk.errors import WorkerLostError
from dingsdk.testing.expect import Call, expect, expect_equal
from dingsdk.testing.fault_proxy import Fault, FaultProxy, seeded_faults
from dingsdk.testing.runner import needs
from dingsdk.testing.transport_rules.bench import Bench
from dingsdk.worker.comm import TaskAnswer, WorkerInfo

_TASKS = 16
_HEALTHY = [Fault.PASS] * 3
"""No faults in the exchanges of a join, so that the faults come after it."""


@needs("survives_faults")
def rule_36_join_survives_faults(bench: Bench) -> None:
    """A join over a bad network succeeds, and is announced once even if it had to be repeated."""
    schedules = [
        [Fault.LOSE_REPLY] * 4,
        [Fault.DROP, Fault.CUT_REQUEST, Fault.PASS, Fault.CUT_REPLY, Fault.LOSE_REPLY],
        [Fault.PASS, Fault.LOSE_REPLY, Fault.DUPLICATE, Fault.CUT_REPLY],
        [Fault.CUT_REPLY] * 5,
    ]
    for number, schedule in enumerate(schedules):
        proxy = _proxy(bench, schedule)
        worker_id = f"w{number}"
        end = bench.far.slave_end(proxy.address)
        end.join(WorkerInfo(worker_id, "collector", {"cpu": 1}), 4 * bench.patience_s)
        bench.listener.expect("joined", worker_id)
        bench.send(worker_id, "t1")
        expect_equal(bench.receive_ids(end, 1), ["t1"], "tasks")
        end.renew(1)
        bench.listener.expect("renewed", worker_id)
        kinds = bench.listener.kinds(worker_id)
        expect_equal(kinds, ["joined", "renewed"], f"reports of {worker_id}")


@needs("survives_faults")
def rule_37_tasks_survive_faults(bench: Bench) -> None:
    """Tasks over a bad network arrive once and in order; no task is lost with a lost reply."""
    schedules = [_HEALTHY + [Fault.LOSE_REPLY] * 6, *map(_seeded, range(3))]
    for number, schedule in enumerate(schedules):
        worker_id = f"w{number}"
        end = bench.join(worker_id, address=_proxy(bench, schedule).address)
        sent = [f"t{index}" for index in range(_TASKS)]
        found = []
        for index in range(0, _TASKS, 2):
            bench.send(worker_id, *sent[index : index + 2])
            found += bench.receive_ids(end, 2)
        expect_equal(found, sent, f"tasks with {schedule[:8]}")
        bench.send(worker_id, "last")
        expect_equal(bench.receive_ids(end, 1), ["last"], "the task after them")


@needs("survives_faults")
def rule_38_answers_survive_faults(bench: Bench) -> None:
    """Answers over a bad network arrive once and in order, even if they had to be sent again."""
    schedules = [_HEALTHY + [Fault.LOSE_REPLY] * 6, *map(_seeded, range(10, 13))]
    for number, schedule in enumerate(schedules):
        worker_id = f"w{number}"
        end = bench.join(worker_id, address=_proxy(bench, schedule).address)
        sent = [f"t{index}" for index in range(_TASKS)]
        bench.send(worker_id, *sent)
        bench.receive_ids(end, _TASKS)
        for index, task_id in enumerate(sent, start=1):
            end.answer(TaskAnswer(task_id, True, {"n": index}))
            bench.listener.expect("answered", worker_id, index)
        end.renew(1)
        bench.listener.expect("renewed", worker_id)
        answers = bench.listener.of("answered", worker_id)
        expect_equal([answer.task_id for answer in answers], sent, f"answers with {schedule[:8]}")


@needs("survives_faults")
def rule_39_no_call_hangs_without_replies(bench: Bench) -> None:
    """If no replies come any more, every call still ends, a wait soon after its deadline.

    ``next_task`` returns None or raises WorkerLostError, and ``close`` ends in time.
    """
    for number in range(2):
        proxy = _proxy(bench, [])
        end = bench.join(f"w{number}", address=proxy.address)
        proxy.silence()
        call = Call(partial(end.next_task, 0.1), "next_task() in silence")
        try:
            expect_equal(call.value(0.1 + bench.patience_s), None, "next_task() in silence")
        except WorkerLostError:
            continue
        finally:
            Call(partial(end.close, bench.patience_s), "close()").value(2 * bench.patience_s)


@needs("survives_faults")
def rule_40_worker_comes_back_after_a_silence(bench: Bench) -> None:
    """When replies come again, a worker continues, or gets WorkerLostError and can join again.

    If it continues, tasks that were sent during the silence arrive once.
    """
    proxy = _proxy(bench, [])
    end = bench.join(address=proxy.address)
    proxy.silence()
    bench.send("w0", "t1", "t2")
    is_lost = False
    try:
        found = end.next_task(0.1)
        expect(found is None, f"{found} came through a silent network")
    except WorkerLostError:
        is_lost = True
    proxy.silence(False)
    if is_lost:
        bench.join_end(end)
    else:
        expect_equal(bench.receive_ids(end, 2), ["t1", "t2"], "tasks")
    bench.send("w0", "last")
    expect_equal(bench.receive_ids(end, 1), ["last"], "tasks")
    end.answer(TaskAnswer("last", True))
    bench.listener.expect("answered", "w0")


def _proxy(bench: Bench, faults: list[Fault]) -> FaultProxy:
    _ = bench.master  # sets ``bench.address``
    return bench.closed_at_exit(FaultProxy(bench.address, faults))


def _seeded(seed: int) -> list[Fault]:
    return _HEALTHY + seeded_faults(seed, 40)
