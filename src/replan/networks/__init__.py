"""Real images: data sets, a two-layer network trained online, and strategies on it."""

from replan.networks._datasets import Images, cifar10, fashion_mnist
from replan.networks._download import fetch
from replan.networks._runs import Learning, Training, experiment
from replan.networks._tasks import ImageTasks, mixed_tasks, parity_tasks

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
