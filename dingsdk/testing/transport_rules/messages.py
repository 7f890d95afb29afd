"""Rules 1 to 11: joins, tasks, answers and renewals."""

from __future__ import annotations

from functools import partial

from dingsdk.errors import ProtocolError, WorkerLostError
from dingsdk.testing.expect import Call, expect, expect_equal, expect_same, raises
from dingsdk.testing.runner import RuleBroken
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


def rule_02_tasks_arrive_once_and_in_order(bench: Bench) -> None:
    """Tasks arrive once, in the order in which they were sent.

    This holds for tasks that were sent before the worker asked for any.
    """
    end = bench.join()
    sent = [f"t{number}" for number in range(20)]
    bench.send("w0", *sent[:10])
    found = bench.receive_ids(end, 5)
    bench.send("w0", *sent[10:])
    found += bench.receive_ids(end, 15)
    expect_equal(found, sent, "tasks")
    # One more task: a task that is delivered twice would come before it.
    bench.send("w0", "last")
    expect_equal(bench.receive_ids(end, 1), ["last"], "the task after them")


def rule_03_waiting_worker_gets_a_task_at_once(bench: Bench) -> None:
    """A worker that waits for a task gets it when the task is sent, not at the deadline."""
    end = bench.join()
    found: list[TaskMessage | None] = []
    job = bench.spawn(lambda: found.append(end.next_task(20 * bench.patience_s)), "waits")
    call = Call(lambda: end.renew(1), "renew() beside a wait for tasks")
    call.value(bench.patience_s)
    bench.send("w0", "t1")
    bench.done(job)
    expect(found[0] is not None and found[0].task_id == "t1", f"next_task() returned {found[0]}")


def rule_04_task_reaches_only_its_worker(bench: Bench) -> None:
    """A task reaches only the worker that it was sent to.

    Answers and renewals of a worker are reported with its id.
    """
    names = [f"w{number}" for number in range(4)]
    ends = {name: bench.join(name) for name in names}
    for name in reversed(names):
        bench.send(name, f"{name}-a", f"{name}-b")
    for name, end in ends.items():
        expect_equal(bench.receive_ids(end, 2), [f"{name}-a", f"{name}-b"], f"tasks of {name}")
        end.answer(TaskAnswer(f"{name}-a", True, {"by": name}))
        end.renew(1)
    for name, end in ends.items():
        answers = [(a.task_id, dict(a.result)) for a in bench.listener.expect("answered", name)]
        expect_equal(answers, [(f"{name}-a", {"by": name})], f"answers of {name}")
        expect_equal(bench.listener.expect("renewed", name), [1], f"renewals of {name}")
        bench.send(name, "last")
        expect_equal(bench.receive_ids(end, 1), ["last"], f"the last task of {name}")


def rule_05_answers_arrive_once_and_in_order(bench: Bench) -> None:
    """Answers arrive once, in the order in which they were given."""
    end = bench.join()
    bench.send("w0", *(f"t{number}" for number in range(20)))
    sent = bench.receive_ids(end, 20)
    for task_id in sent:
        end.answer(TaskAnswer(task_id, True, {"of": task_id}))
    bench.send("w0", "last")
    bench.receive(end)
    end.answer(TaskAnswer("last", True))
    found = [answer.task_id for answer in bench.listener.expect("answered", "w0", 21)]
    expect_equal(found, [*sent, "last"], "answers")


def rule_06_failure_arrives_whole(bench: Bench) -> None:
    """The answer of a failed task arrives with its result, message and traceback.

    The worker can answer later tasks.
    """
    end = bench.join()
    bench.send("w0", "t1", "t2")
    bench.receive_ids(end, 2)
    trace = 'Traceback (most recent call last):\n  File "env.py", line 1\nValueError: näh\n'
    failure = TaskAnswer("t1", False, {"is_user_mistake": True}, "ValueError: näh", trace)
    end.answer(failure)
    end.answer(TaskAnswer("t2", True, {}))
    found = bench.listener.expect("answered", "w0", 2)
    expect_equal(_facts(found[0]), _facts(failure), "the failed task's answer")
    expect_equal(_facts(found[1]), ("t2", True, {}, "", ""), "the answer after it")


def rule_07_renewals_arrive_in_order(bench: Bench) -> None:
    """Renewals arrive in order, with their progress."""
    end = bench.join()
    for progress in (1, 2, 10, 2**40):
        end.renew(progress)
    found = bench.listener.expect("renewed", "w0", 4)
    expect_equal(found, [1, 2, 10, 2**40], "progress")


def rule_08_plain_data_arrives_as_sent(bench: Bench) -> None:
    """Plain data arrives equal in both directions, as it was when it was sent.

    Plain data is everything that ``dingsdk.data.encode_message`` accepts. Later changes by the
    sender have no effect. Tuples arrive as lists.
    """
    end = bench.join()
    data, result = plain_message(), plain_message()
    bench.master.send("w0", bench.incarnation("w0"), TaskMessage("t1", data))
    data["nested"]["a"]["b"].append("changed after it was sent")
    expect_same(dict(bench.receive(end).data), plain_message(), "task")
    end.answer(TaskAnswer("t1", True, result))
    result["array"][:] = -1
    answer = bench.listener.expect("answered", "w0")[0]
    expect_same(dict(answer.result), plain_message(), "result")
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


def rule_10_unknown_worker_is_refused(bench: Bench) -> None:
    """Sending a task to a worker that has not joined raises WorkerLostError.

    Dropping an unknown worker changes nothing.
    """
    end = bench.join()
    for worker_id in ("nobody", "W0", "w"):
        with raises(f"send() to {worker_id}", WorkerLostError):
            bench.send(worker_id, "t1")
        bench.master.drop(worker_id, 1, "unknown")
    bench.send("w0", "t2")
    expect_equal(bench.receive_ids(end, 1), ["t2"], "tasks")


def rule_11_threads_share_an_end(bench: Bench) -> None:
    """Several workers get and answer tasks, while other threads of the same workers renew.

    No message is lost, delivered twice or delivered to another worker.
    """
    names, count = [f"w{number}" for number in range(6)], 12
    ends = {name: bench.join(name) for name in names}

    def serve(name: str, end: SlaveEnd) -> None:
        for _ in range(count):
            task = bench.receive(end)
            end.answer(TaskAnswer(task.task_id, True, {"by": name, "n": task.data["n"]}))
            bench.far.scheduler.yield_turn()

    def renew(end: SlaveEnd) -> None:
        for progress in range(1, 6):
            end.renew(progress)
            bench.far.scheduler.yield_turn()

    jobs = [bench.spawn(partial(serve, n, e), f"{n} serves") for n, e in ends.items()]
    jobs += [bench.spawn(partial(renew, e), f"{n} renews") for n, e in ends.items()]
    for number in range(count):
        for name in names:
            bench.send(name, f"{name}-{number}", n=number)
    bench.done(*jobs)
    for name in names:
        answers = bench.listener.expect("answered", name, count)
        expected = [(f"{name}-{n}", {"by": name, "n": n}) for n in range(count)]
        expect_equal([(a.task_id, dict(a.result)) for a in answers], expected, f"{name}'s answers")
        expect_equal(bench.listener.expect("renewed", name, 5), [1, 2, 3, 4, 5], "renewals")


def _facts(answer: TaskAnswer) -> tuple[object, ...]:
    if not isinstance(answer, TaskAnswer):
        raise RuleBroken(f"the master's listener got {answer!r:.100}, which is not a TaskAnswer")
    a = answer
    return (a.task_id, a.completed, dict(a.result), a.message, a.traceback)
