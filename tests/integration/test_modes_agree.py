"""Drawn configs mean the same in both modes: refused alike, or run with every row accounted for."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.list_samples import has_lists, unpack_samples
from dingsdk.errors import ConfigError
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.status_file import read_status
from dingsdk.pipeline.train import compile_run, train
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.replay_buffer.home import TableHome
from tests.own_plugins import using

from ..unit.replay_buffer.random_remover import RandomRemover
from .short_runs import QUICK
from .test_foreign_policies import ListPolicy
from .test_ordered_buffers import COLLECTED, EpisodePolicy, SequencePolicy

BUFFER = "policy.other.replay_buffer"
SHORT = (
    *(each for each in QUICK if not each.startswith("policy.nstep")),
    "system.max_env_steps=240",
    "system.validate_state=true",
    "policy.learn.learner.train_iterations=1000000",
)
CARTPOLE = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": "lists"}}
ZOO = Path(__file__).parents[2] / "plugins" / "dingsdk-zoo" / "dingsdk_zoo"
IMPALA = str(ZOO / "configs" / "cartpole-impala.yaml")
POLICIES: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "dqn": ("cartpole-dqn", ()),
    "sac": ("pendulum-sac", ()),
    "unrolls": (
        IMPALA,
        (
            *("policy.learn.batch_size=4", "policy.learn.update_per_collect=1"),
            *("policy.collect.n_sample=4", "policy.collect.unroll_len=5"),
        ),
    ),
    "lists": (CARTPOLE, ()),
    "sequences": ("cartpole-dqn", ("policy.type=sequences", "policy.nstep=1")),
    "episodes": (
        "cartpole-dqn",
        ("policy.type=episodes", "policy.nstep=1", *COLLECTED, "policy.collect.n_episode=4"),
    ),
}
"""By name, the config of a policy and its overrides."""
OWN_BUFFERS = {
    **{"sequences": "sequence", "episodes": "episode", "unrolls": "queue"},
    "lists": "naive",  # whether a buffer keeps lists is known at the first push
}
KINDS = ["naive", "elastic", "sequence", "episode", "advanced", "queue"]
STORAGES = (
    "{type: auto}",
    "{type: array, next_of: obs}",
    "{type: memmap, path: FOLDER/rows}",
    "{type: object}",
)
LIMITERS = (
    "{}",
    "{type: min_size, min_size: 40}",
    "{type: min_size, min_size: 400}",  # more than some buffers, and than the run's env steps
    "{type: samples_per_insert, samples_per_insert: 2, min_size: 16, error_buffer: 200}",
    "{type: samples_per_insert, samples_per_insert: 2, min_size: 16, error_buffer: 1}",
)


def drawn(seed: int, is_shared: bool) -> tuple[Any, tuple[str, ...]]:
    """Draw a config whose settings may or may not fit each other, and its overrides.

    Rows on disk are in ``FOLDER``.

    Args:
        seed: Seed of all draws.
        is_shared: Whether its workers are processes, which cannot import what this test registers.
    """
    rng = random.Random(seed)
    names = ["dqn", "dqn", "sac", "unrolls"]
    name = rng.choice(names if is_shared else [*names, "lists", "sequences", "episodes"])
    config, sets = POLICIES[name]
    own = OWN_BUFFERS.get(name, "advanced")
    found: dict[str, Any] = {
        "type": rng.choice([own] * 18 + KINDS[: 4 if name == "lists" else 6]),
        "replay_buffer_size": rng.choice([500] * 6 + [120, 120, 40, 40, 16, 8]),
        "limiter": rng.choice((*LIMITERS[:2] * 4, *LIMITERS)),
        "storage": rng.choice(STORAGES),
    }
    if name in ("lists", "episodes"):  # what array storage cannot hold is known at the first push
        found["storage"] = rng.choice(["{type: auto}", "{type: object}"])
    if found["type"] in ("naive", "advanced") and not is_shared and rng.random() < 0.3:
        found["remover"] = "{type: random}"
    if found["type"] == "sequence":
        found |= {"sequence_length": 6, "replay_buffer_size": 500}
    if found["type"] == "advanced":
        found |= rng.choice([{}, {"max_use": 1}, {"max_use": 3}, {"max_staleness": 5}])
    if name == "dqn":
        sets = (f"policy.nstep={rng.choice([1, 3])}", f"policy.priority={rng.random() < 0.4}")
    return config, (*SHORT, *sets, *(f"{BUFFER}.{key}={value}" for key, value in found.items()))


def in_folder(folder: Path, sets: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each.replace("FOLDER", str(folder)) for each in sets)


def refusal(config: Any, mode: Any, transport: str | None, sets: tuple[str, ...]) -> str:
    """Return the words in which a mode refuses a config; empty if it does not."""
    try:
        compile_run(config, mode, transport, sets=sets)
    except ConfigError as error:
        return str(error)
    return ""


def check_lag(result: RunResult) -> None:
    """Check that the lag is known if there was a training, and that it is in the run's files."""
    assert result.policy_lag is not None or result.train_iter == 0
    saved = json.loads((result.run_dir / "result.json").read_text())["policy_lag"]
    assert saved == read_status(result.run_dir)["policy_lag"] == result.policy_lag


