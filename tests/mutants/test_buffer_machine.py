"""The state machine of buffers detects mutants that some sequences of calls reveal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from dingsdk.testing import BufferMachine, RuleBroken

from .buffer_mutants import (
    CountsUsedRows,
    ForgetsTheOrderAtTheSeam,
    IgnoresPushedPriorities,
    Mutant,
    SharesItsRows,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [CountsUsedRows, ForgetsTheOrderAtTheSeam, IgnoresPushedPriorities, SharesItsRows],
)
def test_state_machine_detects_mutants(made: type[Mutant]) -> None:
    class Machine(BufferMachine):
        capabilities = made.capabilities - {"saves"}

        def make_buffer(self, cfg: Mapping[str, Any]) -> Any:
            return made(cfg)

    quick = settings(
        max_examples=400,
        stateful_step_count=20,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(Machine, settings=quick)
