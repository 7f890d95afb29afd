"""The conformance kit: what a transport must do, as rules that any transport can be held to.

``check_transport`` runs every rule and needs no test framework; ``TransportContract`` makes a
pytest test of each. The rules are listed in ``docs/reference/transport-rules.md``. ``FaultProxy``
puts a bad network before an endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dingsdk.testing.check import check_rule, check_transport
from dingsdk.testing.fault_proxy import Fault, FaultProxy, seeded_faults
from dingsdk.testing.report import ContractError, ContractReport, RuleResult
from dingsdk.testing.rule import CAPABILITIES, Rule, RuleBroken
from dingsdk.testing.rules import RULES

if TYPE_CHECKING:
    from dingsdk.testing.contract import TransportContract

__all__ = [
    "CAPABILITIES",
    "RULES",
    "ContractError",
    "ContractReport",
    "Fault",
    "FaultProxy",
    "Rule",
    "RuleBroken",
    "RuleResult",
    "TransportContract",
    "check_rule",
    "check_transport",
    "seeded_faults",
]


def __getattr__(name: str) -> Any:
    # Only this class needs pytest, which the others do without.
    if name == "TransportContract":
        from dingsdk.testing.contract import TransportContract

        return TransportContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
