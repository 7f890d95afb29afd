"""The serial training loop: which parts are called, in which order, and what ends the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import SchemaMismatchError
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.serial import (
    _run,
)
from dingsdk.pipeline.team import Team, Workers
from dingsdk.worker.sample_counts import SampleCounts

N_SAMPLE = 4
SETTING = {"eps": 0.5}


class Parts:
    """A fake learner, collector, evaluator, buffer and commander that records all calls."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.calls: list[tuple[Any, ...]] = []
        self.train_iter = self.envstep = 0
        self.priority_info: dict[str, Any] = {}
        self.batches_left = 10**6
        self.eval_due: set[int] = set()
        self.goal_at = 10**6
        self.plays = True
        self.on_call: Callable[[str], None] = lambda name: None
        self.save_checkpoint = object()

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        self.on_call(call[0])

    def step(self) -> dict[str, Any]:
        return SETTING

    def collect(self, train_iter: int, policy_kwargs: Mapping[str, Any]) -> list[int]:
        self.note("collect", train_iter, dict(policy_kwargs))
        self.envstep += N_SAMPLE
        return [self.envstep]

    def push(self, samples: list[int], cur_collector_envstep: int) -> None:
        self.note("push", samples, cur_collector_envstep)

    def sample(self, batch_size: int, cur_learner_iter: int) -> str | None:
        self.note("sample", batch_size, cur_learner_iter)
        self.batches_left -= 1
        return "batch" if self.batches_left >= 0 else None

    def train(self, data: Any, envstep: int) -> None:
        self.note("train", data, envstep)
        self.train_iter += 1

    def update(self, info: Mapping[str, Any]) -> None:
        self.note("update", dict(info))

    def should_eval(self, train_iter: int, envstep: int) -> bool:
        return train_iter in self.eval_due

    def eval(self, save: object, train_iter: int, envstep: int) -> tuple[bool, dict[str, Any]]:
        assert save is self.save_checkpoint
        self.note("eval", train_iter, envstep)
        return train_iter >= self.goal_at, {"eval_episode_return": [1.0, 3.0]}

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


