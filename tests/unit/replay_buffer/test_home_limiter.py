"""A home whose limiter would never admit anything again says so."""

from __future__ import annotations

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.worker import create_buffer
from dingsdk.worker.replay_buffer.home import TableHome


def test_limiter_that_admits_neither_rows_nor_a_batch_is_an_error() -> None:
    limiter = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 4}
    buffer = create_buffer({"type": "naive", "replay_buffer_size": 40, "limiter": limiter})
    home = TableHome(buffer, lambda name, digest: SampleBatch({"obs": np.arange(8.0)}))
    home.announce([{"data_id": name, "rows": 8} for name in ("1", "2")])
    with pytest.raises(ConfigError, match="admits neither the next 8 rows nor a batch, with 8"):
        home.sample(16, 0)
