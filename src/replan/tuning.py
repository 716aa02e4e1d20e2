"""tune(problem, rule) → Tuned: the settings of a rule that are best in theory.

A rule decides from losses, as a policy in a training loop does. Here the losses are those of the
theory, and every member of an ensemble has a policy of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from replan import check, files
from replan.check import Floats
from replan.models import IntegrationError, Schedule
from replan.models.base import with_ends
from replan.models.stacked import in_threads
from replan.policies import RULES, Policy, Rule, Span
from replan.problem import Problem
from replan.problem.risk import Risk
from replan.progress import Meter, Watch
from replan.protocol import Protocol
from replan.strategies import interleaved
from replan.strategies._strategy import main_rate
from replan.trajectory import evaluate

_LOOKS = 50  # how often losses are observed, unless stated otherwise
_FIRST = 5  # powers of 2: points of the first look at all settings
_BEST = 2  # of these, from which the search goes on
_WIDE, _NARROW = 0.25, 0.01  # steps of the search, as parts of the spans
_RTOL = 1e-6  # of the losses that rules are told
_LEAST = 1e-3  # of the largest learning rate: steps are not sized for smaller ones
_SHOWN = 5e-4  # a smaller gain would be shown as 0.0 %


class Followed(NamedTuple):
    """A policy after a training in theory, the protocol that came of its decisions, and its end.

    state: (n,) at the end.
    """

    policy: Policy
    protocol: Protocol
    state: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """The settings of a rule that are best for a problem, or over the members of an ensemble.

    rule: its name. settings: by name, those that were kept as they are among them.
    default_settings: of the rule as it is, with the same kept: focus-then-replay until the losses
    have met, however long that takes, then with equal shares; fixed-replay with half replay. value,
    default_value: the objectives with both. values, default_values: those of each member.
    unseen_values, unseen_default_values: of the members to test on, if there are any. every: steps
    of the problem from one observation to the next. tried: how many settings were.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=20)
        >>> found = replan.tune(problem, "fixed-replay")
        >>> found.value < found.default_value, type(found.policy).__name__
        (True, 'FixedReplay')
    """

    problem: Problem
    rule: str
    settings: dict[str, Any]
    default_settings: dict[str, Any]
    value: float
    default_value: float
    values: Floats
    default_values: Floats
    unseen_values: Floats
    unseen_default_values: Floats
    every: int
    tried: int

    @cached_property
    def policy(self) -> Policy:
        """The policy to put into a training loop, at its beginning."""
        return _policy(self.problem, RULES[self.rule], self.settings)

    @property
    def code(self) -> str:
        """What makes the policy, to copy into a program.

        Comments say what differs in a loop, where an epoch is not the whole training.
        """
        made, units = self.policy, RULES[self.rule].in_loops
        names = [key for key in made.arguments if key in ("new_task", "old_tasks", "tasks")]
        given = {name: made.arguments[name] for name in names} | self.settings
        words = ", ".join(f"{key}={_literal(x)}" for key, x in given.items() if x is not None)
        notes = [
            f"# an epoch here is the whole training; in a loop, {text.format(value=given[key])}"
            for key, text in units.items()
            if isinstance(given.get(key), Real) and given[key]
        ]
        return "\n".join([*notes, f"replan.policies.{type(made).__name__}({words})"])

    def followed(self) -> list[Followed]:
        """Return what the tuned rule does on each member."""
        rule = RULES[self.rule]
        substeps = _substeps(self.problem, _largest_rate(self.problem, rule, self.settings))
        return [
            _follow(member, _policy(member, rule, self.settings), self.every, substeps)
            for member in self.problem.members
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types."""
        unseen = self.problem.unseen
        return {
            "rule": self.rule,
            "rule_settings": _finite(self.settings),
            "default_settings": _finite(self.default_settings),
            "value": self.value,
            "default_value": self.default_value,
            "members": _listed(self.problem.names, self.values, self.default_values),
            "unseen": _listed(
                () if unseen is None else unseen.names,
                self.unseen_values,
                self.unseen_default_values,
            ),
            "code": self.code,
            "every": self.every,
            "tried": self.tried,
            "problem": self.problem.to_dict(),
        }

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything."""
        files.suffix(path, [".json"])
        files.write_json(path, self.to_dict())

    def __repr__(self) -> str:
        return f"Tuned({self.rule}, value={self.value:.6g})"

    def __str__(self) -> str:
        gain = 1 - self.value / self.default_value if self.default_value else 0.0
        better = f"{gain:.1%} below" if gain >= _SHOWN else "no better than"
        lines = [
            f"{self.rule}: loss {self.value:.6g}, {better} the rule as it is "
            f"({self.default_value:.6g}: {_words(self.default_settings)}); "
            f"{self.tried} setting{'s' * (self.tried != 1)} tried",
            f"best settings: {_words(self.settings)}",
        ]
        risk, unseen = self.problem.risk, self.problem.unseen
        if self.values.size > 1:
            count = f"{self.values.size} members"
            lines.append(_spread(count, risk, self.values, self.default_values))
        if unseen is not None:
            count = f"{self.unseen_values.size} unseen members"
            values = self.unseen_values, self.unseen_default_values
            lines.append(_spread(count, unseen.risk, *values))
        part = self.every / self.problem.steps
        lines.append(f"in a training loop, told the losses after every {part:.2g} of it:")
        return "\n".join([*lines, self.code])


def tune(
    problem: Problem,
    rule: str = "focus-then-replay",
    *,
    every: int | None = None,
    progress: Watch = False,
    **kept: Any,
) -> Tuned:
    """Find the settings of a rule that are best for a problem, or over the members of an ensemble.

    The rule runs in the theory as it would in a training loop, of which a step is one of the
    problem's: it is told the losses every so often, smooths them, waits and decides, for each
    member from that one's losses. What counts is the problem's objective, with its risk.

    **Main arguments**

    - `problem`: a `Problem` or an `Ensemble`. Of the tasks that are there at the beginning the last
      one is new, as in `strategies.focus_then_replay`; later, each that arrives. Rates are tuned
      where the learning rate may be controlled, within its range.
    - `rule`: "focus-then-replay" or "fixed-replay".

    **Other arguments**

    - `every`: steps of the problem from one observation to the next, by default a 50th of them all.
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.
    - others: settings of the policy that are kept as they are, such as `patience=2`,
      `smoothing=0.5` or `until="halved"`.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> starts = [model.pretrain(seed=seed) for seed in (1, 2)]
        >>> problems = [replan.Problem(model, start, duration=20.0, steps=20) for start in starts]
        >>> print(replan.tune(replan.Ensemble(problems), "fixed-replay").code)
        replan.policies.FixedReplay(tasks=2, share=0.330088)
    """
    check.instance("problem", problem, Problem, "a Problem")
    chosen = RULES[check.one_of("rule", rule, RULES)]
    if problem.model.loss_names != problem.model.task_names:
        raise ValueError(
            "`problem` expects a model with a loss for each task, which rules are told, got the "
            f"losses {', '.join(problem.model.loss_names)}"
        )
    for name in kept:
        check.one_of("settings", name, chosen.settings)
    kept = {name: x.tolist() if hasattr(x, "tolist") else x for name, x in kept.items()}
    steps = max(1, problem.steps // _LOOKS)
    steps = steps if every is None else check.integer("every", every, at_least=1)
    search = _Search(problem, chosen, kept, steps)
    with Meter(progress, "settings") as meter:
        settings = search.best(meter)
    default = search.default
    found, unseen = search.values(settings), problem.unseen
    others = np.zeros(0), np.zeros(0)
    if unseen is not None:
        apart = _Search(unseen, chosen, kept, steps)
        others = apart.values(settings), apart.values(default)
    return Tuned(
        problem,
        rule,
        settings,
        default,
        float(problem.risk.of(found)),
        float(problem.risk.of(search.values(default))),
        found,
        search.values(default),
        others[0],
        others[1],
        steps,
        search.tried,
    )


class _Search:
    """A search of the settings of a rule: a look at all of them, then ever smaller steps.

    tried: how many settings were.
    """

    def __init__(self, problem: Problem, rule: Rule, kept: Mapping[str, Any], every: int) -> None:
        self.problem, self.rule, self.every = problem, rule, every
        left = rule.beside(kept)
        rated = main_rate(problem) in problem.control.ranges
        self.spans = {
            name: self._real_span(span)
            for name, span in left.spans.items()
            if rated or not span.rate
        }
        self.choices, self.default = left.choices, dict(left.defaults)
        self.tried = 0
        self._substeps: dict[float | None, int] = {}
        self._known: dict[str, Floats] = {}
        self.values(self.default)  # or settings that the policy refuses

    def _real_span(self, span: Span) -> Span:
        """Return a span, that of a factor of the problem's own rate by the range of that."""
        rate = main_rate(self.problem)
        if not span.factor or rate not in self.problem.control.ranges:
            return span
        low, high = self.problem.control.ranges[rate]
        own = self.problem.knob_values[rate] or 1.0
        return span._replace(low=low / own, high=high / own)

    def values(self, settings: Mapping[str, Any]) -> Floats:
        """Return the objectives (M,) of all members, infinite where they diverge."""
        key = repr(settings)  # which may be lists
        if key not in self._known:
            members, substeps = self.problem.members, self._substeps_of(settings)

            def one(m: int) -> float:
                policy = _policy(members[m], self.rule, settings)
                try:
                    found = _follow(members[m], policy, self.every, substeps)
                except IntegrationError:
                    return np.inf
                return _value(members[m], found)

            self._known[key] = np.array(in_threads(one, len(members)))
            self.tried += 1
        return self._known[key]

    def _substeps_of(self, settings: Mapping[str, Any]) -> int:
        """Return how many integrator steps make a step with these settings."""
        rate = _largest_rate(self.problem, self.rule, settings)
        if rate not in self._substeps:
            self._substeps[rate] = _substeps(self.problem, rate)
        return self._substeps[rate]

    def best(self, meter: Meter) -> dict[str, Any]:
        """Return the best settings."""
        found, least = self.default, float(self.problem.risk.of(self.values(self.default)))
        for choice in product(*self.choices.values()):
            words = dict(zip(self.choices, choice, strict=True))

            def value(x: Floats, words: dict[str, Any] = words, best: float = least) -> float:
                found = float(self.problem.risk.of(self.values(self._settings(x, words))))
                meter.advance(note=f"best {min(best, found):.6g}")
                return found

            x, reached = _search(value, self._first_points(), len(self.spans))
            if reached < least:
                found, least = self._settings(x, words), reached
        return found

    def _settings(self, x: Floats, words: dict[str, Any]) -> dict[str, Any]:
        """Return the settings that a point of the unit cube stands for."""
        numbers = {
            name: float(np.round(span.low + part * (span.high - span.low), 6))
            for (name, span), part in zip(self.spans.items(), x, strict=True)
        }
        return self.default | words | numbers

    def _first_points(self) -> list[Floats]:
        from scipy.stats import qmc

        if not self.spans:
            return [np.zeros(0)]
        sobol = qmc.Sobol(len(self.spans), seed=0)
        return list(sobol.random_base2(_FIRST + max(0, len(self.spans) - 2)))


