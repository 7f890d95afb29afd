"""An evaluator that also reports a low quantile of the returns.

It extends `InteractionSerialEvaluator`, which plays episodes. For anything else, extend `ISerialEvaluator`
and write `eval` yourself; with `plays = False` it gets no envs. The dict that `eval` returns may have
further entries for its callers. In parallel mode the workers use the same evaluator.

    policy:
      eval:
        evaluator:
          type: plugin_name
          quantile: 0.25
"""

from __future__ import annotations

from typing import Any

import numpy as np
from dingsdk.config import Share
from dingsdk.worker import InteractionSerialEvaluator


class PluginNameEvaluator(InteractionSerialEvaluator):
    """Plays episodes as its base class does, and adds a quantile of their returns."""

    class Config(InteractionSerialEvaluator.Config, frozen=True, kw_only=True):
        """Section ``policy.eval.evaluator``.

        Attributes:
            quantile: Which quantile of the returns to report, from 0 (lowest) to 1 (highest).
        """

        type: str = "plugin_name"
        quantile: Share = 0.1

    contract_capabilities = frozenset({"waits"})

    _cfg: Config

    def eval(self, *args: Any, **kwargs: Any) -> tuple[bool, dict[str, Any]]:
        """Evaluate as the base class does, and add ``eval_episode_return_low`` to the result."""
        is_reached, info = super().eval(*args, **kwargs)
        low = float(np.quantile(info["eval_episode_return"], self._cfg.quantile))
        return is_reached, {**info, "eval_episode_return_low": low}
