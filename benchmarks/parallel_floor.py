"""Parallel training, compared with serial mode and with the least that two processes need.

    python benchmarks/parallel_floor.py [--jobs dqn sac] [--seeds 3]
    python benchmarks/parallel_floor.py --contenders serial floor in_memory shared_memory
    python benchmarks/parallel_floor.py --jobs busy --contenders serial shared_memory:2
    python benchmarks/parallel_floor.py --jobs waiting --contenders shared_memory:2
    python benchmarks/parallel_floor.py --jobs actors --contenders serial shared_memory:2
    python benchmarks/parallel_floor.py --jobs impala lander --contenders shared_memory:2

The jobs ``dqn``, ``sac`` and ``ppo`` are those of ``train.py``, and ``per`` is ``dqn`` with
priorities; parallel runs of ``ppo`` train on rows that are at most one version old. A step of the
env takes 2 ms of CPU time in the job ``busy``, and waits for 5 ms in ``waiting``; both train
little. In the job ``actors``, on the env of ``busy``, serial mode trains PPO and the parallel runs
train IMPALA of the plugin ``dingsdk-rl-zoo``, on unrolls of any age. The jobs ``impala`` and
``lander`` do the same on CartPole and LunarLander. The job ``lander_dqn`` trains as much as the
shipped example ``lunarlander-dqn``. *fill* is the share of env steps that were trained on in an
unroll; the goal is 0.99. *lag* is the mean lag in policy versions. ``:2`` is two collectors; one is
the default, as the floor has one. The *floor* is a collector process and a learner process: the
collector sends pieces of trajectories through a pipe, the learner puts them into a table of the
same kind, trains as often as serial mode does, and sends its weights back every
``system.learner.send_policy_freq`` updates, or after each training of ``ppo``. It has no leases, no
journal, no acknowledgements, no evaluation and no hooks, and its messages are pickled. Nothing that
does more can be much faster.

For every contender time runs from the first env step that collects to the last update, and CPU
seconds are those of all its processes in that time, so imports and evaluations do not count.
Contenders take turns, seed by seed. Ratios are medians over the seeds. *of ideal* compares env
steps a second with those of envs that wait for nothing but their own steps. *bound* is what serial
mode could gain at most if it collected and trained at the same time. *exchanges* are the tasks a
second that workers answered to the coordinator; the goal is at most 100 on ``dqn``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from train import JOBS, config_of, updates_of

from dingsdk import hookimpl

CONTENDERS: Final = ("serial", "floor", "in_memory", "shared_memory")
SLOW: Final = {
    **JOBS["dqn"],
    "env_num": 8,
    "train_freq": 8,
    "gradient_steps": 1,
    "episodes": 1,
}
ALL_JOBS: Final[Mapping[str, dict[str, Any]]] = {
    "dqn": JOBS["dqn"],
    "sac": JOBS["sac"],
    "ppo": JOBS["ppo"],
    "per": JOBS["dqn"],
    "busy": {**SLOW, "env_steps": 8_000},
    "waiting": {**SLOW, "train_freq": 16, "env_steps": 40_000},
    "actors": {**JOBS["ppo"], "env_steps": 16 * 1_024},
    "impala": {**JOBS["ppo"], "env_steps": 64 * 1_024},
    "lander": {**JOBS["ppo"], "env_id": "LunarLander-v3", "env_steps": 32 * 1_024},
    "lander_dqn": {
        **JOBS["dqn"],
        "env_id": "LunarLander-v3",
        "env_steps": 20_000,
        "env_num": 8,
        "hidden": [128, 128],
        "batch_size": 128,
        "train_freq": 64,
        "gradient_steps": 32,
        "target_interval": 500,
        "decay_steps": 20_000,
        "episodes": 1,
    },
}
UNROLLS: Final = ("actors", "impala", "lander")
"""Jobs whose parallel runs train IMPALA."""
STEP_S: Final = {"busy": 0.002, "actors": 0.002, "waiting": 0.005}
RLLIB: Final = " with RLlib"
"""After the path of an interpreter: a contender."""
AHEAD_PIECES: Final = 2
"""Pieces by which the floor's collector may be ahead of its learner."""
MARKS: Final = "DINGSDK_BENCHMARK_MARKS"
"""Environment variable with the folder where processes write the times that they note."""


def mark(name: str) -> None:
    """Create a file whose time of change is now."""
    (Path(os.environ[MARKS]) / name).touch()


class _Exchanges:
    count = 0


@hookimpl
def dingsdk_after_task(worker_id: str, task: Mapping[str, Any]) -> None:
    """Count a task that a worker of this process has answered to the coordinator."""
    _Exchanges.count += 1


@hookimpl
def dingsdk_unconfigure() -> None:
    """Write the count of this process."""
    (Path(os.environ[MARKS]) / f"exchanges-{os.getpid()}").write_text(str(_Exchanges.count))


class FirstStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Marks the first step of an env that collects."""

    evaluating = 1
    """Envs of this process that take a step before that: that of the first evaluation."""
    has_stepped = False

    def step(self, action: Any) -> Any:
        if not self.has_stepped:
            self.has_stepped = True
            FirstStep.evaluating -= 1
            if FirstStep.evaluating < 0 and not (Path(os.environ[MARKS]) / "first").exists():
                mark("first")
        return self.env.step(action)


def cartpole() -> gymnasium.Env[Any, Any]:
    """Return the env of the job ``dqn``."""
    return FirstStep(gymnasium.make("CartPole-v1"))


def pendulum() -> gymnasium.Env[Any, Any]:
    """Return the env of the job ``sac``."""
    return FirstStep(gymnasium.make("Pendulum-v1"))


def lander() -> gymnasium.Env[Any, Any]:
    """Return the env of the jobs ``lander`` and ``lander_dqn``."""
    return FirstStep(gymnasium.make("LunarLander-v3"))


class SlowEnv(gymnasium.Env[Any, Any]):
    """Random observations, and episodes of 200 steps that take their time."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._wait()
        self._steps += 1
        return self._observation(), 1.0, self._steps == 200, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)

    def _wait(self) -> None:
        time.sleep(STEP_S["waiting"])


class BusyEnv(SlowEnv):
    """Computes for 2 ms a step."""

    def _wait(self) -> None:
        end = time.thread_time() + STEP_S["busy"]
        while time.thread_time() < end:
            pass


def busy() -> gymnasium.Env[Any, Any]:
    """Return the env of the job ``busy``."""
    return FirstStep(BusyEnv())


def waiting() -> gymnasium.Env[Any, Any]:
    """Return the env of the job ``waiting``."""
    return FirstStep(SlowEnv())


ENVS: Final = {
    "dqn": cartpole,
    "per": cartpole,
    "ppo": cartpole,
    "impala": cartpole,
    "lander": lander,
    "lander_dqn": lander,
    "sac": pendulum,
    "busy": busy,
    "waiting": waiting,
    "actors": busy,
}


def collectors_of(contender: str) -> int:
    """Return the number of collectors of ``TRANSPORT:NUMBER``; it is 1 if there is none."""
    return int(contender.partition(":")[2] or 1)


