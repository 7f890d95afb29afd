"""``dingsdk status``."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

SILENT_S = 30.0
"""Age of a status beyond which its run has probably been killed."""


@click.command("status", short_help="Show the state of a run, and counts of its samples.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(run: Path, as_json: bool) -> None:
    """Show the state of the run in folder RUN, or how it ended. Changes nothing."""
    from dingsdk.pipeline.run_folder import run_path
    from dingsdk.pipeline.status_file import read_status
    from dingsdk.runtime.files import is_locked

    found = read_status(run_path(run))
    # The lock may not work for a run on another host.
    is_here = found["host"] == socket.gethostname()
    is_gone = is_here and not is_locked(run)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for label, text in _lines(found, time.time() - found["written_at"], is_gone):
        # Control characters of a damaged file would reach the terminal.
        printable = "".join(each if each.isprintable() else "?" for each in text)
        click.echo(f"{label:<13} {printable}")


def _lines(found: Mapping[str, Any], age_s: float, is_gone: bool) -> list[tuple[str, str]]:
    from dingsdk.pipeline.console import workers_in_words
    from dingsdk.worker.collector.episode_numbers import in_words

    samples = found["samples"]
    acknowledged = samples["acknowledged"]
    evicted = ", ".join(f"{n:,} {reason}" for reason, n in samples["evicted"].items() if n)
    uses = f" (drawn {samples['trained'] / acknowledged:.2f} times each)" if acknowledged else ""
    unacknowledged = samples["collected"] - acknowledged
    waiting = f", {unacknowledged:,} not" if unacknowledged else ""
    workers = workers_in_words(found["workers"])
    elapsed = f"{found['elapsed_s']:.1f} s" if found["elapsed_s"] else "-"  # no env step yet
    lines = [
        ("run", _state(found, age_s, is_gone)),
        ("elapsed", f"{elapsed}, {found['mode']}, {workers}"),
        ("env steps", f"{found['env_steps']:,}"),
        ("iterations", f"{found['train_iter']:,}"),
        ("return", f"{_number(found['last_return'])} (best {_number(found['best_return'])})"),
        *[("numbers", text) for text in [", ".join(in_words(found["numbers"]))] if text],
        *[("training", text) for text in [", ".join(in_words(found["training_numbers"]))] if text],
        ("collected", f"{samples['collected']:,} samples"),
        ("acknowledged", f"{acknowledged:,}{waiting}"),
        ("trained on", f"{samples['trained']:,}{uses}"),
        ("in the buffer", f"{samples['live']:,} of {found['buffer_capacity']:,}"),
        ("evicted", evicted or "none"),
    ]
    lines += [("player", _player(*each)) for each in found.get("players", {}).items()]
    lines += [("task", _task(each)) for each in found["tasks"]]
    return lines + ([("held up", found["held_up_by"])] if found["held_up_by"] else [])


def _state(found: Mapping[str, Any], age_s: float, is_gone: bool) -> str:
    process = f"process {found['pid']} on {found['host']}"
    if found["reason"] is not None:
        return f"over: {found['reason']}"
    if is_gone:
        return f"killed: {process} is gone; its last status is {max(age_s, 0.0):,.0f} s old"
    if age_s > SILENT_S:
        return f"silent for {age_s:,.0f} s ({process}); it was killed, or is suspended"
    return f"under way ({process})"


def _player(player_id: str, player: Mapping[str, Any]) -> str:
    return (
        f"{player_id}: {player['train_iter']:,} iterations, {player['env_steps']:,} env steps, "
        f"return {_number(player['last_return'])} (best {_number(player['best_return'])})"
    )


def _task(task: Mapping[str, Any]) -> str:
    pace = "" if task["per_s"] is None else f", {task['per_s']:,.1f} a second"
    waits = f", waits for {task['waits_for']}" if task["waits_for"] else ""
    player = f" of {task['player']}" if task.get("player") else ""
    return f"{task['kind']} {task['worker_id']}{player}{pace}{waits}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
