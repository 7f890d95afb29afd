"""DI-engine's config keys that have another path here, or no counterpart.

A path that begins with a policy, as in ``dqn:policy.learn.alpha``, is meant for that policy only;
``di_engine`` stands for the policies that DI-engine itself runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOVED: Mapping[str, str] = {
    "env.continuous": "env.kwargs.continuous",
    "env.desc": "env.kwargs.desc",
    "env.is_slippery": "env.kwargs.is_slippery",
    "env.manager": "env_manager",
    "env.map_name": "env.kwargs.map_name",
    "env.max_episode_steps": "env.kwargs.max_episode_steps",
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
    "ppo:policy.learn.grad_clip_value": "policy.learn.grad_clip_norm",
    "policy.learn.target_update_theta": "policy.learn.target_theta",
}
"""Keys of ``main_config`` that have another path here."""

_LISTENS = "the transport listens, see system.transport"
_NO_SUCH_SETTING = "these env managers need no such setting"
_FROM_SPACE = "the bounds of the action space are used"
_HEADS = "heads are linear layers after the encoder"
_NETWORK = "the networks of dingsdk have no such choice"
_OTHER_PIPELINES = "only pipelines for imitation and for writing data sets read it"
_RECORDED = "policy.eval.evaluator.render.render_freq records evaluations"
_SPEC_OF_ENVPOOL = "all envs step together"

NOT_OURS = frozenset({"bc", "discrete_sac", "impala", "iql", "qrdqn", "rainbow", "td3"})
"""Policies that DI-engine runs, although the plugin ``dingsdk-rl-zoo`` has policies of these names:
their keys are others."""

LEFT_OUT: Mapping[str, str] = {
    "env.act_scale": _FROM_SPACE,
    "env.use_act_scale": _FROM_SPACE,
    "env.collector_batch_size": _SPEC_OF_ENVPOOL,
    "env.evaluator_batch_size": _SPEC_OF_ENVPOOL,
    "env.replay_path": _RECORDED,
    "env.save_replay_gif": _RECORDED,
    "env_manager.connect_timeout": _NO_SUCH_SETTING,
    "env_manager.context": _NO_SUCH_SETTING,
    "env_manager.copy_on_get": _NO_SUCH_SETTING,
    "env_manager.reset_inplace": _NO_SUCH_SETTING,
    "env_manager.shared_memory": "always on where envs run in processes",
    "env_manager.step_wait_timeout": _NO_SUCH_SETTING,
    "env_manager.wait_num": _NO_SUCH_SETTING,
    "policy.collect.collector_env_num": "see env.collector_env_num",
    "policy.collect.data_type": _OTHER_PIPELINES,
    "policy.collect.env_num": "see env.collector_env_num",
    "policy.collect.model_path": _OTHER_PIPELINES,
    "policy.collect.noise_sigma": "SAC explores by the spread of its actions",
    "policy.collect.save_path": _OTHER_PIPELINES,
    "policy.collect.state_dict_path": _OTHER_PIPELINES,
    "policy.continuous": "see policy.action_space",
    "policy.eval.env_num": "see env.evaluator_env_num",
    "policy.expert_random_collect_size": _OTHER_PIPELINES,
    "policy.learn.ignore_done": "truncation by a time limit is distinguished from termination",
    "policy.learn.learner.load_path": _OTHER_PIPELINES,
    "policy.learn.resume_training": "`dingsdk train --resume` continues a run",
    "policy.load_path": "a checkpoint to begin with is the learner hook load_ckpt_before_run's",
    "policy.model.activation": _NETWORK,
    "policy.model.actor_head_hidden_size": _HEADS,
    "policy.model.actor_head_layer_num": _HEADS,
    "policy.model.bound_type": _NETWORK,
    "policy.model.critic_head_hidden_size": _HEADS,
    "policy.model.critic_head_layer_num": _HEADS,
    "policy.model.fixed_sigma_value": _NETWORK,
    "policy.model.head_layer_num": _HEADS,
    "policy.model.share_encoder": _NETWORK,
    "policy.model.sigma_type": _NETWORK,
    "policy.priority_IS_weight": "importance weights count wherever the buffer gives them",
    "policy.recompute_adv": "advantages are computed once a collect",
    "dqn:policy.learn.alpha": _OTHER_PIPELINES,
    "ppo:policy.learn.ppo_param_init": _NETWORK,
    "ppo:policy.other.eps": "PPO explores by the spread of its actions",
    "r2d2:policy.unroll_len": "it is the sum of burnin_step and learn_unroll_len",
    "r2d2:policy.collect.unroll_len": "it is the sum of burnin_step and learn_unroll_len",
    "r2d2:policy.other.replay_buffer.alpha": "sequences are drawn uniformly",
    "r2d2:policy.other.replay_buffer.beta": "sequences are drawn uniformly",
    "sac:policy.model.action_space": "SAC has one kind",
    "system.communication_mode": "workers dial the coordinator",
    "system.coordinator.host": _LISTENS,
    "system.coordinator.port": _LISTENS,
    "system.learner_gpu_num": "set policy.cuda",
    "system.path_data": "the transport decides where payloads live",
    "system.path_policy": "the transport decides where policies live",
}
"""Keys that are ignored, because nothing here depends on them; with the reason."""

WITHOUT: Mapping[str, tuple[Any, str]] = {
    "policy.learn.value_norm": (False, "values are trained without normalisation"),
    "di_engine:policy.random_collect_size": (0, "the policy acts from the first step"),
}
"""Keys that are ignored, with a warning if they have another value than this."""

ONLY: Mapping[str, tuple[Any, str]] = {
    "env.norm_obs": (None, "observations are normalised by policy.normalize.obs"),
    "env.norm_reward": (None, "rewards are scaled by a wrapper, see env.wrappers"),
    "env.rew_clip": (None, "rewards are clipped by a wrapper, see env.wrappers"),
    "policy.collect.collector_logit": (False, "logits are not recorded"),
    "policy.command": (None, "schedules are in policy.other"),
    "policy.learn.adv_norm": (True, "advantages are normalised in each minibatch"),
    "policy.learn.grad_clip_type": ("clip_norm", "gradients are clipped by their norm"),
    "policy.learn.log_space": (True, "the temperature is trained as its logarithm"),
    "policy.learn.nstep_return": (False, "PPO's returns come from its advantages"),
    "policy.learn.reparameterization": (True, "SAC's actions are differentiated through"),
    "policy.learn.value_network": (False, "SAC has no value network"),
    "policy.model.res_link": (False, "networks have no residual links"),
    "policy.model.twin_critic": (True, "SAC has two critics"),
    "policy.multi_agent": (False, "a policy acts for one agent"),
    "policy.other.her": (None, "goals are not relabelled"),
    "r2d2:policy.priority": (False, "sequences are drawn uniformly"),
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
"""Sections and switches that are refused if they are used, with the reason. Such a section may be
in ``create_config``, in ``main_config``, and in its ``policy`` and ``policy.learn``."""

ENVS: Mapping[str, str] = {
    "acrobot": "Acrobot-v1",
    "bipedalwalker": "BipedalWalker-v3",
    "cartpole": "CartPole-v1",
    "cliffwalking": "CliffWalking-v1",
    "frozen_lake": "FrozenLake-v1",
    "lunarlander": "LunarLander-v3",
    "mountain_car": "MountainCar-v0",
    "pendulum": "Pendulum-v1",
    "taxi": "Taxi-v3",
}
"""Type of an env in DI-engine's zoo -> its id in gymnasium, for configs without ``env_id``."""
