"""Serial runs that are interrupted or killed and resumed equal uninterrupted runs."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk import __version__, resume, train
from dingsdk.cli import main
from dingsdk.config import load_config, save_config
from dingsdk.data import container, decode_safetensors, encode_safetensors
from dingsdk.data.pytree import different_leaves
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    CheckpointVersionError,
    ConfigError,
    StorageFullError,
)
from dingsdk.pipeline.resume import RunSaver, find_save
from dingsdk.testing import StopAndGo
from dingsdk.testing.stop_and_go import _interrupt_after, outcome_of
from dingsdk.worker.commander.serial import BaseSerialCommander
from tests.own_plugins import using
from tools.os_calls import failing_calls

from .own_parts import FixedEvaluator
from .short_runs import SIXTY as SMALL
from .test_ordered_buffers import SequencePolicy
from .test_parallel_resume import contents, python, wait_until

RING = "replay_buffer_size=200"
ADVANCED = ("policy.other.replay_buffer.type=advanced", "policy.priority=true")


@pytest.mark.parametrize(
    "sets",
    [
        SMALL,
        # test_resume_matrix.py has the other policies, and priorities.
        pytest.param(
            (*SMALL, "env_manager.type=subprocess", "env_manager.envs_per_process=2"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (*SMALL, "env_manager.vectorization_mode=sync", "policy.nstep=3"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (*SMALL, "policy.other.replay_buffer.replay_buffer_size=200"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["dqn", "subprocess", "sync-nstep", "overwritten"],
)
def test_interrupted_run_equals_an_uninterrupted_one(tmp_path: Path, sets: tuple[str, ...]) -> None:
    StopAndGo("cartpole-dqn", sets).run(tmp_path, after_iterations=[6, 41])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_run_may_be_interrupted_at_any_iteration(tmp_path: Path, seed: int) -> None:
    stops = np.random.default_rng(seed).choice(np.arange(1, 59), 12, replace=False)
    sets = (*SMALL, *ADVANCED) if seed % 2 else SMALL
    StopAndGo("cartpole-dqn", sets).run(tmp_path, sorted(stops.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "extra", "config", "env_id"),
    [
        ("mujoco", "mujoco", "pendulum-sac", "Hopper-v5"),
        ("ale_py", "atari", "cartpole-dqn", "ale_py:ALE/Pong-v5"),
    ],
)
def test_interrupted_run_of_a_simulator_equals_an_uninterrupted_one(
    tmp_path: Path, package: str, extra: str, config: str, env_id: str
) -> None:
    pytest.importorskip(package, reason=f"the extra {extra} is not installed")
    kwargs = {"obs_type": "ram", "max_episode_steps": 40} if package == "ale_py" else {}
    sets = [
        *SMALL[:5],
        "policy.collect.n_sample=32",
        *(f"env.kwargs.{key}={value}" for key, value in kwargs.items()),
        f"env.env_id={env_id}",
        "env_manager.type=in_process",
        "env.stop_value=1e9",
    ]
    StopAndGo(config, sets).run(tmp_path, after_iterations=[6, 41])


@pytest.mark.slow
def test_run_with_asynchronous_envs_can_be_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sets = [
        *SMALL,
        "policy.learn.learner.train_iterations=20",
        "env_manager.type=async_subprocess",
        "env.collector_env_num=2",
        "env.evaluator_env_num=1",
    ]
    run = train("cartpole-dqn", sets=sets, output=tmp_path).run_dir
    assert resume(run, sets=["policy.learn.learner.train_iterations=40"]).train_iter == 40
    assert "begin" not in caplog.text


SCRIPT = """
import sys
from dingsdk import resume, train
if __name__ == "__main__":
    if sys.argv[1] == "train":
        train("cartpole-dqn", sets=sys.argv[3:], output=sys.argv[2])
    else:
        resume(sys.argv[2])
