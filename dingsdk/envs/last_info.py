"""What the last info of an episode says about it: its raw return, and the chosen numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dingsdk.errors import ConfigError

ABNORMAL = "abnormal"
"""Info key, True: the env failed in this step and is at the start of a new episode."""
EPISODE_INFO = "episode_info"
"""Info key of an episode's last step: a dict of the env's own statistics."""
EPISODE_RETURN = "eval_episode_return"
"""Info key of an episode's last step: the return that counts, in place of the sum of rewards."""
PLAYERS = "players"
"""Info key: a list of one dict per player."""
EPISODE = "episode"
"""Info key of gymnasium's ``RecordEpisodeStatistics``: a dict with the return ``r``."""

InfoNumbers = Literal["all"] | Sequence[str]
"""Value of ``env.info_numbers``."""

_NOT_CHOSEN_BY_ALL = frozenset(
    (ABNORMAL, EPISODE_RETURN, "acted", "acts_next", "terminated", "truncated")
)
"""Keys of infos that say nothing about a whole episode."""


def number_of(value: Any) -> float | None:
    """Return a bool or number, also of an array or tensor of one element; None for the rest."""
    if getattr(value, "shape", None) in ((), (1,)) and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, bool | int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond the range of floats
        return math.inf if value > 0 else -math.inf


def finite_number_of(value: Any) -> float | None:
    """Return ``number_of`` of a value if it is finite, else None."""
    number = number_of(value)
    return None if number is None or not math.isfinite(number) else number


def return_told(info: Mapping[str, Any]) -> float | None:
    """Return the return of an episode that ``RecordEpisodeStatistics`` has put into its last info.

    None if there is none, or no finite number.
    """
    found = info.get(EPISODE)
    return finite_number_of(found.get("r")) if isinstance(found, Mapping) else None


def chosen_numbers(info: Mapping[str, Any], chosen: InfoNumbers, env_name: str) -> dict[str, float]:
    """Return the numbers of an episode's last info that ``env.info_numbers`` chooses.

    NaN and infinities are left out, as if the info did not have them.

    Args:
        info: The last info of an episode.
        chosen: Names, of which the info may lack some; ``all`` for each entry that is a number.
        env_name: Name of the env, for the error.

    Raises:
        ConfigError: an entry with a chosen name is no number.
    """
    if isinstance(chosen, str):
        found = {name: number_of(info[name]) for name in info if name not in _NOT_CHOSEN_BY_ALL}
    else:
        found = {name: number_of(info[name]) for name in chosen if name in info}
        for name, number in found.items():
            if number is None:
                raise ConfigError(
                    f"env.info_numbers names {name!r}, and the last info of an episode of "
                    f"{env_name} has {info[name]!r:.80} there, which is no number; leave the name "
                    "out, or let the env give a number or a bool",
                    path="env.info_numbers",
                    expected="a number",
                    found=name,
                )
    return {
        name: number
        for name, number in found.items()
        if number is not None and math.isfinite(number)
    }


def episode_info_of(
    info: Mapping[str, Any], chosen: InfoNumbers, env_name: str, raw_return: Any = None
) -> dict[str, Any]:
    """Return ``episode_info`` for the last info of an episode; empty if there is nothing in it.

    It is the env's own ``episode_info``, the chosen numbers, and as ``eval_episode_return`` the
    first that there is of: that of the env's ``episode_info``, that of the info, ``raw_return``,
    and what ``RecordEpisodeStatistics`` has told.

    Args:
        info: The last info of an episode of one player, or of all players together.
        chosen: See ``chosen_numbers``, which may raise ConfigError.
        env_name: Name of the env, for the error.
        raw_return: Sum of the rewards beneath the wrappers of the config; None if not known.
    """
    made = dict(info.get(EPISODE_INFO) or {})
    if chosen:
        players = info.get(PLAYERS)
        seen = {**info, **players[0]} if players else info
        made = chosen_numbers(seen, chosen, env_name) | made
    if EPISODE_RETURN in made:
        return made
    if EPISODE_RETURN in info:
        raw_return = info[EPISODE_RETURN]
    elif raw_return is None:
        raw_return = return_told(info)
    if raw_return is not None:
        made[EPISODE_RETURN] = raw_return
    return made
