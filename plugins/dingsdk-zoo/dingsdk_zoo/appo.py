"""APPO: IMPALA with the clipped objective of PPO."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from dingsdk.config import Scheduled
from dingsdk.policy import Effective, action_model
from dingsdk_zoo.impala import IMPALALearnSection, IMPALAPolicy, IMPALASection, VTrace


class APPOLearnSection(IMPALALearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of APPO.

    Attributes:
        clip_ratio: Largest change of an action's probability ratio that improves the objective.
    """

    clip_ratio: Scheduled[Effective] = 0.2


class APPOSection(IMPALASection, frozen=True, kw_only=True):
    """Section ``policy`` of APPO."""

    type: str = "appo"
    learn: APPOLearnSection = APPOLearnSection()


class APPOPolicy(IMPALAPolicy):
    """Asynchronous PPO: a clipped objective with the advantages of V-trace, type key ``appo``.

    With the default ``max_use`` of 1 of the buffer ``queue``, each unroll is used once. If it is
    used more often, set the limiter's ``samples_per_insert`` to the same number.

    Source: Schulman et al. 2017, eq. 7, with the advantages of Espeholt et al. 2018, section 4.2.
    """

    Config: ClassVar[type[APPOSection]] = APPOSection
    section: APPOSection
    model_from_spaces = staticmethod(partial(action_model, "appo"))

    def policy_loss(self, log_prob: Tensor, log_ratio: Tensor, targets: VTrace) -> Tensor:
        """Return the negative clipped objective."""
        clip, ratio = self.section.learn.clip_ratio, log_ratio.exp()
        clipped = ratio.clamp(1 - clip, 1 + clip)
        return -torch.minimum(ratio * targets.advantage, clipped * targets.advantage).mean()
