"""What a master keeps for one incarnation of one worker: tasks to fetch, answers taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from dingsdk.errors import ProtocolError
from dingsdk.worker.comm import TaskAnswer, TaskMessage
from dingsdk_flask_fs.messages import OVERHEAD_BYTES, encode_item


class Mailbox:
    """Thread safe. ``close`` makes every later use report that the worker is gone."""

    def __init__(self, worker_id: str, inc: int, idem: str, max_bytes: int) -> None:
        self.worker_id = worker_id
        self.inc = inc
        self.idem = idem
        self._max_bytes = max_bytes
        self._condition = threading.Condition(threading.Lock())
        self._tasks: deque[tuple[int, bytes]] = deque()
        self._sent = 0
        self._turn = 0
        self.is_closed = False
        # Held while answers are reported, so that those of two requests keep their order.
        self._inbound = threading.RLock()
        self.answered = 0

    def put(self, task: TaskMessage) -> bool:
        """Queue a task; False when the worker is gone. Raises ProtocolError."""
        with self._condition:
            if self.is_closed:
                return False
            encoded = encode_item(self._sent + 1, task, self._max_bytes)
            self._sent += 1
            self._tasks.append((self._sent, encoded))
            self._condition.notify_all()
        return True

    def fetch(self, seq: int, ack: int, want: int, wait_s: float) -> list[bytes]:
        """Forget the tasks up to ``ack``; return the next ones, waiting for the first.

        A request with a higher ``seq`` ends the wait: its sender has given this one up.
        """
        with self._condition:
            if seq <= self._turn:
                return []
            self._turn = seq
            self._condition.notify_all()
            if ack > self._sent:
                raise ProtocolError(f"task {ack} was never sent", where="$.body.ack")
            while self._tasks and self._tasks[0][0] <= ack:
                self._tasks.popleft()
            self._condition.wait_for(
                lambda: self._tasks or self.is_closed or self._turn != seq, wait_s
            )
            if self.is_closed or self._turn != seq:
                return []
            return self._fitting(want)

    def _fitting(self, want: int) -> list[bytes]:
        chosen: list[bytes] = []
        room = self._max_bytes - OVERHEAD_BYTES
        for _, encoded in self._tasks:
            room -= len(encoded) + 1
            if len(chosen) == want or (chosen and room < 0):
                break
            chosen.append(encoded)
        return chosen

    def take(
        self, answers: list[tuple[int, TaskAnswer]], report: Callable[[TaskAnswer], None]
    ) -> None:
        """Report the answers that are new, in order. Raises ProtocolError for a gap."""
        if not answers:
            return
        with self._inbound:
            if answers[0][0] > self.answered + 1:
                raise ProtocolError(
                    f"answer {answers[0][0]} came after {self.answered}", where="$.body.answers"
                )
            for number, answer in answers:
                if number <= self.answered or self.is_closed:
                    continue
                self.answered = number
                report(answer)

    def close(self) -> None:
        with self._condition:
            self.is_closed = True
            self._tasks.clear()
            self._condition.notify_all()
