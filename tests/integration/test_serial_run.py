"""Serial runs of the shipped example on the real CartPole, with a small budget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dingsdk import evaluate, resume, train
from dingsdk.errors import ConfigTypeError, EnvError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker import BaseSerialCommander
from dingsdk.worker.learner.checkpoint import load_checkpoint

SMALL = (
    "system.max_env_steps=600",
    "env.n_evaluator_episode=3",
    "env.evaluator_env_num=3",
    "env.collector_env_num=4",
    "policy.collect.n_sample=32",
    "policy.learn.update_per_collect=2",
    "policy.learn.batch_size=32",
    "policy.eval.evaluator.eval_freq=10",
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished small run; tests only read it."""
    return train("cartpole-dqn", sets=SMALL, output=tmp_path_factory.mktemp("runs")).run_dir


def test_run_within_a_budget_ends_at_the_limit(tmp_path: Path) -> None:
    result = train("cartpole-dqn", sets=SMALL, output=tmp_path)

    assert (result.reason, result.reached, result.mode) == ("limit", False, "serial")
    assert 600 <= result.env_steps < 600 + 200
    assert result.train_iter > 20
    assert len(result.evaluations) >= 3
    assert result.evaluations[0].train_iter == 0
    assert result.evaluations[-1].train_iter == result.train_iter


def test_run_folder_has_curve_logs_and_checkpoints(run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())

    assert (run_dir / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list(run_dir.glob("log/**/events.out.tfevents.*"))
    assert list(run_dir.glob("log/**/*.txt"))
    assert sorted(result["checkpoints"]) == ["best", "latest"]
    latest = load_checkpoint(run_dir / result["checkpoints"]["latest"])
    assert latest.iteration == result["train_iter"]


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_progress_of_a_run_can_be_shown_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: Any
) -> None:
    assert train("cartpole-dqn", mode, sets=SMALL, output=tmp_path).run_dir.exists()
    assert capsys.readouterr().out == ""
    result = train("cartpole-dqn", mode, sets=SMALL, output=tmp_path, progress=True)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"training dqn on CartPole-v1, {mode}, seed 0, until a mean return of")
    assert first.endswith(f"run folder {result.run_dir}")
    assert f"{result.env_steps:,} env steps" in others[-1]
    assert f"{result.train_iter:,} iterations" in others[-1]


def test_progress_that_is_no_display_is_refused_before_a_run_folder_is_made(tmp_path: Path) -> None:
    for wrong in (None, "table", 1):
        with pytest.raises(ConfigTypeError, match=r"^progress: expected True or False"):
            train("cartpole-dqn", sets=SMALL, output=tmp_path, progress=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match=r"^progress: expected"):
        resume(tmp_path, progress=None)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.fixture
def manager() -> Iterator[PluginManager]:
    manager = PluginManager(discover=lambda: [])
    with use_manager(manager):
        yield manager


def test_third_party_commander_is_used_in_a_run(tmp_path: Path, manager: PluginManager) -> None:
    steps: list[int] = []

    class Greedy(BaseSerialCommander):  # type: ignore[misc]
        config: ClassVar[dict[str, Any]] = {"eps": 0.5}

        def step(self) -> dict[str, Any]:
            steps.append(self._collector.envstep)
            return {**super().step(), "eps": self._cfg.eps}

    manager.registry("serial_commanders").register("greedy", Greedy)
    commander = "policy.other.serial_commander={type: greedy, eps: 0.1}"

    train("cartpole-dqn", sets=[*SMALL, commander], output=tmp_path)

    assert steps[0] == 0
    assert steps == sorted(steps)
    assert len(steps) > 10


def test_failing_env_ends_the_run_with_its_error_and_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_env.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Failing(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('the wheel came off')\n"
        "gymnasium.register('Failing-v0', entry_point=Failing, max_episode_steps=500)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sets = [*SMALL, "env.env_id='failing_env:Failing-v0'", "env_manager.type=in_process"]

    with pytest.raises(EnvError) as caught:
        train("cartpole-dqn", sets=sets, output=tmp_path / "runs")

    assert "the wheel came off" in str(caught.value.__cause__)
    result = json.loads((tmp_path / "runs" / "cartpole-dqn" / "result.json").read_text())
    assert result["reason"] == "error"
    assert result["error"].startswith("EnvError")


def test_evaluate_is_repeatable_and_does_not_change_the_run_folder(run_dir: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*"))

    first = evaluate(run_dir, checkpoint="latest", episodes=4, seed=3)
    again = evaluate(run_dir, checkpoint="latest", episodes=4, seed=3)

    assert first.returns == again.returns
    assert sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*")) == before
