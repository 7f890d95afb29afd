"""New processes, which import the script that the parent was started with."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import SpawnContext

from dingsdk.errors import ConfigError

UNGUARDED = 76
"""Exit code of a new process whose import of the user's script would start another run."""
UNGUARDED_TEXT = (
    "a worker process imports the script that started the run, and the script would start another "
    'run; put what it does below `if __name__ == "__main__":`'
)


def spawn_context(path: str) -> SpawnContext:
    """Return the context that starts processes.

    Args:
        path: The config key that asks for them.

    Raises:
        ConfigError: there is no file of the script that they could import.
    """
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise ConfigError(
            f"{path} asks for new processes, which import the script that was started, and this "
            "one was read from standard input; save it as a file",
            path=path,
        )
    return multiprocessing.get_context("spawn")


def leave_if_importing() -> None:
    """End the process, if it is a new one that imports the user's script; see ``UNGUARDED``."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)


def check_guarded(exit_code: int | None, path: str) -> None:
    """Raise ConfigError for the key ``path`` where a process ended by ``leave_if_importing``."""
    if exit_code == UNGUARDED:
        raise ConfigError(UNGUARDED_TEXT, path=path) from None  # not from the closed connection
