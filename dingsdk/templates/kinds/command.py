"""The command `dingsdk plugin-name RUN`, which shows how a run ended.

It is a click command, or a group of several. Its return value is the exit code. A `DingError` whose
`is_user_mistake` is true, such as `ConfigError`, is shown as one line, and the exit code is 2. Import slow
modules inside the function, because `dingsdk --help` imports every command.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from dingsdk.errors import RunFolderError


@click.command("plugin-name", short_help="Tell how a run ended.")
@click.argument("run", type=click.Path(path_type=Path))
def plugin_name(run: Path) -> None:
    """Tell how the run in the folder RUN ended."""
    file = run / "result.json"
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read {file}: {error}", path=str(file)) from error
    click.echo(f"{result['reason']} after {result['env_steps']:,} env steps")
