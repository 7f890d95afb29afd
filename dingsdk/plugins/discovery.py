"""Finds the plugins of installed distributions in their metadata; knows our own distributions."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dingsdk.errors import spelling
from dingsdk.plugins.kinds import (
    CONTRACT_VERSIONS,
    CONTRACTS,
    KINDS,
    NAMES,
    OBSERVERS,
    OWN_DISTRIBUTION,
)

FOREIGN_DISTRIBUTION = "dingsdk"
"""Another project on PyPI, a client of a messaging service; its import package is also dingsdk."""

_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*?(?:>=|~=|==)\s*([\w.]+)[^;]*")
_PREFIX = "dingsdk."
_GROUPS = {f"{_PREFIX}{kind}": kind for kind in (*KINDS, OBSERVERS, NAMES)}
_CONTRACTS_GROUP = f"{_PREFIX}{CONTRACTS}"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Advert:
    """One entry point, by which a distribution declares that a module provides a type.

    Attributes:
        kind: One of KINDS, or OBSERVERS or NAMES.
        key: The type key (for NAMES the class name).
        value: The plugin module (for NAMES ``module:attribute``).
        contract: The version of the kind's contract that the plugin declares.
        needs: The version of dingsdk that the distribution requires, if it is newer than this one.
    """

    kind: str
    key: str
    value: str
    distribution: str
    version: str
    contract: str = "v1"
    needs: str = ""

    @property
    def misfit(self) -> str | None:
        """Why this dingsdk does not support the plugin, or None."""
        if self.needs:
            return (
                f"it requires {OWN_DISTRIBUTION} {self.needs} or newer, and "
                f"{version_of(OWN_DISTRIBUTION)} is installed; upgrade dingsdk"
            )
        newest = CONTRACT_VERSIONS.get(self.kind, 1)
        found = re.fullmatch(r"v([1-9]\d{0,5})", self.contract)
        if found is None:
            return f"its contract of the {self.kind} is {self.contract!r}; write 'v{newest}'"
        if int(found[1]) == newest:
            return None
        older = "dingsdk" if int(found[1]) > newest else "the plugin"
        return (
            f"it is written for version {found[1]} of the contract of the {self.kind}, and this "
            f"dingsdk has version {newest}; upgrade {older}"
        )

    @property
    def module(self) -> str:
        """The plugin module."""
        return self.value.partition(":")[0].strip()

    @property
    def attribute(self) -> str:
        """What the value names in the module, or an empty text."""
        return self.value.partition(":")[2].partition("[")[0].strip()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of this plugin for switches: its distribution, its module and its package."""
        return self.distribution, self.module, self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.value})"


