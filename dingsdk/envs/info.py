"""One env's part of the batched infos that gymnasium's vector envs return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

EPISODE_INFO = "episode_info"
"""Info key of an episode's last step: statistics of the env's own, a dict."""


def info_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of env ``row``, scalars as Python numbers.

    Args:
        infos: ``{key: values}``, where ``infos["_" + key]`` tells which envs gave the key;
            nested dicts likewise.
        row: The env.
    """
    own: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not mask[row]:
            continue
        if isinstance(value, Mapping):
            own[key] = info_row(value, row)
        elif isinstance(value, np.ndarray | list | tuple) and len(value) > row:
            item = value[row]
            own[key] = item.item() if isinstance(item, np.generic) else item
        else:
            own[key] = value
    return own


def final_row(final_obs: Any, row: int) -> Any:
    """Return the last observation of env ``row``'s episode out of ``infos["final_obs"]``."""
    if isinstance(final_obs, Mapping):
        return {key: final_row(value, row) for key, value in final_obs.items()}
    return final_obs[row]
