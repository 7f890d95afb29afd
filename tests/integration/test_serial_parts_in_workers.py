"""Serial collectors and evaluators named by the config run unchanged in workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dingsdk.config import PartSection
from dingsdk.errors import ConfigError
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.train import compile_run, train
from dingsdk.plugins import PluginManager
from dingsdk.worker import ISerialCollector
from tests.own_plugins import using

from . import short_runs
from .own_parts import FixedEvaluator


class PlainCollector(ISerialCollector):
    """Acts at random and returns plain dicts; it keeps no statistics."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Its section."""

        type: str = "plain"
        scale: float = 1.0

    _config_path: ClassVar[str] = "policy.collect.collector"
    seen: ClassVar[list[tuple[float, int, float]]] = []

    def collect(self, train_iter: int, policy_kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.seen.append((self._cfg.scale, train_iter, policy_kwargs["eps"]))
        rows = []
        while len(rows) < 16:
            obs = self.env.ready_obs
            for env_id, step in self.env.step(self.env.random_action()).items():
                self.envstep += 1
                rows.append(
                    {
                        "obs": obs[env_id],
                        "next_obs": np.asarray(step.obs),
                        "action": np.int64(step.info.get("action", 0)),
                        "reward": np.float32(step.reward),
                        "done": bool(step.done),
                        "discount": np.float32(0.0 if step.done else 0.99),
                    }
                )
        return rows


@pytest.fixture(autouse=True)
def manager() -> Iterator[PluginManager]:
    PlainCollector.seen.clear()
    own = {"collectors": {"plain": PlainCollector}, "evaluators": {"fixed": FixedEvaluator}}
    with using(**own) as made:
        yield made


def run(output: Path, *sets: str, concurrency: str = "greenlets") -> RunResult:
    sets = (*short_runs.QUICK, f"system.transport.concurrency={concurrency}", *sets)
    return train("cartpole-dqn", "parallel", "in_memory", sets, 3, output)


@pytest.mark.parametrize(
    "concurrency", ["greenlets", pytest.param("threads", marks=pytest.mark.slow)]
)
def test_third_party_collector_and_evaluator_run_in_workers(
    tmp_path: Path, concurrency: str
) -> None:
    result = run(
        tmp_path,
        "policy.collect.collector.type=plain",
        "policy.collect.collector.scale=2.5",
        "policy.eval.evaluator.type=fixed",
        "policy.eval.evaluator.value=7",
        "policy.nstep=1",
        concurrency=concurrency,
    )
    assert (result.reason, result.train_iter) == ("limit", 200)
    scales, iters, eps = zip(*PlainCollector.seen, strict=True)
    assert set(scales) == {2.5}
    assert max(iters) > 0  # newer policies were loaded
    assert len(set(eps)) > 1  # the tasks ended, and the next ones had other settings
    assert {each.mean for each in result.evaluations} == {14.0}
    assert "best" in result.checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("form", ["forward", "forward_batch"])
def test_policy_calls_without_env_steps_yield_to_other_jobs(
    tmp_path: Path, manager: PluginManager, form: str
) -> None:
    class Planner(FixedEvaluator):
        """Calls the policy in an endless loop."""

        def eval(self, *args: Any, **kwargs: Any) -> Any:
            obs: Any = np.zeros((1, 4), np.float32)
            while True:
                getattr(self.policy, form)(obs if form == "forward_batch" else {0: obs[0]})

    manager.registry("evaluators").register("planner", Planner)
    sets = ("policy.eval.evaluator.type=planner", "system.coordinator.last_evaluation_s=0.1")
    result = run(tmp_path, *sets)
    assert (result.reason, result.train_iter) == ("limit", 200)
    assert result.evaluations == ()


def test_on_policy_run_refuses_a_collector_that_cannot_pause() -> None:
    sets = ("policy.collect.collector.type=plain",)
    with pytest.raises(ConfigError) as caught:
        compile_run("cartpole-ppo", mode="parallel", transport="in_memory", sets=sets)
    assert caught.value.facts["path"] == "policy.collect.collector.type"
    compile_run("cartpole-ppo", sets=sets)
