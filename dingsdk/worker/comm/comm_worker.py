"""What every comm collector and comm learner is, whatever connects it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any

from dingsdk.config import Configurable
from dingsdk.errors import DingError


class CommWorker(Configurable, ABC):
    """Config, and the flag that it serves; closed until ``start``."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._cfg = {**self.default_config(), **cfg}
        self._is_closed = True

    def start(self, *args: Any, **kwargs: Any) -> None:
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more: it was closed, or its master is gone for good."""
        return self._is_closed

    @property
    def failure(self) -> DingError | None:
        """Why it is over, unless by a close of either side."""
        return None
