"""The sample collector, in both forms, is compared with a plain model of collecting."""

from __future__ import annotations

import math
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.envs import create_env_manager
from dingsdk.plugins import hookimpl
from dingsdk.worker.collector.sample import SampleSerialCollector
from tests.own_plugins import using

from .scripted import (
    CountingPolicy,
    EndedEpisode,
    Model,
    NextStepEnvs,
    Script,
    differences,
    env_fns,
    plain_rows,
)

# Resets between collects skip episodes that would succeed, so failures in a row can be many.
IN_PROCESS = {"type": "in_process", "max_retry": 1000}
MANAGERS: dict[str, Any] = {
    "in_process": partial(create_env_manager, IN_PROCESS),
    "next_step": partial(NextStepEnvs, {"max_retry": 1000}),
}


class Recorder:
    """Records the scalars that the collector writes and the hooks that it calls."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}
        self.episodes: list[tuple[str, EndedEpisode]] = []
        self.collects: list[tuple[str, int, int, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag] = (value, step)

    def flush(self) -> None: ...

    @hookimpl
    def dingsdk_after_episode(
        self, source: str, env_id: int, episode_return: float, length: int
    ) -> None:
        self.episodes.append((source, EndedEpisode(env_id, episode_return, length)))

    @hookimpl
    def dingsdk_after_collect(
        self, source: str, sample_count: int, envstep: int, train_iter: int
    ) -> None:
        self.collects.append((source, sample_count, envstep, train_iter))


class Statistics:
    """Computes the scalars that the collector must log."""

    def __init__(self, print_freq: int) -> None:
        self.print_freq = print_freq
        self.zero()

    def zero(self) -> None:
        self.last_iter = self.samples_in_all = self.episodes_in_all = 0
        self.start_interval()

    def start_interval(self) -> None:
        self.episodes: list[EndedEpisode] = []
        self.steps = self.samples = 0
        self.outer_seconds = 0.0

    def check(self, scalars: dict[str, tuple[float, int]], train_iter: int, envstep: int) -> None:
        has_waited = train_iter - self.last_iter >= self.print_freq
        is_due = has_waited or self.steps >= 10 * self.print_freq
        if not (is_due and self.episodes):
            assert scalars == {}
            return
        self.last_iter = train_iter
        returns = [each.episode_return for each in self.episodes]
        count = len(returns)
        expected = {
            "episode_count": count,
            "envstep_count": self.steps,
            "train_sample_count": self.samples,
            "avg_envstep_per_episode": sum(each.length for each in self.episodes) / count,
            "avg_sample_per_episode": self.samples / count,
            "reward_mean": sum(returns) / count,
            "reward_std": float(np.std(returns)),
            "reward_max": max(returns),
            "reward_min": min(returns),
            "total_envstep_count": envstep,
            "total_train_sample_count": self.samples_in_all,
            "total_episode_count": self.episodes_in_all,
        }
        for key, value in expected.items():
            assert scalars[f"collector_iter/{key}"] == (pytest.approx(value), train_iter), key
            if key != "total_envstep_count":
                assert scalars[f"collector_step/{key}"] == (pytest.approx(value), envstep), key
        # All rates use one duration, which is at most the time measured around the collects.
        seconds = count / scalars["collector_iter/avg_episode_per_sec"][0]
        assert 0 < seconds <= self.outer_seconds
        rate = scalars["collector_iter/avg_envstep_per_sec"][0]
        assert rate == pytest.approx(self.steps / seconds)
        rate = scalars["collector_iter/avg_train_sample_per_sec"][0]
        assert rate == pytest.approx(self.samples / seconds)
        self.start_interval()


COLLECT = st.fixed_dictionaries(
    {
        "wanted": st.integers(1, 25) | st.none(),
        "drop_extra": st.sampled_from([None, None, True, False]),
        "shift": st.integers(0, 4),
        "is_random": st.sampled_from([False, False, True]),
        "is_recorded": st.sampled_from([True, True, False]),
        "iters": st.integers(0, 3),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    case=st.fixed_dictionaries(
        {
            "script": st.builds(
                Script, st.integers(0, 999), st.integers(1, 9), st.sampled_from([0.0, 0.3])
            ),
            "env_num": st.integers(1, 4),
            "n_sample": st.integers(1, 20) | st.none(),
            "unroll_len": st.integers(1, 4),
            "traj_len_inf": st.booleans(),
            "on_policy": st.booleans(),
            "level_seeds": st.none() | st.just([40, 41, 42, 43]),
            "form": st.sampled_from(["columns", "rows"]),
            "manager": st.sampled_from(sorted(MANAGERS)),
            "print_freq": st.sampled_from([0, 2]),
            "deepcopy_obs": st.booleans(),
        }
    ),
    calls=st.lists(
        COLLECT | st.sampled_from(["reset_env", "reset_policy", "reset", "resume", "resume"]),
        max_size=6,
    ),
)
def test_collector_matches_the_model(case: dict[str, Any], calls: list[Any]) -> None:
    run(case, calls)


CASE: dict[str, Any] = {
    "n_sample": 4, "unroll_len": 1, "traj_len_inf": False, "on_policy": False, "level_seeds": None,
    "form": "columns", "manager": "in_process", "print_freq": 0, "deepcopy_obs": False,
}  # fmt: skip
CALL: dict[str, Any] = {
    "wanted": None, "drop_extra": False, "shift": 0, "is_random": False, "is_recorded": True,
    "iters": 1,
}  # fmt: skip


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize("manager", sorted(MANAGERS))
@pytest.mark.parametrize("on_policy", [False, True])
def test_long_collection_matches_the_model(form: str, manager: str, on_policy: bool) -> None:
    case = {
        **CASE, "script": Script(seed=5, longest=90, fail_rate=0.4), "env_num": 3, "n_sample": 30,
        "traj_len_inf": not on_policy, "on_policy": on_policy, "level_seeds": [7, 8, 9],
        "form": form, "manager": manager, "print_freq": 2,
    }  # fmt: skip
    call = {**CALL, "shift": 1}
    unrecorded = {**call, "is_random": True, "is_recorded": False}
    kept = {**call, "drop_extra": None, "wanted": 7, "iters": 0}
    before, after = [unrecorded, call, {**call, "wanted": 400}, kept], [kept, call, "reset_env"]
    run(case, [*before, "resume", *after, "resume", call, call, "resume", unrecorded])


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize("manager", sorted(MANAGERS))
def test_reset_after_all_envs_ended_at_once_matches_the_model(form: str, manager: str) -> None:
    script = Script(seed=0, longest=1, fail_rate=0.0)
    call = {**CALL, "iters": 0}
    case = {**CASE, "script": script, "env_num": 2, "form": form, "manager": manager}
    run(case, [call, "reset_env", call])


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize("env_num", [1, 3])
def test_dropped_samples_of_whole_episodes_match_the_model(form: str, env_num: int) -> None:
    script = Script(seed=5, longest=9, fail_rate=0.3)
    case = {**CASE, "script": script, "env_num": env_num, "traj_len_inf": True, "form": form}
    call = {**CALL, "drop_extra": True}
    kept = {**call, "drop_extra": None}
    run(case, [call, call, kept, "resume", call, kept, kept, call, call, "reset_env", call, call])


@pytest.mark.parametrize("n_sample", [None, 6])
def test_rounds_keep_their_values_when_the_writer_moves_them(n_sample: int | None) -> None:
    script = Script(seed=2, longest=24, fail_rate=0.0)
    case = {**CASE, "script": script, "env_num": 4, "n_sample": n_sample}
    run(case, [{**CALL, "wanted": 10 + 7 * (number % 9)} for number in range(60)])


def run(case: dict[str, Any], calls: list[Any]) -> None:
    env_num, n_sample = case["env_num"], case["n_sample"]
    traj_len = None
    if n_sample is not None and not case["traj_len_inf"]:
        traj_len = max(case["unroll_len"], math.ceil(n_sample / env_num))
    policy = CountingPolicy(
        cfg={"traj_len_inf": case["traj_len_inf"]},
        n_sample=n_sample,
        unroll_len=case["unroll_len"],
        on_policy=case["on_policy"],
    )
    is_next_step = case["manager"] == "next_step"
    model = Model(
        case["script"], env_num, traj_len, case["on_policy"], is_next_step,
        asks_in_reset=case["form"] == "columns", level_seeds=case["level_seeds"],
        truncates=case["on_policy"] and traj_len is not None and case["unroll_len"] == 1,
    )  # fmt: skip
    statistics = Statistics(case["print_freq"])
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as root, using(recorder):
        cfg = {"collect_print_freq": case["print_freq"], "deepcopy_obs": case["deepcopy_obs"]}

        def new_collector() -> SampleSerialCollector:
            env = MANAGERS[case["manager"]](env_fns(case["script"], env_num))
            mode = policy.mode(case["form"])
            return SampleSerialCollector({**cfg, "seed": 1}, env, mode, recorder, root)

        def resumed(before: SampleSerialCollector) -> SampleSerialCollector:
            """Return a new collector with the state of ``before``."""
            state, env_state, asked = before.state_dict(), before.env.get_state(), policy.asked
            before.close()  # writes the last log
            recorder.scalars.clear()
            policy.asked = {}  # the constructor resets it
            after = new_collector()
            policy.asked = asked
            after.env.set_state(env_state)
            after.load_state_dict(state)
            return after

        collector = new_collector()
        train_iter = 0
        for call in calls:
            if call == "resume":
                collector = resumed(collector)
            elif isinstance(call, str):
                getattr(collector, call)()
                if call != "reset_policy":
                    model.reset_env()
                if call != "reset_env":
                    model.reset_policy()
                if call == "reset":
                    model.envstep = model.dropped = 0
                    statistics.zero()
            if isinstance(call, str):
                continue
            train_iter += call["iters"]
            wanted = call["wanted"] or n_sample or 5
            asked_before = dict(policy.asked)
            started = time.perf_counter()
            samples = collector.collect(
                None if call["wanted"] is None and n_sample else wanted,
                train_iter,
                call["drop_extra"],
                random_collect=call["is_random"],
                record_random_collect=call["is_recorded"],
                policy_kwargs={"shift": call["shift"]},
                level_seeds=case["level_seeds"],
            )
            if call["is_recorded"]:
                statistics.outer_seconds += time.perf_counter() - started
            rows, episodes, steps = model.collect(
                wanted, train_iter, call["drop_extra"], call["shift"], call["is_random"]
            )
            assert differences(plain_rows(samples), rows) == []
            assert collector.envstep == model.envstep
            assert collector.dropped_sample_count == model.dropped
            assert sorted(policy.resets) == sorted(model.resets)
            if call["is_random"]:
                assert all(policy.asked[env_id] == asked_before[env_id] for env_id in policy.asked)
            assert recorder.collects == [("collector", len(rows), model.envstep, train_iter)]
            statistics.samples_in_all += len(rows)
            if call["is_recorded"]:
                told = [("collector", episode) for episode in episodes]
                assert recorder.episodes == told
                statistics.episodes += episodes
                statistics.episodes_in_all += len(episodes)
                statistics.steps += steps
                statistics.samples += len(rows)
                statistics.check(recorder.scalars, train_iter, model.envstep)
            else:
                assert (recorder.episodes, recorder.scalars) == ([], {})
            recorder.collects.clear()
            recorder.episodes.clear()
            recorder.scalars.clear()
            policy.resets.clear()
            model.resets.clear()
        collector.close()
