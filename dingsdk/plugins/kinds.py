"""The kinds of parts that plugins provide, in the order of the documentation."""

from __future__ import annotations

from collections.abc import Mapping

OWN_DISTRIBUTION = "dingsdk-rl"
"""Name of our distribution. The distribution named ``dingsdk`` belongs to another project."""

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
    "datasets": (
        "formats and collections of recorded data, `cls()`, each a `dingsdk.worker.DatasetFormat`; "
        "its data sets are named `KEY:NAME`"
    ),
    "policies": "policies, each with the modes of `dingsdk.policy`",
    "env_managers": "environments that are stepped together, `cls(cfg, env_fns)`",
    "env_wrappers": "callables `wrapper(env, **kwargs) -> gymnasium.Env`",
    "roles": (
        "roles of workers, each a `dingsdk.worker.coordinator.Role`; shown as a command "
        "`dingsdk <key>`, which starts one such worker"
    ),
    "commands": "click commands, shown as `dingsdk <key>`",
}
"""Kind -> description of its parts, in the order of the documentation. Each kind has a registry,
an entry-point group ``dingsdk.<kind>`` and a hook ``dingsdk_register_<kind>(registry)``."""

COMM_KINDS = ("transports", "comm_collectors", "comm_learners")
"""Kinds that only coordinators and workers use; other child processes do not need them."""

OBSERVERS = "plugins"
"""Entry-point group ``dingsdk.plugins``: modules that provide no type and only observe."""

NAMES = "names"
"""Entry-point group ``dingsdk.names``: classes that can be imported as ``dingsdk.worker.<Name>``.
The name of the entry point is the class name, its value ``module:attr``."""

CONTRACTS = "contracts"
"""Entry-point group ``dingsdk.contracts``: the version of a kind's contract for which a
distribution was written. The name of the entry point is the kind, its value ``v<number>``; the
default is ``v1``. The version is read from the metadata, before the distribution is imported."""

CONTRACT_VERSIONS: Mapping[str, int] = dict.fromkeys(KINDS, 1)
"""Kind -> the version of its contract that this dingsdk has. The contract consists of the
signatures of the parts and the rules that ``dingsdk.testing`` checks. The version is increased when
parts of the previous version would no longer work, so plugins of other versions are refused."""
