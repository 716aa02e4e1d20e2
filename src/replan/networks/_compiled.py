"""experiment(tasks): learn task 1, then task 2 with several strategies, many times over."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from replan._common import check, memory
from replan._common.progress import Meter, Watch
from replan.networks._driver import (
    POLICIES,
    Network,
    Record,
    check_strategies,
    learn,
    strategy_policy,
)
from replan.networks._experiment import Experiment
from replan.networks._realisations import checked_realisations
from replan.networks._tasks import ImageTasks
from replan.protocol import Protocol
from replan.replay import FixedReplay, FollowProtocol, Policy

Singles = NDArray[np.float32]

_AT_ONCE = 100_000_000  # weights changed, step by step, in one compiled call: Ctrl-C waits for it


@dataclass(frozen=True)
class Training:
    """How the network is trained.

    hidden: units K. lr: learning rate of both layers. first: steps on task 1 before task 2 arrives.
    weight_std, head_std: standard deviations of the initial weights and heads. Strategies that need
    losses estimate them every `interval` steps on `sample` held-out samples, drawn anew each time;
    smoothing: the weight of the old value in their moving average.

    Examples:
        >>> replan.networks.Training(hidden=8, lr=0.01).first
        10000
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


def experiment(
    tasks: ImageTasks,
    looks: Sequence[int],
    *,
    training: Training | None = None,
    strategies: Sequence[str] = ("no-replay", "interleaved", "focus-then-replay"),
    protocols: Mapping[str, Protocol] | None = None,
    realisations: int | Sequence[int] = 100,
    seed: int = 0,
    threads: int | None = None,
    progress: Watch = False,
) -> Experiment:
    """Train on task 1, then on task 2 with each strategy, and test the network on the way.

    **Main arguments**

    - `tasks`: two tasks; `looks`: when to test, in steps after task 2 arrives (negative: before),
      in any order. The largest is the end of the training.

    **Other arguments**

    - `training`: how the network is trained.
    - `strategies`: of no-replay, interleaved, fixed-replay, focus-until-halved, focus-then-replay,
      focus-then-loss.
    - `protocols`: protocols to try besides the strategies, by name; they are stretched to the steps
      on task 2, and their learning rate multiplies `training.lr`.
    - `realisations`: how many (or which) of them, each with its own weights and samples, which are
      the same for all strategies. `seed`: of all together.
    - `threads`: realisations at a time, by default one per core; the result does not depend on it.
    - `progress`: True for a bar of realisations, or a function of a `Progress`.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> training = replan.networks.Training(hidden=2, first=20)
        >>> result = replan.networks.experiment(
        ...     tasks, looks=[0, 20], training=training, realisations=2
        ... )
        >>> result.mean("interleaved").shape
        (2, 2)
    """
    training = Training() if training is None else training
    check.instance("training", training, Training, "a Training(…)")
    if not isinstance(tasks, ImageTasks) or tasks.tasks != 2:
        raise ValueError(f"`tasks` expects ImageTasks with two tasks, got {type(tasks).__name__}")
    names = check_strategies(strategies)
    steps = _checked_looks(looks, training.first)
    which = checked_realisations(realisations)
    seed = check.integer("seed", seed)
    protocols = _checked_protocols({} if protocols is None else protocols)
    threads = (os.cpu_count() or 1) if threads is None else threads
    threads = check.integer("threads", threads, at_least=1)

    def one(number: int) -> dict[str, Record]:
        policies: dict[str, Policy] = {
            name: strategy_policy(name, 2, smoothing=training.smoothing) for name in names
        } | {name: FollowProtocol(protocol, steps[-1]) for name, protocol in protocols.items()}
        network = CompiledNetwork(tasks, training, steps, seed, number, stop)
        found = _realisation(network, policies)
        meter.advance()
        return found

    stop = threading.Event()
    with Meter(progress, "realisations", len(which)) as meter, ThreadPoolExecutor(threads) as pool:
        try:
            records = list(pool.map(one, which))
        except BaseException:
            stop.set()
            raise
    return Experiment.gather(
        {name: [record[name] for record in records] for name in records[0]},
        runs=which,
        tasks=["1", "2"],
        arrivals=[-training.first, 0],
        settings=tasks.settings
        | asdict(training)
        | {
            "pixels": tasks.pixels.shape[1],
            "looks": steps,
            "strategies": names,
            "realisations": which,
            "seed": seed,
            "protocols": {name: protocol.to_dict() for name, protocol in protocols.items()},
        },
    )


def _checked_looks(looks: Sequence[int], first: int) -> list[int]:
    given = check.items("looks", looks, "steps")
    steps = sorted({check.integer("looks", x, at_least=-first) for x in given})
    if not steps or steps[-1] < 1:
        raise ValueError(
            f"`looks` expects steps of which the last is at least 1, got {check.show(steps)}"
        )
    return steps


