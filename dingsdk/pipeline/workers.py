"""The transport and the workers of a run, as its config names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dingsdk.errors import ConfigError
from dingsdk.plugins import default_manager
from dingsdk.worker import create_comm_collector, create_comm_learner
from dingsdk.worker.comm.imports import named_modules
from dingsdk.worker.comm.transport import Place, Role, Transport


def make_transport(cfg: Any, run_dir: Path) -> Any:
    """Return the transport of this process, as section ``system.transport`` names it."""
    return default_manager().create(
        "transports", cfg.system.transport, run_dir, config_path="system.transport"
    )


def make_worker(role: Role, cfg: Any, transport: Transport, worker_id: str) -> Any:
    """Return an unstarted comm worker; its type is the transport's unless the config names one.

    ``cfg`` is this process's own: the tasks to come may have imported what it names.
    """
    create = create_comm_collector if role == "collector" else create_comm_learner
    section = {"type": cfg.system.transport.type, **cfg.system.get(role, {})}
    section["allowed_modules"] = sorted(
        named_modules(cfg).union(section.get("allowed_modules") or ())
    )
    return create(section, transport=transport, worker_id=worker_id)


def worker_ids(cfg: Any) -> list[tuple[Role, str]]:
    """Return role and id of every worker of a run; the learner first, as all wait for it."""
    counts: list[tuple[Role, int]] = [
        ("learner", cfg.system.learner_num),
        ("collector", cfg.system.collector_num),
    ]
    return [(role, f"{role}-{index}") for role, count in counts for index in range(count)]


def place_of(
    transport_cls: type[Transport], section: Mapping[str, Any], *, is_elsewhere: bool = False
) -> Place:
    """Return where the workers run: what the config says, else the transport's first choice.

    Args:
        transport_cls: Class of the run's transport.
        section: ``system.transport``.
        is_elsewhere: Whether the user starts the workers, which makes them processes.

    Raises:
        ConfigError: the transport does not reach workers there.
    """
    places = transport_cls.places
    asked = "processes" if is_elsewhere else section.get("workers") or places[0]
    for place in places:
        if place == asked:
            return place
    raise ConfigError(
        f"the transport {section['type']!r} runs workers as {' or '.join(places)}, not as {asked}; "
        "for workers in processes of their own choose another one, such as flask_fs",
        path="system.transport.type" if is_elsewhere else "system.transport.workers",
    )
