"""``dingsdk replay-server``: serves a replay buffer to several learners, collectors and runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import click

from dingsdk.cli.options import complete_config, given_of, transport_option
from dingsdk.pipeline.output import say


@click.command("replay-server", short_help="Serve a replay buffer to several learners and runs.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Folder of the log, the checkpoints and the secret; a restarted server continues "
    "from them.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="TCP port to listen on; 0 takes any free one.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="A.B=C",
    help="Set a key of the replay buffer, as in policy.other.replay_buffer, or of CONFIG; may be "
    "repeated.",
)
@click.option(
    "--coordinator",
    "address",
    metavar="URL",
    help="Serve the replay buffer of the run whose coordinator prints this address; needs "
    "--config, and DIR is the run folder.",
)
@click.option(
    "--config", metavar="CONFIG", shell_complete=complete_config, help="Config of the run."
)
@transport_option
def replay_server(
    data: Path,
    host: str,
    port: int,
    sets: tuple[str, ...],
    address: str | None,
    config: str | None,
    transport: str | None,
) -> int:
    """Serve a replay buffer until Ctrl-C, then save a checkpoint.

    Prints the address for clients, and the path of the secret that they need. For clients on other
    hosts, give --host and choose a secret (DINGSDK_SECRET_FILE).
    """
    if (address is None) != (config is None):
        raise click.UsageError("--coordinator and --config go together")
    if address is not None and config is not None:
        from dingsdk.cli.roles import work

        if (name := given_of(click.get_current_context(), ("host", "port"))) is not None:
            raise click.UsageError(f"--{name} is for a server without --coordinator")
        return work("replay-server", config, transport, sets, data, address, None)
    if transport is not None:
        raise click.UsageError("--transport is for --coordinator")
    from dingsdk.config import apply_set
    from dingsdk.pipeline.signals import StopOnSignal, exit_code
    from dingsdk.worker.replay_server import ReplayServer

    buffer_cfg: dict[str, Any] = {"type": "naive"}
    for each in sets:
        apply_set(buffer_cfg, each)
    stop = threading.Event()
    with (
        StopOnSignal(stop) as signals,
        ReplayServer({"host": host, "port": port}, buffer_cfg, data.absolute()) as server,
    ):
        say(f"replay server: {server.address}")
        say(f"secret: {server.secret.source}")
        say(f"rows: {server.buffer.table.count()}")
        stop.wait()
    return exit_code(signals.received)
