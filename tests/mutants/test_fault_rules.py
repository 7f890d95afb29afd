"""Each rule about network faults detects a transport that does not survive them.

A mutant is the flask_fs transport with one defect that is visible only on a bad network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

import dingsdk.worker.comm.requests.handler
from dingsdk.errors import WorkerLostError
from dingsdk.testing import RULES, RuleBroken, check_rule
from dingsdk.worker.comm import TaskAnswer
from dingsdk.worker.comm.requests.handler import Mailbox
from dingsdk.worker.comm.requests.slave_end import RequestSlaveEnd

pytestmark = pytest.mark.slow

CAPABILITIES = {"many_processes", "survives_faults"}
LOST_AFTER_S = 3.0
SILENT_S = 1.0


def joins_again_at_every_try(patch: pytest.MonkeyPatch) -> None:
    class Forgetful(Mailbox):
        def __init__(self, worker_id: str, inc: int, *args: Any) -> None:
            super().__init__(worker_id, inc, *args)
            self.join_id = ""

    patch.setattr(dingsdk.worker.comm.requests.handler, "Mailbox", Forgetful)


def sends_each_task_one_time(patch: pytest.MonkeyPatch) -> None:
    class Lossy(Mailbox):
        def fetch(self, ack: int, wait_s: float) -> bytes:
            found = super().fetch(ack, wait_s)
            self._tasks.clear()
            return found

    patch.setattr(dingsdk.worker.comm.requests.handler, "Mailbox", Lossy)


def reports_repeated_answers(patch: pytest.MonkeyPatch) -> None:
    class Believing(Mailbox):
        def take(
            self, answers: list[tuple[int, TaskAnswer]], report: Callable[[TaskAnswer], None]
        ) -> None:
            for number, answer in answers:
                self.answered = max(self.answered, number)
                report(answer)

    patch.setattr(dingsdk.worker.comm.requests.handler, "Mailbox", Believing)


def silence_s(end: RequestSlaveEnd, since: float | None) -> float:
    now = time.monotonic()
    return now - min(end._silent_since or now, since or now)


def raises_on_silence(patch: pytest.MonkeyPatch) -> None:
    def raise_it(self: RequestSlaveEnd, error: Exception, since: float | None = None) -> None:
        if silence_s(self, since) > SILENT_S:
            raise ConnectionResetError(str(error))

    patch.setattr(RequestSlaveEnd, "_note_silence", raise_it)


MUTANTS = [
    (36, joins_again_at_every_try),
    (37, sends_each_task_one_time),
    (37, reports_repeated_answers),
    (40, raises_on_silence),
]


@pytest.mark.parametrize(("number", "mutate"), MUTANTS)
def test_fault_rule_detects_its_mutant(
    number: int,
    mutate: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DINGSDK_SECRET", raising=False)
    monkeypatch.delenv("DINGSDK_SECRET_FILE", raising=False)
    mutate(monkeypatch)
    rule = next(rule for rule in RULES if rule.number == number)

    # A WorkerLostError or ConnectionResetError from a call also counts as a detection.
    with pytest.raises((RuleBroken, WorkerLostError, ConnectionResetError)):
        check_rule(
            rule,
            lambda run_dir: FlaskFSTransport({"threads": 8, "lost_after_s": LOST_AFTER_S}, run_dir),
            tmp_path,
            capabilities=CAPABILITIES,
            patience_s=LOST_AFTER_S + 1.0,
        )


def test_every_fault_rule_has_a_mutant() -> None:
    numbers = {rule.number for rule in RULES if rule.needs == "survives_faults"}
    assert {number for number, _ in MUTANTS} == numbers
