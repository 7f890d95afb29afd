"""The kinds of parts that plugins provide, in the order in which people meet them."""

from __future__ import annotations

OWN_DISTRIBUTION = "dingsdk-rl"
"""What the core is installed as. The distribution called ``dingsdk`` is another project's."""

KINDS = (
    "transports",
    "buffers",
    "storages",
    "samplers",
    "removers",
    "limiters",
    "collectors",
    "parallel_collectors",
    "comm_collectors",
    "comm_learners",
    "evaluators",
    "learners",
    "learner_hooks",
    "commanders",
    "leagues",
    "policies",
    "env_managers",
    "env_wrappers",
    "roles",
    "commands",
)
"""Each kind has a registry, an entry-point group ``dingsdk.<kind>`` and a hook
``dingsdk_register_<kind>(registry)``."""

OBSERVERS = "plugins"
"""Entry-point group ``dingsdk.plugins``: modules that provide no type and only observe."""

NAMES = "names"
"""Entry-point group ``dingsdk.names``: classes reachable as ``dingsdk.worker.<Name>``; the
entry point's name is the class name, its value ``module:attr``."""

API_VERSION = 1
"""Version of the plugin interface. A plugin module that needs a newer one says so with
``dingsdk_api = N`` and is then refused by name, before any of its hooks runs."""
