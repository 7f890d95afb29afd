"""The task messages that commanders issue, made from the compiled config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dingsdk.config import to_plain
from dingsdk.data.seeding import derive_seed


def collector_task(
    cfg: Mapping[str, Any],
    task_id: str,
    buffer_id: str,
    policy_id: str,
    *,
    number: int,
    collect_setting: Mapping[str, Any],
    eval_flag: bool = False,
) -> dict[str, Any]:
    """Return a collector task as plain data that shares nothing with ``cfg``.

    Args:
        buffer_id: The replay buffer that gets its payloads.
        policy_id: The policy that it acts with.
        number: Running number of collector tasks; the envs' seeds depend on it.
    """
    collector_cfg = to_plain(cfg["policy"]["collect"]["parallel_collector"])
    if eval_flag or collects_serially(cfg["policy"]):
        collector_cfg["type"] = "serial"
    env, manager = _env(cfg, eval_flag)
    collector_cfg.update(
        collect_setting=to_plain(collect_setting),
        eval_flag=eval_flag,
        policy=to_plain(cfg["policy"]),
        policy_update_path=policy_id,
        env=env,
        env_manager=manager,
        exp_name=str(cfg["exp_name"]),
        seed=derive_seed(int(cfg["seed"]), "collector", number),
    )
    return {"task_id": task_id, "buffer_id": buffer_id, "collector_cfg": collector_cfg}


def collects_serially(policy: Mapping[str, Any]) -> bool:
    """Return whether a collect task runs the serial collector that the config names.

    Otherwise it runs zergling, which collects like ``sample``.
    """
    collect = policy["collect"]
    if collect["parallel_collector"]["type"] != "zergling":
        return False
    return bool(collect.get("collector", {}).get("type", "sample") != "sample")


def learner_task(
    cfg: Mapping[str, Any], task_id: str, buffer_id: str, policy_id: str, *, number: int
) -> dict[str, Any]:
    """Return a learner task as plain data that shares nothing with ``cfg``; see ``collector_task``.

    The first learner begins with the same weights as serial mode, later learners with other ones.
    """
    branch = ("learner", number) if number else ("policy",)
    learner_cfg = to_plain(cfg["policy"]["learn"]["learner"])
    learner_cfg["exp_name"] = str(cfg["exp_name"])
    return {
        "task_id": task_id,
        "policy_id": policy_id,
        "buffer_id": buffer_id,
        "learner_cfg": learner_cfg,
        "replay_buffer_cfg": buffer_section(cfg),
        "demonstrations": demonstrations_task(cfg),
        "policy": to_plain(cfg["policy"]),
        "seed": derive_seed(int(cfg["seed"]), *branch),
    }


def buffer_section(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run's replay buffer; its seed is derived from the run's if unset."""
    buffer_cfg = to_plain(cfg["policy"]["other"]["replay_buffer"])
    if buffer_cfg.get("seed", 0) is None:
        buffer_cfg["seed"] = derive_seed(int(cfg["seed"]), "buffer")
    return buffer_cfg


def demonstrations_task(cfg: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the section of a run's demonstrations with its env's spaces; None if it has none."""
    section = cfg["policy"]["other"].get("demonstrations") or {}
    if not section.get("path"):
        return None
    env = {name: cfg["env"][name] for name in ("env_id", "observation_space", "action_space")}
    return dict(to_plain({**section, **env}))


def _env(cfg: Mapping[str, Any], eval_flag: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the env section and the manager section for collecting or evaluating."""
    env, manager = to_plain(cfg["env"]), to_plain(cfg["env_manager"])
    kind = "evaluator" if eval_flag else "collector"
    env["env_num"], episodes = env[f"{kind}_env_num"], env.get(f"{kind}_episode_num")
    if eval_flag and episodes is None:
        episodes = math.ceil(env["n_evaluator_episode"] / env["env_num"])
    env["episode_num"] = manager["episode_num"] = episodes
    return env, manager
