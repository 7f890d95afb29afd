"""The rules of commands, and the bench that checks them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import click
from click.testing import CliRunner, Result

from dingsdk.testing.expect import expect, expect_equal
from dingsdk.testing.runner import Contract, RuleBench, RuleBook, collect

SHORT_HELP_CHARS = 90


class CommandBench(RuleBench[click.Command]):
    """The bench of a command: yields and calls the command and its subcommands."""

    def commands(self) -> Iterator[click.Command]:
        """Yield the command and all of its subcommands."""
        waiting = [self._make]
        while waiting:
            command = waiting.pop(0)
            yield command
            if isinstance(command, click.Group):
                waiting += command.commands.values()

    def call(self, command: click.Command, *arguments: str) -> Result:
        """Run a command with arguments; return its result."""
        return CliRunner().invoke(command, arguments)


def rule_01_says_what_it_does(bench: CommandBench) -> None:
    """A command has a help text, and a short help of one line for the list of commands.

    The help text mentions each argument by the name that the usage line shows. Each option that is
    not hidden has a help text.
    """
    for command in bench.commands():
        help_text = (command.help or "").strip()
        expect(bool(help_text), f"{command.name} has no help")
        short = command.get_short_help_str(limit=1000)
        is_line = 0 < len(short) <= SHORT_HELP_CHARS and "\n" not in short
        expect(is_line, f"the short help of {command.name} is {short!r}")
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                name = parameter.make_metavar(click.Context(command)).strip("[].")
                expect(name in help_text, f"the help of {command.name} omits {name}")
            elif isinstance(parameter, click.Option) and not parameter.hidden:
                expect(bool(parameter.help), f"{command.name} {parameter.opts[-1]} has no help")


def rule_04_help_is_shown(bench: CommandBench) -> None:
    """``--help`` shows the help and exits with 0.

    An unknown option is an error that names it, with exit code 2.
    """
    for command in bench.commands():
        done = bench.call(command, "--help")
        expect_equal(done.exit_code, 0, f"exit code of {command.name} --help ({done.exception!r})")
        expect("Usage:" in done.output, f"{command.name} --help shows {done.output!r}")
        done = bench.call(command, "--no-such-option")
        expect_equal(done.exit_code, 2, f"exit code of {command.name} --no-such-option")
        expect("--no-such-option" in done.output, f"the error of {command.name}: {done.output!r}")


def rule_06_completion_never_fails(bench: CommandBench) -> None:
    """Shell completion of each parameter does not fail, also for a text that matches nothing."""
    for command in bench.commands():
        context = click.Context(command)
        for parameter in command.params:
            for text in ("", "no-such-text"):
                parameter.shell_complete(context, text)


COMMAND_BOOK: Final = RuleBook(collect(__name__), {}, CommandBench)


class CommandContract(Contract):
    """Base class of a command's contract tests.

    Attributes:
        command: The click command.
    """

    book = COMMAND_BOOK
    maker = "command"
    command: ClassVar[Any]
