"""Envs in child processes: shared memory, waiting, and lost processes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.wrappers import TimeLimit

from dingsdk.data import decode_safetensors, encode_safetensors
from dingsdk.data.seeding import derive_seed
from dingsdk.envs import EnvManager, create_env_manager, make_env_fns
from dingsdk.envs import subprocess as subprocess_envs
from dingsdk.errors import ConfigError, EnvError, PolicyOutputError
from dingsdk.plugins import PluginManager, default_manager, use_manager
from dingsdk.plugins.registry import transaction
from dingsdk.policy.modes import EvalMode
from dingsdk.runtime.deadline import set_patience
from dingsdk.testing import open_files
from dingsdk.worker.collector.factory import create_measuring_rollout
from dingsdk.worker.collector.rows import DictRollout, RowsWriter

STEP, RAISE, EXIT, HANG, TELL = range(5)
SYNC, ASYNC = {"type": "subprocess"}, {"type": "async_subprocess"}
Launch = Callable[..., EnvManager]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


@pytest.fixture
def launch(spawning: Launch, fork_server: Any, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Like ``spawning``, but with a fork server, so that processes start fast."""
    monkeypatch.setattr(subprocess_envs, "spawn_context", lambda path: fork_server)
    return spawning


@pytest.fixture
def spawning(monkeypatch: pytest.MonkeyPatch, gate: Path) -> Launch:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    env_fn = functools.partial(importlib.import_module("child_envs").ChildEnv, gate)

    def launch_(cfg: dict[str, Any], n: int = 2, **kwargs: Any) -> EnvManager:
        manager = create_env_manager(cfg, [env_fn] * n)
        manager.seed(7)
        manager.launch(kwargs.get("reset_param"))
        return manager

    return launch_


def test_reward_shaping_of_an_env_may_return_a_new_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)

    class Shaping(importlib.import_module("child_envs").ChildEnv):  # type: ignore[misc]
        def reward_shaping(self, transitions: list[dict[str, Any]]) -> Any:
            return [{"reward": each["reward"] * 2} for each in transitions]

    rows = kept = [{"reward": 1.0}, {"reward": 2.0}]
    with create_env_manager({"type": "in_process"}, [Shaping]) as manager:
        manager.launch()
        manager.reward_shaping(0, rows)
    assert kept == [{"reward": 2.0}, {"reward": 4.0}]


def pid_of(manager: EnvManager, env_id: int) -> int:
    pid: int = manager.step({env_id: TELL})[env_id].info["pid"]
    return pid


def test_child_process_does_not_import_torch_for_the_transport(spawning: Launch) -> None:
    with use_manager(PluginManager()) as plugins:
        plugins.get("comm_collectors", "flask_fs")
        with contextlib.closing(spawning(SYNC, 1)) as manager:
            assert manager.step({0: TELL})[0].info["has_torch"] is False


@pytest.mark.usefixtures("launch")
def test_child_process_has_the_wrapper_types_of_this_process() -> None:
    with transaction("test") as changes:
        default_manager().registry("env_wrappers").register("tiny_limit", TimeLimit)
    wrappers = [{"type": "tiny_limit", "max_episode_steps": 1}]
    env_fns = make_env_fns({"env_id": "CartPole-v1", "wrappers": wrappers}, 1)
    try:
        with create_env_manager(SYNC, env_fns) as manager:
            manager.launch()
            assert manager.step_batch(np.array([0])).truncated[0]
    finally:
        changes.roll_back()


def open_later(gate: Path) -> threading.Timer:
    timer = threading.Timer(0.05, lambda: gate.open("w").close())
    timer.start()
    return timer


def test_batched_step_waits_for_running_steps(launch: Launch, gate: Path) -> None:
    with launch(ASYNC) as manager:
        manager.step({0: HANG, 1: STEP})
        timer = open_later(gate)
        columns = manager.step_batch(np.array([STEP, STEP]))
        assert columns.reward.tolist() == [2.0, 2.0]
        timer.join()


@pytest.mark.parametrize("form", ["batched", "dict"])
def test_meanwhile_is_called_while_envs_step(launch: Launch, gate: Path, form: str) -> None:
    with launch({**SYNC, "step_timeout": 5.0}, 1) as manager:
        manager.meanwhile = lambda: gate.open("w").close()
        if form == "batched":
            assert manager.step_batch(np.array([HANG])).reward.tolist() == [1.0]
        else:
            assert manager.step({0: HANG})[0].reward == 1.0


