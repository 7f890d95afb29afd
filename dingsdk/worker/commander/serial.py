"""The commander of serial mode: settings for the next collect call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dingsdk.config import Configurable
from dingsdk.errors import NotSetError
from dingsdk.policy.modes import CommandMode


class BaseSerialCommander(Configurable):
    """Asks the policy for collect settings that fit the progress of the run.

    Args:
        learner: Gives ``learn_info``.
        collector: Gives ``envstep``.
        evaluator: Kept for subclasses.
        replay_buffer: Kept for subclasses.
        policy: Command mode; may be set later.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        learner: Any,
        collector: Any,
        evaluator: Any,
        replay_buffer: Any,
        policy: CommandMode | None = None,
    ) -> None:
        self._cfg = cfg
        self._learner = learner
        self._collector = collector
        self._evaluator = evaluator
        self._replay_buffer = replay_buffer
        self._info: dict[str, Any] = {}
        self.policy = policy

    player_id: str = ""
    """Id of the player that it commands, if there are several players."""
    other_players: Sequence[str] = ()
    """Ids of the other players that train; each has its own learner, collector and so on."""

    def join(self, first: BaseSerialCommander, player_id: str) -> None:
        """Become the commander of ``player_id``, one of the ``other_players`` of ``first``."""

    def step(self) -> dict[str, Any]:
        """Return the keyword arguments for the collect policy, e.g. ``{"eps": 0.1}``.

        Raises:
            NotSetError: there is no policy.
        """
        if self.policy is None:
            raise NotSetError(
                "please set policy first: commander.policy = policy.command_mode", what="policy"
            )
        self._info.update(self._learner.learn_info)
        self._info["envstep"] = self._collector.envstep
        return self.policy.get_setting_collect(self._info)
