from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.errors import ConfigError, EnvError, NonFiniteError, NotSetError, PolicyOutputError
from dingsdk.plugins import PluginManager, hookimpl, use_manager
from dingsdk.worker.collector.sample import SampleSerialCollector

GREEDY = {"eps": 0.0}


def _batch(samples: Any) -> SampleBatch:
    return samples if isinstance(samples, SampleBatch) else SampleBatch.from_rows(samples)


def _rows(samples: Any, key: str = "obs") -> list[tuple[int, ...]]:
    """(env, episode, time) of each sample."""
    return [tuple(map(int, row)) for row in _batch(samples).columns[key]]


def test_columns_come_as_a_batch_and_rows_as_a_list(make_policy, make_collector) -> None:
    assert isinstance(make_collector(make_policy())[0].collect(), SampleBatch)
    assert isinstance(make_collector(make_policy(form="rows"))[0].collect(), list)


def test_collect_returns_exactly_n_sample(make_policy, make_collector, form, manager_type) -> None:
    collector, _ = make_collector(make_policy(7, form), ((3,), (4, 2)), manager_type)

    assert [len(collector.collect(policy_kwargs=GREEDY)) for _ in range(5)] == [7] * 5
    assert len(collector.collect(n_sample=11, policy_kwargs=GREEDY)) == 11


def test_without_drop_extra_everything_is_returned(make_policy, make_collector, form) -> None:
    collector, _ = make_collector(make_policy(7, form))

    samples = collector.collect(drop_extra=False)

    # 2 envs, cut after ceil(7 / 2) rows each.
    assert len(samples) == 8
    assert collector.envstep == 8


def test_unfinished_trajectories_go_on_in_the_next_collect(
    make_policy, make_collector, form, manager_type
) -> None:
    collector, _ = make_collector(make_policy(12, form), ((3,), (100,)), manager_type)

    seen = [_rows(collector.collect(3, drop_extra=False)) for _ in range(6)]

    assert seen[0] == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    times_of_env_1 = [time for rows in seen for env, _, time in rows if env == 1]
    assert times_of_env_1 == list(range(len(times_of_env_1)))
    assert len(times_of_env_1) >= 12


def test_every_transition_comes_out_exactly_once(
    make_policy, make_collector, form, manager_type
) -> None:
    collector, counters = make_collector(make_policy(2, form), ((3, 1), (4, 2)), manager_type)

    rows = [row for _ in range(40) for row in _rows(collector.collect(drop_extra=False))]

    assert len(rows) == len(set(rows)) == collector.envstep == counters.steps


def test_steps_spent_on_resets_are_neither_samples_nor_env_steps(tmp_path, make_policy) -> None:
    env = create_env_manager({"type": "vector"}, make_env_fns({"env_id": "CartPole-v1"}, 4))
    assert env.capabilities.reset_takes_step
    collector = SampleSerialCollector({}, env, make_policy(4, obs_size=4), exp_name=str(tmp_path))

    batches = [collector.collect(policy_kwargs={"eps": 1.0}, drop_extra=False) for _ in range(60)]
    collector.close()

    # Cut after 1 row: all that is counted came out. The first observation lies near 0.
    batch = SampleBatch.concat(batches)
    assert len(batch) == collector.envstep < 60 * 5
    assert batch.columns["done"].any()
    next_obs = batch.columns["next_obs"]
    assert (np.abs(next_obs[batch.columns["done"]]).max(axis=1) > 0.05).all()


def test_samples_stay_within_their_episode_and_end_at_its_last_observation(
    make_policy, make_collector, form, manager_type
) -> None:
    lengths = ((4, 2), (7, 3))
    collector, _ = make_collector(make_policy(10, form, nstep=3), lengths, manager_type)

    batch = _batch([row for _ in range(12) for row in collector.collect(policy_kwargs=GREEDY)])

    obs, next_obs = batch.columns["obs"], batch.columns["next_obs"]
    assert (obs[:, :2] == next_obs[:, :2]).all()
    span = next_obs[:, 2] - obs[:, 2]
    assert ((span >= 1) & (span <= 3)).all()
    assert batch.columns["reward"] == pytest.approx(
        np.array([1, 1.99, 2.9701])[span.astype(int) - 1]
    )
    ends = [lengths[int(env)][int(episode) % 2] for env, episode, _ in next_obs]
    assert (batch.columns["done"] == (next_obs[:, 2] == ends)).all()


