"""Policies, which act and learn. Workers use only their modes, see ``dingsdk.policy.modes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.policy.adam import Adam as Adam
    from dingsdk.policy.adapter import Memory as Memory
    from dingsdk.policy.base import BasePolicy as BasePolicy
    from dingsdk.policy.distributions import ActionBox as ActionBox
    from dingsdk.policy.distributions import ActionDistribution as ActionDistribution
    from dingsdk.policy.distributions import ActionModelSection as ActionModelSection
    from dingsdk.policy.distributions import BoxModelSection as BoxModelSection
    from dingsdk.policy.distributions import Categorical as Categorical
    from dingsdk.policy.distributions import Gaussian as Gaussian
    from dingsdk.policy.distributions import action_model as action_model
    from dingsdk.policy.distributions import box_model as box_model
    from dingsdk.policy.distributions import make_distribution as make_distribution
    from dingsdk.policy.dqn import DQNCollectSection as DQNCollectSection
    from dingsdk.policy.dqn import DQNLearnSection as DQNLearnSection
    from dingsdk.policy.dqn import DQNModelSection as DQNModelSection
    from dingsdk.policy.dqn import DQNOtherSection as DQNOtherSection
    from dingsdk.policy.dqn import DQNPolicy as DQNPolicy
    from dingsdk.policy.dqn import DQNSection as DQNSection
    from dingsdk.policy.dqn import EpsilonGreedy as EpsilonGreedy
    from dingsdk.policy.dqn import TDLoss as TDLoss
    from dingsdk.policy.encoders import MLP as MLP
    from dingsdk.policy.encoders import make_encoder as make_encoder
    from dingsdk.policy.modes import CollectMode as CollectMode
    from dingsdk.policy.modes import CommandMode as CommandMode
    from dingsdk.policy.modes import EvalMode as EvalMode
    from dingsdk.policy.modes import LearnMode as LearnMode
    from dingsdk.policy.modes import Policy as Policy
    from dingsdk.policy.modes import create_policy as create_policy
    from dingsdk.policy.modes import get_policy_cls as get_policy_cls
    from dingsdk.policy.networks import ActorCritic as ActorCritic
    from dingsdk.policy.networks import QNetwork as QNetwork
    from dingsdk.policy.networks import RecurrentActorCritic as RecurrentActorCritic
    from dingsdk.policy.networks import RecurrentQNetwork as RecurrentQNetwork
    from dingsdk.policy.networks import flatten_parameters as flatten_parameters
    from dingsdk.policy.networks import frozen as frozen
    from dingsdk.policy.networks import target_of as target_of
    from dingsdk.policy.networks import without_illegal as without_illegal
    from dingsdk.policy.ppo import PPOPolicy as PPOPolicy
    from dingsdk.policy.r2d2 import R2D2Policy as R2D2Policy
    from dingsdk.policy.returns import gae as gae
    from dingsdk.policy.returns import nstep_returns as nstep_returns
    from dingsdk.policy.returns import nstep_samples as nstep_samples
    from dingsdk.policy.sac import SACLearnSection as SACLearnSection
    from dingsdk.policy.sac import SACPolicy as SACPolicy
    from dingsdk.policy.sac import SACSection as SACSection
    from dingsdk.policy.sac import SquashedGaussian as SquashedGaussian
    from dingsdk.policy.sac import Temperature as Temperature
    from dingsdk.policy.sac import TwinCritic as TwinCritic
    from dingsdk.policy.sac import twin_loss as twin_loss
    from dingsdk.policy.sections import CollectSection as CollectSection
    from dingsdk.policy.sections import Effective as Effective
    from dingsdk.policy.sections import EpsilonSchedule as EpsilonSchedule
    from dingsdk.policy.sections import EpsilonType as EpsilonType
    from dingsdk.policy.sections import EvalSection as EvalSection
    from dingsdk.policy.sections import LearnSection as LearnSection
    from dingsdk.policy.sections import ModelSection as ModelSection
    from dingsdk.policy.sections import OtherSection as OtherSection
    from dingsdk.policy.sections import PolicySection as PolicySection
    from dingsdk.policy.sections import Weight as Weight
    from dingsdk.policy.spaces import discrete_model as discrete_model
    from dingsdk.policy.spaces import obs_shape as obs_shape
    from dingsdk.policy.spaces import unsupported_space as unsupported_space
    from dingsdk.policy.threads import torch_threads as torch_threads
    from dingsdk.policy.weights import Stateful as Stateful
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
