"""The run-level config sections as frozen records: their defaults, types and ranges.

Sections of components (learner, buffer, ...) have the defaults of the selected class; see
``dingsdk.pipeline.schema``.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from dingsdk.errors import ConfigTypeError

Count = Annotated[int, msgspec.Meta(ge=1)]
Number = int | float

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class EnvSection(msgspec.Struct, frozen=True, kw_only=True):
    """Section ``env``: which environment, how many, and when it counts as solved.

    Attributes:
        env_id: A gymnasium id such as ``CartPole-v1``.
        kwargs: Passed to ``gymnasium.make``.
        wrappers: Wrappers by type key, innermost first.
        collector_env_num: Envs that a collector steps together.
        evaluator_env_num: Envs that an evaluator steps together.
        n_evaluator_episode: Episodes of one evaluation, spread evenly over the envs.
        stop_value: Mean evaluation return that ends the run.
        collector_episode_num: Parallel mode: episodes per env in one collector task.
        evaluator_episode_num: Parallel mode: episodes per env in one evaluation task; None
            for as many as ``n_evaluator_episode`` needs.
    """

    env_id: str
    kwargs: dict[str, Any] = {}
    wrappers: list[Any] = []
    collector_env_num: Count = 8
    evaluator_env_num: Count = 5
    n_evaluator_episode: Count = 5
    stop_value: Number = float("inf")
    collector_episode_num: Count = 8
    evaluator_episode_num: Count | None = None


class SystemSection(msgspec.Struct, frozen=True, kw_only=True):
    """Section ``system``: what the run uses of the machine, and how its parts talk.

    Attributes:
        transport: The transport plugin by ``type``, with its options (parallel mode).
        collector_num: Collector workers (parallel mode).
        learner_num: Learner workers (parallel mode).
        roles: Further roles of workers by their type key, each with its options; ``num``
            workers are started of each (parallel mode).
        collector: Options of the comm collectors; their type is the transport's unless named.
        learner: Options of the comm learners, likewise.
        coordinator: Options of the coordinator (parallel mode).
        restarts: How often each worker process may be started anew within ten minutes, before
            its death ends the run (parallel mode, transports that run workers as processes).
        torch_threads: Threads that torch may use in each process. Small networks are fastest
            with one.
        max_env_steps: The run ends after this many collected env steps; None for no limit.
    """

    transport: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "in_memory"})
    collector_num: Count = 2
    learner_num: Count = 1
    roles: dict[str, dict[str, Any]] = {}
    collector: dict[str, Any] = {}
    learner: dict[str, Any] = {}
    coordinator: dict[str, Any] = {}
    restarts: Annotated[int, msgspec.Meta(ge=0)] = 3
    torch_threads: Count = 1
    max_env_steps: Count | None = None


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole config; ``policy`` and ``env_manager`` are checked against their classes.

    Attributes:
        exp_name: Name of the run folder below the output root.
        seed: Root of the seed tree: every env, network and sampler derives its own from it.
        env: See ``EnvSection``.
        env_manager: The env manager by ``type``, with its options.
        policy: The policy by ``type``, with the sections of the workers around it.
        system: See ``SystemSection``.
    """

    exp_name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] = "run"
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    env: EnvSection
    env_manager: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "vector"})
    policy: dict[str, Any]
    system: SystemSection = SystemSection()


def defaults_of(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the defaults of a record as a plain dict; required fields are None."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(record):
        if field.default is not msgspec.NODEFAULT:
            value = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            value = field.default_factory()
        else:
            value = None
        found[field.name] = (
            msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
        )
    return found


def to_record(value: Any, record: type[RecordT]) -> RecordT:
    """Validate plain data against a record.

    Raises:
        ConfigTypeError: a value of the wrong type or out of range, with its dotted path.
    """
    try:
        return msgspec.convert(value, record)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        path = where.strip("`").lstrip(".")
        found = _lookup(value, path)
        raise ConfigTypeError(
            f"{path or 'config'}: {what[:1].lower()}{what[1:]} (found {found!r})",
            path=path,
            expected=what,
            found=found,
        ) from error


def _lookup(value: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value
