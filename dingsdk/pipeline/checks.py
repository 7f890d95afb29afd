"""Checks that several parts of a compiled config fit together, before anything starts.

Each check returns why the run cannot work, as a text that begins with the wrong key; an empty text
if it can. The docstring of a check states the condition. Checks change nothing. The checks about a
part stand beside that part; here are those about the whole run.
"""

from __future__ import annotations

from dingsdk.config.plain import find
from dingsdk.worker.collector import run_checks as of_collectors
from dingsdk.worker.coordinator.live_payloads import PAYLOAD_ROWS
from dingsdk.worker.learner import run_checks as of_learners
from dingsdk.worker.replay_buffer import run_checks as of_buffer
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


def _check_pace(run: RunView) -> str:
    """The limiter admits the rows of each collect, or of each payload: no other thread samples.

    Of the rows of an episode, only the run knows how many there are.
    """
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


def _check_memory_limit(run: RunView) -> str:
    """If workers are to be restarted above a memory limit, they are processes."""
    if run.system["worker_memory_limit"] is None or not run.runs_threads:
        return ""
    return (
        "system.worker_memory_limit is set, but the transport "
        f"{run.system['transport']['type']!r} runs workers as threads of one process; choose "
        "another one, such as flask_fs, or leave it out"
    )


_ALWAYS = (
    _check_use_in_runs,
    *of_collectors.CHECKS,
    *of_buffer.CHECKS,
    *of_learners.CHECKS,
    _check_pace,
    _check_replay,
)
_IN_PARALLEL = (*of_collectors.IN_PARALLEL, *of_buffer.IN_PARALLEL, _check_memory_limit)
