"""Gaussian moments by activation: one module each, `erf`, `relu` and `linear`."""
