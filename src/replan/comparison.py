"""compare(problem) → Comparison: strategies side by side, and the optimum beside them.

The learning rate is the largest lever, so strategies that set it are a separate group: timing is
compared at the given rate, and with the rate free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from replan import check, report
from replan.curves import Trajectory, evaluate
from replan.errors import ArgumentError, IntegrationError
from replan.models.knobs import knob_label
from replan.problem import Control, Problem, Range
from replan.progress import Meter, Watch
from replan.results import Result
from replan.strategies import STRATEGIES, Strategy, UnfitError

if TYPE_CHECKING:
    import pandas as pd

    from replan.control import Plan


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """The result of `compare`; free_rate: the names of the runs that set the learning rate."""

    problem: Problem
    runs: dict[str, Trajectory]
    failures: dict[str, str]
    free_rate: frozenset[str]
    plans: dict[str, Plan]

    @property
    def groups(self) -> dict[str, dict[str, Trajectory]]:
        """The runs by heading: at the given learning rate, and with the rate free."""
        rate = knob_label(self.problem.model.layout.rate or "rate")
        groups = {f"at the given {rate}": False, f"{rate} free": True}
        found = {
            heading: {name: run for name, run in self.runs.items() if (name in self.free_rate) == x}
            for heading, x in groups.items()
        }
        return {heading: runs for heading, runs in found.items() if runs}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per strategy: group, value, loss_1, …, mean share_1, …, lr_first, lr_last.

        Other knobs that protocols set have their first and last values likewise. Where tasks arrive
        or depart, forgetting, backward and forward follow, the means over tasks.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for heading, runs in self.groups.items():
            for name, run in runs.items():
                row = {"strategy": name, "group": heading, "value": run.loss}
                row |= {f"loss_{i + 1}": x for i, x in enumerate(run.final_losses)}
                row |= {f"share_{t + 1}": x for t, x in enumerate(run.protocol.mean_shares)}
                for knob in self.problem.settings:
                    values = run.protocol.knobs[knob]
                    ends = values if values.ndim == 1 else values.mean(axis=1)
                    row |= {f"{knob}_first": ends[0], f"{knob}_last": ends[-1]}
                rows.append(row | report.transfer_means(run.transfer))
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the problem, every trajectory or plan and the failures, as JSON types."""
        strategies = {}
        for heading, runs in self.groups.items():
            for name, run in runs.items():
                content = (self.plans.get(name) or run).to_dict()
                del content["problem"]  # the same for all
                strategies[name] = content | {"group": heading}
        return {
            "problem": self.problem.to_dict(),
            "strategies": strategies,
            "failures": self.failures,
        }

    def __repr__(self) -> str:
        best = next(((name, run.loss) for name, run in self.runs.items()), ("none", float("nan")))
        return f"Comparison({len(self.runs)} strategies, best {best[0]} {best[1]:.6g})"


def compare(
    problem: Problem,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    optimum: bool = False,
    progress: Watch = False,
) -> Comparison:
    """Evaluate strategies with their default settings; failures do not stop the others.

    - `strategies`: by name or themselves; by default all that fit the problem.
    - `optimum`: also solve the problem, at the given learning rate and with the rate free: within
      the range of `control`, or up to five times the given one.
    - `progress`: True shows a bar; a function is called with a `Progress` after each run.

    The result prints as a table. `runs`: the trajectories by name, best first; those of plans are
    called "optimum" (at the given learning rate) and "optimum-lr" (with the rate free, too).
    `plans`: by these names. `failures`: reasons by name. `to_frame()` returns a row per strategy,
    `plot(path)` draws the protocols and the final losses, `save(path)` writes .json or .csv.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> print(replan.compare(problem, ["interleaved", "sequential", "no-replay"]))
        strategy        loss   task 1    task 2  shares %  learning rate
        interleaved  0.00765  0.00119    0.0141    50  50  1
        no-replay     0.0112   0.0222  0.000118     0 100  1
        sequential     0.016   0.0186    0.0133    50  50  1
    """
    check.instance("problem", problem, Problem, "a Problem")
    check.boolean("optimum", optimum)
    chosen = STRATEGIES if strategies is None else _by_name(strategies)
    rate = problem.model.layout.rate
    free_rate = {name for name, strategy in chosen.items() if rate in strategy.turned(problem)}
    problems = _optima(problem, rate) if optimum else {}
    runs: dict[str, Trajectory] = {}
    plans: dict[str, Plan] = {}
    failures: dict[str, str] = {}
    with Meter(progress, "runs", len(chosen) + len(problems)) as meter:
        for name, strategy in chosen.items():
            meter.advance(0, note=name)
            try:
                runs[name] = evaluate(problem, strategy(problem))
            except UnfitError as error:
                if strategies is not None:  # else only those that fit are asked for
                    failures[name] = str(error)
            except IntegrationError as error:
                failures[name] = str(error)
            except Exception as error:
                if not strategy.foreign:
                    raise
                failures[name] = f"{type(error).__name__}: {error}"
            meter.advance(note=name)
        for name, controlled in problems.items():
            from replan.control import solve  # slow to import

            try:
                plan = solve(controlled, progress=meter.notes(name))
            except IntegrationError as error:
                failures[name] = str(error)
                continue
            plans[name], runs[name] = plan, replace(plan.trajectory, problem=problem)
            meter.advance(note=name)
            if plan.status == "stopped":  # by Ctrl-C
                break
    if strategies is None and problem.model.tasks == 1:
        runs = _different(runs)
    ranked = dict(sorted(runs.items(), key=lambda item: item[1].loss))
    return Comparison(problem, ranked, failures, frozenset(free_rate | {"optimum-lr"}), plans)


def _optima(problem: Problem, rate: str | None) -> dict[str, Problem]:
    """Return the problems to solve: at the given learning rate, and with the rate free."""
    control, limits = problem.control, problem.limits
    others = {name: free for name, free in control.knobs.items() if name != rate}
    means = {name: mean for name, mean in limits.mean.items() if name != rate}
    problems = {}
    if others or (control.tasks and problem.model.tasks > 1):
        problems["optimum"] = problem.changed(
            control=Control(control.tasks, **others), limits=replace(limits, mean=means)
        )
    if rate is not None:
        free = control.knobs.get(rate) or Range(*problem.free_range(rate))
        problems["optimum-lr"] = problem.changed(
            control=Control(control.tasks, **others, **{rate: free})
        )
    return problems


def _different(runs: dict[str, Trajectory]) -> dict[str, Trajectory]:
    """Return the first run of each protocol: on a single task most strategies are the same."""
    kept: dict[str, Trajectory] = {}
    for name, run in runs.items():
        if not any(run.protocol == other.protocol for other in kept.values()):
            kept[name] = run
    return kept


def _by_name(strategies: Sequence[str | Strategy]) -> dict[str, Strategy]:
    chosen = check.items("strategies", strategies, "strategies or their names")
    if not chosen:
        raise ArgumentError("strategies", "at least one", "none")
    known = [
        item
        if isinstance(item, Strategy)
        else STRATEGIES[check.one_of("strategies", item, STRATEGIES)]
        for item in chosen
    ]
    return {strategy.name: strategy for strategy in known}