def base_config(name: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a job."""
    config = config_of("ppo" if name in UNROLLS else name if name in JOBS else "dqn", job)
    if name == "per":
        config["policy"]["priority"] = True
        config["policy"]["other"]["replay_buffer"]["type"] = "advanced"
    return config


def impala(config: dict[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of IMPALA with as many env steps a collect as that of PPO."""
    unroll_len, batch_size = 16, 16
    policy = {
        **config["policy"],
        "type": "impala",
        "learn": {"batch_size": batch_size, "learning_rate": job["learning_rate"]},
        "collect": {
            "n_sample": config["policy"]["collect"]["n_sample"] // unroll_len,
            "unroll_len": unroll_len,
        },
    }
    policy["learn"]["update_per_collect"] = policy["collect"]["n_sample"] // batch_size
    return {**config, "policy": policy}


def run_ours(contender: str, name: str, job: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train with ``dingsdk.train``."""
    import dingsdk

    config = base_config(name, job)
    if name in UNROLLS and contender != "serial":
        config = impala(config, job)
    mode = "serial" if contender == "serial" else "parallel"
    transport = None if mode == "serial" else contender.partition(":")[0]
    if transport is not None:
        config["system"] = {**config["system"], "collector_num": collectors_of(contender)}
    if name == "waiting":
        # What the documentation names for envs that wait.
        config["env_manager"] = {"type": "in_process", "threads": job["env_num"]}
    if name == "ppo":
        config["policy"]["other"]["commander"] = {"max_policy_lag": 1}
    config["env"] |= {"evaluator_env_num": 1, "n_evaluator_episode": 1}  # see FirstStep
    folder = Path(os.environ[MARKS]) / "run"
    if mode == "parallel":
        from dingsdk.plugins import default_manager

        default_manager().load("parallel_floor", "parallel_floor")  # counts the exchanges
    # Only serial mode collects in this process; a parallel run imports torch in another one.
    with timed_collects() if mode == "serial" else contextlib.nullcontext([]) as taken:
        # Ray cannot import from the script of its driver, but from a module.
        env = importlib.import_module("parallel_floor").ENVS[name]
        result = dingsdk.train(config, mode, transport, seed=seed, output=folder, env=env)
    found = {"env_steps": result.env_steps, "updates": result.train_iter, "collect_s": sum(taken)}
    if name in UNROLLS and mode == "parallel":
        unroll_len = config["policy"]["collect"]["unroll_len"]
        found["fill"] = result.samples.trained * unroll_len / result.env_steps
    return {**found, "lag": result.policy_lag["mean"]} if result.policy_lag else found


@contextlib.contextmanager
def timed_collects() -> Iterator[list[float]]:
    """Yield a list that gets the duration of each collect of this process in seconds."""
    from dingsdk.worker import SampleSerialCollector

    collect, taken = SampleSerialCollector.collect, []

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        samples = collect(*args, **kwargs)
        taken.append(time.perf_counter() - began)
        return samples

    SampleSerialCollector.collect = timed  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        SampleSerialCollector.collect = collect  # type: ignore[method-assign]


def collect(pipe: Any, cfg: Any, env: Any, stop_at: int) -> None:
    """Collect pieces and send them, at most ``AHEAD_PIECES`` ahead of the learner."""
    import torch

    from dingsdk.envs import create_env_manager
    from dingsdk.policy import create_policy
    from dingsdk.worker import create_serial_collector
    from dingsdk.worker.coordinator.live_payloads import PAYLOAD_ROWS

    torch.set_num_threads(1)
    FirstStep.evaluating = 0
    policy = create_policy(cfg.policy, enable_field=["collect", "command"], seed=cfg.seed)
    manager = create_env_manager(cfg.env_manager, [env] * cfg.env.collector_env_num)
    manager.seed(cfg.seed)
    collector = create_serial_collector(
        cfg.policy.collect.collector,
        env=manager,
        policy=policy.collect_mode,
        exp_name=os.environ[MARKS],
    )
    rows, ahead, train_iter = max(PAYLOAD_ROWS, cfg.policy.collect.n_sample), 0, 0
    while collector.envstep < stop_at:
        while ahead >= AHEAD_PIECES or pipe.poll():
            kind, content = pipe.recv()
            if kind == "weights":
                train_iter, model = content
                policy.collect_mode.load_state_dict({"model": model})
            else:
                ahead -= 1
        setting = policy.command_mode.get_setting_collect(
            {"learner_step": train_iter, "envstep": collector.envstep}
        )
        samples = collector.collect(rows, train_iter=train_iter, policy_kwargs=setting)
        pipe.send((samples, collector.envstep))
        ahead += 1
    pipe.send(None)
    collector.close()


def run_floor(name: str, job: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train with a collector process and a learner in this process, and nothing else."""
    import torch

    from dingsdk.pipeline.compile import compile_config
    from dingsdk.policy import create_policy
    from dingsdk.worker import create_buffer, create_learner

    torch.set_num_threads(1)
    cfg = compile_config(base_config(name, job), seed=seed, mode="parallel")
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=collect, args=(theirs, cfg, ENVS[name], job["env_steps"]))
    process.start()
    policy = create_policy(cfg.policy, enable_field=["learn"], seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        learner = create_learner(
            cfg.policy.learn.learner, policy=policy.learn_mode, exp_name=folder
        )
        buffer = None
        if not cfg.policy.on_policy:
            buffer = create_buffer(cfg.policy.other.replay_buffer, exp_name=folder)

        def publish() -> None:
            ours.send(("weights", (learner.train_iter, policy.learn_mode.state_dict()["model"])))

        publish()
        inserted, envstep, first = 0, 0, None
        while (piece := ours.recv()) is not None:
            samples, envstep = piece
            if buffer is None:
                learner.train(samples, envstep)
                ours.send(("taken", None))
                publish()
                continue
            buffer.push(samples, envstep)
            inserted += len(samples)
            ours.send(("taken", None))
            if inserted <= job["learning_starts"]:
                continue
            first = inserted if first is None else first
            while (
                learner.train_iter < (inserted - first) * job["gradient_steps"] / job["train_freq"]
            ):
                batch = buffer.sample(job["batch_size"], cur_learner_iter=learner.train_iter)
                learner.train(batch, envstep)
                if learner.priority_info:
                    buffer.update(learner.priority_info)
                if learner.train_iter % cfg.system.learner.send_policy_freq == 0:
                    publish()
        mark("last")
        learner.close()
        if buffer is not None:
            buffer.close()
    process.join(60)
    return {"env_steps": envstep, "updates": learner.train_iter}


def cpu_s(session: int) -> float:
    """Return the CPU seconds of all processes of a session, including those that have ended."""
    tick, total = os.sysconf("SC_CLK_TCK"), 0
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    total += sum(map(int, fields[11:15]))
    return total / tick


def measure(contender: str, name: str, seed: int, env_steps: int | None) -> dict[str, Any]:
    """Run a contender in a new session of processes; return its figures.

    The last update is where the learner writes its last checkpoint, right after it.
    """
    if contender.endswith(RLLIB):
        job = ALL_JOBS[name] | ({} if env_steps is None else {"env_steps": env_steps})
        command = [contender.removesuffix(RLLIB), str(Path(__file__).with_name("_rllib.py"))]
        command += [json.dumps(job), str(seed)]
    else:
        command = [sys.executable, __file__, "--run", contender, "--jobs", name]
        command += ["--first-seed", str(seed)]
        command += [] if env_steps is None else ["--env-steps", str(env_steps)]
    with tempfile.TemporaryDirectory() as marks:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", MARKS: marks}
        began, used = time.time(), [(0.0, 0.0)]
        with subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            while process.poll() is None:
                used.append((time.time(), cpu_s(process.pid)))
                time.sleep(0.1)
            output, ended = process.communicate()[0], time.time()
        if process.returncode:
            raise SystemExit(f"{contender} failed")
        first = (Path(marks) / "first").stat().st_mtime
        found = [Path(marks) / "last", *Path(marks).glob("run/**/ckpt/iteration_*.safetensors")]
        last = max(each.stat().st_mtime for each in found if each.exists())
        exchanges = sum(int(each.read_text()) for each in Path(marks).glob("exchanges-*"))

    def used_at(moment: float) -> float:
        return max(seconds for at, seconds in used if at <= moment)

    return {
        **json.loads(output.splitlines()[-1]),
        "wall_s": last - first,
        "exchanges": exchanges,
        "cpu_s": used_at(last) - used_at(first),
        "startup_s": first - began,
        "end_s": ended - last,
    }


def show(name: str, runs: Mapping[str, list[dict[str, Any]]]) -> None:
    """Print the medians of a job's runs, and their ratios to serial mode and to the floor."""
    unit = "env_steps" if name in STEP_S or name in UNROLLS else "updates"
    for contender, found in runs.items():

        def ratio(to: str, of: Any, found: Any = found) -> str:
            if to not in runs:
                return ""
            pairs = zip(found, runs[to], strict=True)
            return f" {statistics.median(of(a) / of(b) for a, b in pairs):5.2f} x {to}"

        def median(key: str, found: Any = found) -> float:
            return statistics.median(each[key] for each in found)

        rate, ideal = statistics.median(each[unit] / each["wall_s"] for each in found), ""
        if name == "waiting":
            most = ALL_JOBS[name]["env_num"] * collectors_of(contender) / STEP_S[name]
            ideal = f"  {rate / most:.2f} of ideal"
        if "lag" in found[0]:
            ideal += f"  lag {median('lag'):.1f}"
        if "fill" in found[0]:
            ideal += f"  fill {median('fill'):.3f}"
        if median("exchanges"):
            per_s = statistics.median(each["exchanges"] / each["wall_s"] for each in found)
            ideal += f"  {per_s:.0f} exchanges/s"
        if contender == "serial":
            shares = (each["collect_s"] / each["wall_s"] for each in found)
            ideal += f"  bound {statistics.median(1 / max(one, 1 - one) for one in shares):.2f}"
        sys.stdout.write(
            f"{name:7} {contender:15} {rate:7,.0f} {unit}/s"
            + ratio("serial", lambda each: each[unit] / each["wall_s"])
            + ratio("floor", lambda each: each[unit] / each["wall_s"])
            + ideal
            + f"; CPU {median('cpu_s'):5.1f} s"
            + ratio("serial", lambda each: each["cpu_s"] / each[unit])
            + f"; {median('startup_s'):.1f} s to the first step, {median('end_s'):.1f} s after\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", nargs="+", default=["dqn", "sac"], choices=list(ALL_JOBS))
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--env-steps", type=int, help="instead of those of the jobs")
    parser.add_argument("--rllib-python", help="interpreter with RLlib, as another contender")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        name = args.jobs[0]
        job = {**ALL_JOBS[name], **({"env_steps": args.env_steps} if args.env_steps else {})}
        if args.run == "floor":
            found = run_floor(name, job, args.first_seed)
        else:
            found = run_ours(args.run, name, job, args.first_seed)
        wanted = updates_of(job)
        if name in UNROLLS and args.run != "serial":
            wanted = found["env_steps"] // 256  # updates on 16 unrolls of 16 steps
        # Collectors of parallel runs end a little late.
        if not 0.9 * wanted <= found["updates"] <= 1.1 * wanted + 200:
            raise SystemExit(f"{args.run} made {found}, not about {wanted:,} updates")
        sys.stdout.write(json.dumps(found) + "\n")
        return
    if args.rllib_python:
        args.contenders = [*args.contenders, args.rllib_python + RLLIB]
    for name in args.jobs:
        runs: dict[str, list[dict[str, Any]]] = {each: [] for each in args.contenders}
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            for contender in args.contenders if seed % 2 else args.contenders[::-1]:
                runs[contender].append(measure(contender, name, seed, args.env_steps))
        show(name, runs)


if __name__ == "__main__":
    main()
