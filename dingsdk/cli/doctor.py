"""``dingsdk doctor``."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

from dingsdk.plugins import KINDS, default_manager
from dingsdk.plugins.discovery import FOREIGN_DISTRIBUTION, version_of
from dingsdk.plugins.kinds import OWN_DISTRIBUTION

NEEDED = ("torch", "numpy", "gymnasium", "pluggy", "msgspec", "numba", "safetensors")


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        what: Its name.
        problem: Why it does not work; empty where it does.
        detail: What was found.
    """

    what: str
    problem: str
    detail: str = ""


def findings() -> Iterator[Finding]:
    """Look at the installation and the machine; plugins are imported."""
    yield Finding("python", "", f"{platform.python_version()}, {os.cpu_count()} CPU cores")
    for name in (OWN_DISTRIBUTION, *NEEDED):
        version = version_of(name)
        yield Finding(name, "" if version else "not installed", version or "")
    foreign = version_of(FOREIGN_DISTRIBUTION)
    if foreign:
        problem = "another project with our import package; uninstall it, install ours again"
        yield Finding(FOREIGN_DISTRIBUTION, problem, foreign)
    yield _cuda()
    manager = default_manager()
    for row in manager.plugins():
        if row.distribution in (None, OWN_DISTRIBUTION) or row.state == "disabled":
            continue
        problem = row.detail
        if not problem and row.kind in KINDS:
            try:
                manager.get(row.kind, row.type_key)
            except Exception as error:
                problem = str(error)
        yield Finding(f"{row.kind} {row.type_key}", problem, row.distribution or "")
    yield _checked("write to the current folder", _write)
    yield _checked("listen on loopback", _listen)


def _cuda() -> Finding:
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(each) for each in range(count))
    return Finding("CUDA devices", "", names or "none; policies run on the CPU")


def _checked(what: str, act: Callable[[], None]) -> Finding:
    try:
        act()
    except OSError as error:
        return Finding(what, error.strerror or str(error))
    return Finding(what, "")


def _write() -> None:
    with tempfile.TemporaryFile(dir="."):
        pass


def _listen() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        pass


@click.command("doctor", short_help="Check the installation, the plugins and the machine.")
def doctor() -> None:
    """Check versions, plugins (each is imported), the disk and the network of this machine.

    Exits with 1 where something does not work.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    problems = 0
    for finding in findings():
        problems += bool(finding.problem)
        state = "problem" if finding.problem else "ok"
        table.add_row(state, finding.what, ": ".join(filter(None, finding[1:])))
    console = Console()
    if not console.is_terminal:
        # A pipe has no width; rich would cut the lines at 80.
        console = Console(width=160)
    console.print(table, markup=False)
    if problems:
        click.echo(f"\n{problems} problem{'s' if problems > 1 else ''} found.")
        raise click.exceptions.Exit(1)
