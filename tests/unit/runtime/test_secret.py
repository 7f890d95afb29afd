"""The secret of a run, as the environment names it."""

from __future__ import annotations

import os

from dingsdk.runtime import named_secret


def test_secret_may_have_any_bytes() -> None:
    secret = named_secret({"DINGSDK_SECRET": os.fsdecode(b"\xed\xa0\x80" * 10)})

    assert secret is not None
    assert secret.reveal() == b"\xed\xa0\x80" * 10
