"""The denoising model: how noisy the inputs of an autoencoder are, over time."""

from replan.models.denoising._model import Denoising

__all__ = ["Denoising"]
