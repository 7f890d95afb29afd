from __future__ import annotations

import pytest

from dingsdk.worker.commander.base import LimitedSpaceContainer


def test_invalid_limits_are_refused():
    for limits in ((3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="min"):
            LimitedSpaceContainer(*limits)
