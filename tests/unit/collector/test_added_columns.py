"""Collectors can add the env id and the episode return to samples, as columns."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.data.list_samples import pack_samples
from dingsdk.policy import create_policy
from dingsdk.worker.collector.episode import EpisodeSerialCollector

ADDED = ["env_id", "episode_return"]
LENGTHS = ((2, 3), (4, 1))


def mode_of(form: str, added: list[str]) -> Any:
    collect = {"n_sample": 4, "unroll_len": 1, "added_columns": added}
    model = {"obs_shape": 3, "action_shape": 2}
    cfg = {"type": "dqn", "model": model, "collect": collect, "traj_len_inf": True}
    mode = create_policy(cfg, seed=0).collect_mode
    return mode if form == "columns" else mode._replace(forward_batch=None)


def facts(samples: Any, *names: str) -> list[tuple[int, ...]]:
    columns = pack_samples(samples).columns
    return [
        (*map(int, obs[:2]), *(int(columns[name][row]) for name in names))
        for row, obs in enumerate(columns["obs"])
    ]


@pytest.mark.parametrize("form", ["columns", "rows"])
def test_samples_have_the_env_and_the_return_of_their_episode(form, make_collector) -> None:
    collector, _ = make_collector(mode_of(form, ADDED), LENGTHS)
    found = facts(collector.collect(20, policy_kwargs={"eps": 0.5}), *ADDED)
    found += facts(collector.collect(20, policy_kwargs={"eps": 0.5}), *ADDED)
    assert len(found) == 40
    for env, episode, env_id, episode_return in found:
        assert env_id == env
        assert episode_return == LENGTHS[env][episode % 2]  # reward 1 per step


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["episodes", "samples"])
def test_whole_episodes_have_the_added_columns_too(form, is_cut, make_collector) -> None:
    collector, _ = make_collector(
        mode_of(form, ADDED), LENGTHS, kind=EpisodeSerialCollector, get_train_sample=is_cut
    )
    collected = collector.collect(4, policy_kwargs={"eps": 0.5})
    for part in [collected] if is_cut else collected:
        for env, episode, env_id, episode_return in facts(part, *ADDED):
            assert (env_id, episode_return) == (env, LENGTHS[env][episode % 2])


def test_columns_are_added_even_if_the_policy_leaves_others_out(make_collector) -> None:
    mode = mode_of("rows", ADDED)._replace(
        get_train_sample=lambda piece: [{"obs": row["obs"]} for row in piece]
    )
    collector, _ = make_collector(mode, LENGTHS)
    for env, episode, env_id, episode_return in facts(collector.collect(8), *ADDED):
        assert (env_id, episode_return) == (env, LENGTHS[env][episode % 2])


@pytest.mark.parametrize("form", ["columns", "rows"])
def test_return_of_an_unfinished_episode_is_nan(form, make_collector) -> None:
    mode = mode_of(form, ADDED)
    cfg = {**mode.get_attribute("cfg"), "traj_len_inf": False}
    read = mode.get_attribute
    own = {"cfg": cfg, "piece": "steps"}
    mode = mode._replace(get_attribute=lambda key: own[key] if key in own else read(key))
    collector, _ = make_collector(mode, ((1, 9), (9, 9)))
    columns = pack_samples(collector.collect(8, policy_kwargs={"eps": 0.5})).columns
    returns = columns["episode_return"].tolist()
    assert returns.count(1.0) == 1
    assert sum(each != each for each in returns) == 7  # NaN
