"""``dingsdk coordinator``, and ``dingsdk <role>`` for each role: for runs on several hosts."""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dingsdk.cli.options import (
    complete_config,
    quiet_option,
    seed_option,
    sets_option,
    transport_option,
)
from dingsdk.pipeline.output import say
from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.worker.learner.remote_ranks import RankPlace

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _of_the_run(command: CommandT) -> CommandT:
    """Add the options that all roles have; all roles of a run need the same values."""
    config = click.option(
        "--config",
        required=True,
        metavar="CONFIG",
        shell_complete=complete_config,
        help="A .yaml, .json or .py file, or the name of a shipped example.",
    )
    data = click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        required=True,
        metavar="DIR",
        help="The run folder, on a disk that all roles share.",
    )
    return config(transport_option(sets_option(data(command))))


def _of_a_worker(command: CommandT) -> CommandT:
    address = click.option(
        "--coordinator",
        "address",
        required=True,
        metavar="URL",
        help="Address that the coordinator prints.",
    )
    name = click.option(
        "--id",
        "worker_id",
        metavar="NAME",
        help="Unique in the run; default: host name and process id.",
    )
    return _of_the_run(address(name(command)))


@click.command(short_help="Run the coordinator of a run whose workers are started by hand.")
@_of_the_run
@click.option("--host", help="Address to listen on; overrides system.transport.host.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Overrides system.transport.port; 0 takes any free port.",
)
@seed_option
@quiet_option
def coordinator(
    config: str,
    transport: str | None,
    sets: tuple[str, ...],
    data: Path,
    host: str | None,
    port: int | None,
    seed: int | None,
    quiet: bool,
) -> int:
    """Coordinate a run, and write the files of `dingsdk train` to DIR.

    Prints the address for `dingsdk learner` and `dingsdk collector`, and the path of the secret
    that they need. For workers on other hosts, give --host and choose a secret
    (DINGSDK_SECRET_FILE).
    """
    from dingsdk.cli.train import summary
    from dingsdk.pipeline.signals import exit_code
    from dingsdk.pipeline.train import compile_run, run_coordinator

    chosen = {"host": host, "port": port}
    own = [
        f"system.transport.{key}={json.dumps(value)}"  # quoted, as `::` and `null` are other YAML
        for key, value in chosen.items()
        if value is not None
    ]
    cfg = compile_run(config, "parallel", transport, [*sets, *own], seed)

    def announce(address: str, note: str) -> None:
        say(f"coordinator: {address}")
        if note:
            say(note)

    result = run_coordinator(cfg, data.absolute(), announce, progress=not quiet)
    say(summary(result))
    return exit_code(result.signal)


class WorkerCommand(click.Command):
    """The command of a role. Its help is the docstring of the role, which is imported only then."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.help = inspect.getdoc(default_manager().get("roles", str(self.name)))
        super().format_help_text(ctx, formatter)


def worker_command(role: str) -> click.Command:
    """Return the command that runs one worker of a role."""

    @click.command(role, cls=WorkerCommand, short_help=f"Run one {role} worker of a run.")
    @_of_a_worker
    def command(**options: Any) -> int:
        return work(role, **options)

    return command


def work(
    role: str,
    config: str,
    transport: str | None,
    sets: tuple[str, ...],
    data: Path,
    address: str,
    worker_id: str | None,
) -> int:
    """Run one worker of a role until the run ends or a signal arrives; return the exit code."""
    from dingsdk.errors import ProtocolError
    from dingsdk.pipeline.parallel import worker_config
    from dingsdk.pipeline.resume import warn_of_other_config
    from dingsdk.pipeline.signals import StopOnSignal, exit_code
    from dingsdk.pipeline.train import compile_run
    from dingsdk.pipeline.worker import check_reach, run_worker
    from dingsdk.pipeline.worker_process import OUT_OF_MEMORY
    from dingsdk.runtime.files import check_id

    given = compile_run(config, "parallel", transport, sets)
    check_reach(given)
    cfg = worker_config(given, data.absolute())
    place = _rank_place(cfg) if role == "learner" else None
    name = worker_id or re.sub(
        r"[^A-Za-z0-9_-]", "-", f"{role}-{socket.gethostname()[:40]}-{os.getpid()}"
    )
    try:
        check_id(name)
    except ProtocolError as error:
        raise click.BadParameter(str(error), param_hint="--id") from error

    def joined() -> None:
        say(f"{name} joined {address}")
        warn_of_other_config(data.absolute(), name, given)

    stop = threading.Event()
    with StopOnSignal(stop, doing="leaving the run") as signals:
        should_restart = run_worker(
            role,
            cfg,
            address,
            name,
            data.absolute(),
            stop,
            joined,
            place,
        )
    if should_restart:
        click.echo(f"{name} left, over its memory limit; start it again", err=True)
        return OUT_OF_MEMORY
    say(f"{name} left" if signals.received else f"{name}: the run is over")
    return exit_code(signals.received)


def _rank_place(cfg: Any) -> RankPlace | None:
    """Return the rank and address of a learner that torchrun or the user started with others."""
    from dingsdk.worker.learner.remote_ranks import RankPlace

    place = RankPlace.of(os.environ)
    if place is not None:
        place.check(cfg.system.learner_num)
    return place
