"""The paper's experiment on images: task 1, then task 2 with three strategies, many times over."""

import json
import math
from copy import copy, deepcopy
from typing import Any, Self

import numpy as np
import pandas as pd

from replan.replay import FixedReplay, FocusThenReplay, Policy
from reproduction.base import Run, collect, grid
from reproduction.drawing import LOOKS, draw_interval, draw_median, plain_ticks, task_colour
from reproduction.images import data
from reproduction.images.tasks import ImageTasks, make_tasks
from reproduction.images.trainer import mean_losses, random_weights, train

STYLES = {  # of the strategies, in the order of panels and claims
    "no-replay": LOOKS["no replay"] | {"marker": ""},
    "interleaved": LOOKS["interleaved 1:1"] | {"marker": ""},
    "focus-then-replay": LOOKS["optimal"] | {"marker": "", "linestyle": "--"},
}
# Units, learning rate, steps on task 1, standard deviations of the initial weights and heads; the
# rule's losses are estimated every `interval` steps on `sample` held-out images, and smoothed.
TRAINING = {
    "hidden": 8, "lr": 0.01, "first": 10_000, "weight_std": 1.0, "head_std": 0.5, "interval": 50,
    "sample": 200, "smoothing": 0.8,
}  # fmt: skip
MIXED = {"upstream": [0, 5], "auxiliary": [2, 7], "test_samples": 2000}
PARITY = {"test_samples": 2000}
_BLOCK = 10  # realisations in a case


