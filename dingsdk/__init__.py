"""dingsdk: actor-learner reinforcement learning in which every part is a plugin.

The public names below are imported when they are first used, so that ``import dingsdk`` is
fast: it does not load torch, numpy or the plugins.
"""

from __future__ import annotations

from dingsdk.lazy import lazy_names

TYPE_CHECKING = False  # as in dingsdk.lazy
if TYPE_CHECKING:
    from dingsdk.data import SampleBatch as SampleBatch
    from dingsdk.data import collate as collate
    from dingsdk.errors import DingError as DingError
    from dingsdk.pipeline.evaluate import evaluate as evaluate
    from dingsdk.pipeline.evaluate import record as record
    from dingsdk.pipeline.examples import list_examples as list_examples
    from dingsdk.pipeline.predict import load_policy as load_policy
    from dingsdk.pipeline.train import resume as resume
    from dingsdk.pipeline.train import train as train
    from dingsdk.plugins import default_manager as default_manager
    from dingsdk.plugins import hookimpl as hookimpl
    from dingsdk.plugins import hookspec as hookspec
    from dingsdk.worker.replay_server import ReplayClient as ReplayClient
    from dingsdk.worker.replay_server import ReplayServer as ReplayServer

    __version__: str
else:

    def _version(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import metadata

        try:
            # The distribution named "dingsdk" belongs to another project.
            return metadata.version("dingsdk-rl")
        except metadata.PackageNotFoundError:
            return "0+unknown"

    __getattr__, __dir__ = lazy_names(__name__, __file__, _version)
