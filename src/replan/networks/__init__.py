"""Real networks on real images: data sets, tasks, online training, and strategies compared."""

from replan.networks._compiled import Training, experiment
from replan.networks._datasets import Images, cifar10, fashion_mnist
from replan.networks._download import fetch
from replan.networks._driver import POLICIES
from replan.networks._experiment import Experiment
from replan.networks._tasks import (
    ImageTasks,
    class_tasks,
    image_tasks,
    mixed_tasks,
    parity_tasks,
)

__all__ = [
    "POLICIES",
    "Experiment",
    "ImageTasks",
    "Images",
    "Training",
    "cifar10",
    "class_tasks",
    "experiment",
    "fashion_mnist",
    "fetch",
    "image_tasks",
    "mixed_tasks",
    "parity_tasks",
]
