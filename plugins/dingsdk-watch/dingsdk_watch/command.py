"""``dingsdk watch``."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import click

from dingsdk.errors import ConfigError
from dingsdk.runtime import read_secret


@click.command("watch", short_help="Show runs on a live page, from the files in their folders.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port; 0 chooses a free one.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Another host name of the page; needed for browsers on other machines.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token, for Prometheus, that only you can read (chmod 600); default: a new "
    "random token each time.",
)
@click.option("--until-closed", is_flag=True, hidden=True, help="End with standard input.")
def watch(
    runs: tuple[Path, ...],
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    token_file: Path | None,
    until_closed: bool,
) -> int:
    """Serve a live page of the runs in the folders RUN...

    The page reads the runs' files and changes nothing. Ctrl-C ends the command.
    """
    # Imported here and not above, as the list of commands imports this module.
    from dingsdk_watch.runs import open_runs
    from dingsdk_watch.server import Server

    token = None if token_file is None else _token(token_file)
    with Server(open_runs(runs), host, port, token, allow_host) as server:
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        click.echo(f"live page  {server.url}")
        if until_closed:
            threading.Thread(target=_wait_for_end_of_input, args=(ended,), daemon=True).start()
        ended.wait()
    return 0


def _wait_for_end_of_input(ended: threading.Event) -> None:
    # The program that started this process holds the other end of the pipe; the system closes that
    # end when the program dies.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    ended.set()


def _token(path: Path) -> str:
    token = read_secret(path, is_explicit=True).reveal().decode("latin-1")
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", token):
        raise ConfigError(
            f"{path} holds no token: write 16 to 128 letters, digits, '_' or '-' into it",
            path="--token-file",
        )
    return token