class Saver:
    """Records the training iteration at each call."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.asked: list[int] = []
        self.saved: list[tuple[int, int]] = []

    def save_if_due(self) -> None:
        self.asked.append(self.parts.train_iter)

    def save(self, *, is_last: bool = False) -> None:
        self.saved.append((self.parts.train_iter, self.parts.names().count("eval")))


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    cfg = {
        "system": {"max_env_steps": 8, "validate_state": False},
        "env": {"eval_opponents": ["random"]},
        "policy": {"learn": {"learner": {"train_iterations": 100}}},
    }
    return Parts(RunContext(cfg=to_easydict(cfg), run_dir=tmp_path))


def workers_of(parts: Any, *, on_policy: bool = False, player: str | None = None) -> Workers:
    return Workers(
        player_id=player or "",
        player=player,
        learner=parts,
        collector=parts,
        evaluator=parts,
        buffer=parts,
        commander=parts,
        batch_size=32,
        update_per_collect=2,
        on_policy=on_policy,
        player_num=1,
        observe=lambda samples: None,
    )


def run(parts: Parts, *, on_policy: bool = False, saver: Any = None) -> str:
    only = workers_of(parts, on_policy=on_policy)
    return _run(parts.context, Team([only]), saver or Saver(parts))


@pytest.mark.parametrize("on_policy", [False, True])
def test_policy_observes_samples_once_before_they_are_stored_or_after_the_training(
    parts: Parts, on_policy: bool
) -> None:
    only = workers_of(parts, on_policy=on_policy)
    only.observe = lambda samples: parts.calls.append(("observe", samples))
    _run(parts.context, Team([only]), Saver(parts))  # type: ignore[arg-type]
    names = parts.names()
    expected = ["collect", "train", "train", "observe"]
    if not on_policy:
        expected = ["collect", "observe", "push"]
    assert names[: len(expected)] == expected
    assert [each[1] for each in parts.calls if each[0] == "observe"] == [[4], [8]]


def test_each_round_collects_stores_and_trains(parts: Parts) -> None:
    assert run(parts) == "limit"
    train = [("sample", 32, 0), ("train", "batch", 4), ("sample", 32, 1), ("train", "batch", 4)]
    assert parts.calls[:6] == [("collect", 0, SETTING), ("push", [4], 4), *train]
    assert parts.calls[6:8] == [("collect", 2, SETTING), ("push", [8], 8)]
    assert parts.calls[-1] == ("eval", 4, 8)
    assert parts.names().count("train") == 4
    assert "update" not in parts.names()  # the learner gave no priorities


def test_priorities_of_each_batch_are_passed_to_the_buffer(parts: Parts) -> None:
    parts.priority_info = {"priority": [1.0]}
    run(parts)
    assert parts.names().count("update") == parts.names().count("train")
    assert parts.calls[3:5] == [("train", "batch", 4), ("update", {"priority": [1.0]})]


def test_rest_of_the_round_is_not_trained_if_the_buffer_gives_no_batch(parts: Parts) -> None:
    parts.batches_left = 1
    run(parts)
    assert parts.names() == [
        "collect", "push", "sample", "train", "sample", "collect", "push", "sample", "eval",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "answer", "text"),
    [
        ("step", None, "step() returned NoneType None; it must return keyword arguments by name"),
        ("collect", None, "collect() returned NoneType None; it must return a SampleBatch or a"),
        ("collect", 3, "collect() returned int 3; it must return a SampleBatch or a list"),
        ("sample", 7, "sample() returned int 7; it must return a batch or None"),
        ("eval", True, "eval() returned bool True; it must return (whether the goal is reached, "),
        ("eval", (1, 2, 3), "eval() returned tuple (1, 2, 3); it must return (whether the goal"),
    ],
)
def test_part_with_an_invalid_return_value_is_named(
    parts: Parts, method: str, answer: Any, text: str
) -> None:
    parts.eval_due = {0}
    setattr(parts, method, lambda *args, **kwargs: answer)
    with pytest.raises(SchemaMismatchError, match=re.escape(f"Parts.{text}")):
        run(parts)


def test_on_policy_training_uses_the_collected_samples_directly(parts: Parts) -> None:
    run(parts, on_policy=True)
    assert parts.calls[:3] == [("collect", 0, SETTING), ("train", [4], 4), ("train", [4], 4)]
    assert not {"push", "sample"} & set(parts.names())


def test_evaluation_that_reaches_the_goal_ends_the_run(parts: Parts) -> None:
    parts.eval_due, parts.goal_at = {0, 2}, 2
    assert run(parts) == "stop_value"
    assert [call for call in parts.calls if call[0] == "eval"] == [("eval", 0, 0), ("eval", 2, 4)]
    recorded = parts.context.recorder.evaluations
    assert [(each.env_steps, each.train_iter) for each in recorded] == [(0, 0), (4, 2)]
    assert (recorded[0].mean, recorded[0].min, recorded[0].max) == (2.0, 1.0, 3.0)


def test_last_policy_at_the_limit_is_evaluated_only_once(parts: Parts) -> None:
    parts.eval_due = {4}
    assert run(parts) == "limit"
    assert parts.names().count("eval") == 1


def test_iteration_limit_is_checked_between_the_updates_of_a_round(parts: Parts) -> None:
    parts.context.cfg.policy.learn.learner.train_iterations = 3
    saver = Saver(parts)
    assert run(parts, saver=saver) == "limit"
    assert parts.names().count("train") == 3
    assert saver.saved == [(3, 0)]
    assert parts.calls[-1] == ("eval", 3, 8)


@pytest.mark.parametrize("at", ["collect", "train"])
def test_stop_ends_the_run_before_the_next_batch(parts: Parts, at: str) -> None:
    def stop(name: str) -> None:
        if name == at:
            parts.context.stop.set()

    parts.on_call = stop
    assert run(parts) == "interrupted"
    assert parts.names().count("collect") == 1
    assert parts.names().count("train") == (1 if at == "train" else 0)


def test_saver_is_called_between_rounds_and_before_the_last_evaluation(
    parts: Parts,
) -> None:
    saver = Saver(parts)
    assert run(parts, saver=saver) == "limit"
    assert saver.asked == [0, 2, 4]
    assert saver.saved == [(4, 0)]


# The player has updates left at limit 3, and none at limit 4.
@pytest.mark.parametrize("last_iter", [3, 4])
def test_player_that_reached_its_limit_waits_for_the_others(parts: Parts, last_iter: int) -> None:
    cfg = parts.context.cfg
    cfg.system.max_env_steps, cfg.policy.learn.learner.train_iterations = None, last_iter
    other = Parts(parts.context)
    other.train_iter = -2  # it started two iterations later
    team = Team([workers_of(parts), workers_of(other, player="other")])

    assert _run(parts.context, team, Saver(parts)) == "limit"

    assert (parts.train_iter, other.train_iter) == (last_iter, last_iter)
    assert [each.names().count("collect") for each in (parts, other)] == [2, 3]
    assert [each.names().count("train") for each in (parts, other)] == [
        last_iter,
        last_iter + 2,
    ]


@pytest.mark.parametrize("is_due", [False, True])
def test_sample_counts_are_checked_between_rounds_if_configured(
    parts: Parts, is_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[int] = []
    monkeypatch.setattr(SampleCounts, "check", lambda counts: checks.append(1))
    parts.context.cfg.system.validate_state = is_due
    parts.count = lambda: 0  # type: ignore[attr-defined]
    run(parts)
    assert checks == ([1] if is_due else [])  # the next check is due only after some seconds
