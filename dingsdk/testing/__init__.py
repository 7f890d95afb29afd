"""The conformance kit: rules that check the parts of dingsdk and of its plugins.

``check_<kind>`` checks a part against every rule of its kind and needs no test framework;
``<Kind>Contract`` makes a pytest test of each rule. The rules are listed in ``docs/reference``.
``check_plugin`` checks everything that an installed plugin provides, as ``dingsdk check`` does.

``BufferMachine`` compares a buffer with a simple model in random sequences of calls, and
``StopAndGo`` an interrupted run with a whole one. ``FaultProxy`` simulates a bad network in front
of an endpoint, and ``open_files`` counts the open files.

Names are imported when they are first used: the contract classes need pytest, the machine needs
Hypothesis, and the others neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.testing.bench import open_files as open_files
    from dingsdk.testing.buffer_machine import BufferMachine as BufferMachine
    from dingsdk.testing.buffer_rules import BUFFER_CAPABILITIES as BUFFER_CAPABILITIES
    from dingsdk.testing.buffer_rules import BUFFER_RULES as BUFFER_RULES
    from dingsdk.testing.buffer_rules import check_buffer as check_buffer
    from dingsdk.testing.buffer_rules import check_buffer_rule as check_buffer_rule
    from dingsdk.testing.collector_rules import COLLECTOR_CAPABILITIES as COLLECTOR_CAPABILITIES
    from dingsdk.testing.collector_rules import COLLECTOR_RULES as COLLECTOR_RULES
    from dingsdk.testing.collector_rules import check_collector as check_collector
    from dingsdk.testing.commander_rules import COMMANDER_CAPABILITIES as COMMANDER_CAPABILITIES
    from dingsdk.testing.commander_rules import COMMANDER_RULES as COMMANDER_RULES
    from dingsdk.testing.commander_rules import check_commander as check_commander
    from dingsdk.testing.contract import BufferContract as BufferContract
    from dingsdk.testing.contract import CollectorContract as CollectorContract
    from dingsdk.testing.contract import CommandContract as CommandContract
    from dingsdk.testing.contract import CommanderContract as CommanderContract
    from dingsdk.testing.contract import EnvManagerContract as EnvManagerContract
    from dingsdk.testing.contract import EnvWrapperContract as EnvWrapperContract
    from dingsdk.testing.contract import EvaluatorContract as EvaluatorContract
    from dingsdk.testing.contract import LearnerHookContract as LearnerHookContract
    from dingsdk.testing.contract import LimiterContract as LimiterContract
    from dingsdk.testing.contract import ObserverContract as ObserverContract
    from dingsdk.testing.contract import PolicyContract as PolicyContract
    from dingsdk.testing.contract import RemoverContract as RemoverContract
    from dingsdk.testing.contract import SamplerContract as SamplerContract
    from dingsdk.testing.contract import StorageContract as StorageContract
    from dingsdk.testing.contract import TransportContract as TransportContract
    from dingsdk.testing.env_rules import ENV_CAPABILITIES as ENV_CAPABILITIES
    from dingsdk.testing.env_rules import ENV_RULES as ENV_RULES
    from dingsdk.testing.env_rules import check_env_manager as check_env_manager
    from dingsdk.testing.env_rules import check_env_manager_rule as check_env_manager_rule
    from dingsdk.testing.evaluator_rules import EVALUATOR_CAPABILITIES as EVALUATOR_CAPABILITIES
    from dingsdk.testing.evaluator_rules import EVALUATOR_RULES as EVALUATOR_RULES
    from dingsdk.testing.evaluator_rules import check_evaluator as check_evaluator
    from dingsdk.testing.extension_rules import EXTENSION_RULES as EXTENSION_RULES
    from dingsdk.testing.extension_rules import check_extension as check_extension
    from dingsdk.testing.fault_proxy import Fault as Fault
    from dingsdk.testing.fault_proxy import FaultProxy as FaultProxy
    from dingsdk.testing.fault_proxy import seeded_faults as seeded_faults
    from dingsdk.testing.part_rules import PART_RULES as PART_RULES
    from dingsdk.testing.part_rules import check_part as check_part
    from dingsdk.testing.plugin_check import PluginReport as PluginReport
    from dingsdk.testing.plugin_check import Step as Step
    from dingsdk.testing.plugin_check import check_plugin as check_plugin
    from dingsdk.testing.policy_rules import POLICY_CAPABILITIES as POLICY_CAPABILITIES
    from dingsdk.testing.policy_rules import POLICY_RULES as POLICY_RULES
    from dingsdk.testing.policy_rules import PolicyUnderTest as PolicyUnderTest
    from dingsdk.testing.policy_rules import check_policy as check_policy
    from dingsdk.testing.policy_rules import check_policy_rule as check_policy_rule
    from dingsdk.testing.rule import ContractError as ContractError
    from dingsdk.testing.rule import ContractReport as ContractReport
    from dingsdk.testing.rule import Rule as Rule
    from dingsdk.testing.rule import RuleBook as RuleBook
    from dingsdk.testing.rule import RuleBroken as RuleBroken
    from dingsdk.testing.rule import RuleResult as RuleResult
    from dingsdk.testing.rules import CAPABILITIES as CAPABILITIES
    from dingsdk.testing.rules import RULES as RULES
    from dingsdk.testing.rules import check_rule as check_rule
    from dingsdk.testing.rules import check_transport as check_transport
    from dingsdk.testing.stop_and_go import StopAndGo as StopAndGo
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