def test_failed_episode_is_dropped_whole(make_policy, make_collector, form, manager_type) -> None:
    policy = make_policy(40, form)
    collector, _ = make_collector(policy, ((6,), (6,)), manager_type, fails={1: {(1, 4)}})

    rows = _rows(collector.collect(36, policy_kwargs=GREEDY))

    played = {(env, episode) for env, episode, _ in rows}
    assert (1, 1) not in played
    assert {(1, 0), (1, 2), (0, 1)} <= played
    assert all(sum(row[:2] == each for row in rows) <= 6 for each in played)


def test_third_failure_in_a_row_ends_the_collect(make_policy, make_collector, form) -> None:
    fails = {0: {(k, 1) for k in range(9)}}
    collector, _ = make_collector(make_policy(8, form), fails=fails)

    with pytest.raises(EnvError) as caught:
        collector.collect(policy_kwargs=GREEDY)
    assert "breaks" in str(caught.value.__cause__)


def test_collect_iter_is_the_version_that_acted(make_policy, make_collector, form) -> None:
    collector, _ = make_collector(make_policy(12, form), ((3,), (100,)))

    first = _batch(collector.collect(3, train_iter=10, drop_extra=False))
    second = _batch(collector.collect(9, train_iter=11, drop_extra=False))

    assert first.columns["collect_iter"].tolist() == [10] * 3
    iters = {
        (int(row["obs"][0]), int(row["obs"][2])): int(row["collect_iter"])
        for row in second
        if row["obs"][0] == 1
    }
    assert [iters[1, time] for time in range(6)] == [10, 10, 10, 11, 11, 11]


def test_level_seeds_become_a_column(make_policy, make_collector, form) -> None:
    collector, _ = make_collector(make_policy(8, form))

    batch = _batch(collector.collect(level_seeds=[70, 71]))

    assert (batch.columns["seed"] == batch.columns["obs"][:, 0] + 70).all()


def test_envs_that_have_played_all_they_may_end_the_collect(
    make_policy, make_collector, form, manager_type
) -> None:
    collector, _ = make_collector(make_policy(12, form), manager_type=manager_type, episode_num=1)

    with pytest.raises(ConfigError, match="used up the 1 episodes") as caught:
        collector.collect(policy_kwargs=GREEDY)
    assert caught.value.path == "env_manager.episode_num"


def test_random_collect_does_not_ask_the_policy(make_policy, make_collector, form) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("asked")

    policy = make_policy(64, form)
    policy = policy._replace(**{"forward" if form == "rows" else "forward_batch": refuse})
    collector, _ = make_collector(policy, seed=1)

    batch = _batch(collector.collect(random_collect=True))

    assert set(batch.columns["action"].tolist()) == {0, 1}


def test_unrecorded_random_collect_leaves_no_episode_statistics(
    make_policy, make_collector
) -> None:
    collector, _ = make_collector(make_policy(20), collect_print_freq=0)
    writer = _Scalars()
    collector._tb_logger = writer

    collector.collect(random_collect=True, record_random_collect=False)
    assert writer.tags == {}

    collector.collect(train_iter=1)
    assert writer.tags["collector_iter/reward_mean"] == (5.0, 1)
    assert writer.tags["collector_iter/envstep_count"] == (20, 1)
    assert writer.tags["collector_iter/train_sample_count"] == (20, 1)
    assert writer.tags["collector_step/avg_envstep_per_episode"] == (5.0, 40)
    assert "collector_step/total_envstep_count" not in writer.tags
    assert writer.tags["collector_iter/total_envstep_count"] == (40, 1)


