"""The conformance kit: what a part must do, as rules that any part of its kind can be held to.

``check_transport`` runs every rule of the transports and needs no test framework;
``TransportContract`` makes a pytest test of each. ``check_buffer`` and ``BufferContract`` do that
for replay buffers; ``BufferMachine`` compares one with a plain model, through any sequence of
calls. ``check_part`` and ``StorageContract``, ``SamplerContract``, ``RemoverContract`` and
``LimiterContract`` hold the parts of a buffer to rules of their own, without a buffer.
``check_policy`` and ``PolicyContract`` are for policies, ``check_env_manager`` and
``EnvManagerContract`` for env managers, ``check_commander`` and ``CommanderContract`` for
commanders. The rules are listed in
``docs/reference``. ``FaultProxy`` puts a bad network before an endpoint,
``failing_calls`` a bad disk below a storage; ``recorded_writes`` tells what a disk was waited for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dingsdk.testing.buffer_rules import (
    BUFFER_CAPABILITIES,
    BUFFER_RULES,
    check_buffer,
    check_buffer_rule,
)
from dingsdk.testing.fault_proxy import Fault, FaultProxy, seeded_faults
from dingsdk.testing.os_calls import WriteLog, failing_calls, recorded_writes
from dingsdk.testing.part_rules import PART_RULES, check_part
from dingsdk.testing.rule import ContractError, ContractReport, Rule, RuleBroken, RuleResult
from dingsdk.testing.rules import CAPABILITIES, RULES, check_rule, check_transport

if TYPE_CHECKING:
    from dingsdk.testing.buffer_machine import BufferMachine
    from dingsdk.testing.collector_rules import (
        COLLECTOR_CAPABILITIES,
        COLLECTOR_RULES,
        check_collector,
    )
    from dingsdk.testing.commander_rules import (
        COMMANDER_CAPABILITIES,
        COMMANDER_RULES,
        check_commander,
    )
    from dingsdk.testing.contract import (
        BufferContract,
        CollectorContract,
        CommanderContract,
        EnvManagerContract,
        EvaluatorContract,
        LimiterContract,
        PolicyContract,
        RemoverContract,
        SamplerContract,
        StorageContract,
        TransportContract,
    )
    from dingsdk.testing.env_rules import (
        ENV_CAPABILITIES,
        ENV_RULES,
        check_env_manager,
        check_env_manager_rule,
    )
    from dingsdk.testing.evaluator_rules import (
        EVALUATOR_CAPABILITIES,
        EVALUATOR_RULES,
        check_evaluator,
    )
    from dingsdk.testing.policy_rules import (
        POLICY_CAPABILITIES,
        POLICY_RULES,
        PolicyUnderTest,
        check_policy,
        check_policy_rule,
    )
    from dingsdk.testing.stop_and_go import StopAndGo

__all__ = [
    "BUFFER_CAPABILITIES",
    "BUFFER_RULES",
    "CAPABILITIES",
    "COLLECTOR_CAPABILITIES",
    "COLLECTOR_RULES",
    "COMMANDER_CAPABILITIES",
    "COMMANDER_RULES",
    "ENV_CAPABILITIES",
    "ENV_RULES",
    "EVALUATOR_CAPABILITIES",
    "EVALUATOR_RULES",
    "PART_RULES",
    "POLICY_CAPABILITIES",
    "POLICY_RULES",
    "RULES",
    "BufferContract",
    "BufferMachine",
    "CollectorContract",
    "CommanderContract",
    "ContractError",
    "ContractReport",
    "EnvManagerContract",
    "EvaluatorContract",
    "Fault",
    "FaultProxy",
    "LimiterContract",
    "PolicyContract",
    "PolicyUnderTest",
    "RemoverContract",
    "Rule",
    "RuleBroken",
    "RuleResult",
    "SamplerContract",
    "StopAndGo",
    "StorageContract",
    "TransportContract",
    "WriteLog",
    "check_buffer",
    "check_buffer_rule",
    "check_collector",
    "check_commander",
    "check_env_manager",
    "check_env_manager_rule",
    "check_evaluator",
    "check_part",
    "check_policy",
    "check_policy_rule",
    "check_rule",
    "check_transport",
    "failing_calls",
    "recorded_writes",
    "seeded_faults",
]


# Modules that need pytest, Hypothesis, torch or gymnasium, which the others do without.
_LAZY = {
    "buffer_machine": ("BufferMachine",),
    "collector_rules": ("COLLECTOR_CAPABILITIES", "COLLECTOR_RULES", "check_collector"),
    "commander_rules": ("COMMANDER_CAPABILITIES", "COMMANDER_RULES", "check_commander"),
    "contract": (
        "BufferContract",
        "CollectorContract",
        "CommanderContract",
        "EnvManagerContract",
        "EvaluatorContract",
        "LimiterContract",
        "PolicyContract",
        "RemoverContract",
        "SamplerContract",
        "StorageContract",
        "TransportContract",
    ),
    "env_rules": (
        "ENV_CAPABILITIES",
        "ENV_RULES",
        "check_env_manager",
        "check_env_manager_rule",
    ),
    "evaluator_rules": ("EVALUATOR_CAPABILITIES", "EVALUATOR_RULES", "check_evaluator"),
    "stop_and_go": ("StopAndGo",),
    "policy_rules": (
        "POLICY_CAPABILITIES",
        "POLICY_RULES",
        "PolicyUnderTest",
        "check_policy",
        "check_policy_rule",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
