"""Simulated runs: the real coordinator, workers and homes in virtual time, from one seed."""

from __future__ import annotations

from tools.simulation.disk import SimulatedDisk, SimulatedTransport
from tools.simulation.faults import SimulatedFault
from tools.simulation.oracle import SampleOracle
from tools.simulation.search import Searched, first_failure, simulate
from tools.simulation.simulation import Setting, Simulation, SimulationError, shrink
from tools.simulation.world import NoAnswerError, SimulatedLink, SimulatedProcess, World

__all__ = [
    "NoAnswerError",
    "SampleOracle",
    "Searched",
    "Setting",
    "SimulatedDisk",
    "SimulatedFault",
    "SimulatedLink",
    "SimulatedProcess",
    "SimulatedTransport",
    "Simulation",
    "SimulationError",
    "World",
    "first_failure",
    "shrink",
    "simulate",
]
