"""The kinds of parts that plugins provide, in the order in which people meet them."""

from __future__ import annotations

from collections.abc import Mapping

OWN_DISTRIBUTION = "dingsdk-rl"
"""What the core is installed as. The distribution called ``dingsdk`` is another project's."""

KINDS: Mapping[str, str] = {
    "transports": (
        "how workers reach their master: control messages, step data and policies, each a "
        "`dingsdk.worker.comm.Transport`"
    ),
    "buffers": (
        "replay buffers, `cls(cfg, tb_logger=None, exp_name=..., instance_name=...)`, each a "
        "`dingsdk.worker.IBuffer`"
    ),
    "storages": "where a buffer keeps its rows",
    "samplers": "which rows a buffer draws",
    "removers": "which rows a full buffer gives up",
    "limiters": "when a buffer may be sampled from, or pushed to",
    "collectors": "serial collectors, `cls(cfg, env=None, policy=None, tb_logger=None, ...)`",
    "parallel_collectors": "collectors that run in a worker, `cls(cfg)`",
    "comm_collectors": "the side of a transport that runs collectors in a worker, `cls(cfg)`",
    "comm_learners": "the side of a transport that runs a learner in a worker, `cls(cfg)`",
    "evaluators": "evaluators, `cls(cfg, env=None, policy=None, tb_logger=None, ...)`",
    "learners": "learners, `cls(cfg, policy=None, tb_logger=None, dist_info=None, ...)`",
    "learner_hooks": "hooks that a config chooses for a learner, ordered by priority",
    "commanders": "what decides the next task of a parallel run, `cls(cfg)`",
    "serial_commanders": (
        "what gives the policy settings for the next collect of serial mode, "
        "`cls(cfg, learner, collector, evaluator, replay_buffer, policy)`"
    ),
    "leagues": "leagues of players, `cls(cfg)`",
    "policies": "policies, each with the modes of `dingsdk.policy`",
    "env_managers": "environments that are stepped together, `cls(cfg, env_fns)`",
    "env_wrappers": "callables `wrapper(env, **kwargs) -> gymnasium.Env`",
    "roles": (
        "roles of workers, each a `dingsdk.worker.coordinator.Role`; shown as a command "
        "`dingsdk <key>`, which starts one such worker"
    ),
    "commands": "click commands, shown as `dingsdk <key>`",
}
"""Kind -> what its parts are, in the order in which people meet them. Each kind has a registry,
an entry-point group ``dingsdk.<kind>`` and a hook ``dingsdk_register_<kind>(registry)``."""

COMM_KINDS = ("transports", "comm_collectors", "comm_learners")
"""Kinds that only a process uses that has a master."""

OBSERVERS = "plugins"
"""Entry-point group ``dingsdk.plugins``: modules that provide no type and only observe."""

NAMES = "names"
"""Entry-point group ``dingsdk.names``: classes reachable as ``dingsdk.worker.<Name>``; the
entry point's name is the class name, its value ``module:attr``."""

CONTRACTS = "contracts"
"""Entry-point group ``dingsdk.contracts``: the version of a kind's contract that a distribution
was written for; the entry point's name is the kind, its value ``v<number>``. Without one it is
``v1``. It is read from the metadata, before anything of the distribution is imported."""

CONTRACT_VERSIONS: Mapping[str, int] = dict.fromkeys(KINDS, 1)
"""Kind -> newest version of its contract that this dingsdk knows: signatures of the parts, and
the rules that ``dingsdk.testing`` checks. It goes up when a part of the version before would no
longer work."""

API_VERSION = 1
"""Version of the plugin interface. A plugin module that needs a newer one says so with
``dingsdk_api = N`` and is then refused by name, before any of its hooks runs."""
