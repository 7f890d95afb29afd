"""Rules 36 to 40: a bad network, for transports that declare ``survives_faults``."""

from __future__ import annotations

from functools import partial

from dingsdk.errors import WorkerLostError
from dingsdk.testing.expect import Call, expect_equal
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
def rule_37_tasks_and_answers_survive_faults(bench: Bench) -> None:
    """Tasks and answers over a bad network arrive once and in order.

    No task is lost with a lost reply, and answers that had to be sent again are reported once.
    """
    schedules = [_HEALTHY + [Fault.LOSE_REPLY] * 6, *map(_seeded, range(5))]
    for number, schedule in enumerate(schedules):
        worker_id = f"w{number}"
        end = bench.join(worker_id, address=_proxy(bench, schedule).address)
        sent = [f"t{index}" for index in range(_TASKS)]
        found = []
        for index in range(0, _TASKS, 2):
            bench.send(worker_id, *sent[index : index + 2])
            found += bench.receive_ids(end, 2)
            end.answer(TaskAnswer(sent[index], True))
            end.answer(TaskAnswer(sent[index + 1], True))
            bench.listener.expect("answered", worker_id, index + 2)
        expect_equal(found, sent, f"tasks with {schedule[:8]}")
        bench.send(worker_id, "last")
        expect_equal(bench.receive_ids(end, 1), ["last"], "the task after them")
        end.renew(1)
        bench.listener.expect("renewed", worker_id)
        answers = [answer.task_id for answer in bench.listener.of("answered", worker_id)]
        expect_equal(answers, sent, f"answers with {schedule[:8]}")


@needs("survives_faults")
def rule_40_worker_comes_back_after_a_silence(bench: Bench) -> None:
    """If no replies come any more, every call still ends, a wait soon after its deadline.

    ``next_task`` returns None or raises WorkerLostError. When replies come again, a worker
    continues, or gets WorkerLostError and can join again. If it continues, tasks that were sent
    during the silence arrive once.
    """
    proxy, other = _proxy(bench, []), _proxy(bench, [])
    end = bench.join(address=proxy.address)
    left = bench.join("w1", address=other.address)
    proxy.silence()
    other.silence()
    bench.send("w0", "t1", "t2")
    call = Call(partial(end.next_task, 0.1), "next_task() in silence")
    is_lost = False
    try:
        expect_equal(call.value(0.1 + bench.patience_s), None, "next_task() in silence")
    except WorkerLostError:
        is_lost = True
    Call(partial(left.close, bench.patience_s), "close()").value(2 * bench.patience_s)
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
