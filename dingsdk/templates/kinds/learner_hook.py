"""A learner hook that plots a smoothed curve of a value that training logs.

Hooks of one position run in the order of their priority, the lowest first. `engine` is the learner: its
`log_vars` are the values that the iteration logged (read-only), `add_log_vars` adds to them and to the
curves, `last_iter.val` is the iteration, `policy` the learn mode of the policy, and `info` writes to the
log. What a hook counts is saved by `state_dict` (plain data, arrays and tensors) and restored when a serial
run is resumed. An exception in a hook ends the run. To observe the whole process, write an observer.

    policy:
      learn:
        learner:
          hook:
            plugin_name:
              type: plugin_name
              position: after_iter
              priority: 50
              ext_args:
                variable: total_loss
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.config import Section, Share
from dingsdk.worker import BaseLearner, LearnerHook


class PluginNameArgs(Section, frozen=True, kw_only=True):
    """Section ``ext_args`` of the hook.

    Attributes:
        variable: The logged value to smooth.
        weight: Weight of the old average, from 0 to 1; a new value has the rest.
    """

    variable: str = "total_loss"
    weight: Share = 0.9


class PluginNameHook(LearnerHook):
    """Plots the moving average of a value as the curve ``{learner}_iter/{variable}_smooth``."""

    Args = PluginNameArgs
    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"args", "observes", "repeatable"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.average: float | None = None

    def __call__(self, engine: BaseLearner) -> None:
        value = engine.log_vars.get(self.args.variable)
        if value is None:  # not every iteration logs every value
            return
        before = float(value) if self.average is None else self.average
        self.average = self.args.weight * before + (1 - self.args.weight) * float(value)
        engine.add_log_vars({f"{self.args.variable}_smooth": self.average})

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to continue the average."""
        return {"average": self.average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""
        self.average = state["average"]
