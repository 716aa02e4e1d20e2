"""State: what the page says, checked: a problem, the strategies beside it and a drawing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from replan._common import check
from replan._common.naming import knob_label
from replan.dynamics import Dial, Dynamics, Knob, find
from replan.dynamics._registry import DEFAULT, kinds
from replan.explorer._drawing import Drawing
from replan.problem import Problem, example
from replan.problem._ensemble_file import is_ensemble
from replan.problem._file import parsed, problem_from, to_toml
from replan.strategies import STRATEGIES, UnfitError

# What a page can ask for at most
LONGEST_FILE = 100_000  # characters
_LONGEST_DURATION = 1000.0
_MOST_STEPS = 1000
_MOST_TASKS = 8
_LARGEST_STATE = 200  # numbers
_STARTS = 256  # that are remembered

_DRAG = 5.0  # how far a slider of a knob without an end goes, times the knob's default
_FIRST = ("no-replay", "interleaved", "focus-then-replay")  # shown to begin with
_ALONE = ("one-task",)  # the same where there is only one task: all are alike


@dataclass(frozen=True, eq=False)
class State:
    """What is on one page.

    sections: a problem file. dials: all numbers that sliders move, the model's and the training's.
    ranges: of knobs where `solve` may turn them. shown: names of strategies. drawing: the user's
    own protocol, if there is one.

    Examples:
        >>> from replan.explorer import State
        >>> state = State.of_kind("dropout").turn("model.noise", 0.3)
        >>> state.problem.model.noise
        0.3
    """

    sections: dict[str, Any]
    dials: tuple[Dial, ...]
    ranges: dict[str, dict[str, Any]]
    shown: tuple[str, ...]
    drawing: Drawing | None = None

    @classmethod
    def of_kind(cls, kind: str = DEFAULT) -> State:
        """Return the example of a kind of model."""
        return cls.from_text(example(check.one_of("kind", kind, explorable())))

    @classmethod
    def from_text(cls, text: str) -> State:
        """Return the state of a problem file; a mistake in it is a ValueError of one line."""
        if len(text) > LONGEST_FILE:
            raise ValueError(
                f"`file` expects at most {LONGEST_FILE:,} characters, got {len(text):,}"
            )
        return cls.from_sections(parsed(text))

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> State:
        """Return the state of the sections of a problem file, checked; nothing long is computed."""
        content = deepcopy(dict(check.instance("problem", sections, Mapping, "sections of a file")))
        if is_ensemble(content):
            raise ValueError(
                "`problem` expects one problem to explore, got an ensemble: give one `seed` in "
                "[start], and no [ensemble]"
            )
        model = content.get("model")
        kind = model.get("kind", DEFAULT) if isinstance(model, dict) else DEFAULT
        own = find(check.one_of("model.kind", kind, explorable())).dials
        for dial in own:  # sizes first: they say how much work the rest is
            if isinstance(dial.get(content), int | float):
                dial.check(dial.get(content))
        problem = problem_from(Problem, content, sketch=True)
        _check_sizes(problem)
        knobs = problem.model.panel.knobs.values()
        training = [_knob_dial(knob, problem.knob_values[knob.name]) for knob in knobs]
        dials = (*own, *_duration_dials(problem), *training)
        given = {name: x for name, x in content.get("control", {}).items() if isinstance(x, dict)}
        ends = {dial.key.rpartition(".")[2]: (dial.low, dial.high) for dial in training}
        ranges = {name: {"min": low, "max": high} for name, (low, high) in ends.items()} | given
        first = _FIRST if problem.model.tasks > 1 else _ALONE
        shown = tuple(name for name in first if name in STRATEGIES)
        return cls(content, dials, ranges, shown)

    # What it says

    @property
    def kind(self) -> str:
        """The kind of model."""
        return str(self.sections["model"].get("kind", DEFAULT))

    @property
    def values(self) -> dict[str, float]:
        """The values of the dials that mean something here, by key."""
        found = {dial.key: dial.get(self.sections) for dial in self.dials}
        return {key: x for key, x in found.items() if isinstance(x, int | float)}

    @property
    def free(self) -> tuple[str, ...]:
        """What `solve` may turn: "tasks", and knobs by name."""
        control = self.sections.get("control", {})
        knobs = (name for name in self.ranges if isinstance(control.get(name), dict))
        return (*(["tasks"] if control.get("tasks", True) else []), *knobs)

    @property
    def text(self) -> str:
        """The problem file."""
        return to_toml(self.sections)

    @cached_property
    def problem(self) -> Problem:
        """The problem; a start that takes long to make is remembered."""
        parts = (json.dumps(self.sections[name], sort_keys=True) for name in ("model", "start"))
        model, start = _start(self.kind, *parts)
        return Problem.from_dict(self.sections | {"start": start}, model=model)

    @cached_property
    def own(self) -> Drawing:
        """The user's own protocol, or what one begins with: the first strategy that is shown."""
        problem = self.problem
        drawing = None if self.drawing is None else self.drawing.on(problem)
        if drawing is not None:
            return drawing
        for name in (*self.shown, "interleaved"):
            try:
                return Drawing.of(problem, STRATEGIES[name](problem))
            except UnfitError:
                continue
        raise AssertionError("interleaved fits every problem")

    # What it becomes

    def turn(self, key: str, value: float) -> State:
        """Return the state with a dial at another value."""
        [dial] = [one for one in self.dials if one.key == check.one_of("key", key, self.values)]
        if isinstance(value, float):  # a page has no other numbers, and 0.31000000000000005
            value = int(value) if dial.whole and value.is_integer() else float(f"{value:.10g}")
        return self._with(dial.set(self.sections, value))

    def release(self, names: Sequence[str]) -> State:
        """Return the state in which `solve` may turn these: "tasks", and knobs by name."""
        for name in names:
            check.one_of("control", name, ("tasks", *self.ranges))
        before = self.sections.get("control", {})
        tasks = before.get("tasks", True) or True
        control = {"tasks": tasks if "tasks" in names else False}
        control |= {name: self.ranges[name] for name in self.ranges if name in names}
        return self._with(self.sections | {"control": control})

    def show(self, names: Sequence[str]) -> State:
        """Return the state with these strategies side by side."""
        for name in names:
            check.one_of("show", name, showable())
        return replace(self, shown=tuple(dict.fromkeys(names)))

    def draw(self, drawing: Drawing | None) -> State:
        """Return the state with another protocol of the user's own."""
        state = replace(self, drawing=drawing)
        vars(state).update({"problem": self.problem} if "problem" in vars(self) else {})
        return state

    def _with(self, sections: dict[str, Any]) -> State:
        return replace(self, sections=sections)

    # As a link

    def to_query(self) -> dict[str, str]:
        """Return what a link carries, by name."""
        found = {"problem": _compact(self.sections), "show": ",".join(self.shown)}
        return (
            found if self.drawing is None else found | {"drawing": _compact(self.drawing.to_dict())}
        )

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> State:
        """Return the state that a link carries, checked like a file."""
        state = (
            cls.from_sections(_parsed("problem", query)) if "problem" in query else cls.of_kind()
        )
        if "show" in query:
            state = state.show([name for name in query["show"].split(",") if name])
        if "drawing" in query:
            sketch = problem_from(Problem, state.sections, sketch=True)
            state = state.draw(Drawing.from_dict(_parsed("drawing", query), sketch))
        return state