class _Scalars:
    def __init__(self) -> None:
        self.tags: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.tags[tag] = (value, step)

    def flush(self) -> None: ...


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"action": np.zeros(3, np.int64)}, PolicyOutputError),
        ({"action": np.full(2, np.nan)}, NonFiniteError),
        ({"action": np.zeros(2, np.int64), "value": np.array([1.0, np.inf])}, NonFiniteError),
        ({"logit": np.zeros((2, 2))}, PolicyOutputError),
        ({"action": np.full(2, 7)}, PolicyOutputError),
        ({"action": np.zeros((2, 2), np.int64)}, PolicyOutputError),
        ({"action": [0, 1]}, PolicyOutputError),
    ],
)
def test_unusable_columns_are_refused_before_an_env_moves(
    make_policy, make_collector, answer, error
) -> None:
    policy = make_policy()._replace(forward_batch=lambda obs, env_ids, **_: answer)
    collector, counters = make_collector(policy)

    with pytest.raises(error):
        collector.collect()
    assert counters.steps == 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({}, PolicyOutputError),
        ({0: {"action": 0}, 1: {}}, PolicyOutputError),
        ({0: {"action": 0}, 1: {"action": np.float32("nan")}}, NonFiniteError),
        ({0: {"action": 0}, 1: {"action": 5}}, PolicyOutputError),
    ],
)
def test_unusable_dicts_are_refused_before_an_env_moves(
    make_policy, make_collector, answer, error
) -> None:
    policy = make_policy(form="rows")._replace(forward=lambda obs, **_: answer)
    collector, counters = make_collector(policy)

    with pytest.raises(error):
        collector.collect()
    assert counters.steps == 0


def test_env_and_policy_may_come_later(tmp_path, make_policy, make_collector) -> None:
    donor, _ = make_collector(None)
    collector = SampleSerialCollector({}, exp_name=str(tmp_path / "late"))

    with pytest.raises(NotSetError):
        collector.reset_policy(make_policy())
    collector.reset_env(donor._env)
    with pytest.raises(NotSetError) as caught:
        collector.collect(4)
    assert caught.value.what == "policy"
    collector.reset_policy(make_policy())

    assert len(collector.collect(4)) == 4
    collector.close()


def test_n_sample_must_come_from_somewhere(make_policy, make_collector) -> None:
    collector, _ = make_collector(make_policy(None))

    with pytest.raises(RuntimeError, match="n_sample"):
        collector.collect()
    # Without the policy's n_sample whole episodes become samples.
    assert len(collector.collect(4, drop_extra=False)) == 10


def test_reset_without_arguments_restarts_env_and_counters(make_policy, make_collector) -> None:
    collector, _ = make_collector(make_policy(8))
    collector.collect()

    collector.reset()

    assert collector.envstep == 0
    assert {time for _, _, time in _rows(collector.collect())} == {0, 1, 2, 3}


def test_on_policy_drops_what_is_unfinished(make_policy, make_collector, form) -> None:
    collector, _ = make_collector(make_policy(12, form, on_policy=True), ((3,), (100,)))

    collector.collect(3, drop_extra=False)
    rows = _rows(collector.collect(12, drop_extra=False))

    assert min(time for env, _, time in rows if env == 1) == 3


def test_envstep_can_be_set_to_resume(make_policy, make_collector) -> None:
    collector, _ = make_collector(make_policy(8))
    collector.envstep = 1000
    collector.collect()
    assert collector.envstep == 1008


def test_close_is_idempotent_and_harmless_after_a_failed_constructor(tmp_path) -> None:
    collector = SampleSerialCollector({}, exp_name=str(tmp_path))
    collector.close()
    collector.close()

    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        SampleSerialCollector({}, exp_name=str(tmp_path / "file"))


def test_long_trajectories_outgrow_the_first_allocation(make_policy, make_collector) -> None:
    collector, _ = make_collector(make_policy(None), ((300, 10), (7,)))

    rows = [row for _ in range(3) for row in _rows(collector.collect(310, drop_extra=False))]

    assert sorted(row[2] for row in rows if row[:2] == (0, 0)) == list(range(300))
    assert len(rows) == len(set(rows))


def test_observers_hear_of_episodes_and_collects(make_policy, make_collector) -> None:
    heard: list[Any] = []

    class Listener:
        @hookimpl
        def dingsdk_after_episode(self, source: str, episode_return: float, length: int) -> None:
            heard.append((source, episode_return, length))

        @hookimpl
        def dingsdk_after_collect(self, sample_count: int, envstep: int, train_iter: int) -> None:
            heard.append((sample_count, envstep, train_iter))

    manager = PluginManager()
    manager.register_plugin(Listener(), "listener")
    with use_manager(manager):
        collector, _ = make_collector(make_policy(10))
        collector.collect(train_iter=4)

    assert heard == [("collector", 5.0, 5), ("collector", 5.0, 5), (10, 10, 4)]
