"""A complete config with the classes of its parts, for checks of how these fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dingsdk.config.plain import find
from dingsdk.errors import ConfigError

BUFFER = "policy.other.replay_buffer"
COLLECTOR = "policy.collect.collector"
PARALLEL_COLLECTOR = "policy.collect.parallel_collector"
NO_LIMIT = 10**9
"""Default of the learner's ``train_iterations``; it is too large for any run to reach."""


class RunView:
    """A complete config, the classes of its parts, and the mode.

    A check is a function of it that returns why the run cannot work, as a text that begins with the
    wrong key, or an empty text. A check of one part stands beside that part.

    Attributes:
        cfg: The complete config.
        given: The config of the user.
        classes: The classes of the parts, by config path.
        mode: ``serial``, ``parallel`` or ``eval``.
        policy_class, collector_class, parallel_class: The classes of these parts.
        buffer_parts: The classes of the replay buffer, its sampler and its remover, by path; none
            for on-policy training.
        drawn: What the replay buffer draws: ``rows``, ``sequences`` or ``episodes``.
        is_base_policy: Whether the policy is a ``BasePolicy``.
        is_offline: Whether the run trains on a data set, and takes no env steps.
        is_served: Whether a replay server holds the replay buffer.
        demonstrations: The section of the demonstrations; empty if there are none.
        of_policy, of_collector, of_buffer: How messages name these parts.
    """

    def __init__(
        self, cfg: dict[str, Any], given: Mapping[str, Any], classes: Mapping[str, Any], mode: str
    ) -> None:
        from dingsdk.policy import BasePolicy

        self.cfg, self.given, self.classes, self.mode = cfg, given, classes, mode
        self.system, self.policy = cfg["system"], cfg["policy"]
        self.collect, self.learn = self.policy["collect"], self.policy["learn"]
        self.buffer = self.policy["other"]["replay_buffer"]
        self.collector = self.collect["collector"]["type"]
        self.parallel_collector = self.collect["parallel_collector"]["type"]
        section = self.policy["other"].get("demonstrations") or {}
        self.demonstrations = section if section.get("path") else {}

        self.policy_class = classes["policy"]
        self.collector_class = classes.get(COLLECTOR)
        self.parallel_class = classes.get(PARALLEL_COLLECTOR)
        paths = (BUFFER, f"{BUFFER}.sampler", f"{BUFFER}.remover")
        is_used = not self.policy["on_policy"]
        self.buffer_parts = {path: classes[path] for path in paths if is_used and path in classes}
        self.drawn = str(getattr(self.buffer_parts.get(BUFFER), "draws", "rows"))
        self.is_base_policy = issubclass(self.policy_class, BasePolicy)
        self.is_offline = not getattr(self.collector_class, "needs_env", True)
        self.is_served = self.system["replay"]["type"] == "server"

        self.of_policy = f"a policy of type {self.policy['type']!r}"
        self.of_collector = f"a collector of type {self.collector!r}"
        self.of_buffer = f"a buffer of type {self.buffer['type']!r}"

    @property
    def runs_threads(self) -> bool:
        """Whether the workers are threads of one process."""
        cls, section = self.classes["system.transport"], self.system["transport"]
        return bool(cls.place_of(section) == "threads")

    def not_of(self, path: str, base: type) -> str:
        """Return the beginning of a refusal if a part is no subclass of ``base``, else ''."""
        if issubclass(self.classes.get(path, base), base):
            return ""
        return f"{path}.type is {find(self.cfg, f'{path}.type')!r}, which is no {base.__name__}"


def refusal(text: str) -> ConfigError:
    """Return a ConfigError with a text that begins with the wrong key."""
    return ConfigError(text, path=re.split("[ :]", text, maxsplit=1)[0])
