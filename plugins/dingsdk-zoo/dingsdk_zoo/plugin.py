"""Registers the policies; the module of one is imported when a config first names its type."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl

POLICIES = {
    "appo": "appo:APPOPolicy",
    "bc": "bc:BCPolicy",
    "discrete_sac": "discrete_sac:DiscreteSACPolicy",
    "impala": "impala:IMPALAPolicy",
    "iql": "iql:IQLPolicy",
    "qrdqn": "qrdqn:QRDQNPolicy",
    "rainbow": "rainbow:RainbowPolicy",
    "td3": "td3:TD3Policy",
}
"""Module and class of each policy by its type key."""


@hookimpl
def dingsdk_register_policies(registry: Registry) -> None:
    """Register the policies."""
    for key, place in POLICIES.items():
        registry.declare(key, f"dingsdk_zoo.{place}", owner="dingsdk-rl-zoo")
