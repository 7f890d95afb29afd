"""Draw one-line mutants of the shipped code and count those that the tests detect.

    make mutate SEED=1                    120 mutants over all areas
    make mutate SEED=1 AREA=buffer        only mutants of these areas, or below these paths
    make mutate SEED=1 TESTS=tests/unit   only tests below these paths
    make mutate SEED=1 SLOW=1             also tests that `make test` leaves out

Some mutants change nothing that a test could detect, such as the first size of a buffer that grows;
judge each mutant that survives. A stopped run can be continued. The outcome of a mutant stays valid
while its tests and all files that these tests use are unchanged.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click

from tools.mutation.checkout import Checkout
from tools.mutation.coverage_map import CoverageMap, Test, Tree
from tools.mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".mutation"
AREAS = {
    "policy": ("dingsdk/policy/",),
    "envs": ("dingsdk/envs/",),
    "collector": ("dingsdk/worker/collector/", "dingsdk/worker/evaluator/", "dingsdk/worker/"),
    "buffer": ("dingsdk/worker/replay_buffer/",),
    "data": ("dingsdk/data/", "dingsdk/runtime/"),
    "learner": (
        "dingsdk/worker/learner/",
        "dingsdk/worker/run_logger",
        "dingsdk/worker/coordinator/",
        "dingsdk/worker/commander/",
    ),
    "comm": ("dingsdk/worker/comm/",),
    "transports": (
        "plugins/dingsdk-in-memory/",
        "plugins/dingsdk-flask-fs/",
        "plugins/dingsdk-shared-memory/",
        "plugins/dingsdk-ray/",
    ),
    "servers": ("dingsdk/worker/replay_server/", "dingsdk/worker/inference/"),
    "pipeline": ("dingsdk/pipeline/", "dingsdk/config"),
    "plugins": ("dingsdk/", "plugins/"),
}
"""Path prefixes of each area; a file belongs to the area with the longest match. `plugins` includes
the command line and the errors, `collector` the evaluators, `learner` the coordinator."""

SHARES = {"buffer": 2}
"""Relative number of mutants of an area; 1 for areas that are not listed."""

LEFT_OUT = ("dingsdk/testing/", "dingsdk/templates/")
"""The conformance kit, whose rules are tested with mutants already (`tests/mutants`), and the
package templates, whose tests run copies of them."""

REFERENCE = "tests/docs/test_reference.py"
"""Compares all defaults and bounds of config sections with the written pages."""

RECORDED_AT_ONCE = 40
"""Test files whose coverage is written together; a stopped run loses at most this many."""

LONGEST_S = 120.0
"""Maximum total duration of a mutant's tests; the slowest tests are left out."""


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant: the test that detected it, or None."""

    mutant: Mutant
    killer: str | None
    tests: int


def main() -> int:
    """Run the command line; return 1 if too few mutants are killed."""
    options = _parse()
    os.environ.pop("PYTHONPATH", None)  # its packages would be tested instead of the mutants
    tree = Tree(ROOT)
    # Use a copy, so that the checkout may change while mutants are tried.
    copy = Checkout(CACHE / "snapshot", tree)
    tree.root = copy.root
    selection = ("-m", "") if options.slow else ()
    coverage_map = CoverageMap(CACHE / "coverage", tree, selection)
    stale = coverage_map.load(tree.test_files(options.tests))
    with concurrent.futures.ProcessPoolExecutor(
        options.jobs, initializer=_start_worker, initargs=(tree,)
    ) as pool:
        for at in range(0, len(stale), RECORDED_AT_ONCE):
            click.echo(f"recording what test files cover, {at} of {len(stale)} done")
            part = stale[at : at + RECORDED_AT_ONCE]
            coverage_map.record(part, copy.root, copy.python, options.jobs)
            # A test that hangs ends its process, which loses the files that it had not begun.
            lost = [name for name in part if not coverage_map.tests_of_file(name)]
            if lost:
                coverage_map.record(lost, copy.root, copy.python, options.jobs)
        for test in coverage_map.broken():
            click.echo(f"fails without a mutant, not counted: {test}")
        mutants = _draw(tree, options.seed, options.count, options.areas)
        outcomes = _try_all(pool, mutants, coverage_map)
    return _report(outcomes)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--areas", nargs="*", default=[], help=f"paths, or {', '.join(AREAS)}")
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--slow", action="store_true")
    return parser.parse_args()


def area_of(path: str) -> str | None:
    """Return the area of a source file: the one with the longest matching path."""
    if not path.endswith(".py") or path.startswith(LEFT_OUT) or "/tests/" in path:
        return None
    matching = [
        (len(prefix), area)
        for area, prefixes in AREAS.items()
        for prefix in prefixes
        if path.startswith(prefix)
    ]
    return max(matching)[1] if matching else None


def _draw(tree: Tree, seed: int, count: int, areas: list[str]) -> list[Mutant]:
    """Draw mutants, at most one per line.

    Lines are drawn by a hash of their text, so that changes elsewhere do not change the draw.
    """
    lines: dict[str, dict[tuple[str, int], list[Mutant]]] = {area: {} for area in AREAS}
    for path in tree.digests:
        area = area_of(path)
        if area is not None and (not areas or area in areas or path.startswith(tuple(areas))):
            for mutant in mutants_of(path, (tree.root / path).read_text()):
                lines[area].setdefault((path, mutant.line), []).append(mutant)
    lines = {area: found for area, found in lines.items() if found}
    shares = sum(SHARES.get(area, 1) for area in lines)
    drawn = []
    for area, found in lines.items():
        share = round(count * SHARES.get(area, 1) / shares)
        first = [min(of_line, key=lambda one: _rank(seed, one.key)) for of_line in found.values()]
        places = sorted(first, key=lambda one: _rank(seed, f"{one.path} {one.before}"))
        drawn.extend(places[:share])
    return drawn


def _rank(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed} {text}".encode()).digest()


def _try_all(
    pool: concurrent.futures.Executor, mutants: list[Mutant], coverage_map: CoverageMap
) -> list[Outcome]:
    known_file = CACHE / "outcomes.json"
    known = json.loads(known_file.read_text()) if known_file.exists() else {}
    outcomes, waiting = [], {}
    for mutant in mutants:
        tests = _tests_of(mutant, coverage_map)
        known_outcome = known.get(mutant.key)
        if not tests:
            outcomes.append(Outcome(mutant, None, 0))
        elif known_outcome and known_outcome["key"] == _key(known_outcome, tests, coverage_map):
            outcomes.append(Outcome(mutant, known_outcome["killer"], len(tests)))
        else:
            if known_outcome and known_outcome["killer"] in {test.name for test in tests}:
                tests.sort(key=lambda test: test.name != known_outcome["killer"])
            waiting[pool.submit(_try_one, mutant, tests)] = mutant, tests
    for done in concurrent.futures.as_completed(waiting):
        mutant, tests = waiting[done]
        outcome = Outcome(mutant, done.result(), len(tests))
        outcomes.append(outcome)
        entry = {"killer": outcome.killer}
        known[mutant.key] = entry | {"key": _key(entry, tests, coverage_map)}
        known_file.write_text(json.dumps(known))
        state = "killed  " if outcome.killer else "SURVIVED"
        click.echo(f"[{len(outcomes)}/{len(mutants)}] {state} {mutant.path}:{mutant.line}")
    return sorted(outcomes, key=lambda outcome: (outcome.mutant.path, outcome.mutant.line))


def _key(entry: dict[str, str | None], tests: list[Test], coverage_map: CoverageMap) -> str:
    """Return a digest of what an outcome depends on: the failed test, or all passed tests."""
    names = {test.name for test in tests}
    if entry["killer"] in names:
        return coverage_map.key(str(entry["killer"]))
    files = sorted({test.file for test in tests})
    return hashlib.sha256(json.dumps([coverage_map.key(f) for f in files]).encode()).hexdigest()


def _tests_of(mutant: Mutant, coverage_map: CoverageMap) -> list[Test]:
    always: list[Test] = []
    if mutant.runs_at_import:
        tests, limit_s = coverage_map.tests_of_module(mutant.path, mutant.scope), LONGEST_S
        always = coverage_map.tests_of_file(REFERENCE)
    else:
        tests, limit_s = coverage_map.tests_of_line(mutant.path, mutant.line), LONGEST_S
    importers: list[str] = []
    if not (tests or always):
        # Coverage does not see lines that are compiled, run in a killed process, or at import.
        tests, limit_s = coverage_map.tests_of_module(mutant.path), LONGEST_S / 2
        importers = coverage_map.importers(mutant.path)
    module = Path(mutant.path).stem

    def rank(test: Test) -> tuple[bool, float]:  # tests that name the module come first
        return module not in test.file and test.file not in importers, test.duration_s

    tests = sorted(set(tests) - set(always), key=rank)
    total_s = 0.0
    chosen: list[Test] = []
    for test in tests:
        total_s += test.duration_s
        if total_s <= limit_s or not chosen:
            chosen.append(test)
    return [*chosen, *always]


_checkout: Checkout


def _start_worker(tree: Tree) -> None:
    global _checkout
    number = 0
    while True:  # find the first folder that no other worker uses
        folder = CACHE / f"copy-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        if _lock(folder):
            break
        number += 1
    _checkout = Checkout(folder / "tree", tree)


def _lock(folder: Path) -> bool:
    import fcntl

    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _locks.append(file)
    return True


_locks: list[object] = []


def _try_one(mutant: Mutant, tests: list[Test]) -> str | None:
    return _checkout.try_mutant(mutant, tests)


def _report(outcomes: list[Outcome]) -> int:
    by_area: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_area[str(area_of(outcome.mutant.path))].append(outcome)
        if outcome.killer is None:
            mutant = outcome.mutant
            tried = f"passed {outcome.tests} tests" if outcome.tests else "no test covers the line"
            click.echo(f"\n{mutant.path}:{mutant.line} {tried}")
            click.echo(f"-   {mutant.before}\n+   {mutant.after}")
    click.echo()
    low = False
    for area, found in by_area.items():
        killed = sum(outcome.killer is not None for outcome in found)
        low |= killed < 0.8 * len(found)
        click.echo(f"{area:12} {killed:3} of {len(found):3}  {killed / len(found):4.0%}")
    killed = sum(outcome.killer is not None for outcome in outcomes)
    click.echo(f"{'all':12} {killed:3} of {len(outcomes):3}  {killed / max(1, len(outcomes)):4.0%}")
    return int(low or killed < 0.9 * len(outcomes))


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    click.echo(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
