"""The config sections of a whole run: ``env``, ``system``, and the root."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dingsdk.config import (
    Count,
    Held,
    NotNegative,
    Part,
    Positive,
    Section,
    Whole,
    fields_of,
    preset,
)
from dingsdk.policy.sections import PolicySection
from dingsdk.worker.coordinator.section import CoordinatorSection, JournalSection


class EnvSection(Section, frozen=True, kw_only=True):
    """Section ``env``: which environment, how many, and when it counts as solved.

    Attributes:
        env_id: A gymnasium id, as in ``env: {env_id: CartPole-v1}``.
        kwargs: Keyword arguments for ``gymnasium.make``.
        wrappers: Wrappers by type key, innermost first.
        collector_env_num: Envs that a collector steps together.
        evaluator_env_num: Envs that an evaluator steps together.
        n_evaluator_episode: Episodes of one evaluation, spread evenly over the envs.
        stop_value: Mean evaluation return that ends the run.
        collector_episode_num: Parallel mode: episodes per env in one collector task.
        evaluator_episode_num: Parallel mode: episodes per env in one evaluation task; None
            for as many as ``n_evaluator_episode`` needs.
        observation_space: What a player observes; None: read from the env. A run writes it down,
            for those who use its policy without the env.
        action_space: What actions a player takes; None: read from the env, likewise.
        eval_opponents: Envs of several players: who plays the others in evaluations, ``random`` or
            ``module:function``. Parallel mode goes through them, the weakest first; serial mode
            takes the last.
    """

    env_id: str
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    wrappers: list[Any] = msgspec.field(default_factory=list)
    collector_env_num: Held = 8
    evaluator_env_num: Held = 5
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
    """Section ``system.replay``: who holds the replay buffer of a parallel run.

    Attributes:
        type: With ``learner`` the coordinator has the metadata of the rows and the learner the
            rows; with ``server`` a replay server has both.
        address: ``host:port`` of a server that others use too; where empty, the run has one of its
            own, a worker of the role ``replay-server``.
        path: Folder of that server, for its secret, where no environment variable names one.
        timeout_s: Seconds for the server to answer, and to come back where it was lost.
    """

    type: Literal["learner", "server"] = "learner"
    address: str = ""
    path: str = ""
    timeout_s: Positive = 60.0

    def __post_init__(self) -> None:
        if self.type == "learner" and self.address:
            raise ValueError(f"address is {self.address!r}, but type is learner; set it to server")


class SystemSection(Section, frozen=True, kw_only=True):
    """Section ``system``: what the run uses of the machine, and how its parts talk.

    Attributes:
        transport: The transport plugin by ``type``, with its options (parallel mode).
        collector_num: Collector workers (parallel mode).
        learner_num: Processes that train together, each on an equal part of every batch. The
            learner starts the others, unless torchrun has started them all. With ``policy.cuda``
            each has a GPU of its own, of one host.
        roles: Further roles of workers by their type key, each with its options; ``num``
            workers are started of each (parallel mode). ``inference`` acts for the collectors.
        collector: Options of the comm collectors.
        learner: Options of the comm learners.
        replay: Who holds the replay buffer (parallel mode).
        coordinator: Options of the coordinator (parallel mode).
        journal: What is kept of the run, so that it can be resumed (parallel mode).
        rejoin_s: Seconds that a worker looks for a coordinator that is gone, before it ends
            (parallel mode, transports that run workers as processes).
        restarts: How often each worker process may be restarted within ten minutes, without a
            minute of work in between, before its death ends the run (parallel mode, transports
            that run workers as processes).
        worker_memory_limit: Bytes of memory of a worker's process and its children beyond which
            it is started again: between two tasks, and a learner after 20 s or more of training,
            from a checkpoint that it saves; None for no limit (parallel mode, transports that run
            workers as processes).
        torch_threads: Threads that torch may use in each process. Small networks are fastest
            with one.
        max_env_steps: The run ends after this many collected env steps, trained on as often as the
            policy asks for; None for no limit.
        save_every: Seconds between two saves of all that ``train --resume`` needs (serial mode;
            parallel mode has ``journal``); ``auto`` is 60, and more where saving would take over
            2 % of the time; None saves nothing. A run that ends, or is interrupted, saves once
            more.
        validate_state: Whether to check, every 5 s and at the end, that each acknowledged sample
            is in the replay buffer or was evicted for a counted reason. A run where that is not
            so ends by ``SamplesLostError``.
        record_schedule: Whether to write down what was delivered when, so that ``dingsdk replay``
            can train the same weights again (parallel mode, transport in_memory).
    """

    transport: Annotated[dict[str, Any], Part("transports")] = preset("in_memory")
    collector_num: Held = 2
    learner_num: Held = 1
    roles: Annotated[dict[str, Any], Part("roles", many=True)] = msgspec.field(default_factory=dict)
    collector: Annotated[dict[str, Any], Part("comm_collectors")] = preset("base")
    learner: Annotated[dict[str, Any], Part("comm_learners")] = preset("base")
    replay: ReplaySection = ReplaySection()
    coordinator: CoordinatorSection = CoordinatorSection()
    journal: JournalSection = JournalSection()
    rejoin_s: Positive = 60.0
    restarts: Whole = 3
    worker_memory_limit: Count | None = None
    torch_threads: Held = 1
    max_env_steps: Count | None = None
    save_every: NotNegative | Literal["auto"] | None = "auto"
    validate_state: bool = False
    record_schedule: bool = False


class RunSection(Section, frozen=True, kw_only=True):
    """The whole config.

    Attributes:
        exp_name: Name of the run folder below the output root.
        seed: Root of the seed tree: every env, network and sampler derives its own from it.
        env: Which environment, how many, and when it counts as solved.
        env_manager: The env manager by ``type``, with its options.
        policy: The policy by ``type``, as in ``policy: {type: dqn}``, with the sections of the
            workers around it.
        system: What the run uses of the machine, and how its parts talk.
    """

    exp_name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]+$",
            max_length=100,
            description="one or more letters, digits, '.', '_' and '-'",
        ),
    ] = "run"
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    env: EnvSection
    env_manager: Annotated[dict[str, Any], Part("env_managers")] = preset("vector")
    policy: Annotated[dict[str, Any], Part("policies", base=PolicySection)]
    system: SystemSection = SystemSection()


def part_kinds() -> dict[str, str]:
    """Return the kind of every part that a config names a type of, by its dotted path."""
    return {**_parts_in(RunSection, ""), **_parts_in(PolicySection, "policy.")}


def _parts_in(section: type[Section], path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, field in fields_of(section).items():
        if field.section is not None:
            found |= _parts_in(field.section, f"{path}{name}.")
        elif field.part is not None and not field.part.many:
            found[f"{path}{name}"] = field.part.kind
    return found
