"""Run a command of dingsdk in a detached actor, which goes on when the process that asked is gone.

    python -m dingsdk_ray.detached start NAME train CONFIG --mode parallel --transport ray \\
        --set system.transport.address=auto
    python -m dingsdk_ray.detached stop NAME
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from dingsdk.errors import ConfigError, DingError
from dingsdk.runtime import open_private
from dingsdk_ray import cluster

ANSWER_S = 60.0
"""How long a detached run may take to start, or to answer that it stops."""
PREFIX = "run-"


class DetachedRun:
    """A command in a child process of an actor; the actor ends with it.

    Args:
        command: Arguments of ``dingsdk``.
        folder: Working directory of the command.
        log: File that its output is appended to.
    """

    def __init__(self, command: Sequence[str], folder: Path, log: Path) -> None:
        with open(log, "ab", opener=open_private) as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dingsdk", *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def stop(self) -> None:
        """Interrupt the command, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def _end_with_it(self) -> None:
        import ray

        self._process.wait()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def start(name: str, command: Sequence[str], folder: Path) -> Path:
    """Start a command on this node; return the file of its output.

    Raises:
        ConfigError: a command of that name runs, or the actor does not start.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    log = folder / f"{name}.log"
    node_id = ray.get_runtime_context().get_node_id()
    try:
        actor = (
            ray.remote(num_cpus=0)(DetachedRun)
            .options(
                name=PREFIX + name,
                namespace=cluster.NAMESPACE,
                lifetime="detached",
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(list(command), folder, log)
        )
        ray.get(actor.__ray_ready__.remote(), timeout=ANSWER_S)
    except (ray.exceptions.RayError, ValueError) as error:
        line = " ".join(str(error).split())[:300]
        raise ConfigError(f"{name!r} cannot be started: {line}", path=name) from error
    return log


def stop(name: str) -> None:
    """Stop a command.

    Raises:
        ConfigError: no command of that name runs.
    """
    import ray

    try:
        actor = ray.get_actor(PREFIX + name, namespace=cluster.NAMESPACE)
        ray.get(actor.stop.remote(), timeout=ANSWER_S)
    except (ray.exceptions.RayError, ValueError) as error:
        raise ConfigError(f"no command {name!r} runs in this cluster", path=name) from error


@click.command(
    "python -m dingsdk_ray.detached", context_settings={"allow_interspersed_args": False}
)
@click.option("--address", default="auto", help="As system.transport.address.")
@click.option(
    "--allow-insecure-ray",
    "allow_insecure",
    is_flag=True,
    help="As system.transport.allow_insecure_ray.",
)
@click.argument("action", type=click.Choice(["start", "stop"]))
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(
    address: str, allow_insecure: bool, action: str, name: str, command: tuple[str, ...]
) -> None:
    """Start a command of dingsdk in a detached actor called NAME, or stop it."""
    try:
        cluster.connect(address, allow_insecure=allow_insecure)
        try:
            if action == "stop":
                stop(name)
            else:
                log = start(name, command, Path.cwd())
                click.echo(f"{name} runs in the cluster; its output is in {log}")
        finally:
            cluster.disconnect()
    except DingError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(2) from error


if __name__ == "__main__":
    main()
