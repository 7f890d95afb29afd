"""Real distributions on ``sys.path``: a dist-info folder and modules, as pip installs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.programs import write_dist

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, entry_points, version=..., module_name=source)``, undone after the test."""
    before = set(sys.modules)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(
        name: str,
        entry_points: Mapping[str, Mapping[str, str]],
        version: str = "1.0",
        requires: Sequence[str] = (),
        **modules: str,
    ) -> Path:
        return write_dist(site, name, entry_points, version, requires, **modules)

    yield install
    for module in set(sys.modules) - before:
        if module.startswith("acme"):
            del sys.modules[module]


HOOK = """
    from dingsdk import hookimpl
    @hookimpl
    def dingsdk_register_buffers(registry):
        registry.register("{key}", dict)
"""
OBSERVER = """
    from dingsdk import hookimpl
    @hookimpl
    def dingsdk_after_iter(learner):
        pass
"""
RING_BUFFER = """
    from dingsdk import hookimpl

    class RingBuffer:
        def __init__(self, cfg, size=1):
            self.cfg, self.size = cfg, size

    @hookimpl
    def dingsdk_register_buffers(registry):
        registry.register("ring", RingBuffer)
"""


@pytest.fixture
def ring(install: Install) -> Install:
    """A healthy plugin: distribution acme-ring, module acme_ring, buffer type ring."""
    install("acme-ring", {"dingsdk.buffers": {"ring": "acme_ring"}}, acme_ring=RING_BUFFER)
    return install
