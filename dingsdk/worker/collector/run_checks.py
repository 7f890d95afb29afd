"""Checks of a run with its collectors, see ``RunView``."""

from __future__ import annotations

from dingsdk.worker.commander.tasks import collects_serially
from dingsdk.worker.replay_buffer.run_checks import buffers_that_draw
from dingsdk.worker.run_view import RunView


def check_collects(run: RunView) -> str:
    """A collect has a size, and that is at least one episode for every env."""
    collect, env_num = run.collect, run.cfg["env"]["collector_env_num"]
    n_episode = collect["n_episode"]
    if n_episode is not None and n_episode < env_num:
        return (
            f"policy.collect.n_episode is {n_episode}, less than env.collector_env_num {env_num}: "
            "every env plays at least one episode; raise the first or lower the second"
        )
    key = getattr(run.collector_class, "counts", "")
    is_named = run.parallel_collector == "serial"
    is_used = run.mode == "serial" or is_named or collects_serially(run.policy)
    if key and is_used and collect[key] is None:
        return f"policy.collect.{key} is not set: {run.of_collector} counts in it"
    if key == "n_sample" and is_used and n_episode is not None:
        return (
            f"policy.collect.n_episode is {n_episode}, but {run.of_collector} counts samples; "
            "leave it out, or choose a collector that counts episodes, such as 'episode'"
        )
    keys = getattr(run.parallel_class, "counts_one_of", ())
    if keys and not is_used and not any(collect[each] for each in keys):
        return (
            f"policy.collect.{keys[0]} is not set: a parallel collector of type "
            f"{run.parallel_collector!r} counts in one of {', '.join(keys)}"
        )
    return ""


def check_unrolls(run: RunView) -> str:
    """The run can collect and store unrolls, if its policy trains on them."""
    if getattr(run.policy_class, "piece", "steps") != "unroll":
        return ""
    from dingsdk.policy.modes import mixes_versions

    key = why = ""
    envs = run.cfg["env"]["collector_env_num"]
    if not mixes_versions(run.policy):
        key = "on_policy"
        why = (
            "continue while newer policies are loaded; set policy.other.commander.max_policy_lag "
            "to null, or this to false"
        )
    elif run.drawn != "rows":
        key = "other.replay_buffer.type"
        why = f"are one row each; choose one of {buffers_that_draw(('rows',))}"
    elif "episode_return" in run.collect["added_columns"]:
        key = "collect.added_columns"
        why = (
            "are cut before the returns of their episodes are known; leave episode_return out, and "
            "parts of the replay buffer that need it"
        )
    elif run.policy["traj_len_inf"]:
        key, why = "traj_len_inf", "continue across episodes; set it to false"
    elif not run.collect["n_sample"]:
        key, why = "collect.n_sample", "are counted as samples; set it, and no n_episode"
    elif (steps := run.system["max_env_steps"]) and steps < run.collect["unroll_len"] * envs:
        key, why = (
            "collect.unroll_len",
            f"are {run.collect['unroll_len']} steps long, and system.max_env_steps {steps} is less "
            f"than one for each of the {envs} envs; lower it",
        )
    elif run.collector != "sample":
        key, why = "collect.collector.type", "are cut by the collector 'sample'; choose it"
    elif run.parallel_collector not in ("zergling", "serial"):
        key, why = "collect.parallel_collector.type", "are cut by 'zergling'; choose it"
    return why and f"policy.{key}: the unrolls of {run.of_policy} {why}"


def check_episodes(run: RunView) -> str:
    """On-policy, a policy of whole episodes gets them although older steps are dropped."""
    from dingsdk.policy.modes import mixes_versions

    is_whole = getattr(run.policy_class, "piece", "steps") == "episode"
    gives_episodes = getattr(run.collector_class, "gives_episodes", False)
    if not is_whole or gives_episodes or mixes_versions(run.policy):
        return ""
    return (
        f"policy.type: {run.of_policy} samples whole episodes, and on-policy training drops the "
        "steps of older versions; choose a collector of episodes in serial mode, or set "
        "policy.other.commander.max_policy_lag to null"
    )


def check_on_policy(run: RunView) -> str:
    """On-policy, parallel mode: collectors can be paused between two env steps."""
    if not run.policy["on_policy"]:
        return ""
    is_held = run.collector == "sample" and run.parallel_collector != "serial"
    own = "sample with the parallel collector zergling"
    if getattr(run.parallel_class, "max_players", 1) > 1:
        is_held = getattr(run.collector_class, "counts", "") != "n_episode"
        own = "sample_1v1"
    key = why = ""
    cuts = "cuts trajectories where the policy changes, and"
    if not run.collect["n_sample"]:
        key, why = "collect.n_sample", "needs it, the samples of one training; set it"
    elif not is_held:
        key = "collect.collector.type"
        why = (
            "holds collectors back between two env steps, which a serial collector of type "
            f"{run.collector!r} cannot do; choose {own}"
        )
    elif "episode_return" in run.collect["added_columns"]:
        key, why = "collect.added_columns", f"{cuts} episode_return needs whole episodes; remove it"
    elif run.policy["traj_len_inf"]:
        key = "traj_len_inf"
        why = f"{cuts} this keeps them whole; set it to false"
    return why and (
        f"policy.{key}: on-policy training in parallel mode {why}, or use --mode serial"
    )


CHECKS = (
    check_collects,
    check_unrolls,
    check_episodes,
)
IN_PARALLEL = (check_on_policy,)
