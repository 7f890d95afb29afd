"""Rules 1 to 11: joins, tasks, answers and renewals."""

from __future__ import annotations

from functools import partial

from dingsdk.errors import ProtocolError
from dingsdk.testing.expect import expect, expect_equal, expect_same, raises
from dingsdk.testing.transport_rules.bench import Bench
from dingsdk.testing.transport_rules.samples import plain_message
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