"""


@pytest.mark.slow
def test_killed_run_resumes_from_its_newest_save(tmp_path: Path) -> None:
    sets = [*SMALL, "policy.learn.learner.train_iterations=400", "system.save_every=0"]
    whole = train("cartpole-dqn", sets=[*sets, "exp_name=whole"], output=tmp_path).run_dir
    script, run = tmp_path / "run.py", tmp_path / "killed"
    script.write_text(SCRIPT)
    arguments = ["train", str(tmp_path), *sets, "exp_name=killed"]
    for saves in (5, 20):
        with python(str(script), *arguments):
            wait_until(lambda: has_saves(run, saves))  # noqa: B023
        assert not (run / "result.json").exists()
        arguments = ["resume", str(run)]
    with python(str(script), *arguments) as process:
        assert process.wait(120) == 0
    different = different_leaves(outcome_of(whole), outcome_of(run))
    # The run neither seeds nor uses the random streams of its processes.
    assert [name for name in different if not name.startswith("streams.")] == []


def test_memmap_rows_are_restored_from_the_save(tmp_path: Path) -> None:
    def run(name: str, *callbacks: Any) -> Path:
        storage = ("storage.type=memmap", f"storage.path={tmp_path / name}-rows")
        sets = [f"policy.other.replay_buffer.{each}" for each in (*storage, RING)]
        sets += [*SMALL, f"exp_name={name}", "system.save_every=1e9"]
        return train("cartpole-dqn", sets=sets, output=tmp_path, callbacks=callbacks).run_dir

    whole, stopped = run("whole"), run("stopped", _interrupt_after(30))
    resume(stopped)
    assert different_leaves(outcome_of(whole), outcome_of(stopped)) == []


def has_saves(run: Path, count: int) -> bool:
    return any(int(each.name) >= count for each in run.glob("resume/*"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two saves; tests copy it."""
    sets = [*SMALL, "policy.learn.learner.train_iterations=20", "system.save_every=0"]
    sets.append("system.coordinator.storage_timeout_s=0.5")
    return train("cartpole-dqn", sets=sets, output=tmp_path_factory.mktemp("runs")).run_dir


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "run"))


def _without_logs(folder: Path) -> dict[str, bytes]:
    return {name: each for name, each in contents(folder).items() if name[:4] != "log/"}


def test_resume_with_a_higher_limit_continues_and_saves_the_limit(run: Path) -> None:
    before = find_save(run)
    result = resume(run, sets=["policy.learn.learner.train_iterations=40"])
    assert result.run_dir == run
    assert result.train_iter >= 40
    assert result.elapsed_s > before.state.elapsed_s
    assert load_config(run / "config.yaml")["policy"]["learn"]["learner"]["train_iterations"] == 40
    after = find_save(run)
    assert after.number > before.number


@pytest.mark.parametrize(
    "change",
    ["policy.learn.batch_size=16", "seed=3", "env.env_id=Acrobot-v1", "system.max_env_stepz=3"],
)
def test_settings_that_cannot_change_are_refused(run: Path, change: str) -> None:
    before = contents(run)
    with pytest.raises(ConfigError, match=f"{change.split('=')[0]} cannot change"):
        resume(run, sets=[change])
    assert contents(run) == before


