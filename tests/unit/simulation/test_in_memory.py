"""Calls of a simulated worker that a kill cannot interrupt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import ClosedError
from tools.simulation.in_memory import _SlaveEnd


def test_worker_can_be_killed_only_between_messages() -> None:
    job = SimpleNamespace(is_preemptive=True)
    end = _SlaveEnd.__new__(_SlaveEnd)
    end._process = SimpleNamespace(world=SimpleNamespace(current=job))  # type: ignore[assignment]
    seen: list[bool] = []

    def call(error: Exception | None = None) -> None:
        seen.append(job.is_preemptive)
        if error is not None:
            raise error

    end._as_one(call)
    assert job.is_preemptive
    with pytest.raises(ClosedError):
        end._as_one(call, ClosedError("over", what="end"))
    assert job.is_preemptive
    assert seen == [False, False]


def test_nested_call_keeps_the_worker_protected() -> None:
    job: Any = SimpleNamespace(is_preemptive=False)
    end = _SlaveEnd.__new__(_SlaveEnd)
    end._process = SimpleNamespace(world=SimpleNamespace(current=job))  # type: ignore[assignment]
    end._as_one(lambda: None)
    assert not job.is_preemptive
