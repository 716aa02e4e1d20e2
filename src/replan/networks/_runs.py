"""experiment(tasks): learn task 1, then task 2 with several strategies, many times over."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replan._common import check, files
from replan._common.check import Floats, Ints
from replan.dynamics import IntegrationError
from replan.networks._tasks import ImageTasks
from replan.policies import Fixed, FocusThenReplay, Follow, Policy
from replan.protocol import Protocol

Singles = NDArray[np.float32]
Watch = Callable[[int], object]

NAMES = ("no replay", "interleaved", "pseudo-optimal")


@dataclass(frozen=True)
class Training:
    """How the network is trained.

    hidden: units K. lr: learning rate of both layers. first: steps on task 1 before anything else.
    weight_std, head_std: of the initial weights and heads. interval, sample, smoothing: the
    pseudo-optimal strategy estimates both losses every so many steps on so many held-out samples,
    drawn anew each time, and smooths them by this part of the old value.
    """

    hidden: int = 8
    lr: float = 0.01
    first: int = 10_000
    weight_std: float = 1.0
    head_std: float = 0.5
    interval: int = 50
    sample: int = 200
    smoothing: float = 0.8

    def __post_init__(self) -> None:
        for name in ("hidden", "interval", "sample"):
            check.integer(name, getattr(self, name), at_least=1)
        check.integer("first", self.first)
        for name in ("lr", "weight_std", "head_std"):
            check.number(name, getattr(self, name), at_least=0)
        check.number("smoothing", self.smoothing, at_least=0, at_most=0.999)


@dataclass(frozen=True, eq=False, repr=False)
class Learning:
    """Learning curves of strategies, on the same realisations.

    steps: (m,) when the network was tested, counted from the beginning of task 2, negative before.
    losses: by strategy (realisations, m, T), on the test set. switches: (realisations,) the step of
    the pseudo-optimal strategy's switch, -1 without one. decisions: what it decided, by
    realisation. settings: everything that determines the result.
    """

    steps: Ints
    losses: dict[str, Floats]
    switches: Ints
    decisions: list[list[dict[str, Any]]]
    settings: dict[str, Any]

    def mean(self, strategy: str) -> Floats:
        """Return the loss averaged over the tasks (realisations, m)."""
        return np.asarray(self.losses[strategy].mean(axis=2))

    def at(self, step: int) -> int:
        """Return the index of a step in `steps`."""
        found = np.flatnonzero(self.steps == step)
        if found.size == 0:
            raise ValueError(f"`step` expects one of {self.steps.tolist()}, got {step}")
        return int(found[0])

    def __repr__(self) -> str:
        return f"Learning({len(self.switches)} realisations, {len(self.steps)} looks)"

    def __str__(self) -> str:
        shown = np.unique(np.linspace(0, len(self.steps) - 1, 6).astype(int))
        head = "".join(f"{step:>10}" for step in self.steps[shown])
        lines = [f"mean loss of {len(self.switches)} realisations", f"{'after step':<16}{head}"]
        for name in self.losses:
            row = "".join(f"{loss:>10.4g}" for loss in self.mean(name).mean(axis=0)[shown])
            lines.append(f"{name:<16}{row}")
        switched = self.switches[self.switches >= 0]
        when = f", at step {np.median(switched):g} (median)" if switched.size else ""
        lines.append(f"the rule began to replay in {switched.size}{when}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "steps": self.steps.tolist(),
            "losses": {name: losses.tolist() for name, losses in self.losses.items()},
            "switches": self.switches.tolist(),
            "decisions": self.decisions,
            "settings": self.settings,
        }

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or a .csv file with the losses."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        tasks = next(iter(self.losses.values())).shape[2]
        header = ["strategy", "realisation", "step", *(f"loss_{t + 1}" for t in range(tasks))]
        rows = [
            [name, realisation, step, *row]
            for name, losses in self.losses.items()
            for realisation, curves in zip(
                self.settings["realisations"], losses.tolist(), strict=True
            )
            for step, row in zip(self.steps.tolist(), curves, strict=True)
        ]
        return files.write_csv(path, header, rows)


def experiment(
    tasks: ImageTasks,
    looks: Sequence[int],
    *,
    training: Training | None = None,
    protocols: Mapping[str, Protocol] | None = None,
    realisations: int | Sequence[int] = 100,
    seed: int = 0,
    threads: int | None = None,
    watch: Watch | None = None,
) -> Learning:
    """Train on task 1, then on task 2 with each strategy, and test the network on the way.

    **Main arguments**

    - `tasks`: two tasks; `looks`: when to test, in steps after the change of the task (negative:
      before it), in any order. The largest is the end of the training.

    **Other arguments**

    - `training`: how the network is trained.
    - `protocols`: protocols to try besides the three strategies; they are stretched to the steps
      after the change, and their learning rate multiplies `training.lr`.
    - `realisations`: how many (or which) of them, each with its own weights and samples, which are
      the same for all strategies. `seed`: of all together.
    - `threads`: realisations at a time, by default one a core; the result does not depend on it.
    - `watch`: called with 1 after each realisation, from any thread.
    """
    training = Training() if training is None else training
    if not isinstance(tasks, ImageTasks) or tasks.tasks != 2:
        raise ValueError(f"`tasks` expects ImageTasks, two of them, got {type(tasks).__name__}")
    given = check.items("looks", looks, "steps")
    steps = sorted({check.integer("looks", x, at_least=-training.first) for x in given})
    if not steps or steps[-1] < 1:
        raise ValueError(f"`looks` expects steps of which the last is at least 1, got {steps}")
    if isinstance(realisations, Integral):
        realisations = range(check.integer("realisations", realisations, at_least=1))
    items = check.items("realisations", realisations, "numbers")
    which = [check.integer("realisations", x) for x in items]
    seed = check.integer("seed", seed)
    if len(which) == 0 or len(set(which)) < len(which):
        raise ValueError(f"`realisations` expects at least one, none twice, got {which}")
    protocols = dict(protocols or {})
    for name, protocol in protocols.items():
        if not isinstance(protocol, Protocol) or protocol.tasks != 2 or name in NAMES:
            hint = ", give its `.protocol`" if hasattr(protocol, "protocol") else ""
            raise ValueError(
                f"`protocols` expects protocols of two tasks under new names, got {name} "
                f"{protocol!r}{hint}"
            )
    threads = (os.cpu_count() or 1) if threads is None else threads

    def one(number: int) -> dict[str, Any]:
        result = _Realisation(tasks, training, steps, seed, number).all(protocols)
        if watch is not None:
            watch(1)
        return result

    with ThreadPoolExecutor(check.integer("threads", threads, at_least=1)) as pool:
        runs = list(pool.map(one, which))
    return Learning(
        np.array(steps),
        {name: np.array([run["losses"][name] for run in runs]) for name in runs[0]["losses"]},
        np.array([run["switch"] for run in runs]),
        [run["decisions"] for run in runs],
        tasks.settings
        | asdict(training)
        | {
            "pixels": tasks.pixels.shape[1],
            "looks": steps,
            "realisations": which,
            "seed": seed,
            "protocols": {name: protocol.to_dict() for name, protocol in protocols.items()},
        },
    )


class _Realisation:
    """One network's weights and the samples it meets, the same for all strategies.

    Sample number n of a task is the same image whenever it comes: strategies differ in nothing but
    the order of the tasks.
    """

    def __init__(
        self, tasks: ImageTasks, training: Training, steps: list[int], seed: int, number: int
    ) -> None:
        self.tasks, self.training, self.steps, self.number = tasks, training, steps, number
        spawned = np.random.SeedSequence([seed, number]).spawn(2 + 2 * tasks.tasks)
        weights, self._probe, *samples = (np.random.default_rng(s) for s in spawned)
        D, C = tasks.pixels.shape[1], tasks.targets.shape[1]
        self.weights = _normal(weights, training.weight_std, (training.hidden, D))
        self.heads = _normal(weights, training.head_std, (tasks.tasks, C, training.hidden))
        count = training.first + steps[-1]
        pools = [pool for pair in tasks.pools for pool in pair]  # each has a stream of its own
        drawn = [rng.choice(pool, count) for rng, pool in zip(samples, pools, strict=True)]
        self.streams = np.reshape(drawn, (tasks.tasks, 2, count))

    def all(self, protocols: Mapping[str, Protocol]) -> dict[str, Any]:
        """Return the curves of all strategies; what they have in common is trained once."""
        start = _Run(self, -self.training.first)
        start.go(Fixed([1.0, 0.0]), 0)
        rule = FocusThenReplay(1, [0], smoothing=self.training.smoothing)
        focus = start.copy()
        while rule.focusing and focus.step + self.training.interval < self.steps[-1]:
            focus.go(rule, focus.step + self.training.interval)
            rule.observe(self._estimate(focus))
        ends = {
            "no replay": (focus.copy(), Fixed([0.0, 1.0])),
            "interleaved": (start.copy(), Fixed([0.5, 0.5])),
            "pseudo-optimal": (focus, rule),
        }
        for name, protocol in protocols.items():
            ends[name] = (start.copy(), Follow(protocol, self.steps[-1]))
        for name, (run, policy) in ends.items():
            run.go(policy, self.steps[-1])
            if not np.all(np.isfinite(run.losses)):
                raise IntegrationError(
                    f"realisation {self.number} diverged with the strategy {name}: "
                    "try a smaller `lr`"
                )
        return {
            "losses": {name: run.losses for name, (run, _) in ends.items()},
            "switch": rule.switch_step,
            "decisions": [asdict(decision) for decision in rule.decisions],
        }

    def _estimate(self, run: _Run) -> dict[int, float]:
        """Return the loss of each task on a fresh sample of its held-out images."""
        found = {}
        for t, (inputs, targets) in enumerate(self.tasks.held_out):
            some = self._probe.choice(len(inputs), self.training.sample)
            found[t] = run.loss(t, inputs[some], targets[some])
        return found


class _Run:
    """A network in training, and its test losses so far."""

    def __init__(self, world: _Realisation, step: int) -> None:
        self.world, self.step = world, step
        self.weights, self.heads = world.weights.copy(), world.heads.copy()
        self.position = np.zeros(world.tasks.tasks, np.int64)
        self.losses: list[list[float]] = []
        self._look()

    def copy(self) -> _Run:
        """Return a run that can go on in another way."""
        other = object.__new__(_Run)
        other.__dict__ = self.__dict__ | {
            "weights": self.weights.copy(),
            "heads": self.heads.copy(),
            "position": self.position.copy(),
            "losses": list(self.losses),
        }
        return other

    def go(self, policy: Policy, end: int) -> None:
        """Train up to the step `end`, with the tasks that the policy says."""
        from replan.networks._network import train

        world = self.world
        stops = [step for step in world.steps if self.step < step < end]
        for stop in [*stops, end] if end > self.step else []:
            count = stop - self.step
            rates = np.full(count, world.training.lr, np.float32)
            by_task = policy.lr(count)
            tasks = policy.next_tasks(count)
            rates *= by_task[np.arange(count), tasks].astype(np.float32)
            train(
                self.weights, self.heads, world.tasks.pixels, world.tasks.targets, world.streams,
                self.position, world.tasks.mix, tasks, rates, world.tasks.scale, world.tasks.shift,
            )  # fmt: skip
            self.step = stop
            self._look()

    def _look(self) -> None:
        if self.step in self.world.steps:
            self.losses.append(
                [self.loss(t, *part) for t, part in enumerate(self.world.tasks.test)]
            )

    def loss(self, task: int, inputs: Singles, targets: Singles) -> float:
        """Return the mean loss of a task on given inputs."""
        from replan.networks._network import mean_loss

        return float(mean_loss(self.weights, self.heads[task], inputs, targets))


def _normal(rng: np.random.Generator, std: float, shape: tuple[int, ...]) -> Singles:
    return (std * rng.standard_normal(shape)).astype(np.float32)
