"""A mark for tests that need an extra of the distribution."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

MODULES = {
    "atari": ("ale_py", "cv2"),
    "box2d": ("Box2D",),
    "di-engine": ("dingsdk_di_engine",),
    "hdf5": ("h5py",),
    "video": ("moviepy",),
}


def needs(extra: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test by the name of the extra, if it is not installed."""
    is_missing = any(find_spec(module) is None for module in MODULES[extra])
    return pytest.mark.skipif(is_missing, reason=f"the extra {extra} is not installed")
