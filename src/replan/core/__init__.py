"""The compiled numerics: kernels, RK4 and its exact reverse, simulators, projections."""