def learn(
    run: Run, name: str, points: list[dict[str, Any]], looks: list[int], seeds: int,
    tasks: dict[str, Any], settings: dict[str, Any],
) -> pd.DataFrame:  # fmt: skip
    """Return a row for every point (settings of the tasks), realisation, strategy and test."""
    data.fetch(name)  # once, before there are several processes
    training = {key: settings[key] for key in TRAINING}
    common = {"tasks": tasks, "training": training, "looks": sorted(set(looks)), "seeds": seeds}
    blocks = [point | block for point in points for block in grid(block=range(-(-seeds // _BLOCK)))]
    return collect(run, case, blocks, data=name, **common)["losses"].drop(columns="block")


def case(
    data: str, block: int, tasks: dict[str, Any], training: Any, looks: list[int], seeds: int,
    **point: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the test losses of a block of realisations, and when replay began (−1: never)."""
    made = make_tasks(data, json.dumps(tasks | point))
    numbers = range(_BLOCK * block, min(_BLOCK * (block + 1), seeds))
    return {
        "losses": [row for seed in numbers for row in _realisation(made, training, looks, seed)]
    }


class Network:
    """A network on its way; its time is 0 when task 2 arrives.

    Sample number n of a task is the same image whenever it comes: strategies differ in nothing but
    the order of the tasks.
    """

    def __init__(self, tasks: ImageTasks, training: dict[str, Any], end: int, seed: int) -> None:
        self.tasks, self.training, self.time = tasks, training, -training["first"]
        spawned = np.random.SeedSequence([0, seed]).spawn(2 + 2 * len(tasks.pools))
        weights, self.probe, *samples = (np.random.default_rng(s) for s in spawned)
        sizes = training["hidden"], training["weight_std"], training["head_std"]
        self.weights = random_weights(tasks, *sizes, [weights])
        pools = [pool for pair in tasks.pools for pool in pair]
        count = training["first"] + end
        drawn = [rng.choice(pool, count) for rng, pool in zip(samples, pools, strict=True)]
        self.streams = np.reshape(drawn, (1, len(tasks.pools), 2, count))
        self.taken = np.zeros(len(tasks.pools), np.int64)

    def copy(self) -> Self:
        """Return a network that can continue from here in another way."""
        other = copy(self)
        other.weights, other.probe = deepcopy((self.weights, self.probe))
        return other

    def train(self, order: Any) -> None:
        """Train on one sample of each task in `order` (m,)."""
        trained = order[:, None] == np.arange(len(self.taken))
        samples = self.taken + np.cumsum(trained, axis=0) - trained
        train(self.weights, self.tasks, self.streams, samples, self.training["lr"] * trained)
        self.taken = self.taken + trained.sum(axis=0)
        self.time += len(order)

    def estimate(self) -> dict[int, float]:
        """Return the loss of each task on a fresh sample of its held-out images."""
        parts = []
        for inputs, targets in self.tasks.held_out:
            some = self.probe.choice(len(inputs), self.training["sample"])
            parts.append((inputs[some], targets[some]))
        return dict(enumerate(mean_losses(self.weights, parts)[0].tolist()))


def _realisation(
    tasks: ImageTasks, training: dict[str, Any], looks: list[int], seed: int
) -> list[dict[str, Any]]:
    """Return the rows of one realisation; task 1, which the strategies share, is learnt once."""
    network = Network(tasks, training, looks[-1], seed)
    common = []
    for look in sorted({look for look in looks if look <= 0} | {0}):
        network.train(np.zeros(look - network.time, np.int64))
        if look in looks:
            common.append(_row(network))
    found = {strategy: _strategy(network.copy(), strategy, looks) for strategy in STYLES}
    _, switch = found["focus-then-replay"]
    return [
        {"seed": seed, "strategy": strategy, **row, "switch": switch}
        for strategy, (rows, _) in found.items()
        for row in common + rows
    ]


def _strategy(network: Network, strategy: str, looks: list[int]) -> tuple[list[Any], int]:
    """Train on task 2 with a strategy; return the rows of the tests, and when replay began."""
    end, interval = looks[-1], network.training["interval"]
    rule = {"until": "met", "smoothing": network.training["smoothing"], "max_focus": math.inf}
    policies: dict[str, Policy] = {
        "no-replay": FixedReplay(2, 0.0),
        "interleaved": FixedReplay(2, 0.5),
        "focus-then-replay": FocusThenReplay(2, **rule),
    }
    policy = policies[strategy]
    rows = []
    for stop in sorted({*(look for look in looks if look > 0), *range(interval, end, interval)}):
        network.train(policy.next_tasks(stop - network.time))
        if stop in looks:
            rows.append(_row(network))
        if policy.needs_losses and stop % interval == 0 and stop < end:
            policy.observe(network.estimate())
    return rows, getattr(policy, "switch_step", -1)


def _row(network: Network) -> dict[str, Any]:
    one, two = mean_losses(network.weights, network.tasks.test)[0]
    if not (np.isfinite(one) and np.isfinite(two)):
        raise ValueError(f"training diverged by step {network.time}: try a smaller `lr`")
    return {"step": network.time, "loss_1": one, "loss_2": two, "mean": (one + two) / 2}


# Pictures and claims


def table_of(curves: pd.DataFrame, strategy: str) -> pd.DataFrame:
    """Return the mean loss of a strategy, realisations × steps after the change of task."""
    rows = curves[(curves["strategy"] == strategy) & (curves["step"] > 0)]
    return rows.pivot(index="seed", columns="step", values="mean")


def draw_strategies(axes: Any, curves: pd.DataFrame) -> None:
    """Draw, in three axes, the losses of each strategy: medians, with bands from 10 to 90 %."""
    lines: dict[str, dict[str, Any]] = {
        "loss_1": {"color": task_colour(0), "linestyle": "-", "label": "task 1"},
        "loss_2": {"color": task_colour(1), "linestyle": "--", "label": "task 2"},
        "mean": {"color": "black", "linestyle": ":", "label": "mean"},
    }
    for panel, name in zip(axes, STYLES, strict=True):
        rows = curves[curves["strategy"] == name]
        for column, look in lines.items():
            draw_median(panel, rows, x="step", y=column, **look)
        panel.axvline(0, color="0.7", linewidth=0.8)
        panel.set_title(name, fontsize=9)
        panel.set(yscale="log", xlabel="step (task 2 from 0)")
    limits = np.array([panel.get_ylim() for panel in axes])
    for panel in axes:
        panel.set_ylim(limits[:, 0].min(), limits[:, 1].max())
        plain_ticks(panel)
        panel.tick_params(labelleft=panel is axes[0])
        panel.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step else "0")


def draw_comparison(axes: Any, curves: pd.DataFrame) -> None:
    """Draw the mean loss of each strategy after the change of task, with 95 % intervals."""
    for name, look in STYLES.items():
        draw_interval(axes, table_of(curves, name), **look, label=name)