def test_envs_of_a_busy_process_wait_for_its_answer(launch: Launch, gate: Path) -> None:
    with launch({**ASYNC, "envs_per_process": 2}, 3) as manager:
        assert manager.step({0: HANG, 2: STEP}).keys() == {2}
        assert sorted(manager.ready_obs) == [2]
        with pytest.raises(PolicyOutputError):
            manager.step({1: STEP})
        gate.open("w").close()
        while not (steps := manager.step({})):
            pass
        assert {env_id: step.reward for env_id, step in steps.items()} == {0: 1.0}
        assert manager.step({1: STEP})[1].reward == 1.0


def test_envs_are_spread_over_the_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", {0: {2, 5, 7}}.__getitem__)
    env_fns = make_env_fns({"env_id": "CartPole-v1"}, 7)
    manager: Any = create_env_manager(SYNC, env_fns)
    assert [group.env_ids for group in manager._groups] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(map(str, manager._groups[1:])) == [
        "the process of env 3 to 5",
        "the process of env 6",
    ]
    manager = create_env_manager(ASYNC, env_fns)
    assert [group.env_ids for group in manager._groups] == [[i] for i in range(7)]


def test_envs_of_a_lost_process_continue_with_another_seed_each_time(launch: Launch) -> None:
    with launch({**SYNC, "max_retry": 9}, 1) as manager:
        for number in (1, 2):
            manager.step({0: EXIT})
            seed = derive_seed(7, "rebuild_process", number)
            drawn = np.float32(np.random.default_rng(seed).random())
            assert manager.current_obs()[0, 0] == drawn


def test_launch_after_close_starts_from_a_clean_state(
    launch: Launch, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess_envs, "_CLOSE_TIMEOUT_S", 0.05)
    started = {1: {"options": {"start": 0.25}}}
    with launch({**ASYNC, "max_retry": 1}, reset_param=started) as manager:
        manager.step({1: EXIT})
        manager.step({0: HANG, 1: STEP})
        children = multiprocessing.active_children()
        assert [child.daemon for child in children] == [True, True]
        manager.close()  # kills the process that hangs
        assert multiprocessing.active_children() == []
        manager.launch()
        assert sorted(manager.ready_obs) == [0, 1]
        assert manager.step({}) == {}
        # Again one loss is allowed, and the reset parameters of the first launch are not used.
        manager.step({1: EXIT})
        assert manager.ready_obs[1][0] != 0.25
        assert manager.step({0: STEP})[0].reward == 1.0


def test_reset_of_an_env_drops_the_loss_of_its_process(launch: Launch) -> None:
    with launch({**SYNC, "envs_per_process": 2}) as manager:
        manager.step({0: STEP, 1: STEP})
        manager.step({0: EXIT})
        manager.reset({1: None})
        drawn = manager.ready_obs[1][0]
        timesteps = manager.step({0: STEP, 1: STEP})
        assert timesteps[1].obs[0] == drawn
        assert [each.reward for each in timesteps.values()] == [1.0, 1.0]
        for _ in range(2):
            timesteps = manager.step({0: STEP, 1: STEP})
        assert [each.info["eval_episode_return"] for each in timesteps.values()] == [6.0, 6.0]


def test_reset_replaces_a_lost_process(launch: Launch) -> None:
    with launch(SYNC, 1) as manager:
        pid = pid_of(manager, 0)
        os.kill(pid, signal.SIGKILL)
        manager.reset()
        assert manager.failure_count == 1
        timestep = manager.step({0: STEP})[0]
        assert (timestep.reward, "abnormal" in timestep.info) == (1.0, False)


