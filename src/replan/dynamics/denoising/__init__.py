"""The denoising model: how noisy the inputs of an autoencoder are, over time."""

from replan.dynamics.denoising._model import Denoising

__all__ = ["Denoising"]
