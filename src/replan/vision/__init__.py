"""Real images: data sets, a two-layer network trained online, and strategies on it."""

from replan.vision.datasets import Images, cifar10, fashion_mnist
from replan.vision.fetch import fetch

__all__ = ["Images", "cifar10", "fashion_mnist", "fetch"]
