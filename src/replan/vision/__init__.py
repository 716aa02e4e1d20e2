"""Real images: data sets, a two-layer network trained online, and strategies on it."""

from replan.vision.datasets import Images, cifar10, fashion_mnist
from replan.vision.download import fetch
from replan.vision.runs import Learning, Training, experiment
from replan.vision.tasks import ImageTasks, mixed_tasks, parity_tasks

__all__ = [
    "ImageTasks",
    "Images",
    "Learning",
    "Training",
    "cifar10",
    "experiment",
    "fashion_mnist",
    "fetch",
    "mixed_tasks",
    "parity_tasks",
]
