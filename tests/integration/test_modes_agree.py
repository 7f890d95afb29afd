"""Drawn configs mean the same in both modes: refused alike, or run with every row accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from dingsdk.data import SampleBatch
from dingsdk.data.list_samples import has_lists, unpack_samples
from dingsdk.errors import ConfigError
from dingsdk.pipeline.train import compile_run, train
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.replay_buffer.home import TableHome

from .short_runs import QUICK

BUFFER = "policy.other.replay_buffer"
SHORT = (
    *QUICK,
    "system.max_env_steps=240",
    "system.validate_state=true",
    "policy.learn.learner.train_iterations=1000000",
)
LIMITERS = (
    "{}",
    "{type: min_size, min_size: 40}",
    "{type: min_size, min_size: 400}",  # more than some buffers, and than the run's env steps
    "{type: samples_per_insert, samples_per_insert: 2, min_size: 16, error_buffer: 200}",
    "{type: samples_per_insert, samples_per_insert: 2, min_size: 16, error_buffer: 1}",
)
DRAWN = {
    "replay_buffer_size": st.sampled_from([16, 40, 500, 8]),
    "limiter": st.sampled_from(LIMITERS),
    "storage": st.sampled_from(["{type: auto}", "{type: array, next_of: obs}", "{type: object}"]),
}


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw a buffer whose settings may or may not fit the policy, or each other."""
    kind = draw(st.sampled_from(["naive", "elastic", "advanced", "advanced", "sequence"]))
    found = {"type": kind} | {name: draw(values) for name, values in DRAWN.items()}
    own = [f"policy.nstep={draw(st.sampled_from([1, 3]))}"]
    if kind == "advanced":
        found |= draw(st.sampled_from([{}, {"max_use": 1}, {"max_use": 3}, {"max_staleness": 5}]))
        own.append(f"policy.priority={draw(st.sampled_from(['true', 'false']))}")
    return (*own, *(f"{BUFFER}.{name}={value}" for name, value in found.items()))


def refusal(mode: Any, sets: tuple[str, ...]) -> str:
    """Return the words in which a mode refuses a config; empty if it does not."""
    try:
        compile_run("cartpole-dqn", mode, sets=(*SHORT, *sets))
    except ConfigError as error:
        return str(error)
    return ""


def rows_of(samples: Any) -> list[str]:
    """Return one text for each row: its numbers."""
    if isinstance(samples, list):
        rows = [
            row for each in samples for row in (each if isinstance(each, SampleBatch) else [each])
        ]
    else:
        rows = list(samples)
    return [
        repr([(key, np.asarray(row[key]).tolist()) for key in ("obs", "action", "reward", "done")])
        for row in map(dict, rows)
    ]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Counter[str]]]:
    """Count the rows that were acknowledged, were in the table at its end, and left before."""
    found = {name: Counter[str]() for name in ("acknowledged", "left")}
    contents: dict[str, list[str]] = {}
    names: list[str] = []
    push, init, loaded = LivePayloads.push, TableHome.__init__, TableHome._loaded
    close, announce, told = TableHome.close, TableHome.announce, set[str]()

    def pushed(self: LivePayloads, meta: Any, envstep: int) -> bool:
        is_new = push(self, meta, envstep)
        names.extend([str(meta["data_id"])] * is_new)
        return is_new

    def made(self: TableHome, buffer: Any, *args: Any) -> None:
        buffer.add_remove_listener(lambda rows, reason: found["left"].update(rows_of(rows)))
        init(self, buffer, *args)

    def noted(self: TableHome, announced: Any, load: Any) -> Any:
        batch = loaded(self, announced, load)
        assert batch is not None
        rows = unpack_samples(batch) if has_lists(batch.columns) else batch
        contents[announced.data_id] = rows_of(rows)
        return batch

    def heard(self: TableHome, news: Any) -> None:
        news = list(news)
        told.update(str(each["data_id"]) for each in news)
        announce(self, news)

    def closed(self: TableHome) -> None:
        waiting = {each.data_id for each in self._waiting}
        for name in names:
            # Others were acknowledged when the last message was on its way, or never admitted.
            if name in told and name not in waiting:
                found["acknowledged"].update(contents[name])
        found["evicted"] = Counter(found["left"])
        close(self)  # the rows that are left are cleared
        found["stored"] = found["left"] - found["evicted"]

    with monkeypatch.context() as patch:
        patch.setattr(LivePayloads, "push", pushed)
        patch.setattr(TableHome, "__init__", made)
        patch.setattr(TableHome, "_loaded", noted)
        patch.setattr(TableHome, "announce", heard)
        patch.setattr(TableHome, "close", closed)
        yield found


@pytest.mark.slow
@settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sets=configs())
def test_drawn_config_means_the_same_in_both_modes(
    sets: tuple[str, ...], tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial, parallel = refusal("serial", sets), refusal("parallel", sets)
    if "a serial run" not in serial and "a parallel run" not in parallel:
        assert serial == parallel
    event("refused" if serial and parallel else "run")
    folder: Path = tmp_path_factory.mktemp("runs")
    if not serial:
        train("cartpole-dqn", "serial", output=folder / "serial", sets=(*SHORT, *sets))
    if parallel:
        return
    with watched(monkeypatch) as found:
        result = train(
            "cartpole-dqn",
            "parallel",
            "in_memory",
            output=folder / "parallel",
            sets=(*SHORT, *sets),
        )
    assert result.reason == "limit"
    assert result.env_steps >= 240
    assert found["acknowledged"] == found["stored"] + found["evicted"]
    assert sum(found["acknowledged"].values()) > 0
