"""Policy modes with only the documented fields, and train samples that are lists of rows."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest

from dingsdk.policy import create_policy
from dingsdk.worker.collector.episode import EpisodeSerialCollector

FIELDS = "forward reset get_attribute set_attribute state_dict load_state_dict"
CollectFunction = namedtuple("CollectFunction", f"{FIELDS} process_transition get_train_sample")
EvalFunction = namedtuple("EvalFunction", FIELDS)
MODEL = {"obs_shape": 3, "action_shape": 2}


@pytest.fixture
def policy() -> Any:
    collect = {"n_sample": 4, "unroll_len": 1}
    return create_policy({"type": "dqn", "model": MODEL, "collect": collect}, seed=0)


def _in_pairs(piece: list[dict[str, Any]]) -> list[Any]:
    return [piece[start : start + 2] for start in range(0, len(piece), 2)]


def _only(kind: Any, mode: Any, **changed: Any) -> Any:
    return kind(**{**{name: getattr(mode, name) for name in kind._fields}, **changed})


def test_samples_may_be_lists_of_rows(policy, make_collector) -> None:
    mode = _only(CollectFunction, policy.collect_mode, get_train_sample=_in_pairs)
    collector, _ = make_collector(mode, ((4,), (4,)))
    samples = collector.collect(4, policy_kwargs={"eps": 0.5})
    assert [[int(row["obs"][2]) for row in sample] for sample in samples] == [[0, 1]] * 2 + [
        [2, 3]
    ] * 2


@pytest.mark.parametrize("samples", [False, True])
def test_episodes_are_collected_with_the_documented_fields(policy, make_collector, samples) -> None:
    collector, _ = make_collector(
        _only(CollectFunction, policy.collect_mode),
        ((4,), (4,)),
        kind=EpisodeSerialCollector,
        get_train_sample=samples,
    )
    found = collector.collect(2, policy_kwargs={"eps": 0.5})
    assert len(found) == (8 if samples else 2)
