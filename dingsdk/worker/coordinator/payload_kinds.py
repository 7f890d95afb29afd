"""The kind of payloads that the buffers of a run have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dingsdk.worker.coordinator.admission import Admission
from dingsdk.worker.coordinator.live_payloads import LivePayloads, ServedPayloads
from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads


def is_served(cfg: Mapping[str, Any]) -> bool:
    """Return whether collectors insert their samples into a replay server."""
    return (cfg["system"].get("replay") or {}).get("type") == "server"


def new_payloads(cfg: Mapping[str, Any], players: int) -> LivePayloads:
    """Return the empty payloads of a buffer.

    Args:
        cfg: The compiled config.
        players: How many players take turns in an env, at most.
    """
    policy = cfg["policy"]
    collect = policy["collect"]
    if is_served(cfg):
        return ServedPayloads()
    if not policy.get("on_policy"):
        return LivePayloads(2 * int(collect.get("n_sample") or 1))
    max_lag = policy["other"]["commander"].get("max_policy_lag", 0)
    trainings = int(policy["learn"].get("update_per_collect", 1))
    n_sample, unroll_len = collect["n_sample"], collect["unroll_len"]
    least_steps = row_steps = 1
    if unroll_len > 1:
        # Only here, as it imports the policy.
        from dingsdk.worker.collector.factory import declared_piece

        row_steps = int(unroll_len) if declared_piece(cfg) == "unroll" else 1
        # A player's first step may come last, and it ends with the player's next step.
        turns = unroll_len if players == 1 else players * (unroll_len + 1)
        least_steps = int(turns) * int(cfg["env"]["collector_env_num"])
    lag = math.inf if max_lag is None else int(max_lag)
    return OnPolicyPayloads(Admission(int(n_sample), lag, least_steps, row_steps), trainings)
