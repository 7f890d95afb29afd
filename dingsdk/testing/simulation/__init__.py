"""Simulated runs: the real coordinator, workers and ledger in virtual time, from one seed."""

from __future__ import annotations

from dingsdk.testing.simulation.disk import SimulatedDisk, SimulatedTransport
from dingsdk.testing.simulation.faults import SimulatedFault
from dingsdk.testing.simulation.oracle import SampleOracle
from dingsdk.testing.simulation.search import Searched, SeedSearch, simulate
from dingsdk.testing.simulation.simulation import Setting, Simulation, SimulationError, shrink
from dingsdk.testing.simulation.world import NoAnswerError, SimulatedLink, SimulatedProcess, World

__all__ = [
    "NoAnswerError",
    "SampleOracle",
    "Searched",
    "SeedSearch",
    "Setting",
    "SimulatedDisk",
    "SimulatedFault",
    "SimulatedLink",
    "SimulatedProcess",
    "SimulatedTransport",
    "Simulation",
    "SimulationError",
    "World",
    "shrink",
    "simulate",
]