@pytest.mark.parametrize("name", ["state.safetensors", "buffer/rows-*"])
def test_damaged_save_is_refused_and_the_previous_one_is_named(run: Path, name: str) -> None:
    older, newest = sorted((run / "resume").iterdir())
    path = next(newest.glob(name))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    before = _without_logs(run)
    with pytest.raises(CheckpointCorruptError, match=f"resume from {older} instead") as caught:
        resume(run)
    assert path.name in str(caught.value) or path.name == "state.safetensors"
    assert _without_logs(run) == before
    assert resume(older).train_iter == 20


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"x" * 2_000])
def test_damaged_id_of_a_run_is_refused_in_one_line(
    run: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").write_bytes(content)
    assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"{run / 'run.json'} cannot be used" in error
    assert error.count("\n") == 1


def test_save_of_another_format_is_refused_and_nothing_changes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = sorted((run / "resume").iterdir())[-1]
    path = newest / "state.safetensors"
    state = decode_safetensors("run-state", path.read_bytes())
    with monkeypatch.context() as later:
        later.setattr(container, "VERSION", container.VERSION + 1)
        path.write_bytes(encode_safetensors("run-state", state))
    before = contents(run)
    with pytest.raises(CheckpointVersionError, match=f"{newest} cannot be used: format version 4;"):
        resume(run)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy.other.replay_buffer.replay_buffer_size", 777),
        ("policy.type", "sac"),
        ("seed", 4),
    ],
)
def test_save_of_another_run_is_refused(
    run: Path, key: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = load_config(run / "config.yaml")
    *path, last = key.split(".")
    section = config
    for name in path:
        section = section[name]
    section[last] = value
    save_config(config, run / "config.yaml")
    before = contents(run)
    assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert "is of another run" in error
    assert f"{key}: " in error
    assert error.count("\n") == 1
    assert contents(run) == before


def test_full_disk_while_saving_keeps_the_previous_saves(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted((run / "resume").iterdir())

    write = RunSaver._write

    def write_without_room(saver: RunSaver, number: int) -> None:
        with failing_calls({"write", "writev"}, 1, errno.ENOSPC, persistent=True):
            write(saver, number)

    with monkeypatch.context() as patch:
        patch.setattr(RunSaver, "_write", write_without_room)
        with pytest.raises(StorageFullError, match="storage_timeout_s"):
            resume(run, sets=["policy.learn.learner.train_iterations=24"])
    assert "the run cannot be saved for resuming" in caplog.text
    assert find_save(run).path in before
    assert resume(run, sets=["policy.learn.learner.train_iterations=28"]).train_iter == 28


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("policy", "KeyError: 'rng'"),
        ("collector", "KeyError: 'finished'"),
        ("evaluator", "KeyError: 'schedule'"),
        ("learner", "KeyError: 'monitor'"),
        ("commander", "KeyError: 'gone'"),
    ],
)
def test_save_of_another_version_of_a_part_is_refused_and_nothing_changes(
    run: Path, part: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = sorted((run / "resume").iterdir())[-1]
    path = newest / "state.safetensors"
    state = decode_safetensors("run-state", path.read_bytes())
    if part == "policy":
        state["policy"]["acting_state"] = {}
    elif part == "commander":

        def load(self: Any, state: Any) -> None:
            raise KeyError("gone")

        state["parts"]["commander"] = {}
        monkeypatch.setattr(BaseSerialCommander, "load_state_dict", load, raising=False)
    else:
        del state["parts"][part][error.split("'")[1]]
    path.write_bytes(encode_safetensors("run-state", state))
    before = _without_logs(run)

    text = f"(?s){newest} does not fit the {part} of this.*{error}.*dingsdk {__version__}"
    with pytest.raises(CheckpointVersionError, match=text):
        resume(run)

    assert _without_logs(run) == before


def test_folder_without_a_save_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match="is not a run folder"):
        resume(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(CheckpointMissingError, match="has no save and no journal"):
        resume(tmp_path)


def test_saving_can_be_turned_off(tmp_path: Path) -> None:
    sets = [*SMALL, "policy.learn.learner.train_iterations=4", "system.save_every=null"]
    run = train("cartpole-dqn", sets=sets, output=tmp_path).run_dir
    assert not (run / "resume").exists()


def test_command_line_resumes_and_refuses_options_of_new_runs(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", str(run), "--seed", "1"]) == 2
    assert "--resume takes the run's own seed" in capsys.readouterr().err
    assert main(["train"]) == 2
    assert "Missing argument 'CONFIG', or --resume RUN" in capsys.readouterr().err
    more = "policy.learn.learner.train_iterations=28"
    assert main(["train", "--resume", str(run), "--set", more, "--quiet"]) == 0
    assert "train --resume" in capsys.readouterr().out


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole with an attribute that cannot be saved."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.simulator = object()


def test_envs_that_cannot_be_saved_are_named_and_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sets = [*SMALL, "policy.learn.learner.train_iterations=20"]
    run = train("cartpole-dqn", sets=sets, output=tmp_path, env=Opaque).run_dir
    assert "the envs of the collector begin new episodes with other seeds" in caplog.text
    assert "Opaque.simulator is a builtins.object" in caplog.text
    before = find_save(run).state
    assert before.envs == {"collector": None, "evaluator": None}
    result = resume(run, sets=["policy.learn.learner.train_iterations=40"], env=Opaque)
    assert result.train_iter == 40
    assert result.env_steps > before.parts["collector"]["_total_envstep_count"]


def test_sequences_do_not_cross_from_the_saved_episode_to_a_new_one(tmp_path: Path) -> None:
    buffer = "policy.other.replay_buffer"
    sequences = ["policy.type=sequences", f"{buffer}.type=sequence", f"{buffer}.sequence_length=6"]
    sets = [*SMALL, *sequences, "policy.nstep=1", "policy.learn.learner.train_iterations=12"]
    sets.append("policy.learn.batch_size=16")
    with using(policies={"sequences": SequencePolicy}):
        run = train("cartpole-dqn", sets=sets, output=tmp_path, env=Opaque).run_dir
        collector = find_save(run).state.parts["collector"]
        assert collector["_stocks"][0], "no episode was returned in part"
        more = ["policy.learn.learner.train_iterations=120"]
        assert resume(run, sets=more, env=Opaque).train_iter == 120


@pytest.mark.parametrize(("kind", "is_told"), [("interaction", False), ("fixed", True)])
def test_warning_names_the_part_that_begins_new_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, is_told: bool
) -> None:
    sets = ["policy.learn.learner.train_iterations=1", f"policy.eval.evaluator.type={kind}"]
    sets.append("env.evaluator_env_num=2")
    with using(evaluators={"fixed": FixedEvaluator}):
        train("cartpole-dqn", sets=[*SMALL, *sets], output=tmp_path)
    told = [each.args for each in caplog.records if "if this run is resumed" in each.message]
    assert told == [("the evaluator FixedEvaluator begins new episodes",)] * is_told
