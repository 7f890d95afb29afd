"""Writes how a run ended: ``result.json`` and ``curve.png``."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dingsdk.errors import error_text
from dingsdk.pipeline.context import Evaluation, RunContext, RunResult
from dingsdk.pipeline.run_folder import CURVE_NAME, RESULT_FORMAT, RESULT_NAME, finite, versions
from dingsdk.pipeline.start import origin_of
from dingsdk.plugins import ask
from dingsdk.runtime.files import Folder, Patience, atomic_write_json

_log = logging.getLogger(__name__)

LINE = "#1f6fb4"
STOP = "#c4501b"
INK = "#333333"


def write_results(
    context: RunContext, result: RunResult, error: str | None, patience: Patience
) -> dict[str, Any]:
    """Write ``result.json`` and ``curve.png`` atomically; return the content of the former.

    Without evaluations, there is no curve. If it cannot be drawn, a warning is logged.

    Raises:
        RunFolderError, StorageFullError: a file cannot be written.
    """
    cfg, run_dir = context.cfg, context.run_dir
    written = result_record(run_dir, result, cfg.seed, error, origin_of(cfg))
    for name, value in ask().result_fields(run_dir=run_dir, result=written).items():
        try:
            written[name] = finite(msgspec.to_builtins(value, str_keys=True))
        except TypeError as wrong:
            _log.error("the field %r of a plugin is left out of %s: %s", name, RESULT_NAME, wrong)
    patience(lambda: atomic_write_json(run_dir / RESULT_NAME, written))
    if result.evaluations:
        title = f"{cfg.policy.type} on {context.task}, {result.mode}, seed {cfg.seed}"
        picture = io.BytesIO()
        try:
            _draw(result.evaluations, cfg.env.stop_value, title).savefig(picture, dpi=110)
        except Exception as error:
            # Also errors of matplotlib's own settings, as of an unknown MPLBACKEND.
            _log.warning("%s was not drawn: %s", CURVE_NAME, error_text(error))
            return written
        with Folder(run_dir, create=False) as folder:
            patience(lambda: folder.write_atomic(CURVE_NAME, [picture.getvalue()]))
    return written


def result_record(
    run_dir: Path,
    result: RunResult,
    seed: int,
    error: str | None = None,
    started_from: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of ``result.json`` without fields of plugins.

    Args:
        started_from: The checkpoint that the run began with; None for new weights.
    """
    record = dataclasses.asdict(result) | {
        "format": RESULT_FORMAT,
        "seed": seed,
        "error": error,
        "started_from": started_from,
        "run_dir": str(result.run_dir),
        "checkpoints": _relative(result.checkpoints, run_dir),
        "players": {
            player_id: dataclasses.asdict(each.status)
            | {
                "evaluations": [dataclasses.asdict(every) for every in each.evaluations],
                "checkpoints": _relative(each.checkpoints, run_dir),
            }
            for player_id, each in result.players.items()
        },
        "versions": versions(),
    }
    plain: dict[str, Any] = finite(record)
    return plain


def _relative(checkpoints: Mapping[str, Path], run_dir: Path) -> dict[str, str]:
    return {name: str(path.relative_to(run_dir)) for name, path in checkpoints.items()}


def prepare_curve() -> None:
    """Import what ``write_curve`` needs; that takes half a second."""
    with contextlib.suppress(Exception):  # ``write_results`` reports it
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401


def _draw(evaluations: Sequence[Evaluation], stop_value: float, title: str) -> Any:
    """Draw mean return against env steps, with the band from worst to best episode.

    If no env steps were taken, as in a run on a data set, it is drawn against train iterations.
    """
    # A Figure without pyplot: it needs no global state and no display, and works in any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    last = evaluations[-1]
    unit = "env steps" if last.env_steps or not last.train_iter else "iterations"
    counts = [each.env_steps if unit == "env steps" else each.train_iter for each in evaluations]
    axes.fill_between(
        counts,
        [each.min for each in evaluations],
        [each.max for each in evaluations],
        color=LINE,
        alpha=0.15,
        linewidth=0,
        label="worst to best episode",
    )
    axes.plot(
        counts,
        [each.mean for each in evaluations],
        color=LINE,
        marker="o",
        markersize=3,
        label=f"mean of {last.episodes} episodes",
    )
    if math.isfinite(stop_value):
        axes.axhline(
            stop_value, color=STOP, linewidth=1, linestyle="--", label=f"stop {stop_value:g}"
        )
    axes.set_title(
        f"{title}\n{last.mean:.1f} after {counts[-1]:,} {unit}, {last.elapsed_s:.1f} s",
        fontsize=10,
        color=INK,
    )
    axes.set_xlabel(unit, color=INK)
    axes.set_ylabel("return", color=INK)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
