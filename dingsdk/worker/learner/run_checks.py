"""Checks of a run with its policy and its learners, see ``RunView``."""

from __future__ import annotations

from dingsdk.worker.run_view import RunView


def check_policy_lag(run: RunView) -> str:
    """The age of samples is limited only for on-policy training."""
    lag = run.policy["other"]["commander"].get("max_policy_lag")
    if not lag or run.policy["on_policy"]:
        return ""
    return (
        f"policy.other.commander.max_policy_lag is {lag}, but {run.of_policy} is trained on "
        "samples of any age; leave it 0"
    )


def check_normalize(run: RunView) -> str:
    """Observations and rewards are normalised only by a policy that can do it."""
    normalize = run.policy["normalize"]
    wanted = [key for key in ("obs", "reward") if normalize[key]]
    if wanted and not run.is_base_policy:
        return (
            f"policy.normalize.{wanted[0]} is true, but {run.of_policy} is no BasePolicy, which "
            "normalises in its networks; set it to false"
        )
    if normalize["reward"] and run.collect["collector"].get("reward_shaping"):
        return (
            "policy.normalize.reward is true, but policy.collect.collector.reward_shaping changes "
            "rewards after their returns were recorded; set one of them to false"
        )
    return ""


def check_device(run: RunView) -> str:
    """If the policy uses a GPU, this machine has one."""
    if not run.policy["cuda"] or _gpu_count():
        return ""
    return "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false"


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_learners(run: RunView) -> str:
    """If there are several learners, they can train together, on equal parts of a batch."""
    num, policy = run.system["learner_num"], run.policy
    if num == 1:
        return ""
    why = ""
    if policy["on_policy"] or not getattr(run.policy_class, "is_data_parallel", False):
        why = f"{run.of_policy} is trained by one learner"
    elif policy["cuda"] and (count := _gpu_count()) < num:
        why = (
            f"each of them needs a GPU of this machine, and torch finds {count} here: set "
            "policy.cuda to false"
        )
    elif run.mode == "parallel" and not hasattr(run.classes["system.learner"], "learner_num"):
        why = f"a comm learner of type {run.system['learner']['type']!r} is one learner"
    if why:
        return f"system.learner_num is {num}, but {why}; leave the first 1"
    batch_size = policy["learn"]["batch_size"]
    if batch_size % num == 0:
        return ""
    return (
        f"policy.learn.batch_size is {batch_size}, no multiple of system.learner_num {num}: it is "
        "the batch of all learners together, and each takes an equal part"
    )


CHECKS = (
    check_policy_lag,
    check_normalize,
    check_device,
    check_learners,
)
