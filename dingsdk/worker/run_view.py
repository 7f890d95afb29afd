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
        mode: ``serial`` or ``parallel``.
        of_policy, of_collector, of_buffer: How messages name these parts.
    """

    def __init__(
        self, cfg: dict[str, Any], given: Mapping[str, Any], classes: Mapping[str, Any], mode: str
    ) -> None:
        self.cfg, self.given, self.classes, self.mode = cfg, given, classes, mode
        self.system, self.policy = cfg["system"], cfg["policy"]
        self.collect, self.learn = self.policy["collect"], self.policy["learn"]
        self.buffer = self.policy["other"]["replay_buffer"]
        self.collector = self.collect["collector"]["type"]
        self.parallel_collector = self.collect["parallel_collector"]["type"]
        self.of_policy = f"a policy of type {self.policy['type']!r}"
        self.of_collector = f"a collector of type {self.collector!r}"
        self.of_buffer = f"a buffer of type {self.buffer['type']!r}"

    def fact(self, path: str, name: str, default: Any) -> Any:
        """Return an attribute of the class of a part."""
        return getattr(self.classes.get(path), name, default)

    @property
    def buffer_parts(self) -> dict[str, Any]:
        """The classes of the replay buffer and of its parts, by path; none if on-policy."""
        if self.policy["on_policy"]:
            return {}
        paths = (BUFFER, f"{BUFFER}.sampler", f"{BUFFER}.remover")
        return {path: self.classes[path] for path in paths if path in self.classes}

    @property
    def drawn(self) -> str:
        """What the replay buffer draws: rows, sequences or episodes."""
        return str(getattr(self.buffer_parts.get(BUFFER), "draws", "rows"))

    @property
    def is_offline(self) -> bool:
        """Whether the run trains on a data set, and takes no env steps."""
        return not self.fact(COLLECTOR, "needs_env", True)

    @property
    def is_served(self) -> bool:
        """Whether a replay server holds the replay buffer."""
        return bool(self.system["replay"]["type"] == "server")

    @property
    def runs_threads(self) -> bool:
        """Whether the workers are threads of one process."""
        cls, section = self.classes["system.transport"], self.system["transport"]
        return bool(cls.place_of(section) == "threads")

    @property
    def is_base_policy(self) -> bool:
        """Whether the policy is a ``BasePolicy``."""
        from dingsdk.policy import BasePolicy

        return issubclass(self.classes["policy"], BasePolicy)

    def not_of(self, path: str, base: type) -> str:
        """Return the beginning of a refusal if a part is no subclass of ``base``, else ''."""
        if issubclass(self.classes.get(path, base), base):
            return ""
        return f"{path}.type is {find(self.cfg, f'{path}.type')!r}, which is no {base.__name__}"


def refusal(text: str) -> ConfigError:
    """Return a ConfigError with a text that begins with the wrong key."""
    return ConfigError(text, path=re.split("[ :]", text, maxsplit=1)[0])
