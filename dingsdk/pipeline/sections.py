"""The config sections of a whole run: ``env``, ``system``, and the root."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dingsdk.config import (
    Count,
    NotNegative,
    Part,
    Positive,
    Section,
    SmallCount,
    Whole,
    preset,
)
from dingsdk.policy.sections import PolicySection
from dingsdk.worker.coordinator.section import CoordinatorSection, JournalSection


class EnvSection(Section, frozen=True, kw_only=True):
    """Section ``env``: the environment, the number of copies, and when it counts as solved.

    Attributes:
        env_id: A gymnasium id, as in ``env: {env_id: CartPole-v1}``. A run on a data set may leave
            it out; it is not evaluated then.
        kwargs: Keyword arguments for ``gymnasium.make``.
        wrappers: Wrappers by type key, innermost first. Each is a type, or a section with ``type``,
            the arguments of the wrapper and ``evaluate``: whether the envs of evaluations have it
            too (default: true, but false for ``clip_reward`` and ``NormalizeReward``). The returns
            of a run are sums of the env's own rewards, beneath all wrappers of this list.
        info_numbers: Numbers and booleans in the last ``info`` of each episode to show and log with
            the returns: a list of their names, or ``all`` for all that are numbers.
        collector_env_num: Number of envs that a collector steps together.
        evaluator_env_num: Number of envs that an evaluator steps together.
        n_evaluator_episode: Episodes of one evaluation, spread evenly over the envs.
        stop_value: The run ends when the mean return of an evaluation reaches this value.
        collector_episode_num: Parallel mode: episodes per env in one collector task.
        evaluator_episode_num: Parallel mode: episodes per env in one evaluation task. None
            derives it from ``n_evaluator_episode``.
        observation_space: Space of the observations of one player. None reads it from the env. A
            run saves it in its config, so that its policy can be used without the env.
        action_space: Space of the actions of one player. None reads it from the env; a run saves it
            like ``observation_space``.
        eval_opponents: Opponents in evaluations, for envs of several players: ``random`` or
            ``module:function``. List the weakest first. Parallel mode plays against one after the
            other; serial mode plays against the last.
    """

    env_id: str | None = None
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    wrappers: list[Any] = msgspec.field(default_factory=list)
    info_numbers: Literal["all"] | list[str] = msgspec.field(default_factory=list)
    collector_env_num: SmallCount = 8
    evaluator_env_num: SmallCount = 5
    n_evaluator_episode: Count = 5
    stop_value: int | float = float("inf")
    collector_episode_num: Count = 8
    evaluator_episode_num: Count | None = None
    observation_space: dict[str, Any] | None = None
    action_space: dict[str, Any] | None = None
    eval_opponents: Annotated[list[str], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["random"]
    )

    def __post_init__(self) -> None:
        if self.n_evaluator_episode < self.evaluator_env_num:
            raise ValueError(
                f"n_evaluator_episode is {self.n_evaluator_episode}, less than evaluator_env_num "
                f"{self.evaluator_env_num}: every env plays at least one episode; raise the first "
                "or lower the second"
            )


class ReplaySection(Section, frozen=True, kw_only=True):
    """Section ``system.replay``: where the replay buffer of a parallel run is.

    Attributes:
        type: ``learner``: the learner's process holds the buffer and its rows. ``server``: the
            process of a replay server does.
        address: ``host:port`` of a replay server that several runs share. If empty, the run starts
            its own server, a worker of the role ``replay-server``.
        path: Folder of the shared server, which contains its secret. Not needed if an environment
            variable names the secret.
        timeout_s: Seconds to wait for an answer of the server, or for a lost server to come back.
    """

    type: Literal["learner", "server"] = "learner"
    address: str = ""
    path: str = ""
    timeout_s: Positive = 60.0

    def __post_init__(self) -> None:
        if self.type == "learner" and self.address:
            raise ValueError(f"address is {self.address!r}, but type is learner; set it to server")


class SystemSection(Section, frozen=True, kw_only=True):
    """Section ``system``: processes, workers, transport, limits and saves of a run.

    Attributes:
        transport: The transport plugin by ``type``, with its options (parallel mode).
        collector_num: Number of collector workers (parallel mode).
        learner_num: Number of processes that train together, each on an equal part of every batch.
            The first learner starts the others, unless torchrun started them all. With
            ``policy.cuda``, each process uses a different GPU of the same host.
        roles: Further roles of workers by their type key, each with its options. The run starts
            ``num`` workers of each (parallel mode). Workers of the role ``inference`` compute the
            actions for the collectors.
        collector: Options of the comm collectors.
        learner: Options of the comm learners.
        replay: Where the replay buffer is (parallel mode).
        coordinator: Options of the coordinator (parallel mode).
        journal: The log that is written so that the run can be resumed (parallel mode).
        rejoin_s: Seconds for which a worker tries to reach a lost coordinator before it ends
            (parallel mode, transports that run workers as processes).
        restarts: How often in a row each process may die and be started again before its death ends
            the run. A minute of work begins a new count (parallel mode, transports that run workers
            as processes).
        worker_memory_limit: Most bytes of memory that a worker's process and its children may use.
            A worker above the limit is restarted between two tasks. A learner is restarted after
            20 s or more of training, from a checkpoint that it saves. Inference and replay servers,
            which have no tasks, are not restarted. None for no limit (parallel mode, transports
            that run workers as processes).
        torch_threads: Threads that torch may use in each process. Small networks are fastest
            with one.
        max_env_steps: The run ends when this many env steps were collected and the training on them
            is done; None for no limit. A parallel run does not wait for that training if its config
            names a limiter of the replay buffer that bounds the training in another way than
            ``samples_per_insert`` with ``samples_ahead: 0``. Env steps of a checkpoint that the run
            begins with (``load_ckpt_before_run``) count too.
        save_every: Seconds between two saves of the state that ``train --resume`` needs (serial
            mode; parallel mode uses ``journal``). ``auto`` saves every 60 s, or less often, so that
            saving takes at most 2 % of the time. None saves nothing. A run also saves when it ends
            or is interrupted.
        validate_state: Whether to check, every 5 s and at the end, that each acknowledged sample
            is in the replay buffer or was evicted for a counted reason. If the check fails, the run
            ends with ``SamplesLostError``.
    """

    transport: Annotated[dict[str, Any], Part("transports")] = preset("in_memory")
    collector_num: SmallCount = 2
    learner_num: SmallCount = 1
    roles: Annotated[dict[str, Any], Part("roles", many=True)] = msgspec.field(default_factory=dict)
    collector: Annotated[dict[str, Any], Part("comm_collectors")] = preset("base")
    learner: Annotated[dict[str, Any], Part("comm_learners")] = preset("base")
    replay: ReplaySection = ReplaySection()
    coordinator: CoordinatorSection = CoordinatorSection()
    journal: JournalSection = JournalSection()
    rejoin_s: Positive = 60.0
    restarts: Whole = 3
    worker_memory_limit: Count | None = None
    torch_threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    max_env_steps: Count | None = None
    save_every: NotNegative | Literal["auto"] | None = "auto"
    validate_state: bool = False


class RunSection(Section, frozen=True, kw_only=True):
    """The whole config.

    Attributes:
        exp_name: Name of the run folder, which is made in the output folder.
        seed: Seed of the run. The seeds of all envs, networks and samplers are derived from it.
        env: The environment, the number of copies, and when it counts as solved.
        env_manager: The env manager by ``type``, with its options.
        policy: The policy by ``type``, as in ``policy: {type: dqn}``, with the sections of its
            learner, collector, evaluator and replay buffer.
        system: Processes, workers, transport, limits and saves of the run.
    """

    exp_name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$(?!\n)",
            max_length=100,
            description="one or more letters, digits, '.', '_' and '-', with no '.' at the start",
        ),
    ] = "run"
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    env: EnvSection = EnvSection()
    env_manager: Annotated[dict[str, Any], Part("env_managers")] = preset("vector")
    policy: Annotated[dict[str, Any], Part("policies", base=PolicySection)]
    system: SystemSection = SystemSection()
