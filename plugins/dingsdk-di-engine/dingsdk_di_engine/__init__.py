"""Policies of DI-engine for dingsdk, as the policy ``di_engine``."""