def _search(
    value: Callable[[Floats], float], points: Sequence[Floats], count: int
) -> tuple[Floats, float]:
    """Return the best point of the unit cube, and its value: steps along axes, ever smaller ones.

    They begin from the best of the given points. Rules decide at observations: their value jumps,
    and has no slopes to follow.
    """
    ranked = sorted(((value(x), i) for i, x in enumerate(points)))[:_BEST]
    found = []
    for least, i in ranked:
        x, step = points[i], _WIDE
        while step >= _NARROW and count:
            moved = False
            for axis, sign in product(range(count), (1.0, -1.0)):
                trial = x.copy()
                trial[axis] = np.clip(trial[axis] + sign * step, 0.0, 1.0)
                new = value(trial)
                if new < least:
                    x, least, moved = trial, new, True
            step = step if moved else step / 2
        found.append((least, i, x))
    least, _, x = min(found, key=lambda one: one[:2])
    return x, least


def _policy(problem: Problem, rule: Rule, settings: Mapping[str, Any]) -> Policy:
    """Return the policy at the beginning of a training on the problem."""
    presence = problem.availability
    there = np.flatnonzero(presence.arrivals == 0).tolist()
    newest = int(presence.newest(problem.edges[:2])[0])
    old = [task for task in there if task != newest]
    return rule.make(newest, old, problem.model.tasks, **settings)


