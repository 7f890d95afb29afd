"""The bench of the transport rules: transports, a listener, workers, and what they send."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.testing.expect import Call, RuleBroken, expect, raises
from dingsdk.testing.runner import RuleBench
from dingsdk.worker.comm import (
    Condition,
    Job,
    MasterEnd,
    MasterListener,
    SlaveEnd,
    TaskAnswer,
    TaskMessage,
    Transport,
    WorkerInfo,
)

_T = TypeVar("_T")


class Recorder(MasterListener):
    """A master's listener that records its calls.

    ``events`` has (kind, worker_id, fact) in the order of the calls. The facts are a WorkerInfo
    (``joined``), the progress (``renewed``), a reason (``left``) or a TaskAnswer (``answered``).
    """

    def __init__(self, condition: Condition, patience_s: float) -> None:
        self.events: list[tuple[str, str, Any]] = []
        self._condition = condition
        self._patience_s = patience_s

    def worker_joined(self, info: WorkerInfo) -> None:
        self._note("joined", info.worker_id, info)

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        self._note("renewed", worker_id, progress)

    def worker_left(self, worker_id: str, reason: str) -> None:
        self._note("left", worker_id, reason)

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        self._note("answered", worker_id, answer)

    def of(self, kind: str, worker_id: str) -> list[Any]:
        """Return the reports of a kind about a worker: infos, progress, reasons or answers."""
        return self.expect(kind, worker_id, 0)

    def kinds(self, worker_id: str) -> list[str]:
        """Return the kinds of all reports about a worker, in order."""
        with self._condition:
            return [kind for kind, name, _ in self.events if name == worker_id]

    def expect(self, kind: str, worker_id: str, count: int = 1) -> list[Any]:
        """Wait until there are ``count`` reports of a kind; return all of that kind."""

        def reports() -> list[Any]:
            return [fact for *what, fact in self.events if what == [kind, worker_id]]

        with self._condition:
            self._condition.wait_for(lambda: len(reports()) >= count, self._patience_s)
            found = reports()
        if len(found) < count:
            raise RuleBroken(
                f"the master got {len(found)} report(s) that {worker_id} {kind}, not {count}; all "
                f"reports: {[event[0] for event in self.events]}"
            )
        return found

    def _note(self, kind: str, worker_id: str, fact: Any) -> None:
        with self._condition:
            self.events.append((kind, worker_id, fact))
            self._condition.notify_all()


class Bench(RuleBench[Callable[[Path], Transport]]):
    """The bench of a transport; ``make(run_dir)`` returns a new transport."""

    def __enter__(self) -> Self:
        self._master: MasterEnd | None = None
        self.address = ""
        # Exited after the transports are closed.
        self._networks = self.exits.enter_context(contextlib.ExitStack())
        self.near = self.transport()
        self.far = self.sibling(self.near)
        self.listener = Recorder(self.near.scheduler.condition(), self.patience_s)
        return self

    def build(self) -> Transport:
        return self.near

    def transport(self) -> Transport:
        """Return a new transport with a new run folder."""
        run_dir = self.new_folder()
        run_dir.mkdir()
        return self.keep(self._make(run_dir), self.patience_s)

    def sibling(self, transport: Transport) -> Transport:
        """Return the transport that another process of the run would have."""
        if not self.has("many_processes"):
            return transport
        cfg = msgspec.structs.asdict(transport.cfg)
        return self.keep(type(transport)(cfg, transport.run_dir), self.patience_s)

    def close(self, *closables: Any) -> None:
        """Close ends or transports; each close must return within its deadline."""
        for closable in closables:
            close = partial(closable.close, self.patience_s)
            self.in_time(close, f"{type(closable).__name__}.close()")

    def closed_at_exit(self, resource: contextlib.AbstractContextManager[_T]) -> _T:
        """Enter a context manager, and exit it at the end of the rule."""
        return self._networks.enter_context(resource)

    @property
    def master(self) -> MasterEnd:
        """The master end of ``near``, opened when it is first used."""
        if self._master is None:
            self._master = self.near.master_end()
            self.address = self._master.open(self.listener)
        return self._master

    def slave(self, address: str = "") -> SlaveEnd:
        """Return a slave end of ``far`` that has not joined the master."""
        _ = self.master
        return self.far.slave_end(address or self.address)

    def join(self, worker_id: str = "w0", address: str = "") -> SlaveEnd:
        """Return the end of a worker whose join was announced to the master."""
        end = self.slave(address)
        self.join_end(end, worker_id)
        return end

    def join_end(self, end: SlaveEnd, worker_id: str = "w0") -> None:
        """Make an end join, and wait until the master's listener is called."""
        known = len(self.listener.of("joined", worker_id))
        end.join(WorkerInfo(worker_id, "collector", {"cpu": 1}), self.patience_s)
        self.listener.expect("joined", worker_id, known + 1)

    def incarnation(self, worker_id: str) -> int:
        """Return the incarnation that joined last; 0 if there is none."""
        return max((info.incarnation for info in self.listener.of("joined", worker_id)), default=0)

    def send(self, worker_id: str, *task_ids: str, **data: Any) -> None:
        """Send tasks to the incarnation that joined last."""
        for task_id in task_ids:
            task = TaskMessage(task_id, {"name": task_id, **data})
            self.master.send(worker_id, self.incarnation(worker_id), task)

    def drop(self, worker_id: str) -> None:
        """Drop the incarnation that joined last."""
        self.master.drop(worker_id, self.incarnation(worker_id), "silent")

    def receive(self, end: SlaveEnd) -> TaskMessage:
        """Return the next task of a worker. Raises RuleBroken if none comes."""
        task = end.next_task(self.patience_s)
        if task is None:
            raise RuleBroken(f"no task came within {self.patience_s:.1f} s")
        return task

    def answered(self, worker_id: str = "w0", count: int = 1) -> list[str]:
        """Wait for ``count`` answers of a worker; return the tasks of all its answers."""
        return [answer.task_id for answer in self.listener.expect("answered", worker_id, count)]

    def receive_ids(self, end: SlaveEnd, count: int) -> list[str]:
        """Return the ids of the next ``count`` tasks."""
        return [self.receive(end).task_id for _ in range(count)]

    def expect_refused(self, end: SlaveEnd, whose: str, kind: type[Exception]) -> None:
        """Expect ``next_task``, ``renew`` and ``answer`` of an end to raise ``kind``."""
        with raises(f"next_task() of {whose}", kind):
            end.next_task(self.patience_s)
        with raises(f"renew() of {whose}", kind):
            end.renew(2)
        with raises(f"answer() of {whose}", kind):
            end.answer(TaskAnswer("t1", True))

    def done(self, *jobs: Job) -> None:
        """Wait for jobs to end; raise the first error of one.

        Raises RuleBroken if a job does not end in time.
        """
        for job in jobs:
            ended = job.join(self.patience_s)
            expect(ended, f"{job.name} did not end within {self.patience_s:.1f} s")
            if job.error is not None:
                raise job.error

    @contextlib.contextmanager
    def ends_the_wait(self, end: SlaveEnd, *kinds: type[Exception]) -> Iterator[None]:
        """Expect the block to end a long wait of a worker for a task, with an error of ``kinds``.

        The worker renews in the meantime.
        """

        def wait() -> None:
            end.next_task(20 * self.patience_s)

        job = self.far.scheduler.spawn(wait, "the wait for a task")
        Call(lambda: end.renew(1), "renew() beside a wait for a task").value(self.patience_s)
        yield
        with raises("the wait for a task", *kinds):
            self.done(job)


