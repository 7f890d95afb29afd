"""Writes how a run ended: ``result.json`` and ``curve.png``."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dingsdk.pipeline.context import Evaluation, RunResult
from dingsdk.pipeline.run_folder import RESULT_FORMAT, RESULT_NAME, finite, versions
from dingsdk.plugins import ask
from dingsdk.runtime.files import Folder, atomic_write_json

if TYPE_CHECKING:
    from PIL import Image

_log = logging.getLogger(__name__)

SIZE = (792, 462)
"""Width and height of the curve in pixels."""
LARGEST = 1e100
"""An evaluation with returns from here on is not drawn."""
INK, GRID, STOP = "#333333", "#e0e0e0", "#c4501b"
LINE, SOFT_LINE, BAND = "#1f6fb4", "#6ba3d6", (31, 111, 180, 38)


def write_result(
    run_dir: Path,
    result: RunResult,
    seed: int,
    error: str | None = None,
    patience: Callable[[Callable[[], object]], object] = lambda write: write(),
) -> dict[str, Any]:
    """Write ``result.json`` in one atomic step, called by ``patience``; return its content."""
    written = result_record(run_dir, result, seed, error)
    for name, value in ask().result_fields(run_dir=run_dir, result=written).items():
        try:
            written[name] = finite(msgspec.to_builtins(value, str_keys=True))
        except TypeError as error:
            _log.error("the field %r of a plugin is left out of %s: %s", name, RESULT_NAME, error)
    patience(lambda: atomic_write_json(run_dir / RESULT_NAME, written))
    return written


def result_record(
    run_dir: Path, result: RunResult, seed: int, error: str | None = None
) -> dict[str, Any]:
    """Return the content of ``result.json`` without fields of plugins."""
    record = dataclasses.asdict(result) | {
        "format": RESULT_FORMAT,
        "seed": seed,
        "error": error,
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


def write_curve(
    path: Path, evaluations: Sequence[Evaluation], stop_value: float, title: str
) -> bool:
    """Draw mean return against env steps, with the band from worst to best episode.

    Returns:
        Whether a file was written; without evaluations that can be drawn, none is.

    Raises:
        RunFolderError, StorageFullError: the file cannot be written.
    """
    shown = [each for each in evaluations if max(abs(each.min), abs(each.max)) < LARGEST]
    if not shown:
        return False
    picture = io.BytesIO()
    _draw(shown, stop_value, title).save(picture, "PNG")
    with Folder(path.parent, create=False) as folder:
        folder.write_atomic(path.name, [picture.getvalue()])
    return True


def _draw(evaluations: Sequence[Evaluation], stop_value: float, title: str) -> Image.Image:
    """Draw the curve at twice its size: scaling it down makes the lines smooth."""
    # Not with matplotlib, which takes a second to import and to draw (2026-11).
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (2 * SIZE[0], 2 * SIZE[1]), "white")
    draw, font = ImageDraw.Draw(image, "RGBA"), ImageFont.load_default(24)
    left, top, right, bottom = 130, 110, 2 * SIZE[0] - 40, 2 * SIZE[1] - 170
    has_stop = math.isfinite(stop_value)
    heights = [value for each in evaluations for value in (each.min, each.max)]
    heights += [stop_value] * has_stop
    x_of = _scale([each.env_steps for each in evaluations], left, right)
    y_of = _scale(heights, bottom, top)

    for value in _ticks(x_of.low, x_of.high):
        draw.line([(x_of(value), top), (x_of(value), bottom)], GRID, 2)
        draw.text((x_of(value), bottom + 14), f"{value:,.0f}", INK, font, "mt")
    for value in _ticks(y_of.low, y_of.high):
        draw.line([(left, y_of(value)), (right, y_of(value))], GRID, 2)
        draw.text((left - 14, y_of(value)), f"{value:,.6g}", INK, font, "rm")
    draw.line([(left, top), (left, bottom), (right, bottom)], INK, 2)

    steps = [x_of(each.env_steps) for each in evaluations]
    means = list(zip(steps, (y_of(each.mean) for each in evaluations), strict=True))
    best = zip(steps, (y_of(each.max) for each in evaluations), strict=True)
    worst = zip(steps, (y_of(each.min) for each in evaluations), strict=True)
    draw.polygon([*best, *reversed([*worst])], BAND)
    draw.line(means, LINE, 4, "curve")
    for x, y in means:
        draw.circle((x, y), 5, LINE)
    last = evaluations[-1]
    legend = [(f"mean of {last.episodes} episodes", LINE), ("worst to best episode", SOFT_LINE)]
    if has_stop:
        for x in range(left, right, 24):
            draw.line([(x, y_of(stop_value)), (x + 14, y_of(stop_value))], STOP, 3)
        legend.append((f"stop {stop_value:g}", STOP))

    middle = (left + right) // 2
    of_last = f"{last.mean:.1f} after {last.env_steps:,} env steps, {last.elapsed_s:.1f} s"
    draw.text((middle, 36), title, INK, font, "mm")
    draw.text((middle, 72), of_last, INK, font, "mm")
    draw.text((left, top - 12), "return", INK, font, "rb")
    draw.text((middle, bottom + 72), "env steps", INK, font, "mm")
    for index, (text, colour) in enumerate(legend):
        x = left + (2 * index + 1) * (right - left) // (2 * len(legend))
        draw.text((x, bottom + 128), text, colour, font, "mm")
    return image.resize(SIZE, Image.Resampling.LANCZOS)


class _Scale(NamedTuple):
    """Maps values from ``low`` to ``high`` to pixels."""

    low: float
    high: float
    start: int
    stop: int

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def _scale(values: Sequence[float], start: int, stop: int) -> _Scale:
    """Return a scale with all values, and some room on both sides."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 5.0
    return _Scale(low - room, high + room, start, stop)


def _ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers between two values."""
    unit = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(unit * each for each in (1, 2, 5, 10) if (high - low) / (unit * each) <= 7)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
