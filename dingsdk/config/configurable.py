"""Component defaults: every configurable class carries its own, and hands out copies."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from easydict import EasyDict

from dingsdk.config.plain import deep_merge_dicts, to_easydict


class Configurable:
    """Mixin for classes built from a config section.

    ``config`` holds the defaults of this class alone; those of its bases are merged below
    it, so that a subclass states only what it changes.
    """

    config: ClassVar[dict[str, Any]] = {}

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return a deep copy of the defaults, plus ``cfg_type`` (``"<ClassName>Dict"``)."""
        merged: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            merged = deep_merge_dicts(merged, base.__dict__.get("config") or {})
        merged = copy.deepcopy(merged)
        merged["cfg_type"] = f"{cls.__name__}Dict"
        return to_easydict(merged)
