"""The rules of the transports.

Rules 1 to 16 are about joins, tasks, answers and renewals, 17 to 22 and 41 about deadlines and
closing, 23 to 32 and 42 about the stores, 33 and 35 about the safety of received data, and 36 to 40
about a bad network.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves
from dingsdk.errors import (
    ClosedError,
    ConflictError,
    DataMissingError,
    DingError,
    ProtocolError,
    WorkerLostError,
)
from dingsdk.testing.expect import (
    WAIT_S,
    Call,
    RuleBroken,
    expect,
    expect_equal,
    expect_same,
    leaves_nothing,
    raises,
)
from dingsdk.testing.fault_proxy import Fault, FaultProxy, seeded_faults
from dingsdk.testing.runner import Contract, RuleBook, collect, needs
from dingsdk.testing.transport_bench import Bench, batch, plain_message, policy
from dingsdk.worker.comm import SlaveEnd, TaskAnswer, TaskMessage, Transport, WorkerInfo


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
    expect_equal(bench.answered(), ["good"], "answers")


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
    spawn = bench.far.scheduler.spawn
    jobs = [spawn(partial(serve, n, e), f"{n} serves") for n, e in ends.items()]
    jobs += [spawn(partial(renew, e), f"{n} renews") for n, e in ends.items()]
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
    with bench.ends_the_wait(end, WorkerLostError):
        bench.listener.expect("renewed", "w0")  # it may return before the master knows
        bench.drop("w0")
    bench.expect_refused(end, "a dropped worker", WorkerLostError)
    with raises("send() to a dropped worker", WorkerLostError):
        bench.send("w0", "t2")
    expect_equal(bench.listener.of("left", "w0"), [], "reports that the dropped worker left")
    bench.join_end(end)
    bench.send("w0", "new")
    bench.receive(end)
    end.renew(3)
    end.answer(TaskAnswer("new", True))
    expect_equal(bench.answered(), ["new"], "answers")
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
    expect_equal(bench.answered(), ["t1"], "answers")
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


def rule_17_next_task_ends_at_its_deadline(bench: Bench) -> None:
    """Without a task ``next_task`` returns None at its deadline, not earlier or much later.

    A worker that waits for a task gets it when the task is sent, not at the deadline.
    """
    end = bench.join()
    # Long enough to detect a wait of half the time, also on a busy machine.
    for timeout_s in (0.0, 2.5 * WAIT_S):
        call = Call(partial(end.next_task, timeout_s), f"next_task({timeout_s})")
        expect_equal(call.value(timeout_s + bench.patience_s, timeout_s), None, call.what)
    wait = Call(partial(end.next_task, 20 * bench.patience_s), "a wait for a task")
    Call(lambda: end.renew(1), "renew() beside a wait for tasks").value(bench.patience_s)
    bench.send("w0", "t1")
    task = wait.value(bench.patience_s)
    expect(task is not None and task.task_id == "t1", f"next_task() returned {task}")


def rule_18_join_ends_at_its_deadline(bench: Bench) -> None:
    """Without a master ``join`` raises WorkerLostError at its deadline, and may be repeated."""
    _ = bench.master
    alone = bench.transport()
    end = alone.slave_end(bench.address)
    bench.master.close(bench.patience_s)
    for _ in range(2):
        call = Call(lambda: end.join(WorkerInfo("w0", "collector"), WAIT_S), "join()")
        with raises("join() without a master", WorkerLostError):
            call.value(WAIT_S + bench.patience_s, WAIT_S)


def rule_20_close_of_the_transport_wakes_everybody(bench: Bench) -> None:
    """Closing the transport ends all waits within its deadline.

    A wait for a task ends with ClosedError, a wait for a payload with ClosedError or
    DataMissingError.
    """
    end = bench.join()
    long_s = 20 * bench.patience_s
    wait = Call(lambda: end.next_task(long_s), "the wait for a task")
    store = bench.far.data_store()
    get = Call(lambda: store.get("never", long_s), "the wait for a payload")
    end.renew(1)
    # If there are several processes, the master is in another one and still runs.
    bench.close(bench.far)
    with raises("the wait for a task", ClosedError):
        wait.value(bench.patience_s)
    with raises("the wait for a payload", ClosedError, DataMissingError):
        get.value(bench.patience_s)
    with raises("next_task() of a closed transport", ClosedError):
        end.next_task(WAIT_S)
    bench.close(bench.near)


def rule_21_close_is_idempotent(bench: Bench) -> None:
    """``close`` may be called twice, before use, and from several threads at once.

    It returns within its deadline each time. Closing a slave end ends its waiting calls with
    ClosedError; later calls raise it too, and nothing joins. If the master was closed, a worker's
    wait ends with ClosedError or WorkerLostError.
    """
    for unused in (bench.transport().master_end(), bench.slave(), bench.transport()):
        _close_often(unused, bench)
    end = bench.join()
    with bench.ends_the_wait(end, ClosedError):
        bench.close(end)
    bench.expect_refused(end, "a closed end", ClosedError)
    with raises("join() of a closed end", ClosedError):
        end.join(WorkerInfo("w0", "collector"), WAIT_S)
    end = bench.join()
    with bench.ends_the_wait(end, ClosedError, WorkerLostError):
        _close_often(bench.master, bench)
    for used in (end, bench.far, bench.near):
        _close_often(used, bench)
    expect_equal(len(bench.listener.of("joined", "w0")), 2, "joins; a closed end does not join")


def rule_22_close_releases_everything(bench: Bench) -> None:
    """A closed transport leaves no thread and no open file or socket."""
    _use(bench.transport(), bench)  # so that one-time setup of the process is done before the check
    with leaves_nothing(bench.patience_s):
        for _ in range(2):
            _use(bench.transport(), bench)


def rule_41_remove_data_removes_its_own(bench: Bench) -> None:
    """``remove_data``, called after ``close``, removes the files of the transport and no others.

    It may be called twice, and if nothing was stored.
    """
    kept = bench.near.run_dir / "result.json"
    kept.write_text("{}", encoding="utf-8")
    bench.transport().remove_data()
    bench.far.data_store().put("p", batch())
    bench.far.policy_store().publish("p", policy(1.0), 1)
    bench.close(bench.far, bench.near)
    for _ in range(2):
        bench.near.remove_data()
    left = {path.name for path in bench.near.run_dir.rglob("*") if path.is_file()}
    expect_equal(left, {kept.name}, "files left; only the transport's are removed")


def _close_often(closable: Any, bench: Bench) -> None:
    bench.together(*[partial(bench.close, closable)] * 4)
    bench.close(closable)


def _use(transport: Transport, bench: Bench) -> None:
    master = transport.master_end()
    end = transport.slave_end(master.open(bench.listener))
    end.join(WorkerInfo("used", "collector"), bench.patience_s)
    end.next_task(0.0)
    end.renew(1)
    transport.data_store().put("p", batch())
    transport.data_store().get("p")
    transport.policy_store().publish("p", policy(1.0), 1)
    transport.policy_store().newest("p")
    job = transport.scheduler.spawn(transport.scheduler.yield_turn, "a job")
    bench.done(job)
    bench.close(transport)


def rule_23_payload_is_readable_when_put_returns(bench: Bench) -> None:
    """A payload can be read, whole and equal, as soon as ``put`` has returned.

    Its columns have the same names, shapes, dtypes, nesting and values, and are read-only. ``len``
    of the store is the number of payloads.
    """
    writer, reader = bench.far.data_store(), bench.near.data_store()
    expect_equal(len(reader), 0, "payloads in a fresh store")
    for number, rows in enumerate((5, 1, 0, 300)):
        writer.put(f"p-{number}_A", batch(rows, number))
        found = reader.get(f"p-{number}_A", 0.0)
        writable = [path for path, column in leaves(found.columns) if column.flags.writeable]
        expect(not writable, f"the columns {writable} can be written to")
        expect_equal(len(found), rows, "rows")
        expect_same(found, batch(rows, number), f"payload of {rows} rows")
    expect_equal(len(reader), 4, "payloads in the store")


def rule_25_repeated_put_changes_nothing(bench: Bench) -> None:
    """A repeated ``put`` of the same payload changes nothing; another payload does not replace it.

    Another payload with the same id is ignored, or raises ConflictError.
    """
    writer, reader = bench.far.data_store(), bench.near.data_store()
    writer.put("p", batch())
    before = reader.get("p")
    for _ in range(3):
        writer.put("p", batch())
    expect_equal(len(reader), 1, "payloads in the store")
    try:
        writer.put("p", batch(7, seed=1))
    except ConflictError as error:
        expect("p" in str(error), f"the refusal does not name the payload: {error}")
    expect_same(reader.get("p"), batch(), "the payload after another was put")
    expect_same(before, batch(), "the payload as it was got before")


def rule_27_deleted_payload_is_gone(bench: Bench) -> None:
    """``delete`` removes the named payloads and no others; unknown ids are ignored.

    A payload that a reader got before the delete stays whole. ``get`` of a missing payload raises
    DataMissingError, and ``has`` returns False, at its deadline or earlier.
    """
    writer, deleter = bench.far.data_store(), bench.near.data_store()
    for number in range(6):
        writer.put(f"p{number}", batch(seed=number))
    held = deleter.get("p0")
    expect(all(writer.has(f"p{n}", 0.0) for n in range(6)), "has() does not see a payload")
    deleter.delete(iter(["p0", "p1", "nobody"]))
    deleter.delete([])
    expect_equal(len(writer), 4, "payloads left")
    deleter.delete(["p1", "p1"])
    expect_equal(len(writer), 4, "payloads left after what was gone was deleted again")
    for name in ("p0", "p1"):
        for timeout_s in (0.0, WAIT_S):
            get = Call(partial(writer.get, name, timeout_s), f"get({timeout_s})")
            with raises(f"get() of the deleted {name}", DataMissingError) as caught:
                get.value(timeout_s + bench.patience_s)
            expect_equal(getattr(caught[0], "data_id", None), name, "the payload in the error")
            has = Call(partial(writer.has, name, timeout_s), f"has({timeout_s})")
            expect(not has.value(timeout_s + bench.patience_s), f"has() of the deleted {name}")
    for number in range(2, 6):
        expect_same(writer.get(f"p{number}"), batch(seed=number), f"p{number}")
    expect_same(held, batch(), "a payload that is held")


def rule_28_payloads_may_cross_concurrently(bench: Bench) -> None:
    """Several threads put, get and delete at the same time, and every payload arrives whole.

    This includes payloads of megabytes.
    """
    writer, reader = bench.far.data_store(), bench.near.data_store()
    workers, count = 4, 8
    big = 1 << 18

    def work(name: str, seed: int) -> None:
        for number in range(count):
            data_id, rows = f"{name}-{number}", big // 16 if number == 3 else 4
            writer.put(data_id, batch(rows, seed + number))
            expect_same(reader.get(data_id), batch(rows, seed + number), data_id)
            if number % 2:
                reader.delete([data_id])

    bench.together(*[partial(work, f"w{n}", 100 * n) for n in range(workers)])
    expect_equal(len(reader), workers * count // 2, "payloads left")


def rule_42_sweep_keeps_live_payloads(bench: Bench) -> None:
    """``sweep_orphans`` deletes no payload that is live, or younger than the grace period.

    It may delete the others, and returns how many it deleted.
    """
    writer, sweeper = bench.far.data_store(), bench.near.data_store()
    for number in range(4):
        writer.put(f"p{number}", batch(seed=number))
    live = {"p0", "p1", "nobody"}.__contains__
    expect_equal(sweeper.sweep_orphans(live, 3600.0), 0, "payloads swept too early")
    expect_equal(len(writer), 4, "payloads after a sweep within the grace")
    swept = sum(sweeper.sweep_orphans(live, 0.0) for _ in range(3))
    expect_equal(len(writer), 4 - swept, f"payloads after {swept} were swept")
    for number in range(2):
        expect_same(writer.get(f"p{number}"), batch(seed=number), f"the live p{number}")


def rule_29_newest_policy_arrives_whole(bench: Bench) -> None:
    """``newest`` returns the newest version with all its tensors, as they were published.

    It returns None if there is no version, or none newer than ``newer_than``. Later changes to the
    published tensors have no effect. Policies with different ids are independent.
    """
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    expect_equal(reader.newest("p"), None, "newest() before a version was published")
    for version in (0, 3, 4):
        state = policy(version)
        writer.publish("p", state, version)
        writer.publish("q", policy(version + 100), version)
        state["layer.weight"].zero_()
        state["count"] += 1
        state.clear()
        expect_policy(reader.newest("p"), version, float(version))
        expect_policy(reader.newest("q"), version, float(version + 100))
        expect_policy(reader.newest("p", version - 1), version, float(version))
        expect_equal(reader.newest("p", version), None, f"newest(newer_than={version})")


def rule_30_policy_never_goes_back(bench: Bench) -> None:
    """After a version was returned, no older version is; publishing an older one changes nothing.

    This applies whichever process publishes, because one learner may replace another.
    """
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    writer.publish("p", policy(7.0), 7)
    expect_policy(reader.newest("p"), 7, 7.0)
    for publisher in (writer, reader):
        for version in (6, 0, 7):
            publisher.publish("p", policy(50.0), version)
            for store in (reader, writer):
                expect_policy(store.newest("p"), 7, 7.0)
                expect_equal(store.newest("p", 7), None, "newest(newer_than=7)")
    reader.publish("p", policy(8.0), 8)
    expect_policy(writer.newest("p", 7), 8, 8.0)
    writer.publish("p", policy(9.0), 9)
    expect_policy(reader.newest("p", 8), 9, 9.0)


def rule_31_policy_is_whole_while_others_are_published(bench: Bench) -> None:
    """While versions are published, readers get whole versions in rising order, up to the last."""
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    count = 40

    def publish() -> None:
        for version in range(1, count + 1):
            writer.publish("p", policy(version), version)

    def read() -> None:
        last: int | None = None
        while last != count:
            found = reader.newest("p", last)
            if found is None:
                continue
            expect(last is None or found[0] > last, f"version {found[0]} came after {last}")
            last = found[0]
            expect_policy(found, last, float(last))

    bench.together(publish, read, read, read)


def rule_32_discarded_policy_is_gone(bench: Bench) -> None:
    """``discard`` removes a policy and no other; an unknown id is ignored.

    A policy that is published with the same id afterwards is a new one: all readers get it, even if
    its versions are lower. This applies whichever process discards.
    """
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    writer.publish("q", policy(6.0), 6)
    for version, discarder in ((9, writer), (5, reader), (2, writer)):
        writer.publish("p", policy(version), version)
        for store in (reader, writer):
            expect_policy(store.newest("p"), version, float(version))
        for name in ("p", "nobody", "p"):
            discarder.discard(name)
        for store in (reader, writer):
            expect_equal(store.newest("p"), None, "newest() of a discarded policy")
            expect_policy(store.newest("q"), 6, 6.0)


def expect_policy(found: object, version: int, value: float) -> None:
    """Expect the result of ``newest()`` to be this version with this value."""
    if not (isinstance(found, tuple) and len(found) == 2):
        raise RuleBroken(f"newest() returned {found!r:.100}, expected version {version}")
    expect_equal(found[0], version, "version")
    expect_same(found[1], policy(value), f"version {version}")


_UNUSED_MODULE = "tabnanny"
"""A module of the standard library that is not imported elsewhere and has no side effects."""


def rule_33_nothing_received_is_executed(bench: Bench) -> None:
    """Received data is never executed: no pickles, no expressions, no names to import.

    In messages, payloads and policies, data that looks like code arrives unchanged, as text or
    bytes. A transport never connects to an address from a message.
    """
    import torch

    trap = bench.closed_at_exit(socket.create_server(("127.0.0.1", 0)))
    trap.settimeout(0.02)
    marker = bench.folder / "executed"
    host, port = trap.getsockname()
    address = {"host": host, "port": port, "address": f"http://{host}:{port}", "ip": host}
    hostile = {**_hostile(marker), **address, "url": address["address"], "master": address}
    known = _UNUSED_MODULE in sys.modules
    end = bench.slave()
    end.join(WorkerInfo("w0", "collector", hostile), bench.patience_s)
    info = bench.listener.expect("joined", "w0")[0]
    expect_same(dict(info.resource), hostile, "resource")
    bench.send("w0", "t1", hostile=hostile)
    expect_same(bench.receive(end).data["hostile"], hostile, "task")
    end.answer(TaskAnswer("t1", False, hostile, hostile["yaml"], hostile["expression"]))
    answer = bench.listener.expect("answered", "w0")[0]
    expect_same(dict(answer.result), hostile, "result")
    expect_equal(answer.message, hostile["yaml"], "message")
    column = hostile["pickle"].copy()
    bench.far.data_store().put("p", SampleBatch({"c": column}))
    expect_same(bench.near.data_store().get("p").columns["c"], hostile["pickle"], "payload")
    bench.far.policy_store().publish("p", {"c": torch.from_numpy(column.copy())}, 1)
    newest = bench.near.policy_store().newest("p")
    expect(newest is not None, "the policy did not arrive")
    if newest is not None:
        expect_same(newest[1], {"c": torch.from_numpy(hostile["pickle"])}, "policy")
    expect(not marker.exists(), "something that was received was run")
    expect(known == (_UNUSED_MODULE in sys.modules), "a name that was received was imported")
    with raises("accept() of an address out of a message", TimeoutError):
        trap.accept()[0].close()


def rule_35_ids_are_not_paths(bench: Bench) -> None:
    """Payload and policy ids that look like paths are refused, or used like any other ids.

    They never refer to a file outside the transport's own folders.
    """
    outside = bench.folder / "outside"
    outside.mkdir()
    (outside / "there").write_bytes(b"not yours")
    up = "../" * 12 + str(outside / "up").lstrip("/")
    for name in (str(outside / "absolute"), up, "../sibling", str(outside / "there"), "a/b", ".."):
        with contextlib.suppress(ProtocolError):
            bench.far.data_store().put(name, SampleBatch({"c": np.arange(3)}))
        with contextlib.suppress(ProtocolError):
            bench.far.policy_store().publish(name, {"c": np.arange(3)}, 1)
        with contextlib.suppress(DingError):
            bench.near.data_store().get(name, 0.0)
        with contextlib.suppress(ProtocolError):
            bench.near.data_store().delete([name])
        with contextlib.suppress(ProtocolError):
            bench.near.policy_store().discard(name)
    expect_equal(sorted(path.name for path in outside.iterdir()), ["there"], "files outside")
    expect_equal((outside / "there").read_bytes(), b"not yours", "a file outside")
    runs = {path.name for path in bench.folder.iterdir()} - {"outside"}
    expect(all(name.startswith("run") for name in runs), f"new beside the run folder: {runs}")


def _hostile(marker: Path) -> dict[str, Any]:
    """Return plain data that makes a careless receiver create ``marker``."""
    path = str(marker)
    # A pickle, in its oldest protocol, of a call of os.mkdir.
    pickled = f"cos\nmkdir\n(S'{path}'\ntR.".encode("ascii", "replace")
    return {
        "pickle": np.frombuffer(pickled, np.uint8).copy(),
        "pickle_text": pickled.decode("ascii"),
        "expression": f"__import__('os').mkdir({path!r})",
        "yaml": f"!!python/object/apply:os.mkdir [{path!r}]",
        "template": "{{ ''.__class__.__mro__ }} ${jndi:ldap://127.0.0.1/a}",
        "import_names": [_UNUSED_MODULE],
        "type": f"{_UNUSED_MODULE}:check",
        "py/object": f"{_UNUSED_MODULE}.NannyNag",
        "__reduce__": ["os.mkdir", [path]],
        "__class__": "pathlib.Path",
    }


_TASKS = 16
_HEALTHY = [Fault.PASS] * 3
"""No faults in the exchanges of a join, so that the faults come after it."""


@needs("survives_faults")
def rule_36_join_survives_faults(bench: Bench) -> None:
    """A join over a bad network succeeds, and is announced once even if it had to be repeated.

    A worker that leaves is reported once too.
    """
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
    for fault in (Fault.LOSE_REPLY, Fault.CUT_REPLY):
        later: list[Fault] = []
        proxy = _proxy(bench, iter(lambda: later.pop() if later else Fault.PASS, None))  # noqa: B023
        end = bench.join(fault.value, address=proxy.address)
        later.append(fault)
        bench.close(end)
        bench.listener.expect("left", fault.value)
        expect_equal(bench.listener.kinds(fault.value), ["joined", "left"], "reports of a leave")


@needs("survives_faults")
def rule_37_tasks_and_answers_survive_faults(bench: Bench) -> None:
    """Tasks and answers over a bad network arrive once and in order.

    No task is lost with a lost reply, and answers that had to be sent again are reported once.
    Renewals are repeated until they arrive.
    """
    schedules = [
        _HEALTHY + [Fault.LOSE_REPLY] * 6,
        *(_HEALTHY + seeded_faults(seed, 40) for seed in range(5)),
    ]
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
            end.renew(index)
            bench.listener.expect("answered", worker_id, index + 2)
        expect_equal(found, sent, f"tasks with {schedule[:8]}")
        bench.send(worker_id, "last")
        expect_equal(bench.receive_ids(end, 1), ["last"], "the task after them")
        end.renew(_TASKS)
        renewed = bench.listener.expect("renewed", worker_id, _TASKS // 2 + 1)
        expect_equal(sorted({*renewed}), [*range(0, _TASKS + 1, 2)], "renewals")
        expect_equal(bench.answered(worker_id), sent, f"answers with {schedule[:8]}")


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
    bench.close(left)
    proxy.silence(False)
    if is_lost:
        bench.join_end(end)
    else:
        expect_equal(bench.receive_ids(end, 2), ["t1", "t2"], "tasks")
    bench.send("w0", "last")
    expect_equal(bench.receive_ids(end, 1), ["last"], "tasks")
    end.answer(TaskAnswer("last", True))
    bench.listener.expect("answered", "w0")


def _proxy(bench: Bench, faults: Iterable[Fault]) -> FaultProxy:
    _ = bench.master  # sets ``bench.address``
    return bench.closed_at_exit(FaultProxy(bench.address, faults))


CAPABILITIES: Final[Mapping[str, str]] = {
    "many_processes": (
        "A second object, made from the same config and run folder as another process would make "
        "it, belongs to the same fabric. Workers then get an object of their own."
    ),
    "survives_faults": (
        "The address is `http://host:port`, and a bad network may stand before it. The rules "
        "about faults apply."
    ),
}
"""The optional capabilities of a transport, and what each promises."""

TRANSPORT_BOOK: Final = RuleBook(collect(__name__), CAPABILITIES, Bench)
RULES: Final = TRANSPORT_BOOK.rules
"""All rules, ordered by number. The number of a removed rule is never used again."""
check_rule = TRANSPORT_BOOK.check_rule
check_transport = TRANSPORT_BOOK.check
"""Check a transport against every rule, as ``RuleBook.check``.

``make(run_dir)`` returns a new transport for a run folder, e.g.
``lambda run_dir: MyTransport({"port": 0}, run_dir)``.
"""


class TransportContract(Contract):
    """Base class of a transport's contract tests; see ``CAPABILITIES``.

    Example:
        >>> class TestMyTransport(TransportContract):
        ...     def make_transport(self, run_dir):
        ...         return MyTransport({}, run_dir)
    """

    book = TRANSPORT_BOOK
    maker = "make_transport(run_dir)"
