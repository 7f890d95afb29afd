"""Checks that the parts of a compiled config fit together, before anything starts.

Each check returns why the run cannot work, as a text that begins with the wrong key; an empty text
if it can. The docstring of a check states the condition. Checks change nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from dingsdk.config.plain import find
from dingsdk.errors import ConfigError, DatasetError, SchemaMismatchError, listing
from dingsdk.worker.replay_buffer.config import (
    collected_in_batch,
    demonstrations_in,
    is_limited,
)

ADDED_COLUMNS = ("env_id", "episode_return")
"""Columns that collectors add to samples if the replay buffer needs them."""
MOST_TRAININGS = 1_000
"""On-policy, most trainings on the samples of one collect."""

_BUFFER = "policy.other.replay_buffer"
_COLLECTORS = ("policy.collect.collector", "policy.collect.parallel_collector")
_BUFFER_PARTS = (_BUFFER, f"{_BUFFER}.sampler", f"{_BUFFER}.remover")


def buffer_parts(cfg: Mapping[str, Any], classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the classes of the replay buffer of a run and of its parts, by config path.

    The result is empty for on-policy training.
    """
    if cfg["policy"]["on_policy"]:
        return {}
    return {path: classes[path] for path in _BUFFER_PARTS if path in classes}


def drawn_by(cfg: Mapping[str, Any], classes: Mapping[str, Any]) -> str:
    """Return what the replay buffer draws: rows, sequences or episodes."""
    return str(getattr(buffer_parts(cfg, classes).get(_BUFFER), "draws", "rows"))


