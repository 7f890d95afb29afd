"""dingsdk: actor-learner reinforcement learning whose every part is a plugin.

The public names below are imported when first used, so that ``import dingsdk`` stays light:
it loads none of torch, numpy and the plugins.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dingsdk.data import SampleBatch, collate
    from dingsdk.errors import DingError
    from dingsdk.pipeline.evaluate import evaluate
    from dingsdk.pipeline.train import train
    from dingsdk.plugins import default_manager, hookimpl, hookspec

    __version__: str

__all__ = [
    "DingError",
    "SampleBatch",
    "__version__",
    "collate",
    "default_manager",
    "evaluate",
    "hookimpl",
    "hookspec",
    "train",
]

_HOMES = {
    "DingError": "dingsdk.errors",
    "SampleBatch": "dingsdk.data",
    "collate": "dingsdk.data",
    "default_manager": "dingsdk.plugins",
    "evaluate": "dingsdk.pipeline.evaluate",
    "hookimpl": "dingsdk.plugins",
    "hookspec": "dingsdk.plugins",
    "train": "dingsdk.pipeline.train",
}


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        # The distribution that is called dingsdk is another project's.
        from importlib import metadata

        try:
            value = metadata.version("dingsdk-rl")
        except metadata.PackageNotFoundError:
            value = "0+unknown"
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