def _follow(problem: Problem, policy: Policy, every: int, substeps: int) -> Followed:
    """Train in theory as a policy says: shares, and factors of the problem's learning rate.

    It is told of arrivals, and after every so many steps the losses of the tasks that have arrived.
    The whole training is an epoch.
    """
    model, steps, edges = problem.model, problem.steps, problem.edges
    policy.epoch_steps = steps
    ends = [knob.default for knob in model.end_knobs]
    first = np.rint(problem.availability.arrivals / problem.duration * steps).astype(np.int64)
    rate = main_rate(problem)
    low, high = problem.control.ranges.get(rate or "", (-np.inf, np.inf))
    shares, factors = np.empty((steps, model.tasks)), np.ones((steps, model.tasks))
    knobs = model.layout.rows(problem.knob_values, steps)
    state, at = problem.state, 0
    stops = sorted({*range(every, steps, every), *first[first > 0].tolist(), steps})
    for stop in stops:
        for task in np.flatnonzero((first == at) & (at > 0)).tolist():
            policy.begin(int(task))
        count = stop - at
        some = slice(at, stop)
        planned = policy.shares(count)
        shares[some] = problem.availability.among(planned, edges[at : stop + 1])
        if rate is not None and policy.plans_lr:
            own = problem.knob_values[rate]
            factors[some] = np.clip(policy.lr(count) * own, low, high) / (own or 1.0)
            knobs[some, model.layout.columns[rate]] = own * factors[some]
        policy.next_steps(count)
        lengths = np.diff(edges[at : stop + 1])
        pieces = Schedule(shares[some], knobs[some], lengths, np.full(count, substeps))
        states = model.roll_out(state, pieces)
        if len(states) <= count:
            raise IntegrationError(f"the training diverged after time {edges[at]:g}")
        state, at = states[-1], stop
        if at % every == 0 and at < steps and policy.needs_losses:
            losses = model.losses(with_ends(state, ends))
            policy.observe({t: float(losses[t]) for t in np.flatnonzero(first <= at).tolist()})
    settings: dict[str, Any] = dict(problem.settings)
    if rate is not None and np.any(factors != 1.0):
        settings[rate] = problem.knob_values[rate] * factors[:, 0]
    return Followed(policy, Protocol(shares, problem.duration, knobs=settings), state)