def add_columns(cfg: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
    """Make collectors add the columns that the replay buffer needs."""
    policy, names = cfg["policy"], []
    buffer = policy["other"]["replay_buffer"]
    for path, part in buffer_parts(cfg, classes).items():
        section = buffer if path == _BUFFER else buffer[path.rpartition(".")[2]]
        # A section may name a column too, such as `trajectory: env_id` of a sampler of sequences.
        named = [value for value in section.values() if isinstance(value, str)]
        names += [*getattr(part, "needs_columns", ()), *named]
    collect = policy["collect"]
    wanted = dict.fromkeys([*collect["added_columns"], *(n for n in names if n in ADDED_COLUMNS)])
    collect["added_columns"] = list(wanted)
    if "episode_return" in wanted:
        policy["traj_len_inf"] = True  # the return is known only at the end of an episode


def check_run(cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
    """Raise ConfigError for the first check that fails.

    Args:
        cfg: The compiled config.
        classes: The classes of the parts, by config path.
        mode: ``serial`` or ``parallel``.
    """
    run = _Run(cfg, classes, mode)
    for check in (*_ALWAYS, *(_IN_PARALLEL if mode == "parallel" else ())):
        if text := check(run):
            raise refusal(text)


def refusal(text: str) -> ConfigError:
    """Return a ConfigError with a text that begins with the wrong key."""
    return ConfigError(text, path=re.split("[ :]", text, maxsplit=1)[0])


class _Run:
    def __init__(self, cfg: Mapping[str, Any], classes: Mapping[str, Any], mode: str) -> None:
        self.cfg, self.classes, self.mode = cfg, classes, mode
        self.system, self.policy = cfg["system"], cfg["policy"]
        self.collect = self.policy["collect"]
        self.collector = self.collect["collector"]["type"]
        self.parallel_collector = self.collect["parallel_collector"]["type"]
        self.buffer = self.policy["other"]["replay_buffer"]

    def fact(self, path: str, name: str, default: Any) -> Any:
        """Return an attribute of the class of a part."""
        return getattr(self.classes.get(path), name, default)

    def runs_threads(self) -> bool:
        transport_cls = self.classes["system.transport"]
        return bool(transport_cls.place_of(self.system["transport"]) == "threads")

    def is_base_policy(self) -> bool:
        from dingsdk.policy import BasePolicy

        return issubclass(self.classes["policy"], BasePolicy)


def _check_use_in_runs(run: _Run) -> str:
    """The serial collector and evaluator that the config names can be used in a run."""
    for path in ("policy.collect.collector", "policy.eval.evaluator"):
        if reason := run.fact(path, "not_for_runs", ""):
            kind = find(run.cfg, f"{path}.type")
            return f"{path}.type: a run cannot use type {kind!r}: {reason}; use it from Python"
    return ""


def _check_collects(run: _Run) -> str:
    """A collect has a size, and that is at least one episode for every env."""
    from dingsdk.worker.commander.tasks import runs_serial_part

    collect, env_num = run.collect, run.cfg["env"]["collector_env_num"]
    n_episode = collect["n_episode"]
    if n_episode is not None and n_episode < env_num:
        return (
            f"policy.collect.n_episode is {n_episode}, less than env.collector_env_num {env_num}: "
            "every env plays at least one episode; raise the first or lower the second"
        )
    key = run.fact("policy.collect.collector", "counts", "")
    is_named = run.parallel_collector == "serial"
    is_used = run.mode == "serial" or is_named or runs_serial_part(run.policy, eval_flag=False)
    if key and is_used and collect[key] is None:
        return (
            f"policy.collect.{key} is not set: a collector of type {run.collector!r} counts in it"
        )
    if key == "n_sample" and is_used and n_episode is not None:
        return (
            f"policy.collect.n_episode is {n_episode}, but a collector of type {run.collector!r} "
            "counts samples; leave it out, or choose a collector that counts episodes, such as "
            "'episode'"
        )
    keys = run.fact("policy.collect.parallel_collector", "counts_one_of", ())
    if keys and not is_used and not any(collect[each] for each in keys):
        return (
            f"policy.collect.{keys[0]} is not set: a parallel collector of type "
            f"{run.parallel_collector!r} counts in one of {', '.join(keys)}"
        )
    return ""


def _check_capacity(run: _Run) -> str:
    """The replay buffer is large enough for a batch, for one collect, and for its limiter."""
    if run.policy["on_policy"]:
        return ""  # the samples of a collect are trained on without a buffer
    path, buffer = _BUFFER, run.buffer
    capacity, length = buffer.get("replay_buffer_size"), buffer.get("sequence_length", 1)
    if capacity is None:
        return ""
    limiter, steps = buffer.get("limiter") or {}, run.system["max_env_steps"]
    never = "no batch could ever be sampled; lower the first or raise the second"
    least = limiter.get("min_size")
    for limit, name in ((capacity, f"{path}.replay_buffer_size"), (steps, "system.max_env_steps")):
        if least is not None and limit is not None and least > limit:
            return f"{path}.limiter.min_size is {least}, more than {name} {limit}: {never}"
    batch_size, n_sample = run.policy["learn"]["batch_size"], run.collect["n_sample"]
    batch, collect = f"learn.batch_size {batch_size}", f"collect.n_sample {n_sample}"
    if length > 1:
        batch += f" times sequence_length {length}"
    for needed, what, outcome in (
        (batch_size * length, batch, "no batch could ever be sampled"),
        (n_sample or 0, collect, "part of each collect would be dropped at once"),
    ):
        if capacity < needed:
            return (
                f"{path}.replay_buffer_size is {capacity}, less than policy.{what}: {outcome}; "
                "raise the first or lower the second"
            )
    for key, section in (
        ("limiter", limiter),
        ("thruput_controller", buffer.get("thruput_controller")),
    ):
        ratio = (section or {}).get("sample_min_limit_ratio", 1)
        if ratio * batch_size * length > capacity:
            return (
                f"{path}.{key}.sample_min_limit_ratio is {ratio:g}, and times policy.{batch} it is "
                f"more than replay_buffer_size {capacity}: {never}"
            )
    window = buffer.get("set_buffer_size")
    if isinstance(window, Mapping):
        window = max(window.get("start", 0), window.get("end", 0))
    if isinstance(window, int | float) and window < batch_size:
        return (
            f"{path}.set_buffer_size is at most {window:g}, less than policy.{batch}: no batch "
            "could ever be sampled; raise the first or lower the second"
        )
    return ""


def _check_priority(run: _Run) -> str:
    """If the policy computes priorities, the replay buffer uses them."""
    bases = getattr(buffer_parts(run.cfg, run.classes).get(_BUFFER), "__mro__", ())
    owner = next((cls for cls in bases if "update" in vars(cls)), object)
    if not run.policy["priority"] or not vars(owner).get("ignores_priorities"):
        return ""
    return (
        f"policy.priority is true, but a buffer of type {run.buffer['type']!r} draws its rows "
        f"without priorities; set {_BUFFER}.type to advanced, or the first to false"
    )


def _check_endless_envs(run: _Run) -> str:
    """Envs begin a new episode after each one, until the end of the run."""
    for key, wanted in (("auto_reset", True), ("episode_num", math.inf)):
        found = run.cfg["env_manager"].get(key, wanted)
        if found != wanted:
            return (
                f"env_manager.{key} is {found}, but a run needs envs that begin a new episode "
                "wherever one ends; leave the key out, or use the manager from Python"
            )
    return ""


def _check_buffer(run: _Run) -> str:
    """The replay buffer works in the mode, and gets samples in the order that it needs."""
    for path, part in buffer_parts(run.cfg, run.classes).items():
        modes = getattr(part, "modes", (run.mode,))
        if run.mode not in modes:
            return (
                f"{path}.type names {part.__name__}, which serves {', '.join(sorted(modes))} mode "
                f"and not {run.mode} mode; choose another"
            )
    drawn = drawn_by(run.cfg, run.classes)
    by_episode = run.fact("policy.collect.collector", "gives_episodes", False)
    gives = "rows"
    if by_episode:
        gives = "sequences" if run.collect["collector"].get("get_train_sample") else "episodes"
    if drawn == "rows":
        if gives == "episodes" and run.is_base_policy():
            return (
                "policy.collect.collector.get_train_sample is false, so a collector of type "
                f"{run.collector!r} gives whole episodes, and a policy of type "
                f"{run.policy['type']!r} trains on train samples; set it to true"
            )
        return ""
    is_recorded = not run.fact("policy.collect.collector", "needs_env", True)
    if run.mode == "serial" or is_recorded:
        serves = drawn == gives or (drawn == "sequences" and not by_episode)
    else:
        players = run.fact("policy.collect.parallel_collector", "max_players", 1)
        own = "sample" if players == 1 else "sample_1v1"
        is_own = run.collector == own and run.parallel_collector != "serial"
        serves = drawn == gives or (drawn == "sequences" and is_own)
    if serves:
        return ""
    text = f"{_BUFFER}.type {run.buffer['type']!r} draws {drawn}, and a collector of type "
    if drawn == "episodes":
        return (
            f"{text}{run.collector!r} does not give them; choose 'episode' or another collector "
            "that does, or another buffer"
        )
    return (
        f"{text}{run.collector!r} does not give samples in that order in {run.mode} mode; choose "
        "another collector, buffer or mode"
    )


def _check_samples(run: _Run) -> str:
    """The policy trains on what the replay buffer draws: rows, sequences or episodes."""
    drawn = drawn_by(run.cfg, run.classes)
    wanted = run.fact("policy", "trains_on", (drawn,))
    if drawn in wanted:
        return ""
    return (
        f"{_BUFFER}.type {run.buffer['type']!r} draws {drawn}, on which a policy of type "
        f"{run.policy['type']!r} does not train; choose another policy, or one of the buffers "
        f"{_buffers_that_draw(wanted)}"
    )


def _buffers_that_draw(wanted: Collection[str]) -> str:
    """Return a list of the registered types of buffers whose samples consist of ``wanted``."""
    from dingsdk.plugins import default_manager

    buffers = default_manager().registry("buffers")
    return listing(n for n in buffers.query() if getattr(buffers.get(n), "draws", "") in wanted)


def _check_unused_buffer(run: _Run) -> str:
    """On-policy, no kind of replay buffer is chosen: the samples are trained on without it."""
    if not run.policy["on_policy"]:
        return ""
    from dingsdk.worker import NaiveReplayBuffer

    usual = NaiveReplayBuffer.default_config()
    for key in ("type", "storage.type", "sampler.type", "remover.type", "limiter.type"):
        chosen = find(run.buffer, key)
        if chosen not in (None, find(usual, key)):
            return (
                f"{_BUFFER}.{key} is {chosen!r}, but a policy of type {run.policy['type']!r} "
                "trains on its newest samples without a replay buffer; leave it out"
            )
    return ""


def _check_sequences(run: _Run) -> str:
    """A policy that trains on columns gets its sequences in columns."""
    storage = run.classes.get(f"{_BUFFER}.storage")
    is_of_objects = drawn_by(run.cfg, run.classes) == "sequences" and getattr(
        storage, "holds_objects", False
    )
    if not (is_of_objects and run.is_base_policy()):
        return ""
    return (
        f"{_BUFFER}.storage.type {run.buffer['storage']['type']!r} gives sequences as lists of "
        f"rows, and a policy of type {run.policy['type']!r} trains on columns; choose auto, array "
        "or memmap"
    )


def _check_pace(run: _Run) -> str:
    """The limiter admits the rows of each collect, or of each payload: no other thread samples.

    Of the rows of an episode, only the run knows how many there are.
    """
    from dingsdk.worker.coordinator.live_payloads import PAYLOAD_ROWS

    limiter, pushed = run.buffer.get("limiter") or {}, run.collect["n_sample"]
    is_followed = not run.policy["on_policy"] and run.system["replay"]["type"] != "server"
    if not is_followed or not pushed or limiter.get("type") != "samples_per_insert":
        return ""
    learn, wanted = run.policy["learn"], limiter["samples_per_insert"]
    batch = collected_in_batch(run.policy) * run.buffer.get("sequence_length", 1)
    if run.mode == "parallel":  # the learner trains as often as the limiter lets it
        pushed = max(pushed, PAYLOAD_ROWS)
    elif wanted > (sampled := learn["update_per_collect"] * batch / pushed):
        return (
            f"{_BUFFER}.limiter.samples_per_insert is {wanted:g}, but a serial run samples only "
            f"{sampled:g} rows for each row that it pushes (policy.learn.update_per_collect times "
            "batch_size, divided by policy.collect.n_sample): its pushes would be refused; lower "
            "the first, or raise update_per_collect"
        )
    least = pushed * wanted + batch
    behind, ahead = limiter["error_buffer"], limiter["samples_ahead"]
    if behind is None or behind + (behind if ahead is None else ahead) >= least:
        return ""
    return (
        f"{_BUFFER}.limiter.error_buffer is {behind}: it would refuse the pushes of a {run.mode} "
        f"run, {pushed} rows in turn with batches of {batch}; raise it to {least:g}, or leave it "
        "out"
    )


def _check_policy_lag(run: _Run) -> str:
    """The age of samples is limited only for on-policy training."""
    lag = run.policy["other"]["commander"].get("max_policy_lag")
    if not lag or run.policy["on_policy"]:
        return ""
    return (
        f"policy.other.commander.max_policy_lag is {lag}, but a policy of type "
        f"{run.policy['type']!r} is trained on samples of any age; leave it 0"
    )


def _check_normalize(run: _Run) -> str:
    """Observations and rewards are normalised only by a policy that can do it."""
    normalize = run.policy["normalize"]
    wanted = [key for key in ("obs", "reward") if normalize[key]]
    if wanted and not run.is_base_policy():
        return (
            f"policy.normalize.{wanted[0]} is true, but a policy of type {run.policy['type']!r} is "
            "no BasePolicy, which normalises in its networks; set it to false"
        )
    if normalize["reward"] and run.collect["collector"].get("reward_shaping"):
        return (
            "policy.normalize.reward is true, but policy.collect.collector.reward_shaping changes "
            "rewards after their returns were recorded; set one of them to false"
        )
    return ""


def _check_device(run: _Run) -> str:
    """If the policy uses a GPU, this machine has one."""
    if not run.policy["cuda"] or _gpu_count():
        return ""
    return "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false"


def _check_learners(run: _Run) -> str:
    """If there are several learners, they can train together, on equal parts of a batch."""
    num, policy = run.system["learner_num"], run.policy
    if num == 1:
        return ""
    why = ""
    if policy["on_policy"] or not run.fact("policy", "is_data_parallel", False):
        why = f"a policy of type {policy['type']!r} is trained by one learner"
    elif policy["cuda"] and (count := _gpu_count()) < num:
        why = (
            f"each of them needs a GPU of this machine, and torch finds {count} here: set "
            "policy.cuda to false"
        )
    elif run.mode == "parallel" and not hasattr(run.classes["system.learner"], "learner_num"):
        why = f"a comm learner of type {run.system['learner']['type']!r} is one learner"
    if why:
        return f"system.learner_num is {num}, but {why}; leave the first 1"
    batch_size = policy["learn"]["batch_size"]
    if batch_size % num == 0:
        return ""
    return (
        f"policy.learn.batch_size is {batch_size}, no multiple of system.learner_num {num}: it is "
        "the batch of all learners together, and each takes an equal part"
    )


def _check_replay(run: _Run) -> str:
    """If a replay server is to hold the buffer of the run, that is possible."""
    system = run.system
    if "replay-server" in system["roles"]:
        return (
            "system.roles.replay-server: system.replay.type=server starts this role; leave it out "
            "here"
        )
    if system["replay"]["type"] != "server":
        return ""
    why = ""
    if run.mode == "serial":
        why = "a serial run holds its replay buffer itself; use --mode parallel"
    elif run.policy["on_policy"]:
        why = f"a policy of type {run.policy['type']!r} trains only on its newest samples"
    elif run.fact(_BUFFER, "draws", "rows") == "episodes":
        why = "a buffer of episodes stays with the learner; choose another buffer"
    elif run.collect["n_episode"] and not is_limited(run.buffer):
        why = (
            "it counts samples, and policy.collect.n_episode counts episodes; name a limiter of "
            "type samples_per_insert in policy.other.replay_buffer"
        )
    elif not hasattr(run.classes["system.learner"], "replay"):
        why = f"a comm learner of type {system['learner']['type']!r} does not sample from one"
    elif not hasattr(run.classes["system.collector"], "replay"):
        why = f"a comm collector of type {system['collector']['type']!r} does not insert into one"
    return why and f"system.replay.type is 'server', but {why}"


def _check_on_policy(run: _Run) -> str:
    """On-policy, parallel mode: collectors can be paused between two env steps."""
    if not run.policy["on_policy"]:
        return ""
    is_held = run.collector == "sample" and run.parallel_collector != "serial"
    own = "sample with the parallel collector zergling"
    if run.fact("policy.collect.parallel_collector", "max_players", 1) > 1:
        is_held = run.fact("policy.collect.collector", "counts", "") != "n_episode"
        own = "sample_1v1"
    key = why = ""
    cuts = "cuts trajectories where the policy changes, and"
    if not run.collect["n_sample"]:
        key, why = "collect.n_sample", "needs it, the samples of one training; set it"
    elif not is_held:
        key = "collect.collector.type"
        why = (
            "holds collectors back between two env steps, which a serial collector of type "
            f"{run.collector!r} cannot do; choose {own}"
        )
    elif "episode_return" in run.collect["added_columns"]:
        key, why = "collect.added_columns", f"{cuts} episode_return needs whole episodes; remove it"
    elif run.policy["traj_len_inf"]:
        key, why = "traj_len_inf", f"{cuts} this keeps them whole; set it to false"
    return why and (
        f"policy.{key}: on-policy training in parallel mode {why}, or use --mode serial"
    )


def _check_memory_limit(run: _Run) -> str:
    """If workers are to be restarted above a memory limit, they are processes."""
    if run.system["worker_memory_limit"] is None or not run.runs_threads():
        return ""
    return (
        "system.worker_memory_limit is set, but the transport "
        f"{run.system['transport']['type']!r} runs workers as threads of one process; choose "
        "another one, such as flask_fs, or leave it out"
    )


def _check_inference(run: _Run) -> str:
    """If there is an inference server, it can compute the actions for the collectors."""
    if "inference" not in (run.system.get("roles") or {}):
        return ""
    why = ""
    if run.runs_threads():
        why = (
            f"the transport {run.system['transport']['type']!r} runs all workers in one process; "
            "choose one whose workers are processes, such as flask_fs"
        )
    elif not run.is_base_policy():
        why = f"a policy of type {run.policy['type']!r} is no BasePolicy, whose act it calls"
    elif run.collector != "sample" or not run.fact(
        "policy.collect.parallel_collector", "acts_remotely", False
    ):
        why = (
            f"it acts for the parallel collector zergling, and this is {run.parallel_collector!r} "
            f"with the collector {run.collector!r}"
        )
    return why and f"system.roles.inference is set, but {why}; or leave it out"


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _check_trainings(run: _Run) -> str:
    """On-policy, the trainings on one collect, which cannot be interrupted, are not too many."""
    count = run.policy["learn"]["update_per_collect"]
    if not run.policy["on_policy"] or count <= MOST_TRAININGS:
        return ""
    return (
        f"policy.learn.update_per_collect is {count:,}: an on-policy run trains so often on the "
        f"same samples, and can be neither stopped nor saved in between; use at most "
        f"{MOST_TRAININGS:,}"
    )


def _check_unrolls(run: _Run) -> str:
    """The run can collect and store unrolls, if its policy trains on them."""
    if run.fact("policy", "piece", "steps") != "unroll":
        return ""
    from dingsdk.policy.base import mixes_versions

    key = why = ""
    envs = run.cfg["env"]["collector_env_num"]
    if not mixes_versions(run.policy):
        key = "on_policy"
        why = (
            "continue while newer policies are loaded; set policy.other.commander.max_policy_lag "
            "to null, or this to false"
        )
    elif drawn_by(run.cfg, run.classes) != "rows":
        key = "other.replay_buffer.type"
        why = f"are one row each; choose one of {_buffers_that_draw(('rows',))}"
    elif "episode_return" in run.collect["added_columns"]:
        key = "collect.added_columns"
        why = (
            "are cut before the returns of their episodes are known; leave episode_return out, and "
            "parts of the replay buffer that need it"
        )
    elif run.policy["traj_len_inf"]:
        key, why = "traj_len_inf", "continue across episodes; set it to false"
    elif not run.collect["n_sample"]:
        key, why = "collect.n_sample", "are counted as samples; set it, and no n_episode"
    elif (steps := run.system["max_env_steps"]) and steps < run.collect["unroll_len"] * envs:
        key, why = (
            "collect.unroll_len",
            f"are {run.collect['unroll_len']} steps long, and system.max_env_steps {steps} is less "
            f"than one for each of the {envs} envs; lower it",
        )
    elif run.collector != "sample":
        key, why = "collect.collector.type", "are cut by the collector 'sample'; choose it"
    elif run.parallel_collector not in ("zergling", "serial"):
        key, why = "collect.parallel_collector.type", "are cut by 'zergling'; choose it"
    return why and f"policy.{key}: the unrolls of a policy of type {run.policy['type']!r} {why}"


def _check_episodes(run: _Run) -> str:
    """On-policy, a policy of whole episodes gets them although older steps are dropped."""
    from dingsdk.policy.base import mixes_versions

    gives_episodes = run.fact("policy.collect.collector", "gives_episodes", False)
    if (
        run.fact("policy", "piece", "steps") != "episode"
        or gives_episodes
        or mixes_versions(run.policy)
    ):
        return ""
    return (
        f"policy.type: a policy of type {run.policy['type']!r} samples whole episodes, and "
        "on-policy training drops the steps of older versions; choose a collector of episodes in "
        "serial mode, or set policy.other.commander.max_policy_lag to null"
    )


def _check_demonstrations(run: _Run) -> str:
    """The run can train on demonstrations: beside what it collects, or as rows of its buffer."""
    from dingsdk.worker.replay_buffer.table import Table

    section, policy = run.policy["other"].get("demonstrations") or {}, run.policy
    if not section.get("path"):
        return ""
    storage, kind = run.classes.get(f"{_BUFFER}.storage"), run.buffer["type"]
    share, size = section["share"], policy["learn"]["batch_size"]
    key, why = "path", ""
    if policy["on_policy"]:
        why = f"a policy of type {policy['type']!r} trains only on its newest samples"
    elif not run.is_base_policy():
        why = f"a policy of type {policy['type']!r} is no BasePolicy, which makes samples of them"
    elif (piece := run.fact("policy", "piece", "steps")) == "unroll":
        why = f"a policy of type {policy['type']!r} trains on {piece}s"
    elif not run.fact(_COLLECTORS[0], "needs_env", True):
        why = f"a collector of type {run.collector!r} collects nothing beside them"
    elif max(run.fact(path, "max_players", 1) for path in _COLLECTORS) > 1:
        why = "the env has several players"
    elif run.system["replay"]["type"] == "server":
        why = "system.replay.type is 'server', and a replay server holds collected samples only"
    elif run.fact(f"{_BUFFER}.sampler", "draws_oldest", False):
        why = f"a buffer of type {kind!r} gives each row once, in order of arrival"
    elif (drawn := drawn_by(run.cfg, run.classes)) != "rows":
        why = f"a buffer of type {kind!r} draws {drawn}"
    elif not issubclass(run.classes.get(_BUFFER, Table), Table):
        why = f"a buffer of type {kind!r} is no Table of dingsdk"
    elif getattr(storage, "holds_objects", False) and share is not None:
        why = f"{_BUFFER}.storage.type {run.buffer['storage']['type']!r} holds no columns"
    elif share is not None and not 0 < (shown := demonstrations_in(share, size)) < size:
        key = "share"
        why = f"{share:g} of policy.learn.batch_size {size} is {shown} samples of each batch"
    return why and (
        f"policy.other.demonstrations.{key}: demonstrations cannot be used, as {why}; leave them "
        "out, or change that"
    )


def check_demonstrations(cfg: Mapping[str, Any]) -> None:
    """Read the demonstrations of a compiled config, if there are any, and check them.

    Raises:
        ConfigError: they cannot be read, do not fit the env and the policy, or are too few or too
            many.
    """
    from dingsdk.worker.commander.tasks import demonstrations_task

    if (task := demonstrations_task(cfg)) is None:
        return
    from dingsdk.worker.demonstrations import check_count, demonstration_samples

    try:
        rows = len(demonstration_samples(task, cfg["policy"]))
    except (DatasetError, SchemaMismatchError) as error:
        raise refusal(f"policy.other.demonstrations.path: {error}") from error
    check_count(task, cfg["policy"], rows)


def _check_home(run: _Run) -> str:
    """The learner of a parallel run can hold the replay buffer."""
    from dingsdk.worker.replay_buffer.table import Table

    cls = run.classes.get(_BUFFER, Table)
    if run.policy["on_policy"] or issubclass(cls, Table):
        return ""
    return (
        f"{_BUFFER}.type {run.buffer['type']!r} is no Table, whose rows the learner of a parallel "
        "run loads again after a loss; derive it from NaiveReplayBuffer or another buffer of "
        "dingsdk, or use --mode serial"
    )


_ALWAYS = (
    _check_trainings,
    _check_use_in_runs,
    _check_collects,
    _check_capacity,
    _check_priority,
    _check_endless_envs,
    _check_samples,
    _check_buffer,
    _check_pace,
    _check_policy_lag,
    _check_normalize,
    _check_device,
    _check_learners,
    _check_replay,
    _check_unused_buffer,
    _check_sequences,
    _check_unrolls,
    _check_episodes,
    _check_demonstrations,
)
_IN_PARALLEL = (_check_on_policy, _check_memory_limit, _check_inference, _check_home)
