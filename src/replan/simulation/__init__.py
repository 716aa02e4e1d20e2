"""simulate(problem, protocol) → Simulation: SGD at finite N, exact in law."""

from replan.simulation._simulate import simulate
from replan.simulation._simulation import Simulation

__all__ = ["Simulation", "simulate"]
