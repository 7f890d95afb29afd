"""DI-engine's config keys that have another path here, or no counterpart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOVED: Mapping[str, str] = {
    "env.manager": "env_manager",
    "policy.collect.collector.collector_num": "system.collector_num",
    "policy.learn.learner.learner_num": "system.learner_num",
    "policy.learn.learner.send_policy_freq": "system.learner.send_policy_freq",
    "policy.action_space": "policy.model.action_space",
    "policy.burnin_step": "policy.learn.burn_in",
    "policy.learn_unroll_len": "policy.learn.sequence_length",
    "policy.collect.discount_factor": "policy.discount_factor",
    "policy.collect.gae_lambda": "policy.gae_lambda",
    "policy.collect.traj_len_inf": "policy.traj_len_inf",
    "policy.learn.discount_factor": "policy.discount_factor",
    "policy.learn.target_update_theta": "policy.learn.target_theta",
}
"""Keys of ``main_config`` that have another path here."""

_LISTENS = "the transport listens, see system.transport"
_NO_SUCH_SETTING = "these env managers need no such setting"
_FROM_SPACE = "the bounds of the action space are used"

NOT_USED: Mapping[str, str] = {
    "env.act_scale": _FROM_SPACE,
    "env.use_act_scale": _FROM_SPACE,
    "env.replay_path": "policy.eval.evaluator.render.render_freq records evaluations",
    "env_manager.connect_timeout": _NO_SUCH_SETTING,
    "env_manager.context": _NO_SUCH_SETTING,
    "env_manager.copy_on_get": _NO_SUCH_SETTING,
    "env_manager.reset_inplace": _NO_SUCH_SETTING,
    "env_manager.shared_memory": "always on where envs run in processes",
    "env_manager.step_wait_timeout": _NO_SUCH_SETTING,
    "env_manager.wait_num": _NO_SUCH_SETTING,
    "policy.collect.noise_sigma": "SAC explores by the spread of its actions",
    "policy.collect.env_num": "see env.collector_env_num",
    "policy.eval.env_num": "see env.evaluator_env_num",
    "policy.learn.ignore_done": "truncation by a time limit is distinguished from termination",
    "policy.learn.resume_training": "`dingsdk train --resume` continues a run",
    "policy.load_path": "a checkpoint to begin with is the learner hook load_ckpt_before_run's",
    "policy.model.actor_head_hidden_size": "heads are linear layers after the encoder",
    "policy.model.critic_head_hidden_size": "heads are linear layers after the encoder",
    "policy.priority_IS_weight": "importance weights count wherever the buffer gives them",
    "policy.recompute_adv": "advantages are computed once a collect",
    "system.communication_mode": "workers dial the coordinator",
    "system.coordinator.host": _LISTENS,
    "system.coordinator.port": _LISTENS,
    "system.learner_gpu_num": "set policy.cuda",
    "system.path_data": "the transport decides where payloads live",
    "system.path_policy": "the transport decides where policies live",
}
"""Keys that are ignored, because nothing here depends on them; with the reason."""

ONLY: Mapping[str, tuple[Any, str]] = {
    "env.norm_obs": (None, "observations are normalised by policy.model.normalize_obs"),
    "env.norm_reward": (None, "rewards are scaled by a wrapper, see env.wrappers"),
    "policy.collect.collector_logit": (False, "logits are not recorded"),
    "policy.learn.adv_norm": (True, "advantages are normalised in each minibatch"),
    "policy.learn.log_space": (True, "the temperature is trained as its logarithm"),
    "policy.learn.nstep_return": (False, "PPO's returns come from its advantages"),
    "policy.learn.reparameterization": (True, "SAC's actions are differentiated through"),
    "policy.learn.value_norm": (False, "values are trained without normalisation"),
    "policy.model.res_link": (False, "networks have no residual links"),
    "policy.model.twin_critic": (True, "SAC has two critics"),
    "system.coordinator.operator_server": (
        None,
        "workers dial the coordinator, and may be started and ended at any time",
    ),
}
"""Keys that are ignored if they are off or have this value, else refused; with the reason."""

NO_SECTION: Mapping[str, str] = {
    "reward_model": "reward models are not part of dingsdk",
    "world_model": "world models are not part of dingsdk",
    "multi_gpu": "several learners train together, see system.learner_num",
}
"""Sections and switches that are refused if they are used, with the reason. They may be in
``create_config``, in ``main_config``, and in its ``policy`` and ``policy.learn``."""

OTHER_POLICIES: Mapping[str, str] = {
    "rainbow": "dqn with model.dueling, nstep and priority is nearest",
    "c51": "dqn is nearest",
    "qrdqn": "dqn is nearest",
    "iqn": "dqn is nearest",
    "td3": "sac is nearest",
    "ddpg": "sac is nearest",
    "a2c": "ppo is nearest",
    "ppo_offpolicy": "ppo trains on what it has just collected",
}
"""Policies of DI-engine that dingsdk does not have, and which one to use instead."""
