"""Shell completion: click completes commands and options, this module examples, types and keys.

Options that several commands share are also defined here, with their completions.

To turn completion on::

    eval "$(_DINGSDK_COMPLETE=bash_source dingsdk)"    # bash; zsh_source for zsh
    _DINGSDK_COMPLETE=fish_source dingsdk | source     # fish
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    shell_complete,
)

from dingsdk.plugins import default_manager

VARIABLE = "_DINGSDK_COMPLETE"
"""Environment variable that a shell sets to ask for completions, or for its script."""


def complete(root: click.Command, instruction: str) -> int:
    """Answer the shell; ``instruction`` is the value of ``VARIABLE``. Return the exit code.

    A failure prints nothing, because the user is typing a command.
    """
    logging.disable()
    add_completion_class(_Bash)
    try:
        return shell_complete(root, {"obj": {}}, "dingsdk", VARIABLE, instruction)
    except Exception:
        return 1


def complete_config(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose config files and the shipped examples."""
    from dingsdk.config import EXAMPLES_DIR

    examples = sorted(path.stem for path in EXAMPLES_DIR.glob("*.yaml"))
    # Files first: click's script for bash drops the items before them.
    files = CompletionItem(incomplete, type="file")
    return [files, *(CompletionItem(name) for name in examples if name.startswith(incomplete))]


def complete_transport(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose the installed transports."""
    return [CompletionItem(name) for name in _types("transports", incomplete)]


def complete_set(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose the keys of the config on the command line, and types after ``=``."""
    from dingsdk.config.plain import flatten
    from dingsdk.pipeline.sections import part_kinds

    key, is_value, value = incomplete.partition("=")
    if is_value:
        kind = part_kinds().get(key.removesuffix(".type")) if key.endswith(".type") else None
        names = _types(kind, value) if kind else []
        return [CompletionItem(f"{key}={name}") for name in names]
    # If an option before it has no value yet, click leaves CONFIG in the remaining arguments.
    config = ctx.params.get("config") or next(iter(ctx.args), "")
    found = flatten(_compiled(config, ctx.params.get("transport")))
    return [
        CompletionItem(f"{key}=", help=str(value))
        for key, value in sorted(found.items())
        if key.startswith(incomplete)
    ]


transport_option = click.option(
    "--transport",
    metavar="TYPE",
    shell_complete=complete_transport,
    help="Overrides system.transport.type.",
)
sets_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="A.B=C",
    shell_complete=complete_set,
    help="Override one config value; may be repeated.",
)
mode_option = click.option(
    "--mode",
    type=click.Choice(["serial", "parallel"]),
    default="serial",
    show_default=True,
    help="One thread, or coordinator, collectors and learner over a transport.",
)
seed_option = click.option(
    "--seed", type=int, help="Root of the seed tree; overrides the config's."
)
env_argument = click.argument("env", metavar="ENV")
kwargs_option = click.option(
    "--kwargs", default="{}", metavar="MAPPING", help="As env.kwargs, such as '{length: 5}'."
)
wrappers_option = click.option(
    "--wrapper",
    "wrappers",
    multiple=True,
    metavar="TYPE",
    help="As an entry of env.wrappers; may be repeated, innermost first.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")


def read_kwargs(text: str) -> dict[str, Any]:
    """Return the value of ``--kwargs``.

    Raises:
        ConfigError: the value is not a mapping.
    """
    from dingsdk.config import apply_set
    from dingsdk.errors import wrong_type

    found = apply_set({}, f"kwargs={text}")["kwargs"]
    if not isinstance(found, dict):
        raise wrong_type("--kwargs", "a mapping such as '{length: 5}'", text)
    return found


def given_of(context: click.Context, names: Iterable[str]) -> str | None:
    """Return the first of these arguments and options that the user typed, or None."""
    typed = ParameterSource.COMMANDLINE
    return next((name for name in names if context.get_parameter_source(name) == typed), None)


def _types(kind: str, incomplete: str) -> list[str]:
    return [name for name in default_manager().known(kind) if name.startswith(incomplete)]


def _compiled(config: str, transport: str | None) -> Mapping[str, Any]:
    """Return the compiled config, or that of a shipped example if it cannot be compiled."""
    from dingsdk.errors import DingError
    from dingsdk.pipeline.train import compile_run

    try:
        cfg: Mapping[str, Any] = compile_run(config, "parallel", transport, makes_env=False)
    except DingError:  # CONFIG is not typed yet, or has an error
        cfg = compile_run("cartpole-dqn", "parallel", makes_env=False)
    return cfg


class _Bash(BashComplete):
    """Extends click's class: bash treats ``=`` and ``:`` as separate words."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)",
        "COMPREPLY+=($value)\n            [[ $value == *[=:] ]] && compopt -o nospace",
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        if incomplete in ("=", ":"):
            return args[:-1], f"{args[-1]}{incomplete}"
        if args[-1:] in (["="], [":"]):
            return args[:-2], f"{args[-2]}{args[-1]}{incomplete}"
        return args, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        mark = "=" if "=" in item.value else ":"
        typed = item.value.partition(mark)[2] or item.value
        return super().format_completion(CompletionItem(typed, type=item.type))
