"""The command group: its commands are what the registry kind ``commands`` holds."""

from __future__ import annotations

import click

from dingsdk import __version__
from dingsdk.errors import DingError, UnknownPluginError, nearest_name
from dingsdk.plugins import default_manager


class RegistryGroup(click.Group):
    """A click group whose commands are looked up by name, so that plugins can add some."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every name that can be typed; imports no command."""
        return default_manager().known("commands")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with the option ``--debug`` that each of them has."""
        try:
            command: click.Command = default_manager().get("commands", cmd_name)
        except UnknownPluginError:
            return None
        if not any(param.name == "debug" for param in command.params):
            command.params.append(_debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, naming the nearest command where there is none of that name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            nearest = nearest_name(args[0], self.list_commands(ctx))
            if nearest is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean {nearest!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; one that cannot be loaded is named with the reason."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
            except DingError as error:
                rows.append((name, f"(cannot be loaded: {error})"))
                continue
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(formatter.width)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().obj["debug"] = True


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        help="Show tracebacks, also of mistakes in the config (or set DINGSDK_DEBUG=1).",
    )


@click.group(
    cls=RegistryGroup,
    params=[_debug_option()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="dingsdk")
def root() -> None:
    """Train and evaluate reinforcement learning agents whose every part is a plugin."""
