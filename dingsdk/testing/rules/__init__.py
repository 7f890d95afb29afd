"""The table of rules."""

from __future__ import annotations

from typing import Final

from dingsdk.testing.rule import Rule, collect
from dingsdk.testing.rules import (
    closing,
    faults,
    incarnations,
    messages,
    payloads,
    policies,
    safety,
)

RULES: Final[tuple[Rule, ...]] = collect(
    (messages, incarnations, closing, payloads, policies, safety, faults)
)
"""Every rule, by number. Numbers are never used again for another rule."""