def _value(problem: Problem, found: Followed) -> float:
    """Return the objective of a training by a rule, infinite where it diverged."""
    if problem.averages_count or problem.model.end_knobs:
        run = evaluate(problem, found.protocol, rtol=_RTOL, throw=False)
        return run.loss if run.status == "ok" else np.inf
    value = float(problem.objective(problem.model.losses(found.state)))
    return value if np.isfinite(value) else np.inf


def _largest_rate(problem: Problem, rule: Rule, settings: Mapping[str, Any]) -> float | None:
    """Return a bound of the learning rate with these settings, None where it is not controlled.

    A power of 2, or the end of its range, so that many settings have the same.
    """
    rate = main_rate(problem)
    if rate not in problem.control.ranges:
        return None
    factors = [settings.get(name, 1.0) for name, span in rule.spans.items() if span.factor]
    largest = problem.knob_values[rate] * max(factors, default=1.0)
    low, high = problem.control.ranges[rate]
    return float(np.clip(2.0 ** np.ceil(np.log2(max(largest, _LEAST * high))), low, high))


def _substeps(problem: Problem, largest: float | None) -> int:
    """Return how many integrator steps make a step, for losses that rules can decide by."""
    rate, protocol = main_rate(problem), interleaved(problem)
    if rate is not None and largest is not None:
        protocol = protocol.with_knobs(**{rate: largest})
    run = evaluate(problem, protocol, rtol=_RTOL, throw=False)
    return max(1, int(np.max(run.substeps, initial=1)))


def _finite(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without infinite ones, which JSON does not have."""
    return {key: x for key, x in settings.items() if x != np.inf}


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {x:.4g}" if isinstance(x, float) else f"{key} {x}"
        for key, x in settings.items()
        if x is not None
    )


def _literal(value: Any) -> str:
    return 'float("inf")' if value == np.inf else repr(value)


def _listed(names: Sequence[str], values: Floats, defaults: Floats) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": value, "default_value": default}
        for name, value, default in zip(
            names, files.nullable(values), files.nullable(defaults), strict=True
        )
    ]


def _spread(words: str, risk: Risk, values: Floats, defaults: Floats) -> str:
    mean, before = risk.weights @ values, risk.weights @ defaults
    return (
        f"{words}: mean {mean:.4g} (as it is {before:.4g}), "
        f"worst {values.max():.4g} ({defaults.max():.4g})"
    )
