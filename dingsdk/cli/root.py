"""The program: runs the commands of the kinds ``commands`` and ``roles``, and reports errors."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem, shell_complete

from dingsdk.errors import DingError, UnknownPluginError, error_text, spelling
from dingsdk.pipeline.output import discard, open_closed_streams
from dingsdk.plugins import default_manager
from dingsdk.plugins.discovery import version_of
from dingsdk.plugins.kinds import OWN_DISTRIBUTION

FAILED = 1
MISTAKE = 2
INTERRUPTED = 130
_COMPLETE = "_DINGSDK_COMPLETE"
"""Environment variable that a shell sets to ask for completions, or for its script."""


class RegistryGroup(click.Group):
    """A click group that looks up its commands in the registry, so that plugins can add some."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands; imports no command."""
        manager = default_manager()
        return sorted({*manager.known("commands"), *manager.known("roles")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with the option ``--debug``, which all commands have."""
        try:
            command: click.Command = default_manager().get("commands", cmd_name)
        except UnknownPluginError:
            if cmd_name not in default_manager().known("roles"):
                return None
            from dingsdk.cli.roles import worker_command

            command = worker_command(cmd_name)
        _add_debug(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Do what click does; if there is no such command, the error names the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            _, hint = spelling(args[0], self.list_commands(ctx))
            raise click.UsageError(f"{error.message.removesuffix('.')}{hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; if one cannot be loaded, show the reason."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._visible(ctx, formatter.width)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Propose commands, or options of the program if the word begins with a dash."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        rows = self._visible(ctx)
        return [
            CompletionItem(name, help=text) for name, text in rows if name.startswith(incomplete)
        ]

    def _visible(self, ctx: click.Context, width: int = 80) -> Iterator[tuple[str, str]]:
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
            except DingError as error:
                yield name, f"(cannot be loaded: {error})"
                continue
            if command is not None and not command.hidden:
                yield name, command.get_short_help_str(width)


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().obj["debug"] = True


def _add_debug(command: click.Command) -> None:
    if not any(param.name == "debug" for param in command.params):
        command.params.append(_debug_option())
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _add_debug(inner)


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        help="Show tracebacks, also for config errors.",
    )


@click.group(
    cls=RegistryGroup,
    params=[_debug_option()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(version_of(OWN_DISTRIBUTION) or "unknown", prog_name="dingsdk")
def root() -> None:
    """Train and evaluate reinforcement learning agents. Every part is a plugin."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; see ``dingsdk.cli.main``."""
    if instruction := os.environ.get(_COMPLETE):
        logging.disable()  # the user is typing a command
        return shell_complete(root, {"obj": {}}, "dingsdk", _COMPLETE, instruction)
    open_closed_streams()
    streams = sys.stdout, sys.stderr
    settings: dict[str, Any] = {"debug": False}
    try:
        if any("\0" in argument for argument in argv or ()):
            raise click.UsageError("An argument has a NUL character, which no path can have.")
        default_manager().adverts()  # logs problems of the installation
        code = root.main(
            args=None if argv is None else list(argv),
            prog_name="dingsdk",
            standalone_mode=False,
            obj=settings,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted; there was nothing to save.", err=True)
        return INTERRUPTED
    except DingError as error:
        return _report(error, settings["debug"])
    except (Exception, SystemExit) as error:
        if isinstance(error, BrokenPipeError) or sys.stdout is not streams[0]:
            # The reader of our output has closed it, as `| head` does; click replaced the streams.
            sys.stdout, sys.stderr = streams
            discard(sys.stdout)
            return FAILED
        if isinstance(error, OSError) and not _can_write():
            discard(sys.stdout)
            click.echo(f"Error: cannot write the output: {error.strerror or error}", err=True)
            return FAILED
        traceback.print_exc()
        advice = "This is a defect of dingsdk or of a plugin, not of your config."
        if isinstance(error, MemoryError):
            advice = "Lower the sizes in the config: envs, batch, replay buffer, network."
        elif isinstance(error, OSError) and error.errno == errno.EMFILE:
            advice = "Raise the limit of open files (ulimit -n)."
        click.echo(f"\nError: {error_text(error)}\n{advice}", err=True)
        return FAILED
    return code if isinstance(code, int) else 0


def _can_write() -> bool:
    try:
        click.echo()
    except OSError:
        return False
    return True


def _report(error: DingError, debug: bool) -> int:
    if error.is_user_mistake and not debug:
        click.echo(f"Error: {error}", err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(f"  ({note})", err=True)
        return MISTAKE
    remote = error.facts.get("traceback")
    if isinstance(remote, str) and not debug:
        # The traceback of the worker is more useful than ours. A worker that was killed has none.
        for text in [remote] if remote else getattr(error, "__notes__", ()):
            click.echo(text.rstrip(), err=True)
    else:
        traceback.print_exception(error)
    click.echo(f"\nError: {error}", err=True)
    return MISTAKE if error.is_user_mistake else FAILED