def _checked_protocols(protocols: Mapping[str, Protocol]) -> dict[str, Protocol]:
    check.instance("protocols", protocols, Mapping, "protocols by name")
    for name, protocol in protocols.items():
        if not isinstance(protocol, Protocol) or protocol.tasks != 2 or name in POLICIES:
            hint = ", give its `.protocol`" if hasattr(protocol, "protocol") else ""
            raise ValueError(
                f"`protocols` expects protocols of two tasks under names that no strategy has, "
                f"got {check.show(name)} {check.show(protocol)}{hint}"
            )
    return dict(protocols)


def _realisation(network: CompiledNetwork, policies: Mapping[str, Policy]) -> dict[str, Record]:
    """Return the record of each policy; task 1, which they have in common, is learnt once."""
    steps, interval = network.steps, network.training.interval
    if network.time in steps:
        network.look()
    run = f"realisation {network.number}"
    learn(run, network, FixedReplay(2, 0.0), [(0, 0)], steps, interval)
    return {
        name: learn(f"{run} with {name}", network.copy(), policy, [(1, steps[-1])], steps, interval)
        for name, policy in policies.items()
    }


class CompiledNetwork(Network):
    """A network trained online by compiled code; its time is 0 when task 2 arrives.

    Sample number n of a task is the same image whenever it comes: strategies differ in nothing but
    the order of the tasks.
    """

    def __init__(
        self,
        tasks: ImageTasks,
        training: Training,
        steps: list[int],
        seed: int,
        number: int,
        stop: threading.Event,
    ) -> None:
        self._stop = stop
        self.tasks, self.training, self.steps, self.number = tasks, training, steps, number
        self.time, self.looks = -training.first, []
        spawned = np.random.SeedSequence([seed, number]).spawn(2 + 2 * tasks.tasks)
        weights, self._probe, *samples = (np.random.default_rng(s) for s in spawned)
        D, C = tasks.pixels.shape[1], tasks.targets.shape[1]
        count = training.first + steps[-1]
        memory.require(
            f"{count} samples and `hidden` = {training.hidden}",
            3.0 * tasks.tasks * count + float(training.hidden) * D,
        )
        self._weights = _normal(weights, training.weight_std, (training.hidden, D))
        self._heads = _normal(weights, training.head_std, (tasks.tasks, C, training.hidden))
        pools = [pool for pair in tasks.pools for pool in pair]  # each has its own stream
        drawn = [rng.choice(pool, count) for rng, pool in zip(samples, pools, strict=True)]
        self._streams = np.reshape(drawn, (tasks.tasks, 2, count))
        self._position = np.zeros(tasks.tasks, np.int64)
        self._policy: Policy

    def copy(self) -> CompiledNetwork:
        """Return a network that can continue in another way from here."""
        other = object.__new__(CompiledNetwork)
        other.__dict__ = self.__dict__ | {
            "looks": list(self.looks),
            "_weights": self._weights.copy(),
            "_heads": self._heads.copy(),
            "_position": self._position.copy(),
            "_probe": deepcopy(self._probe),
        }
        return other

    def begin(self, task: int, policy: Policy) -> None:
        """Let the policy say from now on which task comes next."""
        self._policy = policy

    def train(self, end: int) -> None:
        """Train up to the step `end`."""
        from replan.networks._network import train

        count = end - self.time
        factors = self._policy.lr(count)
        which = self._policy.next_tasks(count)
        rates = np.full(count, self.training.lr, np.float32)
        if factors is not None:
            rates *= factors[np.arange(count), which].astype(np.float32)
        at_once = max(1, _AT_ONCE // self._weights.size)
        for first in range(0, count, at_once):
            if self._stop.is_set():
                raise RuntimeError("the experiment is over")
            some = slice(first, first + at_once)
            train(
                self._weights, self._heads, self.tasks.pixels, self.tasks.targets, self._streams,
                self._position, self.tasks.mix, which[some], rates[some], self.tasks.scale,
                self.tasks.shift,
            )  # fmt: skip
        self.time = end

    def test(self) -> dict[str, list[float]]:
        """Return the test loss of both tasks, whether or not they have arrived."""
        return {"loss": [self._loss(t, *part) for t, part in enumerate(self.tasks.test)]}

    def estimate(self) -> dict[int, float]:
        """Return the loss of each task on a fresh sample of its held-out images."""
        found = {}
        for t, (inputs, targets) in enumerate(self.tasks.held_out):
            some = self._probe.choice(len(inputs), self.training.sample)
            found[t] = self._loss(t, inputs[some], targets[some])
        return found

    def _loss(self, task: int, inputs: Singles, targets: Singles) -> float:
        from replan.networks._network import mean_loss

        return float(mean_loss(self._weights, self._heads[task], inputs, targets))


def _normal(rng: np.random.Generator, std: float, shape: tuple[int, ...]) -> Singles:
    return (std * rng.standard_normal(shape)).astype(np.float32)