def explorable() -> list[str]:
    """Return the kinds of models with dials."""
    return [kind for kind in kinds() if find(kind).dials]


def showable() -> list[str]:
    """Return the names of the strategies that a page can show at once: those that do not search."""
    return [name for name, strategy in STRATEGIES.items() if not strategy.turns]


def _check_sizes(problem: Problem) -> None:
    """Refuse a problem that takes too long for a page."""
    for name, value, most in (
        ("training.steps", problem.steps, _MOST_STEPS),
        ("training.duration", problem.duration, _LONGEST_DURATION),
        ("tasks", problem.model.tasks, _MOST_TASKS),
        ("numbers in a state", problem.state.size, _LARGEST_STATE),
    ):
        if value > most:
            raise ValueError(f"`{name}` expects at most {most:g} in the explorer, got {value:g}")


def _duration_dials(problem: Problem) -> tuple[Dial, Dial]:
    far = min(_LONGEST_DURATION, max(100.0, 2 * problem.duration))
    least, few = min(0.5, problem.duration), min(10, problem.steps)
    return (
        Dial("training.duration", "duration α", least, far, 0.5),
        Dial("training.steps", "steps", few, _MOST_STEPS, 1, default=250, main=False),
    )


def _knob_dial(knob: Knob, value: float) -> Dial:
    """Return the dial of a knob, with a range that ends somewhere."""
    size = max(abs(knob.default), 1e-3)
    low = knob.low if np.isfinite(knob.low) else min(-_DRAG * size, 2 * value)
    high = knob.high if np.isfinite(knob.high) else max(_DRAG * size, 2 * value)
    label = f"{knob_label(knob.name)} η" if knob.name == "lr" else knob_label(knob.name)
    common = knob.name == "lr" or not knob.rate
    step = 0.05 if high - low > 2 else 0.01
    return Dial(f"training.{knob.name}", label, low, high, step, default=value, main=common)


@lru_cache(maxsize=_STARTS)
def _start(kind: str, model: str, start: str) -> tuple[Dynamics, dict[str, Any]]:
    """Return a model and its start as a state, both from sections in JSON."""
    settings = json.loads(model)
    settings.pop("kind", None)
    made = find(kind).from_dict(settings)
    return made, made.start_to_dict(made.start_from_dict(json.loads(start)))


def _compact(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _parsed(name: str, query: Mapping[str, str]) -> Any:
    text = query[name]
    if len(text) > LONGEST_FILE:
        raise ValueError(f"`{name}` expects at most {LONGEST_FILE:,} characters, got {len(text):,}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"`{name}` of the link expects JSON, got {check.show(text)}") from None
