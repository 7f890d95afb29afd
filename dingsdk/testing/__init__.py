"""The conformance kit: rules that check the parts of dingsdk and of its plugins.

``check_<kind>`` checks a part against every rule of its kind and needs no test framework;
``<Kind>Contract`` makes a pytest test of each rule. The rules are listed in ``docs/reference``.
``check_plugin`` checks everything that an installed plugin provides, as ``dingsdk check`` does.

``BufferMachine`` compares a buffer with a simple model in random sequences of calls, and
``StopAndGo`` an interrupted run with a whole one. ``FaultProxy`` simulates a bad network in front
of an endpoint, and ``open_files`` counts the open files.

Names are imported when they are first used: the machine needs Hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.testing.buffer_machine import BufferMachine as BufferMachine
    from dingsdk.testing.buffer_rules import BUFFER_CAPABILITIES as BUFFER_CAPABILITIES
    from dingsdk.testing.buffer_rules import BUFFER_RULES as BUFFER_RULES
    from dingsdk.testing.buffer_rules import BufferContract as BufferContract
    from dingsdk.testing.buffer_rules import check_buffer as check_buffer
    from dingsdk.testing.buffer_rules import check_buffer_rule as check_buffer_rule
    from dingsdk.testing.collector_rules import COLLECTOR_CAPABILITIES as COLLECTOR_CAPABILITIES
    from dingsdk.testing.collector_rules import COLLECTOR_RULES as COLLECTOR_RULES
    from dingsdk.testing.collector_rules import CollectorContract as CollectorContract
    from dingsdk.testing.collector_rules import check_collector as check_collector
    from dingsdk.testing.commander_rules import COMMANDER_CAPABILITIES as COMMANDER_CAPABILITIES
    from dingsdk.testing.commander_rules import COMMANDER_RULES as COMMANDER_RULES
    from dingsdk.testing.commander_rules import CommanderContract as CommanderContract
    from dingsdk.testing.commander_rules import check_commander as check_commander
    from dingsdk.testing.env_rules import ENV_CAPABILITIES as ENV_CAPABILITIES
    from dingsdk.testing.env_rules import ENV_RULES as ENV_RULES
    from dingsdk.testing.env_rules import EnvManagerContract as EnvManagerContract
    from dingsdk.testing.env_rules import check_env_manager as check_env_manager
    from dingsdk.testing.env_rules import check_env_manager_rule as check_env_manager_rule
    from dingsdk.testing.evaluator_rules import EVALUATOR_CAPABILITIES as EVALUATOR_CAPABILITIES
    from dingsdk.testing.evaluator_rules import EVALUATOR_RULES as EVALUATOR_RULES
    from dingsdk.testing.evaluator_rules import EvaluatorContract as EvaluatorContract
    from dingsdk.testing.evaluator_rules import check_evaluator as check_evaluator
    from dingsdk.testing.expect import RuleBroken as RuleBroken
    from dingsdk.testing.expect import open_files as open_files
    from dingsdk.testing.extension_rules import EXTENSION_RULES as EXTENSION_RULES
    from dingsdk.testing.extension_rules import CommandContract as CommandContract
    from dingsdk.testing.extension_rules import EnvWrapperContract as EnvWrapperContract
    from dingsdk.testing.extension_rules import (
        LearnerHookContract as LearnerHookContract,
    )
    from dingsdk.testing.extension_rules import ObserverContract as ObserverContract
    from dingsdk.testing.extension_rules import check_extension as check_extension
    from dingsdk.testing.fault_proxy import Fault as Fault
    from dingsdk.testing.fault_proxy import FaultProxy as FaultProxy
    from dingsdk.testing.fault_proxy import seeded_faults as seeded_faults
    from dingsdk.testing.part_rules import PART_RULES as PART_RULES
    from dingsdk.testing.part_rules import LimiterContract as LimiterContract
    from dingsdk.testing.part_rules import RemoverContract as RemoverContract
    from dingsdk.testing.part_rules import SamplerContract as SamplerContract
    from dingsdk.testing.part_rules import StorageContract as StorageContract
    from dingsdk.testing.part_rules import check_part as check_part
    from dingsdk.testing.plugin_check import PluginReport as PluginReport
    from dingsdk.testing.plugin_check import Step as Step
    from dingsdk.testing.plugin_check import check_plugin as check_plugin
    from dingsdk.testing.policy_rules import POLICY_CAPABILITIES as POLICY_CAPABILITIES
    from dingsdk.testing.policy_rules import POLICY_RULES as POLICY_RULES
    from dingsdk.testing.policy_rules import PolicyContract as PolicyContract
    from dingsdk.testing.policy_rules import PolicyUnderTest as PolicyUnderTest
    from dingsdk.testing.policy_rules import check_policy as check_policy
    from dingsdk.testing.policy_rules import check_policy_rule as check_policy_rule
    from dingsdk.testing.runner import ContractError as ContractError
    from dingsdk.testing.runner import ContractReport as ContractReport
    from dingsdk.testing.runner import Rule as Rule
    from dingsdk.testing.runner import RuleBook as RuleBook
    from dingsdk.testing.runner import RuleResult as RuleResult
    from dingsdk.testing.stop_and_go import StopAndGo as StopAndGo
    from dingsdk.testing.transport_rules import CAPABILITIES as CAPABILITIES
    from dingsdk.testing.transport_rules import RULES as RULES
    from dingsdk.testing.transport_rules import TransportContract as TransportContract
    from dingsdk.testing.transport_rules import check_rule as check_rule
    from dingsdk.testing.transport_rules import check_transport as check_transport
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