@pytest.mark.parametrize("form", ["batched", "dict"])
def test_steps_pickle_nothing(launch: Launch, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("something is pickled")

    with launch(SYNC, 4) as manager, monkeypatch.context() as patch:
        patch.setattr(ForkingPickler, "dumps", refuse)
        patch.setattr(ForkingPickler, "loads", refuse)
        for _ in range(2):
            if form == "batched":
                manager.step_batch(np.zeros(4, int))
            else:
                manager.step(dict.fromkeys(range(4), STEP))


def test_killed_process_ends_the_episodes_of_its_envs(launch: Launch) -> None:
    cfg = {**SYNC, "envs_per_process": 2}
    with launch(cfg, 3, reset_param={1: {"options": {"start": 0.25}}}) as manager:
        manager.step(dict.fromkeys(range(3), STEP))
        os.kill(pid_of(manager, 0), signal.SIGKILL)
        timesteps = manager.step({0: STEP, 2: STEP})
        assert timesteps[0].info["abnormal"] is True
        assert "process of env 0 to 1 died: killed by SIGKILL" in timesteps[0].info["error"]
        assert (timesteps[2].reward, "abnormal" in timesteps[2].info) == (2.0, False)
        # The other env of the process was not stepped; its next step reports the loss.
        assert manager.ready_obs[1].tolist() == [0.25, 0]
        assert manager.step({1: STEP})[1].info["abnormal"] is True
        assert manager.step({1: STEP})[1].reward == 1.0
        assert manager.failure_count == 2


def test_lost_process_is_not_replaced_while_the_program_ends(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launch(SYNC, 1) as manager:
        os.kill(pid_of(manager, 0), signal.SIGTERM)
        monkeypatch.setattr(subprocess_envs, "is_exiting", lambda: True)
        with pytest.raises(EnvError, match="killed by SIGTERM, because the program ends"):
            manager.step_batch(np.array([STEP]))
        assert manager.closed


def test_process_of_a_closed_manager_can_be_joined_by_multiprocessing(launch: Launch) -> None:
    with launch(SYNC, 1):
        (process,) = multiprocessing.active_children()
    process.join()  # as it does at the exit of the program, which another thread may reach first
    assert process.exitcode == 0


def test_process_that_is_lost_too_often_ends_the_run(launch: Launch) -> None:
    with launch({**SYNC, "max_retry": 1}, 1) as manager:
        for _ in range(2):  # a completed episode resets the count
            assert manager.step_batch(np.array([EXIT])).abnormal is not None
            for _ in range(3):
                columns = manager.step_batch(np.array([STEP]))
            assert columns.terminated[0]
        manager.step_batch(np.array([EXIT]))
        with pytest.raises(EnvError, match=r"process of env 0 failed 2 times.*code 3") as caught:
            manager.step_batch(np.array([EXIT]))
        assert manager.closed
    assert (caught.value.env_id, caught.value.failures) == (0, 2)


@pytest.mark.usefixtures("launch")
def test_process_whose_envs_cannot_be_made_again_ends_the_run(tmp_path: Path) -> None:
    env_fn = functools.partial(importlib.import_module("child_envs").make_once, tmp_path)
    with create_env_manager({**SYNC, "max_retry": 5}, [env_fn]) as manager:
        manager.launch()
        with pytest.raises(EnvError, match="the licence is used up"):
            manager.step({0: EXIT})
        assert manager.closed


@pytest.mark.slow
def test_process_that_exceeds_the_step_timeout_is_replaced(launch: Launch) -> None:
    with launch({**SYNC, "step_timeout": 5.0}, 1) as manager:
        pid = pid_of(manager, 0)
        os.kill(pid, signal.SIGSTOP)
        timestep = manager.step({0: STEP})[0]
        assert "gave no answer in time" in timestep.info["error"]
        assert not psutil.pid_exists(pid)
        assert manager.step({0: STEP})[0].reward == 1.0


def test_process_that_stops_in_the_middle_of_its_answer_is_lost() -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        set_patience(ours, 0.02)
        os.write(theirs.fileno(), struct.pack("!i", 4) + b"do")
        with pytest.raises(RuntimeError, match="the process of env 0 stopped in the middle of"):
            subprocess_envs._Group([0], connection=ours).answer()


def test_error_in_a_child_keeps_its_traceback(launch: Launch) -> None:
    with launch({**SYNC, "max_retry": 0}) as manager:
        with pytest.raises(EnvError, match=r"env 1 failed 1 times.*raises in the child") as caught:
            manager.step({0: STEP, 1: RAISE})
        assert manager.closed
    assert 'raise RuntimeError("raises in the child")' in "".join(caught.value.__notes__)


def test_state_includes_the_results_of_running_steps(launch: Launch, gate: Path) -> None:
    with launch(ASYNC, 2) as manager, launch(ASYNC, 2) as other:
        for _ in range(2):
            told = manager.step({0: STEP})
            while 0 not in told:
                told = manager.step({})
        manager.step({0: HANG, 1: STEP})
        gate.open("w").close()
        state = decode_safetensors("test", encode_safetensors("test", manager.get_state()))
        assert sorted(manager.ready_obs) == [1]
        state["envs"]["groups"] = [[0, 5]] * 2  # as earlier versions saved the counts
        other.set_state(state)
        assert sorted(other.ready_obs) == [1]
        for each in (manager, other):
            last = each.step({})[0]
            assert (last.reward, last.obs[1], last.done) == (3.0, 3, True)
            assert last.info["eval_episode_return"] == 6
            assert last.info["episode_info"] == {"length": 3}
            assert sorted(each.ready_obs) == [0, 1]


def test_restored_manager_reports_a_process_lost_before_saving(launch: Launch) -> None:
    with launch(SYNC | {"max_retry": 1}, 2) as manager, launch(SYNC, 2) as other:
        os.kill(pid_of(manager, 0), signal.SIGKILL)
        with pytest.raises(EnvError, match="when get_state was called"):
            manager.get_state()
        other.set_state(manager.get_state())
        steps = other.step({0: STEP, 1: STEP})
        assert [bool(steps[i].info.get("abnormal")) for i in range(2)] == [True, False]


def test_reset_drops_a_running_step(launch: Launch, gate: Path) -> None:
    with launch(ASYNC, 2) as manager:
        manager.step({0: HANG, 1: STEP})
        gate.open("w").close()
        manager.reset()
        assert sorted(manager.ready_obs) == [0, 1]
        timesteps = manager.step({0: STEP})
        assert {env_id: each.reward for env_id, each in timesteps.items()} == {0: 1.0}


@pytest.mark.usefixtures("launch")
def test_close_closes_envs_and_releases_memory_and_descriptors(
    tmp_path: Path,
) -> None:
    env_fn = functools.partial(importlib.import_module("child_envs").NotingEnv, tmp_path)

    counts = []
    for launches in (1, 2):  # the first launch opens files that later ones share
        manager = create_env_manager({**SYNC, "envs_per_process": 2}, [env_fn] * 3)
        before = open_files(collect=True)
        manager.launch()
        assert manager.step({0: STEP, 2: STEP}).keys() == {0, 2}
        memory = manager._memory.name  # type: ignore[attr-defined]
        assert memory in Path("/proc/self/maps").read_text()
        manager.close()
        manager.close()
        assert not (Path("/dev/shm") / memory).exists()
        counts.append(open_files(collect=True) - before)
        assert len(list(tmp_path.glob("closed-*"))) == 3 * launches
        assert memory not in Path("/proc/self/maps").read_text()
    assert counts[1] == 0


@pytest.mark.parametrize("cfg", [{"type": "in_process"}, SYNC])
def test_optional_methods_of_envs_are_called(
    launch: Launch, tmp_path: Path, cfg: dict[str, Any]
) -> None:
    with launch(cfg, 2) as manager:
        rows = kept = [{"reward": 1.0}, {"reward": 2.0}]
        manager.reward_shaping(1, rows)
        assert kept == [{"reward": 11.0}, {"reward": 12.0}]
        manager.enable_save_replay(str(tmp_path))
        assert len(list(tmp_path.glob("replay-*"))) == 2
        with pytest.raises((OSError, EnvError), match="no room for a figure"):
            manager.enable_save_figure(0, "figures")
        assert manager.step(dict.fromkeys(range(2), STEP))[0].reward == 1.0
    env_fns = make_env_fns({"env_id": "CartPole-v1"}, 1)
    with create_env_manager(cfg, env_fns) as manager:
        manager.launch()
        with pytest.raises(ConfigError, match="CartPoleEnv has no reward_shaping") as caught:
            manager.reward_shaping(0, [])
        assert caught.value.path == "env.env_id"
        assert manager.step({0: 0})[0].reward == 1.0


def test_process_whose_method_exceeds_the_step_timeout_is_lost(launch: Launch) -> None:
    with launch({**SYNC, "step_timeout": 0.1, "max_retry": 0}, 1) as manager:
        with pytest.raises(EnvError, match="gave no answer in time"):
            manager.enable_save_figure(0, "gate")
        assert manager.closed


@pytest.mark.slow
def test_ctrl_c_in_the_terminal_does_not_reach_the_processes(spawning: Launch) -> None:
    with spawning(SYNC, 1) as manager:
        os.kill(pid_of(manager, 0), signal.SIGINT)
        assert manager.step({0: STEP})[0].reward == 2.0
        assert manager.failure_count == 0


@pytest.mark.parametrize(
    ("name", "limits", "error", "text"),
    [
        ("fail", (300.0, 60.0), EnvError, "no env can be made"),
        ("exit_at_once", (300.0, 60.0), EnvError, "env 0 died: ended with exit code 4"),
        ("hang", (300.0, 0.01), EnvError, r"no answer.* 300 s for imports and .*_timeout, 0.01 s"),
        ("fail", (0.0, 60.0), EnvError, "no answer.* 0 s for imports"),
        ("wrong_kwargs", (300.0, 60.0), ConfigError, "env.kwargs"),
        ("local", (300.0, 60.0), ConfigError, "importable function"),
    ],
)
@pytest.mark.usefixtures("launch")
def test_error_says_why_a_process_did_not_start_or_make_its_envs(
    name: str, limits: Any, error: Any, text: str, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess_envs, "_CLOSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(subprocess_envs, "IMPORT_S", limits[0])
    if name == "wrong_kwargs":
        env_fn: Any = make_env_fns({"env_id": "CartPole-v1", "kwargs": {"x": 1}}, 1)[0]
    elif name == "local":
        env_fn = lambda: None  # noqa: E731 - it must be local
    else:
        env_fn = functools.partial(getattr(importlib.import_module("child_envs"), name), gate)
    manager = create_env_manager({**SYNC, "reset_timeout": limits[1]}, [env_fn])
    with pytest.raises(error, match=text):
        manager.launch()
    assert manager.closed


def test_rollout_waits_for_the_last_env_that_it_needs(launch: Launch, gate: Path) -> None:
    acted = []

    def forward(obs: dict[int, Any]) -> dict[int, Any]:
        acted.extend(obs)
        return {i: {"action": HANG if i == 0 and acted.count(0) == 1 else STEP} for i in obs}

    policy = EvalMode(forward, lambda ids=None: None, *[lambda *_: None] * 4)  # type: ignore[arg-type]
    with launch(ASYNC, 2) as manager:
        rollout = create_measuring_rollout(manager, policy, np.array([1, 1]))
        while not rollout.episodes:
            rollout.round(0, {})
        assert acted.count(0) == 1
        gate.open("w").close()
        while not rollout.is_finished:
            rollout.round(0, {})
        assert sorted(each.env_id for each in rollout.episodes) == [0, 1]


def test_restored_rollout_records_the_running_steps(launch: Launch, gate: Path) -> None:
    seen = []

    def forward(obs: dict[int, Any]) -> dict[int, Any]:
        return {i: {"action": np.int64(HANG if i == 0 else STEP)} for i in obs}

    def process(obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        seen.append((obs.tolist(), int(output["action"]), timestep.reward))
        return {}

    policy: Any = types.SimpleNamespace(
        forward=forward, process_transition=process, reset=lambda ids: None
    )
    with launch(ASYNC, 2) as manager, launch(ASYNC, 2) as other:
        start = manager.ready_obs[0].tolist()
        writers = [RowsWriter(2, 2, lambda _, piece: piece) for _ in range(2)]
        first, second = map(DictRollout, (manager, other), (policy, policy), writers)
        first.round(0, {})
        gate.open("w").close()
        envs, rollout = manager.get_state(), first.state_dict()
        seen.clear()
        other.set_state(envs)
        second.load_state_dict(decode_safetensors("test", encode_safetensors("test", rollout)))
        second.record({}, {}, other.step({}), 0)
        assert seen == [(start, HANG, 1.0)]


KILLED = """
import functools, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import child_envs
from dingsdk.envs import create_env_manager

def main():
    manager = create_env_manager({"type": "subprocess"}, [child_envs.ChildEnv])
    manager.launch()
    pid = manager.step({0: child_envs.TELL})[0].info["pid"]
    sys.stdout.write(f"{pid} {manager._memory.name}")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_processes_and_memory_are_gone_after_the_manager_is_killed(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(Path(__file__).parent)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    pid, memory = done.stdout.decode().split()
    if psutil.pid_exists(int(pid)):
        psutil.Process(int(pid)).wait(60)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while (Path("/dev/shm") / memory).exists():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_missing_main_guard_in_the_users_script_is_a_config_error(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launch(SYNC, 1) as manager:
        (group,) = manager._groups  # type: ignore[attr-defined]
        os.kill(group.process.pid, signal.SIGKILL)
        group.process.join(10.0)
        monkeypatch.setattr("dingsdk.runtime.spawn.UNGUARDED", -signal.SIGKILL)
        with pytest.raises(ConfigError) as caught:
            group.answer()
        assert caught.value.path == "env_manager.type"


@pytest.mark.parametrize("kind", [SYNC, ASYNC])
def test_envs_begin_no_episode_after_their_last(launch: Launch, kind: dict[str, Any]) -> None:
    with launch({**kind, "episode_num": 2}) as manager:
        for _ in range(12):
            if not manager.done:
                manager.step(dict.fromkeys(manager.ready_obs, STEP))
        assert manager.done
