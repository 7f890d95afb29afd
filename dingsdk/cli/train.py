"""``dingsdk train``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dingsdk.cli.options import (
    complete_config,
    given_of,
    mode_option,
    quiet_option,
    seed_option,
    sets_option,
    transport_option,
)
from dingsdk.errors import error_text
from dingsdk.pipeline.output import say
from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.pipeline.context import RunResult

PAGE_END_S = 15.0
"""How long the live page may take to end before it is killed."""


@click.command(short_help="Train a policy, and write a run folder.")
@click.argument("config", required=False, shell_complete=complete_config)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Continue the run in this folder from its last save, instead of a new run.",
)
@mode_option
@transport_option
@sets_option
@seed_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder in which the run folder is created.",
)
@click.option(
    "--from",
    "start_from",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Begin with the weights of this run's best checkpoint, or else its newest one.",
)
@click.option(
    "--keep",
    metavar="NAMES",
    help="With --from: also take its optimizer, counters, or both (optimizer,counters).",
)
@click.option(
    "--parts",
    metavar="NAMES",
    help="With --from: take only these parts of the model, as encoder, separated by commas.",
)
@click.option(
    "--watch",
    "is_watched",
    is_flag=True,
    help="Also show the run on a live page, which stays until Ctrl-C; needs the plugin watch.",
)
@quiet_option
def train(
    config: str | None,
    resume: Path | None,
    mode: Any,
    transport: str | None,
    sets: tuple[str, ...],
    seed: int | None,
    output: Path,
    start_from: Path | None,
    keep: str | None,
    parts: str | None,
    is_watched: bool,
    quiet: bool,
) -> int:
    """Train the policy of CONFIG: a .yaml, .json or .py file, or the name of a shipped example.

    The run ends when the mean return of an evaluation reaches env.stop_value. Ctrl-C saves a
    checkpoint and stops it; a second Ctrl-C exits at once.
    """
    from dingsdk.pipeline.signals import exit_code
    from dingsdk.pipeline.train import resume as go_on
    from dingsdk.pipeline.train import train as run

    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise click.UsageError(
            "torchrun starts one run several times here. `dingsdk train` starts all learners of "
            "system.learner_num by itself; on several hosts start `dingsdk learner` by torchrun."
        )
    if start_from is None and (name := given_of(click.get_current_context(), ("keep", "parts"))):
        raise click.UsageError(f"--{name} says what is taken of another run: give --from RUN too.")
    if resume is not None:
        if start_from is not None:
            raise click.UsageError(
                "--resume continues a run with its own weights, and --from begins a new run with "
                "those of another one: give one of them."
            )
        others = ("config", "mode", "transport", "seed", "output")
        if (name := given_of(click.get_current_context(), others)) is not None:
            raise click.UsageError(
                f"--resume takes the run's own {name}; beside it there are --set and --quiet."
            )
    with ExitStack() as stack:
        page = stack.enter_context(LivePage()) if is_watched else None
        callbacks = [] if page is None else [page.run_started]
        if resume is not None:
            result = go_on(resume, sets=sets, progress=not quiet, callbacks=callbacks)
        elif config is None:
            raise click.UsageError("Missing argument 'CONFIG', or --resume RUN.")
        else:
            result = run(
                config,
                mode=mode,
                transport=transport,
                sets=sets,
                seed=seed,
                output=output,
                progress=not quiet,
                callbacks=callbacks,
                start_from=start_from,
                keep=_names(keep) or (),
                parts=_names(parts),
            )
        say(summary(result))
        if page is not None and result.signal is None:
            page.wait()
    return exit_code(result.signal)


def _names(text: str | None) -> list[str] | None:
    """Return names that are separated by commas; None for an option that was not given."""
    return None if text is None else [name.strip() for name in text.split(",")]


class LivePage:
    """Runs ``dingsdk watch`` in a second process, which ends when the training ends.

    Raises:
        UnknownPluginError: the plugin that provides the command is not installed.
    """

    def __init__(self) -> None:
        default_manager().get("commands", "watch")
        self._process: subprocess.Popen[str] | None = None

    def run_started(self, run_dir: Path) -> None:
        """Start the live page for a run."""
        self._process = subprocess.Popen(
            # -P: nothing is imported from the working directory, as by the command dingsdk.
            [sys.executable, "-P", "-m", "dingsdk", "watch", "--until-closed", str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # So that the first Ctrl-C stops only the training, not the page.
            start_new_session=True,
        )
        assert self._process.stdout is not None  # a pipe
        # Printed by this process, because its live table must make room for the lines.
        self._printer = threading.Thread(
            target=self._print, args=(self._process.stdout,), daemon=True
        )
        self._printer.start()

    def _print(self, output: IO[str]) -> None:
        with output:
            for line in output:
                say(line.rstrip())

    def wait(self) -> None:
        """Wait for Ctrl-C, or until the page ends."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(KeyboardInterrupt):
                say("  live page   stays until Ctrl-C")
                self._process.wait()

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._process is not None:
            if isinstance(error, Exception):
                click.echo(f"\nThe run failed: {error_text(error)}", err=True)
                self.wait()
            assert self._process.stdin is not None  # a pipe
            self._process.stdin.close()
            try:
                self._process.wait(PAGE_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._printer.join(PAGE_END_S)


def summary(result: RunResult) -> str:
    """Return the last lines of a run: how it ended, its folder, and commands to type next."""
    has_files = result.env_steps or (result.run_dir / "config.yaml").exists()
    if result.reason == "interrupted" and not has_files:
        return "\nInterrupted before the run began; nothing was saved."
    folder, curve = _shown(result.run_dir), "curve.png  " if result.evaluations else ""
    names = ", ".join(sorted(result.checkpoints)) or "none"
    lines = [
        "",
        _outcome(result),
        f"  run folder  {folder}",
        f"              config.yaml  result.json  {curve}log/  ckpt/ ({names})",
    ]
    steps = []
    if result.checkpoints:
        # Without an evaluation there is no best checkpoint, which eval uses by default.
        which = "" if "best" in result.checkpoints else " --checkpoint latest"
        steps.append(f"{_program()} eval {folder}{which}")
    if result.reason != "stop_value" and any(
        (result.run_dir / name).is_dir() for name in ("resume", "journal")
    ):
        steps.append(f"{_program()} train --resume {folder}")
    hint = "" if importlib.util.find_spec("tensorboard") else "   (pip install tensorboard)"
    steps.append(f"tensorboard --logdir {folder}{hint}")
    lines += [f"  {label:<12}{step}" for label, step in zip_longest(["next"], steps, fillvalue="")]
    return "\n".join(lines)


def _outcome(result: RunResult) -> str:
    # A run on a data set takes no env steps.
    has_steps = result.env_steps or not result.train_iter
    steps = f"{result.env_steps:,} env steps, " if has_steps else ""
    spent = f"{steps}{result.train_iter:,} iterations, {result.elapsed_s:.1f} s"
    last = (
        "no evaluation" if result.last_return is None else f"mean return {result.last_return:.1f}"
    )
    if result.reached:
        return f"Solved: {last} after {spent}."
    if result.reason == "interrupted":
        latest = result.checkpoints.get("latest")
        saved = f"checkpoint saved: {_shown(latest)}" if latest else "no checkpoint was saved"
        return f"Interrupted after {spent}; {saved}."
    best = "none" if result.best_return is None else f"{result.best_return:.1f}"
    if result.stopped_by is not None:
        return f"Stopped ({result.stopped_by}): {last} (best {best}) after {spent}."
    return f"Limit reached: {last} (best {best}) after {spent}."


def _shown(path: Path) -> str:
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _program() -> str:
    """Return the command that runs this program; a path if its venv is not activated."""
    started = Path(sys.argv[0])
    if shutil.which("dingsdk") is not None or started.name != "dingsdk":
        return "dingsdk"
    return os.path.relpath(started)
