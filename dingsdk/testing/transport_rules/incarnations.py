"""Rules 12 to 16: workers that leave, are dropped, and join again."""

from __future__ import annotations

import contextlib

from dingsdk.errors import WorkerLostError
from dingsdk.testing.expect import Call, expect, expect_equal, raises
from dingsdk.testing.transport_rules.bench import Bench
from dingsdk.worker.comm import TaskAnswer, TaskMessage


def rule_12_dropped_worker_is_told(bench: Bench) -> None:
    """A dropped worker's calls raise WorkerLostError until it joins again.

    A wait for a task ends at once. The master's listener gets no report that the worker left, and
    sending it a task raises WorkerLostError. Messages that the worker sends after it was dropped
    are not delivered, even if it joins again.
    """
    end = bench.join()
    job = bench.spawn(lambda: _discard(end.next_task(20 * bench.patience_s)), "waits for a task")
    Call(lambda: end.renew(1), "renew() beside a wait").value(bench.patience_s)
    bench.drop("w0")
    error = bench.ended(job, "the wait of a dropped worker")
    expect(isinstance(error, WorkerLostError), f"the wait of a dropped worker ended with {error!r}")
    bench.expect_refused(end, "a dropped worker", WorkerLostError)
    with raises("send() to a dropped worker", WorkerLostError):
        bench.send("w0", "t2")
    expect_equal(bench.listener.of("left", "w0"), [], "reports that the dropped worker left")
    bench.join_end(end)
    bench.send("w0", "new")
    bench.receive(end)
    end.renew(3)
    end.answer(TaskAnswer("new", True))
    answers = bench.listener.expect("answered", "w0")
    expect_equal([answer.task_id for answer in answers], ["new"], "answers")
    expect_equal(bench.listener.of("renewed", "w0"), [1, 3], "renewals")


def rule_14_worker_comes_back_without_its_work(bench: Bench) -> None:
    """A worker that joins again gets no earlier tasks, and works as a new worker does.

    Each join of an id is announced with a higher ``incarnation`` than the joins before. Sending a
    task to an ended incarnation raises WorkerLostError, and dropping it changes nothing.
    """
    end = bench.join()
    bench.send("w0", "old1", "old2", "old3")
    expect_equal(bench.receive_ids(end, 1), ["old1"], "tasks")
    for count in (2, 3):
        old = bench.incarnation("w0")
        bench.drop("w0")
        bench.join_end(end)
        new = bench.incarnation("w0")
        expect(new > old, f"incarnation {new} came after {old}")
        bench.send("w0", f"new{count}")
        expect_equal(bench.receive_ids(end, 1), [f"new{count}"], "tasks after the join")
        with raises("send() to the incarnation before", WorkerLostError):
            bench.master.send("w0", old, TaskMessage("stale", {}))
        bench.master.drop("w0", old, "its lease ended just when it came back")
        bench.send("w0", "old1", "old2")  # ids may be used again for other tasks
        expect_equal(bench.receive_ids(end, 2), ["old1", "old2"], "tasks sent again")


def rule_15_second_join_replaces_the_first(bench: Bench) -> None:
    """If a worker joins with the id of a joined worker, it replaces the earlier one.

    The master is informed that the earlier worker left, and then that the new one joined. The
    calls of the earlier end raise WorkerLostError, its messages are refused, and its close does not
    affect the new worker.
    """
    first = bench.join()
    second = bench.join()
    kinds = bench.listener.kinds("w0")
    expect_equal(kinds, ["joined", "left", "joined"], "reports to the master")
    with contextlib.suppress(WorkerLostError):
        first.answer(TaskAnswer("stale", True))
    with raises("next_task() of a replaced worker", WorkerLostError):
        first.next_task(bench.patience_s)
    bench.send("w0", "t1")
    first.close(bench.patience_s)
    expect_equal(bench.receive_ids(second, 1), ["t1"], "tasks of the new one")
    second.answer(TaskAnswer("t1", True))
    answers = bench.listener.expect("answered", "w0")
    expect_equal([answer.task_id for answer in answers], ["t1"], "answers")
    expect_equal(len(bench.listener.of("left", "w0")), 1, "reports that it left")


def rule_16_leaving_is_reported_once(bench: Bench) -> None:
    """When a joined worker closes its end, the master is informed once that it left.

    Its earlier answers arrive before that. Afterwards sending it a task raises WorkerLostError, as
    for a worker that never joined; dropping it changes nothing. Other workers are not affected.
    """
    end, other = bench.join("w0"), bench.join("w1")
    bench.send("w0", "t1")
    bench.receive(end)
    end.answer(TaskAnswer("t1", True))
    end.close(bench.patience_s)
    end.close(bench.patience_s)
    bench.listener.expect("left", "w0")
    kinds = [kind for kind in bench.listener.kinds("w0") if kind != "joined"]
    expect_equal(kinds, ["answered", "left"], "reports to the master about it")
    for worker_id in ("w0", "nobody", "W1", "w"):
        with raises(f"send() to {worker_id}, which is not there", WorkerLostError):
            bench.send(worker_id, "t2")
        bench.drop(worker_id)
    bench.send("w1", "t3")
    expect_equal(bench.receive_ids(other, 1), ["t3"], "tasks of the other worker")
    other.close(bench.patience_s)
    bench.listener.expect("left", "w1")
    expect_equal(len(bench.listener.of("left", "w0")), 1, "reports that it left")


def _discard(value: object) -> None:
    """Return None, which the function of a job must return."""
