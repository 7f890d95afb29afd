"""A run in which nothing happens logs what it waits for."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run
from dingsdk.worker import SoloCommander
from tests.own_plugins import using

from . import short_runs


class LazyCommander(SoloCommander):
    """Hands out learner tasks, but no collector tasks."""

    config = {"type": "lazy"}  # noqa: RUF012 - as users write it

    def get_collector_task(self) -> None:
        return None


class _Ears(logging.Handler):
    """Collects the warnings that nothing has happened; the first one stops the run."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(logging.WARNING)
        self.stop = stop
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "nothing has happened" in text:
            self.found.append(text)
            self.stop.set()


@using(commanders={"lazy": LazyCommander})
def test_commander_that_hands_out_no_task_is_named(tmp_path: Path) -> None:
    sets = (
        *short_runs.QUICK,
        "policy.other.commander={type: lazy}",
        "system.coordinator.quiet_after_s=0.5",
    )
    cfg = compile_run("cartpole-dqn", mode="parallel", transport="in_memory", sets=sets)
    context = RunContext(cfg=cfg, run_dir=tmp_path)
    ears = _Ears(context.stop)
    log = logging.getLogger("dingsdk")
    log.addHandler(ears)
    giving_up = threading.Timer(30, context.stop.set)
    giving_up.start()
    try:
        result = parallel_pipeline(context)
    finally:
        giving_up.cancel()
        giving_up.join()
        log.removeHandler(ears)

    assert result.reason == "interrupted"
    (said,) = ears.found
    assert "commander 'lazy' has issued no task for an idle collector" in said
    assert "learner learner-0 waits for samples to train on" in said
    assert "the replay buffer holds 0 rows" in said
