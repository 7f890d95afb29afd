"""``dingsdk doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import click

from dingsdk.cli.plugins import import_plugin
from dingsdk.cli.tables import show_table
from dingsdk.errors import error_text
from dingsdk.plugins import default_manager
from dingsdk.plugins.discovery import (
    FOREIGN_DISTRIBUTION,
    least_versions,
    numbers_of,
    version_of,
)
from dingsdk.plugins.kinds import OWN_DISTRIBUTION

State = Literal["pass", "warn", "fail"]

TESTED = ((3, 11), (3, 14))
"""The first and the last version of Python that the tests run on."""
_LEAST_SHARED_BYTES = 64 << 20
"""Free shared memory below which ``doctor`` warns."""


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        state: ``warn``: it works, but not as well as it could; ``fail``: it does not work.
        what: The thing that was checked.
        detail: The result, as text.
        fix: What the user can do; empty if nothing is wrong.
    """

    state: State
    what: str
    detail: str
    fix: str = ""


def findings() -> Iterator[Finding]:
    """Check the installation and the machine; imports all plugins."""
    yield _python()
    yield from _packages()
    foreign = version_of(FOREIGN_DISTRIBUTION)
    if foreign:
        yield Finding(
            "fail",
            FOREIGN_DISTRIBUTION,
            f"{foreign}, another project with our import package",
            f"pip uninstall {FOREIGN_DISTRIBUTION} {OWN_DISTRIBUTION}, then install ours again",
        )
    yield _checked(
        "shared memory", _shared_memory, "give /dev/shm more room (docker run --shm-size=1g)"
    )
    yield _checked("ports", _listen, "allow connections to 127.0.0.1")
    yield _checked("GPU", _gpu, "install the build of torch for your GPU, see pytorch.org")
    yield from _plugins()


def _python() -> Finding:
    detail = f"{platform.python_version()}, {os.cpu_count()} CPU cores"
    first, last = (".".join(map(str, version)) for version in TESTED)
    if TESTED[0] <= sys.version_info[:2] <= TESTED[1]:
        return Finding("pass", "python", detail)
    return Finding("warn", "python", detail, f"use Python {first} to {last}, which is tested")


def _packages() -> Iterator[Finding]:
    """Compare the installed packages with the requirements of our distribution."""
    version = version_of(OWN_DISTRIBUTION)
    if version is None:
        fix = "install dingsdk: a folder on sys.path has no metadata"
        yield Finding("fail", OWN_DISTRIBUTION, "not installed", fix)
        return
    yield Finding("pass", OWN_DISTRIBUTION, version)
    for name, least in least_versions(metadata.requires(OWN_DISTRIBUTION)):
        found = version_of(name)
        if found is None or numbers_of(found) < numbers_of(least):
            yield Finding("fail", name, found or "not installed", f"pip install '{name}>={least}'")
        else:
            yield Finding("pass", name, found)


class _Poor(Exception):  # noqa: N818 - a warning
    """The check passed with a warning; the text says why."""


def _checked(what: str, look: Callable[[], str], fix: str) -> Finding:
    try:
        return Finding("pass", what, look())
    except _Poor as error:
        return Finding("warn", what, str(error), fix)
    except Exception as error:
        # Any error is a finding; the other checks must still run.
        return Finding("fail", what, error_text(error), fix)


def _shared_memory() -> str:
    from multiprocessing import shared_memory

    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    block.close()
    block.unlink()
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return "works"
    free = shutil.disk_usage(folder).free
    if free < _LEAST_SHARED_BYTES:
        raise _Poor(f"{free >> 20} MiB are free; async_subprocess envs need more")
    return f"{free >> 20:,} MiB are free"


def _listen() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
    return "loopback works"


def _gpu() -> str:
    import torch

    count = torch.cuda.device_count()
    if count:
        return ", ".join(torch.cuda.get_device_name(each) for each in range(count))
    if Path("/dev/nvidiactl").exists():
        raise _Poor("there is one, but torch cannot use it; policies run on the CPU")
    return "none; policies run on the CPU"


def _plugins() -> Iterator[Finding]:
    for row in default_manager().plugins():
        if row.distribution in (None, OWN_DISTRIBUTION):
            continue
        what, owner = f"{row.kind} {row.type_key}", f"{row.distribution} {row.version}"
        if row.state == "disabled":
            yield Finding("warn", what, f"{owner}: {row.detail}", "take the switch away to use it")
            continue
        try:
            import_plugin(row)
        except Exception as error:
            fix = f"repair it, or pip uninstall {row.distribution}"
            yield Finding("fail", what, f"{owner}: {error}", fix)
        else:
            yield Finding("pass", what, owner)


@click.command("doctor", short_help="Check the installation, the plugins and the machine.")
def doctor() -> None:
    """Check Python, packages, shared memory, ports, GPU and plugins.

    Each plugin is imported, and its interface checked. If a check fails, a line says how to fix it,
    and the exit code is 1.
    """
    found = list(findings())
    show_table((each.state, each.what, _text(each)) for each in found)
    failed = sum(each.state == "fail" for each in found)
    if failed:
        click.echo(f"\n{failed} problem{'s' if failed > 1 else ''} found.")
        raise click.exceptions.Exit(1)


def _text(finding: Finding) -> str:
    return f"{finding.detail}; {finding.fix}" if finding.fix else finding.detail
