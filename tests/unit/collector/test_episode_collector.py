"""The episode collector returns exactly the requested number of episodes, in both forms."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.worker.collector.episode import EpisodeSerialCollector
from tests.fakes import Scalars

GREEDY = {"eps": 0.0}


@pytest.fixture
def make_episodes(make_collector):
    def make(policy: Any, *args: Any, **cfg: Any) -> Any:
        return make_collector(policy, *args, kind=EpisodeSerialCollector, **cfg)

    return make


def _rows(episode: Any) -> list[tuple[int, ...]]:
    batch = episode if isinstance(episode, SampleBatch) else SampleBatch.from_rows(episode)
    assert batch.columns["done"].tolist() == [False] * (len(batch) - 1) + [True]
    return [tuple(map(int, row)) for row in batch.columns["obs"]]


def _whole(env_id: int, number: int, length: int) -> list[tuple[int, ...]]:
    return [(env_id, number, time) for time in range(length)]


def test_aborted_call_does_not_affect_the_next_call(make_policy, make_episodes, form) -> None:
    policy = make_policy(form=form)
    collector, _ = make_episodes(policy, ((4,), (4,)))
    name = "forward_batch" if form == "columns" else "forward"
    calls = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("interrupted")
        return getattr(policy, name)(*args, **kwargs)

    collector.reset_policy(policy._replace(**{name: fails}))
    with pytest.raises(OSError, match="interrupted"):
        collector.collect(2, policy_kwargs=GREEDY)

    assert [_rows(each) for each in collector.collect(2, policy_kwargs=GREEDY)] == [
        _whole(0, 1, 4),
        _whole(1, 1, 4),
    ]


def test_rewards_are_shaped_by_the_env_manager(make_policy, make_episodes, form) -> None:
    collector, _ = make_episodes(make_policy(form=form), ((2,), (3,)), reward_shaping=True)
    seen: list[int] = []

    def shape(env_id: int, episode: list[dict[str, Any]]) -> None:
        seen.append(env_id)
        for each in episode:
            each["reward"] = 10.0 + env_id

    collector.env.reward_shaping = shape
    episodes = collector.collect(2, policy_kwargs=GREEDY)

    assert seen == [0, 1]
    assert [[row["reward"] for row in each] for each in episodes] == [[10.0] * 2, [11.0] * 3]


def test_envs_that_cannot_shape_rewards_are_refused(make_policy, make_episodes) -> None:
    collector, _ = make_episodes(make_policy(), reward_shaping=True)
    with pytest.raises(ConfigError, match="no reward_shaping"):
        collector.collect(2)


@pytest.mark.parametrize(("every", "points"), [(1, [10, 20, 25]), (2, [20, 25]), (99, [25])])
def test_curves_have_a_point_for_ten_env_steps_an_iteration_and_one_at_the_end(
    make_policy, make_episodes, every: int, points: list[int]
) -> None:
    writer, envs = Scalars(), ((2,), (3,))
    collector, _ = make_episodes(make_policy(), envs, tb_logger=writer, collect_print_freq=every)
    for n_episode in (4, 4, 2):
        collector.collect(n_episode, policy_kwargs=GREEDY)
    collector.close()

    counts = writer.points["collector_step/episode_count"]
    assert [step for _, step in counts] == points
    assert sum(count for count, _ in counts) == 10