def plain_message() -> dict[str, Any]:
    """Return a message with every kind of plain data that must arrive unchanged."""
    return {
        "none": None,
        "flags": [True, False],
        "numbers": [0, -1, 2**63 - 1, -(2**63), 0.1, -0.0, 1e308, 5e-324],
        "special": [math.inf, -math.inf, math.nan],
        "text": 'naïve 訓練 \U0001f3b2 "quoted" \\ \n \x00',
        "nested": {"a": {"b": [{}, [], [[1]]]}, "": "empty key"},
        "array": np.arange(6, dtype=np.int64).reshape(2, 3),
        "arrays": [np.array([0.5, np.inf], np.float32), np.zeros((0, 4), np.uint8)],
    }


def batch(rows: int = 5, seed: int = 0) -> SampleBatch:
    """Return a payload with columns of several dtypes and ranks; some are nested."""
    random = np.random.default_rng(seed)
    return SampleBatch(
        {
            "obs": {
                "image": random.integers(0, 256, (rows, 3, 4), dtype=np.uint8),
                "state": random.normal(size=(rows, 2)).astype(np.float32),
            },
            "action": random.integers(0, 4, rows, dtype=np.int64),
            "reward": random.normal(size=rows),
            "done": random.integers(0, 2, rows).astype(np.bool_),
            # A column that is not contiguous in memory.
            "next": random.normal(size=(2, rows)).T,
        }
    )


def policy(value: float) -> dict[str, Any]:
    """Return the tensors of a policy; all their elements are ``value``."""
    import torch

    return {
        "layer.weight": torch.full((16, 8), float(value)).T,
        "layer.bias": torch.full((3,), value, dtype=torch.float64),
        "scale": torch.tensor(float(value), dtype=torch.bfloat16),
        "count": torch.tensor([int(value)], dtype=torch.int64),
        "empty": torch.zeros((0, 2)),
    }
