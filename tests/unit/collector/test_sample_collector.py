from __future__ import annotations

from typing import Any

import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, PolicyOutputError

from .late_envs import LateEnvs

GREEDY = {"eps": 0.0}


def _batch(samples: Any) -> SampleBatch:
    return samples if isinstance(samples, SampleBatch) else SampleBatch.from_rows(samples)


def _rows(samples: Any, key: str = "obs") -> list[tuple[int, ...]]:
    """Return (env, episode, time) of each sample."""
    return [tuple(map(int, row)) for row in _batch(samples).columns[key]]


def test_collect_fails_once_the_envs_have_used_up_their_episodes(
    make_policy, make_collector, form, manager_type
) -> None:
    collector, _ = make_collector(make_policy(12, form), manager_type=manager_type, episode_num=1)

    with pytest.raises(ConfigError, match="used up the 1 episodes") as caught:
        collector.collect(policy_kwargs=GREEDY)
    assert caught.value.path == "env_manager.episode_num"


@pytest.mark.parametrize(("most", "is_refused"), [(20, True), (10_000, False)])
def test_policy_that_makes_no_samples_is_refused_after_many_steps(
    make_policy, make_collector, monkeypatch, most, is_refused
) -> None:
    monkeypatch.setattr("dingsdk.worker.collector.sample._MOST_STEPS_IN_VAIN", most)
    policy = make_policy()
    flushes = []

    def make_samples(columns: Any, ends: Any) -> Any:
        flushes.append(len(columns["obs"]))
        samples = policy.make_samples(columns, ends)
        return samples if sum(flushes) > 50 else samples[:0]

    collector, counters = make_collector(policy._replace(make_samples=make_samples))
    if is_refused:
        text = "made no sample of 20 env steps; 8 samples"
        with pytest.raises(PolicyOutputError, match=text) as caught:
            collector.collect()
        assert (caught.value.expected, caught.value.found) == (8, 0)
        assert 20 < counters.steps <= 40
    else:
        assert len(collector.collect()) == 8


def test_samples_of_a_failed_on_policy_collect_are_dropped(
    make_policy, make_collector, form
) -> None:
    mode, calls = make_policy(8, form, on_policy=True), []
    name = "forward_batch" if form == "columns" else "forward"

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        return getattr(mode, name)(*args, **kwargs)

    collector, _ = make_collector(mode._replace(**{name: fail_once}), ((2,), (9,)))
    with pytest.raises(RuntimeError, match="out of memory"):
        collector.collect(train_iter=0, policy_kwargs=GREEDY)

    other = collector.collect(train_iter=1, policy_kwargs=GREEDY)

    # Three rounds of two envs; one env has ended an episode.
    assert collector.dropped_sample_count == 6
    assert [int(row["collect_iter"]) for row in other] == [1] * 8


class ClosedFile:
    """A tensorboard writer whose file was already closed at interpreter exit."""

    def add_scalar(self, *args: Any) -> None:
        pass

    def flush(self) -> None:
        raise ValueError("flush of closed file")


def test_deleting_an_unclosed_collector_raises_nothing(make_collector, make_policy) -> None:
    collector, _ = make_collector(make_policy(), tb_logger=ClosedFile())
    env = collector.env

    collector.__del__()

    assert env.closed
    with pytest.raises(ValueError, match="flush of closed file"):
        make_collector(make_policy(), tb_logger=ClosedFile())[0].close()


def _late_collector(make_collector, policy) -> Any:
    """Return a collector of two envs; the steps of env 1 end a round later."""
    collector, counters = make_collector(policy, ((9,), (9,)))
    collector.env.close()
    collector.reset_env(LateEnvs({"type": "in_process"}, counters.env_fns))
    return collector


def test_rows_have_the_version_of_the_policy_that_began_their_step(
    make_policy, make_collector
) -> None:
    collector = _late_collector(make_collector, make_policy(2))

    first = collector.collect(1, train_iter=0, policy_kwargs=GREEDY)
    other = collector.collect(2, train_iter=1, policy_kwargs=GREEDY)

    assert [row[::2] for row in _rows(first)] == [(0, 0)]
    versions = [int(row["collect_iter"]) for row in other]
    found = dict(zip([row[::2] for row in _rows(other)], versions, strict=True))
    assert found == {(0, 1): 1, (1, 0): 0}


def test_saved_collector_knows_the_policy_of_unfinished_steps(make_policy, make_collector) -> None:
    collector = _late_collector(make_collector, make_policy(4, on_policy=True))
    collector.collect(train_iter=0, policy_kwargs=GREEDY)

    collector.load_state_dict(collector.state_dict())
    other = collector.collect(train_iter=1, policy_kwargs=GREEDY)

    assert {row[::2] for row in _rows(other)} == {(0, 3), (0, 4), (0, 5), (1, 2)}
