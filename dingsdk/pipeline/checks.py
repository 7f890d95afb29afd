"""Checks that several parts of a compiled config fit together, before anything starts.

Each check returns why the run cannot work, as a text that begins with the wrong key; an empty text
if it can. The docstring of a check states the condition. Checks change nothing. A check of one part
stands beside that part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dingsdk.config.plain import find
from dingsdk.errors import listing
from dingsdk.plugins import default_manager
from dingsdk.worker.commander.tasks import runs_serial_part
from dingsdk.worker.replay_buffer.config import collected_in_batch, is_limited
from dingsdk.worker.run_view import BUFFER, COLLECTOR, RunView, refusal

ADDED_COLUMNS = ("env_id", "episode_return")
"""Columns that collectors add to samples if the replay buffer needs them."""


def add_columns(run: RunView) -> None:
    """Make collectors add the columns that the replay buffer needs."""
    names: list[str] = []
    for path, part in run.buffer_parts.items():
        section = run.buffer if path == BUFFER else run.buffer[path.rpartition(".")[2]]
        # A section may name a column too, such as `trajectory: env_id` of a sampler of sequences.
        named = [value for value in section.values() if isinstance(value, str)]
        names += [*getattr(part, "needs_columns", ()), *named]
    added = [*run.collect["added_columns"], *(name for name in names if name in ADDED_COLUMNS)]
    run.collect["added_columns"] = list(dict.fromkeys(added))
    if "episode_return" in added:
        run.policy["traj_len_inf"] = True  # the return is known only at the end of an episode


def check_run(run: RunView) -> None:
    """Raise ConfigError for the first check that fails."""
    checks = [*_ALWAYS, *(_IN_PARALLEL if run.mode == "parallel" else ())]
    if run.mode == "parallel":
        roles = [f"system.roles.{name}" for name in run.system["roles"]]
        checks += filter(None, [getattr(run.classes[role], "check_run", None) for role in roles])
    if run.demonstrations:
        from dingsdk.worker.demonstrations import check_demonstrations

        checks.append(check_demonstrations)
    for check in checks:
        if text := check(run):
            raise refusal(text)


def _check_use_in_runs(run: RunView) -> str:
    """The serial collector and evaluator that the config names can be used in a run."""
    for path in (COLLECTOR, "policy.eval.evaluator"):
        if reason := getattr(run.classes.get(path), "not_for_runs", ""):
            kind = find(run.cfg, f"{path}.type")
            return f"{path}.type: a run cannot use type {kind!r}: {reason}; use it from Python"
    return ""


def _check_collects(run: RunView) -> str:
    """A collect has a size, and that is at least one episode for every env."""
    collect, env_num = run.collect, run.cfg["env"]["collector_env_num"]
    n_episode = collect["n_episode"]
    if n_episode is not None and n_episode < env_num:
        return (
            f"policy.collect.n_episode is {n_episode}, less than env.collector_env_num {env_num}: "
            "every env plays at least one episode; raise the first or lower the second"
        )
    key = getattr(run.collector_class, "counts", "")
    is_named = run.parallel_collector == "serial"
    is_used = run.mode == "serial" or is_named or runs_serial_part(run.policy, eval_flag=False)
    if key and is_used and collect[key] is None:
        return f"policy.collect.{key} is not set: {run.of_collector} counts in it"
    if key == "n_sample" and is_used and n_episode is not None:
        return (
            f"policy.collect.n_episode is {n_episode}, but {run.of_collector} counts samples; "
            "leave it out, or choose a collector that counts episodes, such as 'episode'"
        )
    keys = getattr(run.parallel_class, "counts_one_of", ())
    if keys and not is_used and not any(collect[each] for each in keys):
        return (
            f"policy.collect.{keys[0]} is not set: a parallel collector of type "
            f"{run.parallel_collector!r} counts in one of {', '.join(keys)}"
        )
    return ""


def _check_capacity(run: RunView) -> str:
    """The replay buffer is large enough for a batch, for one collect, and for its limiter."""
    if run.policy["on_policy"]:
        return ""  # the samples of a collect are trained on without a buffer
    path, buffer = BUFFER, run.buffer
    capacity, length = buffer.get("replay_buffer_size"), buffer.get("sequence_length", 1)
    if capacity is None:
        return ""
    limiter, steps = buffer.get("limiter") or {}, run.system["max_env_steps"]
    never = "no batch could ever be sampled; lower the first or raise the second"
    least = limiter.get("min_size")
    for limit, name in ((capacity, f"{path}.replay_buffer_size"), (steps, "system.max_env_steps")):
        if least is not None and limit is not None and least > limit:
            return f"{path}.limiter.min_size is {least}, more than {name} {limit}: {never}"
    batch_size, n_sample = run.learn["batch_size"], run.collect["n_sample"]
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


def _check_priority(run: RunView) -> str:
    """If the policy computes priorities, the replay buffer uses them."""
    bases = getattr(run.buffer_parts.get(BUFFER), "__mro__", ())
    owner = next((cls for cls in bases if "update" in vars(cls)), object)
    if not run.policy["priority"] or not vars(owner).get("ignores_priorities"):
        return ""
    return (
        f"policy.priority is true, but {run.of_buffer} draws its rows without priorities; set "
        f"{BUFFER}.type to advanced, or the first to false"
    )


def _check_buffer(run: RunView) -> str:
    """The replay buffer works in the mode, and gets samples in the order that it needs."""
    for path, part in run.buffer_parts.items():
        modes = getattr(part, "modes", (run.mode,))
        if run.mode not in modes:
            return (
                f"{path}.type names {part.__name__}, which serves {', '.join(sorted(modes))} mode "
                f"and not {run.mode} mode; choose another"
            )
    drawn = run.drawn
    by_episode = getattr(run.collector_class, "gives_episodes", False)
    gives = "rows"
    if by_episode:
        gives = "sequences" if run.collect["collector"].get("get_train_sample") else "episodes"
    if drawn == "rows":
        if gives == "episodes" and run.is_base_policy:
            return (
                f"{COLLECTOR}.get_train_sample is false, so {run.of_collector} gives whole "
                f"episodes, and {run.of_policy} trains on train samples; set it to true"
            )
        return ""
    if run.mode == "serial" or run.is_offline:
        serves = drawn == gives or (drawn == "sequences" and not by_episode)
    else:
        players = getattr(run.parallel_class, "max_players", 1)
        own = "sample" if players == 1 else "sample_1v1"
        is_own = run.collector == own and run.parallel_collector != "serial"
        serves = drawn == gives or (drawn == "sequences" and is_own)
    if serves:
        return ""
    text = f"{BUFFER}.type {run.buffer['type']!r} draws {drawn}, and {run.of_collector} does not "
    if drawn == "episodes":
        return (
            f"{text}give them; choose 'episode' or another collector that does, or another buffer"
        )
    return (
        f"{text}give samples in that order in {run.mode} mode; choose another collector, buffer or "
        "mode"
    )


def _check_samples(run: RunView) -> str:
    """The policy trains on what the replay buffer draws: rows, sequences or episodes."""
    drawn = run.drawn
    wanted = getattr(run.policy_class, "trains_on", (drawn,))
    if drawn in wanted:
        return ""
    return (
        f"{BUFFER}.type {run.buffer['type']!r} draws {drawn}, on which {run.of_policy} does not "
        f"train; choose another policy, or one of the buffers {_buffers_that_draw(wanted)}"
    )


def _buffers_that_draw(wanted: Collection[str]) -> str:
    """Return a list of the registered types of buffers whose samples consist of ``wanted``."""
    buffers = default_manager().registry("buffers")
    return listing(n for n in buffers.query() if getattr(buffers.get(n), "draws", "") in wanted)


def _check_unused_buffer(run: RunView) -> str:
    """On-policy, no kind of replay buffer is chosen: the samples are trained on without it."""
    if not run.policy["on_policy"]:
        return ""
    from dingsdk.worker import NaiveReplayBuffer

    usual = NaiveReplayBuffer.default_config()
    for key in ("type", "storage.type", "sampler.type", "remover.type", "limiter.type"):
        chosen = find(run.buffer, key)
        if chosen not in (None, find(usual, key)):
            return (
                f"{BUFFER}.{key} is {chosen!r}, but {run.of_policy} trains on its newest samples "
                "without a replay buffer; leave it out"
            )
    return ""


def _check_sequences(run: RunView) -> str:
    """A policy that trains on columns gets its sequences in columns."""
    storage = run.classes.get(f"{BUFFER}.storage")
    is_of_objects = run.drawn == "sequences" and getattr(storage, "holds_objects", False)
    if not (is_of_objects and run.is_base_policy):
        return ""
    return (
        f"{BUFFER}.storage.type {run.buffer['storage']['type']!r} gives sequences as lists of "
        f"rows, and {run.of_policy} trains on columns; choose auto, array or memmap"
    )


def _check_pace(run: RunView) -> str:
    """The limiter admits the rows of each collect, or of each payload: no other thread samples.

    Of the rows of an episode, only the run knows how many there are.
    """
    from dingsdk.worker.coordinator.live_payloads import PAYLOAD_ROWS

    limiter, pushed = run.buffer.get("limiter") or {}, run.collect["n_sample"]
    is_followed = not run.policy["on_policy"] and not run.is_served
    if not is_followed or not pushed or limiter.get("type") != "samples_per_insert":
        return ""
    learn, wanted = run.learn, limiter["samples_per_insert"]
    batch = collected_in_batch(run.policy) * run.buffer.get("sequence_length", 1)
    if run.mode == "parallel":  # the learner trains as often as the limiter lets it
        pushed = max(pushed, PAYLOAD_ROWS)
    elif wanted > (sampled := learn["update_per_collect"] * batch / pushed):
        return (
            f"{BUFFER}.limiter.samples_per_insert is {wanted:g}, but a serial run samples only "
            f"{sampled:g} rows for each row that it pushes (policy.learn.update_per_collect times "
            "batch_size, divided by policy.collect.n_sample): its pushes would be refused; lower "
            "the first, or raise update_per_collect"
        )
    least = pushed * wanted + batch
    behind, ahead = limiter["error_buffer"], limiter["samples_ahead"]
    if behind is None or behind + (behind if ahead is None else ahead) >= least:
        return ""
    return (
        f"{BUFFER}.limiter.error_buffer is {behind}: it would refuse the pushes of a {run.mode} "
        f"run, {pushed} rows in turn with batches of {batch}; raise it to {least:g}, or leave it "
        "out"
    )


def _check_policy_lag(run: RunView) -> str:
    """The age of samples is limited only for on-policy training."""
    lag = run.policy["other"]["commander"].get("max_policy_lag")
    if not lag or run.policy["on_policy"]:
        return ""
    return (
        f"policy.other.commander.max_policy_lag is {lag}, but {run.of_policy} is trained on "
        "samples of any age; leave it 0"
    )


def _check_normalize(run: RunView) -> str:
    """Observations and rewards are normalised only by a policy that can do it."""
    normalize = run.policy["normalize"]
    wanted = [key for key in ("obs", "reward") if normalize[key]]
    if wanted and not run.is_base_policy:
        return (
            f"policy.normalize.{wanted[0]} is true, but {run.of_policy} is no BasePolicy, which "
            "normalises in its networks; set it to false"
        )
    if normalize["reward"] and run.collect["collector"].get("reward_shaping"):
        return (
            "policy.normalize.reward is true, but policy.collect.collector.reward_shaping changes "
            "rewards after their returns were recorded; set one of them to false"
        )
    return ""


def _check_device(run: RunView) -> str:
    """If the policy uses a GPU, this machine has one."""
    if not run.policy["cuda"] or _gpu_count():
        return ""
    return "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false"


def _check_learners(run: RunView) -> str:
    """If there are several learners, they can train together, on equal parts of a batch."""
    num, policy = run.system["learner_num"], run.policy
    if num == 1:
        return ""
    why = ""
    if policy["on_policy"] or not getattr(run.policy_class, "is_data_parallel", False):
        why = f"{run.of_policy} is trained by one learner"
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


def _check_replay(run: RunView) -> str:
    """If a replay server is to hold the buffer of the run, that is possible."""
    system = run.system
    if not run.is_served:
        return ""
    why = ""
    if run.mode == "serial":
        why = "a serial run holds its replay buffer itself; use --mode parallel"
    elif run.policy["on_policy"]:
        why = f"{run.of_policy} trains only on its newest samples"
    elif run.drawn == "episodes":
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


def _check_on_policy(run: RunView) -> str:
    """On-policy, parallel mode: collectors can be paused between two env steps."""
    if not run.policy["on_policy"]:
        return ""
    is_held = run.collector == "sample" and run.parallel_collector != "serial"
    own = "sample with the parallel collector zergling"
    if getattr(run.parallel_class, "max_players", 1) > 1:
        is_held = getattr(run.collector_class, "counts", "") != "n_episode"
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
        key = "traj_len_inf"
        why = f"{cuts} this keeps them whole; set it to false"
    return why and (
        f"policy.{key}: on-policy training in parallel mode {why}, or use --mode serial"
    )


def _check_memory_limit(run: RunView) -> str:
    """If workers are to be restarted above a memory limit, they are processes."""
    if run.system["worker_memory_limit"] is None or not run.runs_threads:
        return ""
    return (
        "system.worker_memory_limit is set, but the transport "
        f"{run.system['transport']['type']!r} runs workers as threads of one process; choose "
        "another one, such as flask_fs, or leave it out"
    )


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _check_unrolls(run: RunView) -> str:
    """The run can collect and store unrolls, if its policy trains on them."""
    if getattr(run.policy_class, "piece", "steps") != "unroll":
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
    elif run.drawn != "rows":
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
    return why and f"policy.{key}: the unrolls of {run.of_policy} {why}"


def _check_episodes(run: RunView) -> str:
    """On-policy, a policy of whole episodes gets them although older steps are dropped."""
    from dingsdk.policy.base import mixes_versions

    is_whole = getattr(run.policy_class, "piece", "steps") == "episode"
    gives_episodes = getattr(run.collector_class, "gives_episodes", False)
    if not is_whole or gives_episodes or mixes_versions(run.policy):
        return ""
    return (
        f"policy.type: {run.of_policy} samples whole episodes, and on-policy training drops the "
        "steps of older versions; choose a collector of episodes in serial mode, or set "
        "policy.other.commander.max_policy_lag to null"
    )


def _check_home(run: RunView) -> str:
    """The learner of a parallel run can hold the replay buffer."""
    from dingsdk.worker.replay_buffer.table import Table

    why = "" if run.policy["on_policy"] else run.not_of(BUFFER, Table)
    return why and (
        f"{why}, whose rows the learner of a parallel run loads again after a loss; derive it from "
        "NaiveReplayBuffer or another buffer of dingsdk, or use --mode serial"
    )


_ALWAYS = (
    _check_use_in_runs,
    _check_collects,
    _check_capacity,
    _check_priority,
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
)
_IN_PARALLEL = (_check_on_policy, _check_memory_limit, _check_home)
