"""The numbers of envs in the results of episodes: those of each episode, and their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dingsdk.envs.last_info import EPISODE_INFO, EPISODE_RETURN, finite_number_of

if TYPE_CHECKING:
    from dingsdk.worker.collector.rollout import EpisodeRecord

Summaries = Mapping[str, Mapping[str, float]]
"""By name of a number: its ``mean``, ``min`` and ``max`` over the episodes that have it."""


def numbers_of_episode(episode: EpisodeRecord) -> dict[str, float]:
    """Return the numbers that an env told of an episode; of several players, those of player 0.

    Its return is not among them. NaN and infinities are left out, as are values of other types.
    """
    info = episode.info
    if "players" in info:
        info = info["players"][0].get(EPISODE_INFO) or {}
    found = {name: finite_number_of(info[name]) for name in info if name != EPISODE_RETURN}
    return {name: number for name, number in found.items() if number is not None}


def summaries(values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the summaries of lists of numbers by name, such as ``merge_infos`` makes.

    Left out are: values that are no list, lists without a finite number, and returns.
    """
    found = {}
    for name, each in values.items():
        if name == EPISODE_RETURN or not isinstance(each, list):
            continue
        numbers = [number for value in each if (number := finite_number_of(value)) is not None]
        if numbers:
            found[name] = {"mean": fmean(numbers), "min": min(numbers), "max": max(numbers)}
    return found


def summaries_of_episodes(numbers: Iterable[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the summaries of the numbers of episodes."""
    values: dict[str, list[float]] = {}
    for of_episode in numbers:
        for name, number in of_episode.items():
            values.setdefault(name, []).append(number)
    return summaries(values)


def summary_statistics(found: Summaries) -> dict[str, float]:
    """Return summaries as ``{name}_mean``, ``{name}_min`` and ``{name}_max``, for a log."""
    return {f"{name}_{key}": value for name, each in found.items() for key, value in each.items()}


def in_words(means: Mapping[str, float | None], most: int = 4) -> Sequence[str]:
    """Return texts such as ``success 0.82`` for the first ``most`` means by name."""
    known = [(name, mean) for name, mean in means.items() if mean is not None]
    return [f"{name.removeprefix('is_')} {_short(mean)}" for name, mean in known[:most]]


def _short(number: float) -> str:
    return f"{number:,.2f}" if number == 0 or abs(number) >= 0.1 else f"{number:.2g}"