def texts_of(samples: Any) -> list[str]:
    """Return one text for each sample: its numbers."""
    if isinstance(samples, SampleBatch):
        return [_text(dict(row)) for row in samples]
    return [
        text
        for each in samples
        for text in (texts_of(each) if isinstance(each, SampleBatch) else [_text(each)])
    ]


def _text(sample: Any) -> str:
    if isinstance(sample, list):
        return str(list(map(_text, sample)))
    keys = ("obs", "action", "reward", "done")
    return repr([np.asarray(sample[key]).tolist() for key in keys])


class Watched:
    """The rows that were acknowledged, those that left, by reason, and those left in the table."""

    def __init__(self) -> None:
        self.acknowledged = Counter[str]()
        self.left: dict[str, Counter[str]] = defaultdict(Counter)
        self.stored = Counter[str]()

    def note(self, rows: Any, reason: str) -> None:
        self.left[reason].update(texts_of(rows))

    def all_left(self) -> Counter[str]:
        return sum(self.left.values(), Counter[str]())


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Watch the coordinator and the home of a run in this process."""
    found, contents, names, told = Watched(), dict[str, list[str]](), list[str](), set[str]()
    push, init, loaded = LivePayloads.push, TableHome.__init__, TableHome._loaded
    close, announce = TableHome.close, TableHome.announce

    def pushed(self: LivePayloads, meta: Any, envstep: int) -> bool:
        is_new = push(self, meta, envstep)
        names.extend([str(meta["data_id"])] * is_new)
        return is_new

    def made(self: TableHome, buffer: Any, *args: Any) -> None:
        buffer.add_remove_listener(found.note)
        init(self, buffer, *args)

    def noted(self: TableHome, announced: Any, load: Any) -> Any:
        batch = loaded(self, announced, load)
        assert batch is not None
        rows = unpack_samples(batch) if has_lists(batch.columns) else batch
        contents[announced.data_id] = texts_of(rows)
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
                found.acknowledged.update(contents[name])
        evicted = {reason: Counter(each) for reason, each in found.left.items()}
        before = found.all_left()
        self.buffer.clear()
        close(self)
        found.stored, found.left = found.all_left() - before, evicted

    with monkeypatch.context() as patch:
        patch.setattr(LivePayloads, "push", pushed)
        patch.setattr(TableHome, "__init__", made)
        patch.setattr(TableHome, "_loaded", noted)
        patch.setattr(TableHome, "announce", heard)
        patch.setattr(TableHome, "close", closed)
        yield found


OWN = {"lists": ListPolicy, "sequences": SequencePolicy, "episodes": EpisodePolicy}


@pytest.mark.slow
@using(policies=OWN, removers={"random": RandomRemover})
@pytest.mark.parametrize("seed", range(36))
def test_drawn_config_means_the_same_in_both_modes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = "shared_memory" if seed % 6 == 5 else "in_memory"
    config, sets = drawn(seed, transport == "shared_memory")
    serial = refusal(config, "serial", None, sets)
    parallel = refusal(config, "parallel", transport, sets)
    # Of what a limiter admits, each mode has its own numbers.
    if "a serial run" not in serial and "a parallel run" not in parallel:
        assert serial.replace("serial mode", "parallel mode") == parallel
    if not serial:
        own = in_folder(tmp_path / "serial", sets)
        result = train(config, "serial", output=tmp_path / "serial", sets=own)
        counts = result.samples
        assert counts.acknowledged == counts.live + sum(counts.evicted.values())
        check_lag(result)
    if parallel:
        return
    own = in_folder(tmp_path / "parallel", sets)
    with watched(monkeypatch) as found:
        result = train(config, "parallel", transport, output=tmp_path / "parallel", sets=own)
    counts = result.samples
    assert result.reason == "limit"
    assert result.env_steps >= 240
    assert counts.acknowledged == counts.live + sum(counts.evicted.values())
    assert counts.acknowledged > 0
    check_lag(result)
    if transport == "in_memory":
        assert found.acknowledged == found.stored + found.all_left()
        evicted = {reason: each.total() for reason, each in found.left.items()}
        assert counts.evicted == evicted
