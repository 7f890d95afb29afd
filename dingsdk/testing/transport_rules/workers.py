"""Rules 1 to 16: joins, tasks, answers, renewals, and workers that leave and join again."""

from __future__ import annotations

import contextlib
from functools import partial

from dingsdk.errors import ProtocolError, WorkerLostError
from dingsdk.testing.expect import Call, expect, expect_equal, expect_same, raises
from dingsdk.testing.transport_rules.bench import Bench, plain_message
from dingsdk.worker.comm import SlaveEnd, TaskAnswer, TaskMessage, WorkerInfo


def rule_01_join_is_announced_once(bench: Bench) -> None:
    """A worker that joins is announced once, with its id, role and resources.

    The announcement comes before all other reports of that worker. Workers with different ids are
    announced separately.
    """
    ends = [bench.slave(), bench.slave()]
    infos = [
        WorkerInfo("w0", "collector", {"cpu": 2, "gpu": []}),
        WorkerInfo("w1", "learner", {"device": {"name": "cpu"}}),
    ]
    for end, info in zip(ends, infos, strict=True):
        end.join(info, bench.patience_s)
        end.renew(1)
    for info in infos:
        bench.listener.expect("renewed", info.worker_id)
        (found,) = bench.listener.of("joined", info.worker_id)[:1] or [None]
        expect(isinstance(found, WorkerInfo), f"the join of {info.worker_id} was not announced")
        expect_equal(found.role, info.role, "role")
        expect_same(dict(found.resource), dict(info.resource), "resource")
        kinds = bench.listener.kinds(info.worker_id)
        expect_equal(kinds, ["joined", "renewed"], f"reports of {info.worker_id}")


def rule_08_plain_data_arrives_as_sent(bench: Bench) -> None:
    """Plain data arrives equal in both directions, as it was when it was sent.

    Plain data is everything that ``dingsdk.data.encode_message`` accepts. Later changes by the
    sender have no effect. Tuples arrive as lists. The answer of a failed task also has its message
    and traceback.
    """
    end = bench.join()
    data, result = plain_message(), plain_message()
    bench.master.send("w0", bench.incarnation("w0"), TaskMessage("t1", data))
    data["nested"]["a"]["b"].append("changed after it was sent")
    expect_same(dict(bench.receive(end).data), plain_message(), "task")
    trace = 'Traceback (most recent call last):\n  File "env.py", line 1\nValueError: näh\n'
    end.answer(TaskAnswer("t1", False, result, "ValueError: näh", trace))
    result["array"][:] = -1
    answer = bench.listener.expect("answered", "w0")[0]
    expect_same(dict(answer.result), plain_message(), "result")
    facts = answer.task_id, answer.completed, answer.message, answer.traceback
    expect_equal(facts, ("t1", False, "ValueError: näh", trace), "the answer of a failed task")
    pair = TaskMessage("t2", {"pair": (1, (2, 3))})
    bench.master.send("w0", bench.incarnation("w0"), pair)
    expect_same(dict(bench.receive(end).data), {"pair": [1, [2, 3]]}, "tuples")


def rule_09_other_data_is_refused_at_the_sender(bench: Bench) -> None:
    """Sending a task or result that is not plain data raises ProtocolError at the sender.

    Nothing of it arrives, and the connection continues to work.
    """
    end = bench.join()
    for name, value in {"function": print, "object": object(), "set": {1}, "key": {1: 2}}.items():
        with raises(f"a task with a {name}", ProtocolError):
            bench.send("w0", "bad", value=value)
        with raises(f"a result with a {name}", ProtocolError):
            end.answer(TaskAnswer("bad", True, {"value": value}))
    bench.send("w0", "good")
    expect_equal(bench.receive_ids(end, 1), ["good"], "tasks")
    end.answer(TaskAnswer("good", True))
    found = [answer.task_id for answer in bench.listener.expect("answered", "w0")]
    expect_equal(found, ["good"], "answers")


def rule_11_threads_share_an_end(bench: Bench) -> None:
    """Several workers get and answer tasks, while other threads of the same workers renew.

    No message is lost, delivered twice or delivered to another worker. The tasks and answers of a
    worker arrive in order, and so do its renewals, with their progress. This also holds for tasks
    that were sent before the worker asked for any.
    """
    names, count = [f"w{number}" for number in range(6)], 12
    renewals = [1, 2, 3, 10, 2**40]
    ends = {name: bench.join(name) for name in names}

    def serve(name: str, end: SlaveEnd) -> None:
        for _ in range(count):
            task = bench.receive(end)
            end.answer(TaskAnswer(task.task_id, True, {"by": name, "n": task.data["n"]}))
            bench.far.scheduler.yield_turn()

    def renew(end: SlaveEnd) -> None:
        for progress in renewals:
            end.renew(progress)
            bench.far.scheduler.yield_turn()

    def send(numbers: range) -> None:
        for number in numbers:
            for name in names:
                bench.send(name, f"{name}-{number}", n=number)

    send(range(count - 2))
    jobs = [bench.spawn(partial(serve, n, e), f"{n} serves") for n, e in ends.items()]
    jobs += [bench.spawn(partial(renew, e), f"{n} renews") for n, e in ends.items()]
    send(range(count - 2, count))
    bench.done(*jobs)
    for name in names:
        answers = bench.listener.expect("answered", name, count)
        expected = [(f"{name}-{n}", {"by": name, "n": n}) for n in range(count)]
        expect_equal([(a.task_id, dict(a.result)) for a in answers], expected, f"{name}'s answers")
        expect_equal(bench.listener.expect("renewed", name, 5), renewals, "renewals")
    for name, end in ends.items():
        # A task that was delivered twice, or to another worker, would come before this task.
        bench.send(name, "last")
        expect_equal(bench.receive_ids(end, 1), ["last"], f"the last task of {name}")


def rule_12_dropped_worker_is_told(bench: Bench) -> None:
    """A dropped worker's calls raise WorkerLostError until it joins again.

    A wait for a task ends at once. The master's listener gets no report that the worker left, and
    sending it a task raises WorkerLostError. Messages that the worker sends after it was dropped
    are not delivered, even if it joins again.
    """
    end = bench.join()
    job = bench.spawn(lambda: _discard(end.next_task(20 * bench.patience_s)), "waits for a task")
    Call(lambda: end.renew(1), "renew() beside a wait").value(bench.patience_s)
    bench.listener.expect("renewed", "w0")  # it may return before the master knows
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
    expect_equal(bench.listener.expect("renewed", "w0", 2), [1, 3], "renewals")


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