def discover() -> list[Advert]:
    """Return all adverts of all installed distributions, sorted by kind, key and distribution.

    A distribution with unreadable metadata is logged and left out. A warning is logged if the other
    project that uses our import package is installed.
    """
    foreign, own = version_of(FOREIGN_DISTRIBUTION), version_of(OWN_DISTRIBUTION)
    if foreign and own:
        _logger.warning(
            f"{FOREIGN_DISTRIBUTION} {foreign} is installed beside {OWN_DISTRIBUTION} {own}. It "
            "is another project with the same import package, dingsdk, and may have replaced "
            "files of ours. Uninstall both and install ours again: "
            f"pip uninstall {FOREIGN_DISTRIBUTION} {OWN_DISTRIBUTION}"
        )
    adverts: set[Advert] = set()
    for distribution in metadata.distributions():
        try:
            adverts.update(_adverts(distribution, own))
        except Exception as error:
            # The metadata of others may have any error; the other plugins must still be found.
            where = getattr(distribution, "_path", distribution)
            _logger.warning("cannot read the entry points of %s: %s", where, error)
    return sorted(adverts, key=lambda a: (a.kind, a.key, a.distribution))


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def least_versions(requirements: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the least version of each requirement that has no condition or extra."""
    for requirement in requirements or ():
        if needed := _REQUIREMENT.fullmatch(requirement.strip()):
            yield needed[1], needed[2]


def numbers_of(version: str) -> list[int]:
    """Return the numbers of a version before its first letter, to compare it with another one."""
    text = re.sub(r"(\.0)*\.?([^\d.].*)?$", "", version)
    return [int(each) for each in text.split(".") if each]


def _adverts(distribution: metadata.Distribution, own: str | None) -> Iterator[Advert]:
    # Most distributions have no entry points for dingsdk; parsing would take 0.1 ms for each.
    text = distribution.read_text("entry_points.txt")
    if text is None or f"[{_PREFIX}" not in text:
        return
    # If there are two copies on sys.path, the first one counts, as for imports.
    first = metadata.distribution(distribution.metadata["Name"])  # ValueError without a name
    facts = first.metadata
    name, version = facts["Name"], facts["Version"]
    contracts = {
        point.name: point.value for point in first.entry_points if point.group == _CONTRACTS_GROUP
    }
    needs = next(
        (
            least
            for asked, least in least_versions(first.requires)
            if own and re.sub(r"[-_.]+", "-", asked).lower() == OWN_DISTRIBUTION
            if numbers_of(own) < numbers_of(least)
        ),
        "",
    )
    for point in first.entry_points:
        kind = _GROUPS.get(point.group)
        if kind is not None:
            contract = contracts.get(kind, "v1")
            yield Advert(kind, point.name, point.value, name, version, contract, needs)
        elif point.group.startswith(_PREFIX) and point.group != _CONTRACTS_GROUP:
            group = point.group.removeprefix(_PREFIX)
            nearest, hint = spelling(group, (*_GROUPS.values(), CONTRACTS))
            _logger.log(
                logging.WARNING if nearest else logging.INFO,
                f"{name} advertises {point.name} in {point.group}, and this version of dingsdk "
                f"knows no kind {group!r}{hint}",
            )


_CHECKOUT = Path(__file__).parents[2]

_ZOO = [
    ("policies", key)
    for key in ("appo", "bc", "discrete_sac", "impala", "iql", "qrdqn", "rainbow", "td3")
]
SHIPPED: Mapping[tuple[str, str], str] = {
    ("transports", "in_memory"): "dingsdk-rl-in-memory",
    (NAMES, "InMemoryTransport"): "dingsdk-rl-in-memory",
    ("transports", "flask_fs"): "dingsdk-rl-flask-fs",
    ("comm_collectors", "flask_fs"): "dingsdk-rl-flask-fs",
    ("comm_learners", "flask_fs"): "dingsdk-rl-flask-fs",
    (NAMES, "CollectorSlave"): "dingsdk-rl-flask-fs",
    (NAMES, "FlaskFSTransport"): "dingsdk-rl-flask-fs",
    (NAMES, "FlaskFileSystemCollector"): "dingsdk-rl-flask-fs",
    (NAMES, "FlaskFileSystemLearner"): "dingsdk-rl-flask-fs",
    (NAMES, "LearnerSlave"): "dingsdk-rl-flask-fs",
    ("transports", "shared_memory"): "dingsdk-rl-shared-memory",
    (NAMES, "SharedMemoryTransport"): "dingsdk-rl-shared-memory",
    ("transports", "ray"): "dingsdk-rl-ray",
    (NAMES, "RayTransport"): "dingsdk-rl-ray",
    ("policies", "di_engine"): "dingsdk-rl-di-engine",
    (OBSERVERS, "di_engine"): "dingsdk-rl-di-engine",
    ("commands", "watch"): "dingsdk-rl-watch",
    ("datasets", "minari"): "dingsdk-rl-minari",
    ("learner_hooks", "mlflow"): "dingsdk-rl-trackers",
    ("learner_hooks", "wandb"): "dingsdk-rl-trackers",
    **dict.fromkeys(_ZOO, "dingsdk-rl-zoo"),
}
"""(kind, type key or class name) -> distribution, for the plugins of this repository; used in
messages about plugins that are not installed."""
_NEEDS = {
    "dingsdk-rl-ray": ("dingsdk-rl-shared-memory",),
    "dingsdk-rl-watch": ("dingsdk-rl-flask-fs",),
}
"""The other plugins of this repository that one needs: pip must not look for them elsewhere."""


def install_command(distribution: str, extra: str = "", checkout: Path | None = None) -> str:
    """Return the command that installs a distribution of this repository, with an extra of it.

    Our distributions are not on a package index, where others could take their names. So the
    command names a folder, and those of the plugins that it needs: in this checkout, if dingsdk
    runs from one.
    """
    checkout = checkout or _CHECKOUT
    folders = [_folder_of(each) for each in (*_NEEDS.get(distribution, ()), distribution)]
    is_here = all((checkout / each / "pyproject.toml").is_file() for each in folders)
    places = [str(checkout / each) if is_here else each for each in folders]
    if extra:
        places[-1] = f"'{places[-1]}[{extra}]'"
    what = " ".join(places)
    return f"pip install {what}" + ("" if is_here else ", in a clone of the dingsdk repository")


def _folder_of(distribution: str) -> str:
    if distribution == OWN_DISTRIBUTION:
        return "."
    return f"./plugins/{distribution.replace(OWN_DISTRIBUTION, 'dingsdk')}"


def install_extra_command(extra: str, checkout: Path = _CHECKOUT) -> str:
    """Return the command that installs an extra of dingsdk; see ``install_command``."""
    return install_command(OWN_DISTRIBUTION, extra, checkout)
