"""The learning curve of a run as a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dingsdk.errors import RunFolderError
from dingsdk.pipeline.status import Evaluation

LINE = "#1f6fb4"
STOP = "#c4501b"
INK = "#333333"


def write_curve(
    path: Path, evaluations: Sequence[Evaluation], stop_value: float, title: str
) -> bool:
    """Draw mean return against env steps, with the band from worst to best episode.

    Args:
        path: Where the PNG goes.
        evaluations: At least one, else nothing is drawn.
        stop_value: Drawn as a line when finite.
        title: First line of the heading; the second tells time and evaluations.

    Returns:
        Whether a file was written.

    Raises:
        RunFolderError: the file cannot be written.
    """
    if not evaluations:
        return False
    figure = _draw(evaluations, stop_value, title)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the learning curve {path}: {error}", path=str(path)
        ) from error
    return True


def _draw(evaluations: Sequence[Evaluation], stop_value: float, title: str) -> Any:
    # A Figure of its own, not pyplot: no global state, no display, any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = [each.env_steps for each in evaluations]
    axes.fill_between(
        steps,
        [each.min for each in evaluations],
        [each.max for each in evaluations],
        color=LINE,
        alpha=0.15,
        linewidth=0,
        label="worst to best episode",
    )
    axes.plot(
        steps,
        [each.mean for each in evaluations],
        color=LINE,
        marker="o",
        markersize=3,
        label=f"mean of {evaluations[-1].episodes} episodes",
    )
    if math.isfinite(stop_value):
        axes.axhline(
            stop_value, color=STOP, linewidth=1, linestyle="--", label=f"stop {stop_value:g}"
        )
    last = evaluations[-1]
    axes.set_title(
        f"{title}\n{last.mean:.1f} after {last.env_steps:,} env steps, {last.elapsed_s:.1f} s",
        fontsize=10,
        color=INK,
    )
    axes.set_xlabel("env steps", color=INK)
    axes.set_ylabel("return", color=INK)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    if last.env_steps > steps[0] and last.elapsed_s > 0:
        _add_time_axis(axes, evaluations)
    return figure


def _add_time_axis(axes: Any, evaluations: Sequence[Evaluation]) -> None:
    """Label the top edge with the wall-clock time at a few of the evaluations."""
    count = min(5, len(evaluations))
    picked = [
        evaluations[round(i * (len(evaluations) - 1) / max(1, count - 1))] for i in range(count)
    ]
    top = axes.secondary_xaxis("top")
    digits = 1 if evaluations[-1].elapsed_s < 20 else 0
    labels = [f"{each.elapsed_s:.{digits}f} s" for each in picked]
    top.set_xticks([each.env_steps for each in picked], labels)
    top.tick_params(labelsize=8, colors=INK, length=2)
    top.spines["top"].set_visible(False)
