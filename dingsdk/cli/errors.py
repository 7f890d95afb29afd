"""The one place that turns exceptions into messages and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dingsdk.errors import DingError
from dingsdk.plugins import default_manager

FAILED = 1
MISTAKE = 2
INTERRUPTED = 130


def run_guarded(command: click.Command, argv: Sequence[str] | None) -> int:
    """Run a click command and return the exit code; see ``dingsdk.cli.main``."""
    settings: dict[str, Any] = {"debug": _is_debug(os.environ)}
    try:
        default_manager().adverts()  # logs what is wrong with the installation
        code = command.main(
            args=None if argv is None else list(argv),
            prog_name="dingsdk",
            standalone_mode=False,
            obj=settings,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted; there was nothing to save.", err=True)
        return INTERRUPTED
    except DingError as error:
        return _report(error, settings["debug"])
    except BrokenPipeError:
        # The reader of our output left, as `| head` does. Keep the interpreter from
        # complaining about it once more when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        advice = "This is a defect of dingsdk or of a plugin, not of your config."
        if isinstance(error, MemoryError):
            advice = "Lower the sizes in the config: envs, batch, replay buffer, network."
        click.echo(f"\nError: {type(error).__name__}: {error}\n{advice}", err=True)
        return FAILED
    return code if isinstance(code, int) else 0


def _report(error: DingError, debug: bool) -> int:
    if error.is_user_mistake and not debug:
        click.echo(f"Error: {error}", err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(f"  ({note})", err=True)
        return MISTAKE
    remote = error.facts.get("traceback")
    if isinstance(remote, str) and remote and not debug:
        # What happened in the worker tells more than how the master heard of it.
        click.echo(remote.rstrip(), err=True)
    else:
        traceback.print_exception(error)
    click.echo(f"\nError: {error}", err=True)
    return MISTAKE if error.is_user_mistake else FAILED


def _is_debug(environ: Mapping[str, str]) -> bool:
    return environ.get("DINGSDK_DEBUG", "").strip().lower() in {"1", "true", "yes", "on"}
