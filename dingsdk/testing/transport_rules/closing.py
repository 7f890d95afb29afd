"""Rules 17 to 22 and 41: deadlines and closing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dingsdk.errors import ClosedError, DataMissingError, WorkerLostError
from dingsdk.testing.expect import Call, expect, expect_equal, leaves_nothing, raises
from dingsdk.testing.transport_rules.bench import Bench, batch, policy
from dingsdk.worker.comm import SlaveEnd, Transport, WorkerInfo

_WAIT_S = 0.06
_EARLY_S = 0.02
"""A wait may end this much early, because clocks have a coarse resolution."""


def rule_17_next_task_ends_at_its_deadline(bench: Bench) -> None:
    """Without a task ``next_task`` returns None at its deadline, not earlier or much later.

    A worker that waits for a task gets it when the task is sent, not at the deadline.
    """
    end = bench.join()
    # Long enough to detect a wait of half the time, also on a busy machine.
    for timeout_s in (0.0, 2.5 * _WAIT_S):
        call = Call(partial(end.next_task, timeout_s), f"next_task({timeout_s})")
        expect_equal(call.value(timeout_s + bench.patience_s), None, f"next_task({timeout_s})")
        expect(
            call.took_s >= timeout_s - _EARLY_S,
            f"next_task({timeout_s}) returned after {call.took_s:.3f} s",
        )
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
        call = Call(lambda: end.join(WorkerInfo("w0", "collector"), _WAIT_S), "join()")
        with raises("join() without a master", WorkerLostError):
            call.value(_WAIT_S + bench.patience_s)
        expect(call.took_s >= _WAIT_S - _EARLY_S, f"join() returned after {call.took_s:.3f} s")


def rule_19_close_of_an_end_wakes_its_waiters(bench: Bench) -> None:
    """Closing a slave end ends its waiting calls with ClosedError; later calls raise it too."""
    end = bench.join()
    job = bench.spawn(lambda: _wait(end, 20 * bench.patience_s), "waits for a task")
    Call(lambda: end.renew(1), "renew() beside a wait").value(bench.patience_s)
    Call(lambda: end.close(bench.patience_s), "close()").value(2 * bench.patience_s)
    error = bench.ended(job, "the wait on a closed end")
    expect(isinstance(error, ClosedError), f"the wait on a closed end ended with {error!r}")
    bench.expect_refused(end, "a closed end", ClosedError)
    with raises("join() of a closed end", ClosedError):
        end.join(WorkerInfo("w0", "collector"), _WAIT_S)


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
    Call(partial(bench.far.close, bench.patience_s), "close()").value(2 * bench.patience_s)
    with raises("the wait for a task", ClosedError):
        wait.value(bench.patience_s)
    with raises("the wait for a payload", ClosedError, DataMissingError):
        get.value(bench.patience_s)
    with raises("next_task() of a closed transport", ClosedError):
        end.next_task(_WAIT_S)
    Call(partial(bench.near.close, bench.patience_s), "close()").value(2 * bench.patience_s)


def rule_21_close_is_idempotent(bench: Bench) -> None:
    """``close`` may be called twice, before use, and from several threads at once.

    It returns within its deadline each time. If the master was closed, a worker's wait ends with
    ClosedError or WorkerLostError.
    """
    for end in (bench.transport().master_end(), bench.slave()):
        _close_often(end, bench)
    end = bench.join()
    job = bench.spawn(lambda: _wait(end, 20 * bench.patience_s), "waits for a task")
    end.renew(1)
    _close_often(bench.master, bench)
    error = bench.ended(job, "the wait of a worker whose master closed")
    expect(
        isinstance(error, (ClosedError, WorkerLostError)),
        f"the wait of a worker whose master closed ended with {error!r}",
    )
    _close_often(end, bench)
    _close_often(bench.far, bench)
    _close_often(bench.near, bench)
    _close_often(bench.transport(), bench)


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
    bench.far.close(bench.patience_s)
    bench.near.close(bench.patience_s)
    for _ in range(2):
        bench.near.remove_data()
    left = _files(bench.near.run_dir)
    expect(kept in left, "a file that is not the transport's was removed")
    expect_equal(sorted(path.name for path in left - {kept}), [], "files left")


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def _wait(end: SlaveEnd, timeout_s: float) -> None:
    end.next_task(timeout_s)


def _close_often(closable: SlaveEnd | Transport | object, bench: Bench) -> None:
    close = closable.close  # type: ignore[union-attr]
    what = f"{type(closable).__name__}.close()"
    calls = [Call(lambda: close(bench.patience_s), what) for _ in range(4)]
    for call in calls:
        call.value(2 * bench.patience_s)
    Call(lambda: close(bench.patience_s), what).value(2 * bench.patience_s)


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
    Call(lambda: transport.close(bench.patience_s), "close()").value(2 * bench.patience_s)
