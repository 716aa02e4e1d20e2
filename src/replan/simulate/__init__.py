"""simulate(problem, protocol) → Simulation: SGD at finite N, exact in law."""

from replan.simulate.simulate import ENGINES, simulate
from replan.simulate.simulation import Simulation

__all__ = ["ENGINES", "Simulation", "simulate"]
