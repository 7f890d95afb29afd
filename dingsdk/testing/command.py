"""``dingsdk check``."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from dingsdk.cli.tables import show_table
from dingsdk.errors import RunFolderError
from dingsdk.plugins import KINDS, default_manager


def complete_plugin(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose installed distributions and kinds, and after ``kind:`` the types of that kind."""
    manager = default_manager()
    kind, has_kind, _ = incomplete.partition(":")
    if has_kind:
        names = [f"{kind}:{key}" for key in manager.known(kind)] if kind in KINDS else []
    else:
        names = sorted({advert.distribution for advert in manager.adverts()})
        names += [f"{kind}:" for kind in KINDS]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _quietly(check: Callable[[], Any]) -> Any:
    """Call ``check`` without showing warnings of dingsdk: rules make parts fail on purpose."""
    logger, silent = logging.getLogger("dingsdk"), logging.NullHandler()
    logger.addHandler(silent)
    try:
        return check()
    finally:
        logger.removeHandler(silent)


@click.command("check", short_help="Check a plugin against the rules of its kind.")
@click.argument("plugin", shell_complete=complete_plugin)
@click.option(
    "--badge",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the result as JSON for an endpoint badge of shields.io.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="A.B=C",
    help="A value that the part's section needs to be built; may be repeated.",
)
@click.option("--env", metavar="ID", help="Env to build a policy or a wrapper with.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    plugin: str, badge: Path | None, sets: tuple[str, ...], env: str | None, as_json: bool
) -> None:
    """Import PLUGIN, check its interface, build its parts and check them against their rules.

    PLUGIN is KIND:TYPE, such as policies:mine, or the name of an installed distribution, whose
    parts are all checked. The exit code is 1 if a check fails.
    """
    from dingsdk.config import apply_set
    from dingsdk.testing.plugin_check import check_plugin

    if badge is not None and not os.path.isdir(badge.parent):
        raise RunFolderError(f"--badge: there is no folder {badge.parent}", path=str(badge))
    config: dict[str, Any] = {}
    for assignment in sets:
        apply_set(config, assignment)
    report = _quietly(lambda: check_plugin(plugin, config, env))
    if badge is not None:
        try:
            badge.write_text(json.dumps(report.badge(), indent=2) + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RunFolderError(
                f"--badge: cannot write {badge}: {reason}", path=str(badge)
            ) from error
    if as_json:
        rows = [step._asdict() for step in report.steps]
        click.echo(json.dumps({"passed": report.is_passed, "steps": rows}, indent=2))
    else:
        show_table([step.outcome, step.part, step.name, step.detail] for step in report.steps)
    if not report.is_passed:
        raise click.exceptions.Exit(1)
