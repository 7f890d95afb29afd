"""Builds the rollout for a policy: in columns if the policy supports it, else in dicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.envs.base import EnvManager
from dingsdk.plugins import default_manager
from dingsdk.policy.modes import CollectMode, EvalMode, Piece, get_policy_cls, piece_of, piece_with
from dingsdk.worker.collector.columns import BatchedRollout, ColumnsWriter, UnrollWriter
from dingsdk.worker.collector.rollout import Rollout, Writer
from dingsdk.worker.collector.rows import DictRollout, RowsWriter, piece_only


def in_columns(env: EnvManager, policy: CollectMode | EvalMode, *names: str) -> bool:
    """Whether a policy, which may be a user's own tuple, can act on these envs in columns.

    Args:
        env: A manager; an asynchronous one (which returns envs one by one) has no columns.
        policy: A collect or eval mode.
        *names: Members of the batched form that are needed in addition to ``forward_batch``.
    """
    needed = ("forward_batch", *names)
    has_form = all(getattr(policy, name, None) is not None for name in needed)
    return has_form and not env.capabilities.asynchronous


def create_collecting_rollout(
    env: EnvManager,
    policy: CollectMode,
    traj_len: int | None,
    has_tensor_obs: bool = False,
    deepcopy_obs: bool = False,
) -> tuple[Rollout, Writer]:
    """Build a rollout that records transitions, and its writer.

    It is in columns if the policy supports them, unless the manager is asynchronous.

    Args:
        env: A launched manager.
        policy: A collect mode.
        traj_len: A trajectory is cut when it holds this many transitions; None for only at
            its end.
        has_tensor_obs: See ``DictRollout``; not used in columns.
        deepcopy_obs: See ``DictRollout``; not used in columns.
    """
    is_unroll = piece_of(policy) == "unroll"
    if in_columns(env, policy, "make_transitions", "make_samples"):
        kind = UnrollWriter if is_unroll else ColumnsWriter
        columns = kind(env.env_num, traj_len, policy.make_samples)  # type: ignore[arg-type]
        add_columns(columns, policy)
        return BatchedRollout(env, policy, columns), columns
    make = piece_only(policy.get_train_sample)
    rows = RowsWriter(env.env_num, traj_len, make, deepcopy_obs, is_unroll)
    add_columns(rows, policy)
    return DictRollout(env, policy, rows, None, has_tensor_obs, deepcopy_obs), rows


def takes_env_steps(policy_cfg: Mapping[str, Any]) -> bool:
    """Return whether the serial collector of a section ``policy`` steps envs."""
    section = policy_cfg.get("collect", {}).get("collector") or {}
    if "type" not in section:
        return True
    found = default_manager().class_of("collectors", section, "policy.collect.collector")
    return bool(getattr(found, "needs_env", True))


def added_columns(policy: CollectMode) -> list[str]:
    """Return ``collect.added_columns`` of the policy's config."""
    collect = policy.get_attribute("cfg").get("collect") or {}
    return list(collect.get("added_columns") or ())


def gamma_of(policy: CollectMode) -> float | None:
    """Return the discount of the column ``discounted_return``; None if it is not needed."""
    cfg = policy.get_attribute("cfg")
    is_needed = (cfg.get("normalize") or {}).get("reward")
    return float(cfg["discount_factor"]) if is_needed else None


def add_columns(writer: Writer, policy: CollectMode) -> None:
    """Make a writer add the columns to samples that the policy's config asks for."""
    writer.added_columns = added_columns(policy)
    writer.gamma = gamma_of(policy)


def create_measuring_rollout(
    env: EnvManager, policy: CollectMode | EvalMode, quota: NDArray[np.int64]
) -> Rollout:
    """Build a rollout that only counts episodes, ``quota[i]`` of env ``i``."""
    if in_columns(env, policy):
        return BatchedRollout(env, policy, None, quota)
    return DictRollout(env, policy, None, quota, has_tensor_obs=True)


def declared_piece(cfg: Mapping[str, Any]) -> Piece:
    """Return the ``piece`` of the policy of a run's config."""
    policy = cfg["policy"]
    declared: Piece = getattr(get_policy_cls(policy), "piece", "steps")
    return piece_with(declared, policy.get("traj_len_inf", False))


def traj_len_of(piece: Piece, n_sample: int | None, unroll_len: int, env_num: int) -> int | None:
    """Return the length at which trajectories are cut, None for whole episodes.

    ``unroll_len`` for unrolls; for steps ``max(unroll_len, ceil(n_sample / env_num))``, so that one
    collect of ``n_sample`` cuts every env about once; None without ``n_sample``.
    """
    if piece == "unroll":
        return unroll_len
    if not n_sample or piece == "episode":
        return None
    return max(unroll_len, math.ceil(n_sample / env_num))
