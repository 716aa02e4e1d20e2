"""Bad arguments of every kind: each is refused on entry, in one short line that names it.

Thousands that are known to be bad, and any values, drawn at random, which may be good or bad.

`REPLAN_FUZZ=10000 pytest -o faulthandler_timeout=0 tests/test_inputs.py` tries as many, drawn anew
(`--hypothesis-seed=…`).
"""

import ast
import json
import os
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import replan
from replan import check, networks, paper, policies, strategies
from replan.control import Relax
from replan.models import find, register
from replan.problem import example

ROOT = Path(__file__).parents[1]
COUNT = int(os.environ.get("REPLAN_FUZZ", "400"))

# What is wrong wherever it is given


def itself():
    items = []
    items.append(items)
    return items


# One exhausted generator does for all: those that take one find no items in it.
JUNK = {
    "an object": object(),
    "a class": type("Own", (), {"__call__": None}),
    "a generator": (x for x in ("a", "b")),
    "an empty dict": {},
    "a dict": {"a": 1},
    "a complex number": 1 + 2j,
    "a complex scalar": np.complex128(1 + 2j),
    "masked": np.ma.masked,
    "bytes": b"1",
    "a date": np.datetime64("2024-01-01"),
    "a list of itself": itself(),
    "a complex array": np.array([1j, 2.0]),
    "an integer of 5,001 digits": 10**5000,
    "a long text": "x" * 100_000,
    "a long list": ["x" * 1000] * 1000,
    "two lines": "two\nlines",
    "an array of nothing": np.array([None, None]),
    "a structured array": np.zeros(2, dtype=[("a", float)]),
    "a frame of text": pd.DataFrame([["1", "2"]]),
    "not available": pd.NA,
    "ragged": [[1.0, 2.0], [3.0]],
    "ragged arrays": [np.ones((2, 2)), np.ones((2, 3))],
    "an empty set": set(),
}
NOT_NUMBERS = JUNK | {
    "nothing": None,
    "digits": "1",
    "true": True,
    "numpy's true": np.True_,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "a list": [1.0],
    "an array": np.array([1.0, 2.0]),
    "an array of no axes": np.array(1.0),
    "a decimal": Decimal(1),
    "a series": pd.Series([1.0]),
    "minus infinity": np.float32("-inf"),
}
NOT_INTEGERS = NOT_NUMBERS | {
    "a fraction": 1.5,
    "a float": 1.0,
    "beyond 64 bits": 2**63,
    "far below zero": -(10**30),
}
NOT_LISTS = JUNK | {
    "nothing": None,
    "digits": "01",
    "a number": 5,
    "a task below 0": [-1],
    "a task too many": [0, 99],
    "a fraction": [0.5],
    "a digit": ["0"],
    "nothing in a list": [None],
    "a list in a list": [[0]],
    "true in a list": [True],
    "beyond 64 bits": [2**70],
    "rows": np.zeros((2, 2), int),
    "a frame": pd.DataFrame([[1, 0], [0, 1]]),
    "a dict of tasks": {0: 1},
    "bytes of tasks": b"\0\1",
    "a single task": np.array(0),
    "masked tasks": np.ma.array([0, 1], mask=[False, True]),
}
BAD = {
    "number": NOT_NUMBERS,
    "integer": NOT_INTEGERS,
    "task": NOT_INTEGERS | {"below 0": -1, "too many": 99},
    "tasks": NOT_LISTS,
    "word": JUNK
    | {"nothing": None, "a number": 1, "nonsense": "nonsense", "empty": "", "a list": []},
    "flag": JUNK | {"nothing": None, "0": 0, "1": 1, "yes": "yes", "a list": [True]},
    "object": JUNK | {"nothing": None, "a number": 3, "a word": "x", "a list": []},
    "function": {name: x for name, x in JUNK.items() if not callable(x)}
    | {"nothing": None, "a number": 3},
    "path": JUNK
    | {"a word": "x", "nothing": None, "a number": 3, "bytes": b"x.json", "null": "x\0.json"},
    "losses": {name: x for name, x in JUNK.items() if name != "an empty dict"}
    | {
        "nothing": None,
        "a list": [0.1],
        "a task too many": {9: 0.1},
        "digits": {0: "1"},
        "true": {0: True},
        "a complex loss": {0: 1j},
        "a masked loss": {0: np.ma.masked},
        "a vector": {0: np.ones(2)},
        "no loss": {0: None},
        "a task by name": {"0": 0.1},
        "a huge loss": {0: 10**5000},
    },
}  # fmt: skip


# What is wrong with an array that otherwise fits


def placed(value, good):
    """The array, with a value in place of its first."""
    spoilt = good.astype(object)
    spoilt.flat[0] = value
    return spoilt


def ragged(good):
    rows = good.tolist()
    return [*rows[:-1], [*np.ravel(rows[-1]).tolist(), 1.0, 1.0]]


SPOILT = {
    "complex": lambda good: good + 0.5j,
    "a complex list": lambda good: (good + 0.5j).tolist(),
    "masked": lambda good: np.ma.array(good, mask=np.arange(good.size).reshape(good.shape) == 0),
    "digits": lambda good: good.astype(str),
    "a list of digits": lambda good: good.astype(str).tolist(),
    "objects of digits": lambda good: good.astype(str).astype(object),
    "bytes": lambda good: good.astype("S8"),
    "truth values": lambda good: good.astype(bool),
    "one true": lambda good: placed(True, good).tolist(),
    "dates": lambda good: good.astype("M8[s]"),
    "one more axis": lambda good: good[None, None, None],
    "no axis": lambda good: np.array(1.0),
    "longer": lambda good: np.concatenate([good, good, good]),
    "empty": lambda good: [],
    "ragged": ragged,
    "a row masked": lambda good: [*good.tolist()[:-1], np.ma.masked],
    "one masked": lambda good: placed(np.ma.masked, good).tolist(),
    **{
        f"{value!r:.12} in it": partial(placed, value)
        for value in (None, "x", np.nan, np.inf, -np.inf, 10**400, object(), [1.0], {}, 1j, pd.NA)
    },
}


# What is called, with good arguments, and of what kind each of them is


@dataclass
class Call:
    """A function with good arguments; `kinds`: of the arguments to spoil, "?" if None is good."""

    function: Any
    good: dict[str, Any]
    kinds: dict[str, str] = field(default_factory=dict)


def numbers(*names):
    return dict.fromkeys(names, "number")


def integers(*names):
    return dict.fromkeys(names, "integer")


@cache
def problem():
    model = replan.TeacherStudent.similar(0.3)
    return replan.Problem(model, model.fresh(seed=1), duration=2.0, steps=4)


def held_out_images():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 20).astype(np.uint8)
    pixels = rng.integers(0, 255, (200, 4, 4), dtype=np.uint8)
    return networks.Images(pixels, labels, pixels, labels)


@cache
def curves():
    return replan.Curves([0.0, 1.0], np.ones((2, 2, 2)))


def double(x):
    return {"x": 2 * x}


def ask(method):
    """A function that calls a method of a new policy: asking changes it."""
    return lambda **given: getattr(policies.FocusThenReplay(1, [0]), method)(**given)


@cache
def calls():
    """All calls, by name."""
    posed = problem()
    model, start = posed.model, posed.start
    protocol = strategies.interleaved(posed)
    other = replan.Protocol([[1.0, 0.0]], 2.0)
    shares, half = np.array([[0.25, 0.75], [1.0, 0.0]]), np.array([0.5, 0.5])
    tasks = networks.mixed_tasks(held_out_images(), 0.5)
    run = replan.evaluate(posed, protocol)
    S = np.array([[1.0, 0.3], [0.3, 1.0]])
    weights = np.random.default_rng(0).normal(size=(2, 50))
    teachers = np.linalg.cholesky(S) @ np.linalg.qr(weights.T)[0].T * np.sqrt(50)
    made = {
        # Protocols
        "Protocol": Call(
            replan.Protocol,
            {"shares": shares, "duration": 2.0, "lr": 1.0},
            {"shares": "rows", "duration": "number", "lr": "rate?"},
        ),
        "Protocol by edges": Call(
            replan.Protocol,
            {"shares": shares, "edges": np.array([0.0, 1.0, 2.0]), "lr": np.array([1.0, 2.0])},
            {"shares": "rows", "edges": "array", "lr": "array?"},
        ),
        "from_sequence": Call(
            replan.Protocol.from_sequence,
            {"sequence": [0, 1, 1], "tasks": 2, "duration": 2.0},
            {"sequence": "tasks", "tasks": "integer", "duration": "number"},
        ),
        "from_segments": Call(
            replan.Protocol.from_segments,
            {"segments": [(7.0, 1), (18.0, [0.5, 0.5])], "tasks": 2},
            {"segments": "tasks", "tasks": "integer"},
        ),
        "step_at": Call(protocol.step_at, {"times": np.array([0.0, 1.0])}, {"times": "any array"}),
        "focus_length": Call(protocol.focus_length, {"task": 0}, {"task": "task"}),
        "deviation": Call(protocol.deviation, {"other": other}, {"other": "object"}),
        "then": Call(protocol.then, {"other": other}, {"other": "object"}),
        "stretch": Call(protocol.stretch, {"duration": 3.0}, numbers("duration")),
        "refine": Call(protocol.refine, {"factor": 2}, integers("factor")),
        "split": Call(protocol.split, {"times": np.array([0.3, 1.1])}, {"times": "vector"}),
        "sample": Call(
            protocol.sample,
            {"dimension": 10, "order": "random", "seed": 0},
            {"order": "word"} | integers("dimension", "seed"),
        ),
        "Protocol.save": Call(protocol.save, {}, {"path": "path"}),
        "Protocol.load": Call(replan.Protocol.load, {}, {"path": "path"}),
        "Protocol.plot": Call(protocol.plot, {}, {"path": "path?", "axes": "object?"}),
        # Problems
        "Problem": Call(
            replan.Problem,
            {
                "model": model, "start": start, "duration": 2.0, "lr": 1.0, "steps": 4,
                "weights": half, "running": half, "targets": [0.1, None],
                "control": replan.Control(), "limits": replan.Limits(),
            },
            {
                "model": "object", "start": "object", "duration": "number", "lr": "number?",
                "steps": "integer", "weights": "array?", "running": "array?", "targets": "targets?",
                "control": "object", "limits": "object",
            },
        ),
        "Problem.load": Call(replan.Problem.load, {}, {"path": "folder"}),
        "Problem.from_dict": Call(
            replan.Problem.from_dict,
            {"content": posed.to_dict(), "model": model},
            {"content": "object", "model": "object?"},
        ),
        "accept": Call(posed.accept, {"protocol": protocol}, {"protocol": "object"}),
        "Control": Call(
            replan.Control,
            {"tasks": True, "lr": np.array([0.5, 2.0])},
            {"tasks": "flag", "lr": "array?"},
        ),
        "Limits": Call(
            replan.Limits,
            {"min_share": half, "max_share": half, "min_dwell": 0.5, "max_switches": 3},
            {
                "min_share": "vector?", "max_share": "vector?", "min_dwell": "number",
                "max_switches": "integer?",
            },
        ),
        "example": Call(example, {"kind": "teacher-student"}, {"kind": "word"}),
        "find": Call(find, {"kind": "teacher-student"}, {"kind": "word"}),
        "register": Call(register, {"model": type(model)}, {"model": "object"}),
        # Models
        "TeacherStudent": Call(
            replan.TeacherStudent,
            {
                "teacher_overlaps": S, "hidden": 2, "teacher_heads": np.eye(2), "noise": 0.1,
                "train_heads": [True, False], "head_lr": 1.0, "activation": "erf",
                "teacher_activation": "erf",
            },
            {
                "teacher_overlaps": "array", "hidden": "integer", "teacher_heads": "heads?",
                "noise": "number", "train_heads": "tasks", "head_lr": "number",
                "activation": "word", "teacher_activation": "word?",
            },
        ),
        "similar": Call(
            replan.TeacherStudent.similar,
            {"similarity": 0.3, "tasks": 2, "hidden": 2},
            {"similarity": "number", "tasks": "integer", "hidden": "integer?"},
        ),
        "soft_committee": Call(
            replan.TeacherStudent.soft_committee,
            {"teacher_units": 2, "hidden": 2},
            integers("teacher_units", "hidden"),
        ),
        "fresh": Call(
            model.fresh,
            {
                "seed": 0, "dimension": 100, "weight_variance": 1.0, "head_variance": 1.0,
                "heads": np.eye(2),
            },
            {"heads": "array?"}
            | integers("seed", "dimension")
            | numbers("weight_variance", "head_variance"),
        ),
        "pretrain": Call(
            model.pretrain,
            {"task": 0, "duration": 1.0, "lr": 1.0, "seed": 0, "rtol": 1e-6, "max_steps": 1000},
            {"task": "task", "seed": "integer?", "max_steps": "integer"}
            | numbers("duration", "lr", "rtol"),
        ),
        "pretrain from": Call(model.pretrain, {"start": start, "duration": 1.0},
                              {"start": "object?"}),
        "from_weights": Call(
            model.from_weights,
            {"weights": weights, "heads": np.eye(2), "teacher_weights": teachers},
            {"weights": "array", "heads": "array", "teacher_weights": "array"},
        ),
        "rate": Call(
            model.rate,
            {"overlaps": start, "task": 0, "lr": 1.0},
            {"overlaps": "object", "task": "task", "lr": "number"},
        ),
        "cosines": Call(model.cosines, {"overlaps": start}, {"overlaps": "object"}),
        "losses": Call(model.losses, {"states": start}, {"states": "object"}),
        "unpack": Call(model.unpack, {"states": posed.state}, {"states": "object"}),
        "Overlaps": Call(
            replan.Overlaps,
            {"Q": start.Q, "M": start.M, "V": start.V},
            dict.fromkeys("QMV", "any array"),
        ),
        # Strategies
        "one_task": Call(strategies.one_task, {"problem": posed, "task": 0},
                         {"problem": "object", "task": "task"}),
        "no_replay": Call(strategies.no_replay, {"problem": posed, "new_task": 0},
                          {"problem": "object", "new_task": "task?"}),
        "interleaved": Call(strategies.interleaved, {"problem": posed, "shares": half},
                            {"problem": "object", "shares": "array?"}),
        "alternating": Call(strategies.alternating, {"problem": posed, "order": [0, 1]},
                            {"problem": "object", "order": "tasks?"}),
        "random_order": Call(
            strategies.random_order,
            {"problem": posed, "shares": half, "seed": 0},
            {"problem": "object", "shares": "array?", "seed": "integer"},
        ),
        "sequential": Call(strategies.sequential, {"problem": posed, "order": [0, 1]},
                           {"problem": "object", "order": "tasks?"}),
        "focus_then_replay": Call(
            strategies.focus_then_replay,
            {"problem": posed, "focus": 1.0, "new_task": 1, "shares": half},
            {"problem": "object", "focus": "number?", "new_task": "task?", "shares": "array?"},
        ),
        "shuffled": Call(
            strategies.shuffled,
            {"problem": posed, "protocol": protocol, "after": 0.0, "seed": 0},
            {"problem": "object", "protocol": "object?", "after": "number", "seed": "integer"},
        ),
        "constant_lr": Call(
            strategies.constant_lr,
            {"problem": posed, "lr": 1.0, "protocol": protocol},
            {"problem": "object", "lr": "number?", "protocol": "object?"},
        ),
        "exponential_lr": Call(
            strategies.exponential_lr,
            {"problem": posed, "initial": 1.0, "scale": 1.0, "protocol": protocol},
            {"problem": "object", "initial": "number?", "scale": "number?", "protocol": "object?"},
        ),
        "power_law_lr": Call(
            strategies.power_law_lr,
            {"problem": posed, "initial": 1.0, "exponent": 1.0, "protocol": protocol},
            {"problem": "object", "initial": "number?", "exponent": "number?",
             "protocol": "object?"},
        ),
        "grid_search": Call(
            strategies.grid_search,
            {"problem": posed, "strategy": strategies.constant_lr, "lr": [1.0, 2.0]},
            {"problem": "object", "strategy": "function", "lr": "grid", "progress": "progress"},
        ),
        "strategy": Call(strategies.Strategy, {"recipe": double}, {"recipe": "function"}),
        # What is computed
        "evaluate": Call(
            replan.evaluate,
            {"problem": posed, "protocol": protocol, "rtol": 1e-6, "max_steps": 1000,
             "throw": True},
            {"problem": "object", "protocol": "object", "rtol": "number", "max_steps": "integer",
             "throw": "flag"},
        ),
        "losses_at": Call(run.losses_at, {"times": np.array([0.3, 1.1])}, {"times": "vector"}),
        "Trajectory.save": Call(run.save, {}, {"path": "path"}),
        "Trajectory.plot": Call(run.plot, {}, {"path": "path?", "axes": "object?"}),
        "compare": Call(replan.compare, {"problem": posed}, {"problem": "object",
                                                            "progress": "progress"}),
        "solve": Call(
            replan.solve,
            {"problem": posed, "solver": Relax(starts=0), "max_gradients": 3, "throw": False},
            {"problem": "object", "solver": "object?", "start": "object?",
             "max_gradients": "integer", "throw": "flag", "progress": "progress"},
        ),
        "levers": Call(
            replan.levers,
            {"problem": posed, "tolerance": 0.1},
            {"problem": "object", "tolerance": "number", "progress": "progress"},
        ),
        "Levers.load": Call(replan.Levers.load, {}, {"path": "folder"}),
        "solve by Relax": Call(
            replan.solve,
            {"problem": posed, "max_gradients": 3, "starts": 0, "seed": 0, "tolerance": 0.1},
            {"starts": "integer?", "seed": "integer?", "tolerance": "number?"},
        ),
        "Relax": Call(Relax, {"starts": 0, "seed": 0, "tolerance": 0.1},
                      integers("starts", "seed") | numbers("tolerance")),
        "Flips": Call(
            replan.Flips,
            {"starts": 0, "seed": 0, "tolerance": 0.1, "failures": 3},
            integers("starts", "seed", "failures") | numbers("tolerance"),
        ),
        "ForwardBackward": Call(replan.ForwardBackward, {"damping": 0.1, "sweeps": 3},
                                numbers("damping") | integers("sweeps")),
        "Plan.load": Call(replan.Plan.load, {}, {"path": "folder"}),
        "simulate": Call(
            replan.simulate,
            {
                "problem": posed, "protocol": protocol, "dimension": 8, "seeds": 2, "seed": 0,
                "order": [0, 1] * 8, "engine": "reduced", "times": np.array([0.5, 1.0]),
                "threads": 1,
            },
            {
                "problem": "object", "protocol": "object", "order": "order", "engine": "word?",
                "times": "vector?", "threads": "integer?", "after": "object?",
                "weights": "object?", "progress": "progress",
            }
            | integers("dimension", "seeds", "seed"),
        ),
        "Curves": Call(
            replan.Curves,
            {"times": np.array([0.0, 1.0]), "losses": np.ones((2, 2, 2)), "runs": [0, 1],
             "failures": {}},
            {"times": "vector", "losses": "losses array", "runs": "names",
             "failures": "failures"},
        ),
        "quantiles": Call(curves().quantiles, {"levels": half}, {"levels": "vector"}),
        "Curves.save": Call(curves().save, {}, {"path": "path"}),
        "Curves.plot": Call(curves().plot, {}, {"path": "path?", "axes": "object?"}),
        "sweep": Call(
            replan.sweep,
            {"function": double, "cases": [{"x": 1}], "workers": 1, "cache": None},
            {"function": "function", "cases": "cases", "workers": "integer?", "cache": "folder?",
             "executor": "object?", "progress": "flag"},
        ),
        "readout_timescale": Call(replan.readout_timescale, {"similarity": 0.5, "lr": 1.0},
                                  numbers("similarity", "lr")),
        "measure_readout_timescale": Call(
            replan.measure_readout_timescale,
            {"similarity": 0.5, "lr": 1.0, "train_features": False},
            numbers("similarity", "lr") | {"train_features": "flag"},
        ),
        # Policies
        "Alternate": Call(
            policies.Alternate,
            {"tasks": 2, "stay": 1, "order": "spread", "seed": 0},
            integers("tasks", "stay", "seed") | {"order": "word", "log": "function?"},
        ),
        "Fixed": Call(policies.Fixed, {"shares": half, "seed": 0},
                      {"shares": "vector", "seed": "integer"}),
        "FixedReplay": Call(policies.FixedReplay, {"tasks": 2, "share": 0.5},
                            {"tasks": "integer", "share": "number"}),
        "Follow": Call(policies.Follow, {"protocol": protocol, "steps": 10},
                       {"protocol": "object", "steps": "integer"}),
        "FocusThenReplay": Call(
            policies.FocusThenReplay,
            {
                "new_task": 1, "old_tasks": [0], "shares": half, "weights": half, "margin": 0.0,
                "patience": 1, "smoothing": 0.5, "min_focus": 0, "max_focus": 5, "tasks": 2,
                "until": "met",
            },
            {
                "new_task": "integer", "old_tasks": "old tasks", "shares": "shares?",
                "weights": "array?", "margin": "number", "patience": "integer",
                "smoothing": "number", "min_focus": "integer", "max_focus": "bound?",
                "tasks": "integer?", "until": "rule",
            },
        ),
        "shares": Call(ask("shares"), {"count": 2}, integers("count")),
        "lr": Call(ask("lr"), {"count": 2}, integers("count")),
        "next_tasks": Call(ask("next_tasks"), {"count": 2, "among": [0, 1]},
                           {"count": "integer", "among": "tasks?"}),
        "next_steps": Call(ask("next_steps"), {"count": 2, "among": [0, 1]},
                           {"count": "integer", "among": "tasks?"}),
        "next_counts": Call(ask("next_counts"), {"count": 2}, integers("count")),
        "begin": Call(ask("begin"), {"new_task": 0}, {"new_task": "task"}),
        "observe": Call(ask("observe"), {"losses": {0: 0.1}, "late": 0},
                        {"losses": "losses", "late": "integer"}),
        # Images
        "mixed_tasks": Call(
            networks.mixed_tasks,
            {"images": held_out_images(), "similarity": 0.5, "upstream": [0, 5],
             "auxiliary": [2, 7], "normalise": "unit", "test_samples": 10},
            {"images": "object", "similarity": "number", "upstream": "tasks",
             "auxiliary": "tasks", "normalise": "word", "test_samples": "integer"},
        ),
        "parity_tasks": Call(
            networks.parity_tasks,
            {"images": held_out_images(), "normalise": "standard", "test_samples": 10},
            {"images": "object", "normalise": "word", "test_samples": "integer"},
        ),
        "Training": Call(
            networks.Training,
            {"hidden": 2, "lr": 0.1, "first": 5, "weight_std": 1.0, "head_std": 1.0,
             "interval": 5, "sample": 5, "smoothing": 0.5},
            integers("hidden", "first", "interval", "sample")
            | numbers("lr", "weight_std", "head_std", "smoothing"),
        ),
        "experiment": Call(
            networks.experiment,
            {"tasks": tasks, "looks": [1, 2], "training": networks.Training(hidden=2, first=2),
             "strategies": ["interleaved"], "protocols": {"mine": protocol}, "realisations": 1,
             "seed": 0, "threads": 1},
            {"tasks": "object", "looks": "steps", "training": "object?", "strategies": "words",
             "protocols": "protocols?", "realisations": "integer", "seed": "integer",
             "threads": "integer?", "progress": "progress"},
        ),
        "fashion_mnist": Call(networks.fashion_mnist, {}, {"root": "folder?"}),
        "fetch": Call(
            networks.fetch,
            {"name": "fashion-mnist", "root": "/dev/null/x"},
            {"name": "word", "root": "folder?", "packages": "flag", "say": "function"},
        ),
        # Figures
        "make": Call(
            paper.make,
            {"figures": ["readout"], "out": "/dev/null/x", "changes": {"similarities": [0.0]}},
            {"figures": "words", "out": "folder", "quick": "flag", "seeds": "integer?",
             "changes": "changes?"},
        ),
        "a setting of a figure": Call(
            lambda **changes: paper.make(["annealing"], "/dev/null/x", changes=changes),
            {},
            {"similarities": "steps", "max_lr": "number"} | integers("seeds", "steps"),
        ),
    }  # fmt: skip
    return made


ARRAYS = ("array", "rows", "vector", "any array", "heads", "losses array")
# What a kind of argument accepts of the spoilt arrays, and of the bad values of another kind.
ACCEPTED = {
    "rows": {"longer"},
    "vector": {"longer", "empty"},
    "any array": {"longer", "empty", "one more axis", "no axis"},
    "heads": {"longer"},
    "losses array": {"longer", "nan in it", "inf in it", "-inf in it"},
}
LIKE = {
    "order": ("tasks", set()),
    "rate": ("number", {"an array"}),
    "shares": ("array", {"no axis"}),
    "grid": ("tasks", {"a number", "a single task", "a fraction", "nothing", "a task too many",
                       "an array of nothing", "nothing in a list", "beyond 64 bits"}),
    "names": ("tasks", {"a task below 0", "a task too many", "a digit", "true in a list",
                        "beyond 64 bits", "an empty set", "a generator"}),
    "progress": ("flag", {"a class"}),
    "failures": ("object", {"an empty dict"}),
    "cases": ("tasks", {"an empty set", "a generator"}),
    "steps": ("tasks", {"a task below 0", "a task too many", "a fraction", "beyond 64 bits"}),
    "old tasks": ("tasks", {"an empty set", "a generator"}),
    "bound": ("integer", {"infinite"}),
    "rule": ("word", {"a number"}),
    "changes": ("object", {"an empty dict"}),
    "words": ("tasks", set()),
    "protocols": ("object", {"an empty dict"}),
    "folder": ("path", {"a long text", "two lines", "a word"}),
    "targets": ("tasks", {"an array of nothing", "a fraction", "nothing in a list"}),
}  # fmt: skip


def bad_values(kind):
    """All bad values of a kind of argument, by name, as functions of a good one."""
    kind, optional = kind.removesuffix("?"), kind.endswith("?")
    like, accepted = LIKE.get(kind, (kind, ACCEPTED.get(kind, set())))
    accepted = accepted | ({"nothing"} if optional else set())
    if like in ARRAYS:
        found = SPOILT | {name: (lambda _, x=x: x) for name, x in JUNK.items()}
        found |= {} if optional else {"nothing": lambda _: None}
    else:
        found = {name: (lambda _, x=x: x) for name, x in BAD[like].items()}
    return {name: make for name, make in found.items() if name not in accepted}


def cases():
    """Yield every argument of every call with everything that is wrong with it."""
    for name, call in calls().items():
        for argument, kind in call.kinds.items():
            for wrong in bad_values(kind):
                yield name, argument, wrong


# Arguments whose value is itself checked part by part: the part is named instead.
PARTS = {"content": r"\w+", "changes": "set", "states": "start"}


def well_said(error, argument):
    """Assert that an error says what is wrong in one short line that names the argument."""
    text, names = str(error), f"{argument}|{PARTS.get(argument, argument)}"
    assert "\n" not in text and len(text) < 500, text[:1000]
    assert re.search(rf"`[^`]*\b({names})\b[^`]*`", text), text


def test_good_arguments_are_taken():
    elsewhere = ("make", "a setting of a figure", "fashion_mnist", "fetch")  # long, or downloads
    for name, call in calls().items():
        if not name.endswith((".load", ".save", ".plot")) and name not in elsewhere:
            call.function(**call.good)


def test_bad_arguments_are_refused():
    for name, argument, wrong in cases():
        call = calls()[name]
        bad = bad_values(call.kinds[argument])[wrong](call.good.get(argument))
        try:
            call.function(**call.good | {argument: bad})
        except ValueError as error:
            well_said(error, argument)
        except Exception as error:
            pytest.fail(f"{name}: `{argument}` is {wrong}: {type(error).__name__}: {error}")
        else:
            pytest.fail(f"{name}: `{argument}` is {wrong}, and nobody minds")


# Numbers small enough that what is taken costs nothing to compute.
SCALARS = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.binary(max_size=2),
    st.integers(-3, 12), st.sampled_from([2**63, -(2**63), 10**400]),
    st.sampled_from([-1.0, 0.0, 5e-324, 1e-9, 0.5, 1.0, 2.5, np.nan, np.inf, 1e308]),
    st.complex_numbers(max_magnitude=2),
    st.sampled_from([np.float32(0.5), np.int8(1), np.ma.masked]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 3)), inner, max_size=2),
        st.lists(inner, max_size=3).map(lambda items: np.array([*items, None], dtype=object)[:-1]),
        st.lists(inner, max_size=3).map(lambda items: pd.Series(items, dtype=object)),
        st.lists(inner, max_size=3).map(iter),
    ),
    max_leaves=8,
)


@cache
def harmless():
    """The arguments of calls that, whatever is taken, write nothing and take no time."""
    long = ("make", "a setting of a figure", "grid_search", "measure_readout_timescale", "fetch")
    used = ("path", "out", "root", "cache", "progress", "log")
    return [
        (name, argument)
        for name, call in calls().items()
        for argument in call.kinds
        if argument not in used and name not in long
    ]


@settings(
    max_examples=COUNT,
    deadline=None,
    derandomize="REPLAN_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(st.deferred(lambda: st.sampled_from(harmless())), VALUES)
def test_any_argument_is_taken_or_refused(place, value):
    name, argument = place
    call = calls()[name]
    try:
        call.function(**call.good | {argument: value})
    except replan.IntegrationError as error:  # taken, but what it asks for cannot be computed
        assert "\n" not in str(error)
    except ValueError as error:
        assert "`" in str(error) and "\n" not in str(error) and len(str(error)) < 500


# Defects that were found, each by its own example


@pytest.mark.parametrize(
    "value",
    [
        np.ma.array([[0.5, 0.5]]),
        [np.ma.array([0.5, 0.5])],
        np.array([[0.5, 0.5]], dtype=object),
        [[np.array(0.5), np.float32(0.5)]],
        pd.DataFrame([[0.5, 0.5]]),
        ((0.5, 0.5),),
        [range(2)],
    ],
)
def test_numbers_are_taken_in_any_form(value):
    assert replan.Protocol(value, 1.0).shares.sum() == 1.0


def test_a_mask_in_parts_of_an_array_is_not_lost():
    row = np.ma.array([0.5, 0.5], mask=[False, True])
    for value in ([row], [row, row], (row,), [[row, row]], [[1.0, np.ma.masked], [0.0, 1.0]]):
        with pytest.raises(ValueError, match="`Q` expects an array of numbers"):
            replan.Overlaps(value, [[0.0]], [[0.0]])


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=9), st.sampled_from(["f2", "f4"]))
@settings(max_examples=100, deadline=None)
def test_shares_sum_to_one_within_the_precision_given(amounts, dtype):
    amounts = np.array(amounts, dtype=dtype)
    shares = amounts / amounts.sum(dtype=dtype)
    for form in (shares[None], [shares], [list(shares)]):
        assert replan.Protocol(form, 1.0).shares.sum() == pytest.approx(1.0, abs=1e-12)


def test_shares_in_double_precision_must_sum_to_one():
    wrong = np.array([[0.5, 0.5 + 1e-7]])
    for form in (wrong, wrong.tolist(), wrong.astype(object)):
        with pytest.raises(ValueError, match=r"`shares` expects .* got a sum of 1.0000001"):
            replan.Protocol(form, 1.0)


def test_tasks_to_draw_from_must_be_some():
    with pytest.raises(ValueError, match="`among` expects at least one task, got none"):
        policies.FocusThenReplay(1, [0]).next_tasks(3, among=[])


def test_a_time_scale_is_measured_at_any_rate_that_it_takes():
    measured = replan.measure_readout_timescale(0.5, lr=1e-250)
    assert measured == pytest.approx(replan.readout_timescale(0.5, lr=1e-250), rel=1e-4)
    with pytest.raises(ValueError, match=r"`lr` expects .* at least 1e-280 .*, got 1e-300"):
        replan.measure_readout_timescale(0.5, lr=1e-300)


def test_a_model_without_teachers_is_refused():
    with pytest.raises(ValueError, match=r"`teacher_overlaps` expects a square matrix, got shape"):
        replan.TeacherStudent(np.zeros((0, 0)), hidden=2)


def test_teacher_heads_of_no_task_are_refused():
    with pytest.raises(ValueError, match="`teacher_heads` expects at least one task, got none"):
        replan.TeacherStudent(np.eye(2), hidden=2, teacher_heads=np.zeros((0, 2)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarities": [0.3, 0.5, 0.3]}, "`similarities` expects different values, got 0.3 and"),
        ({"similarities": [0.1, 0.1 + 1e-12]}, "`similarities` expects different values"),
        ({"similarities": []}, "`similarities` expects at least one value, got none"),
        ({"similarities": 2}, "`similarities` expects a list of values, got 2"),
        ({"seeds": 1.5}, "`seeds` expects an integer of at least 1 and at most 100000, got 1.5"),
        ({"seeds": 0}, "`seeds` expects an integer of at least 1 and at most 100000, got 0"),
        ({"steps": "x"}, "`steps` expects an integer of at least 0, got 'x'"),
        ({"max_lr": None}, "`max_lr` expects a finite number, got None"),
    ],
)
def test_settings_of_figures_are_refused_before_anything_is_computed(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        paper.make(["annealing"], tmp_path / "out", changes=changes)
    assert not (tmp_path / "out").exists()


def test_a_start_of_infinite_loss_is_refused():
    model, start = problem().model, problem().start
    heads = [[1e200, 1.0], [1.0, 1.0]]
    message = r"`start` expects one at which all losses are finite, got \[inf, "
    with pytest.raises(ValueError, match=message):
        replan.Problem(model, replan.Overlaps(start.Q, start.M, heads), duration=2.0)
    with pytest.raises(ValueError, match=message):
        model.pretrain(start=replan.Overlaps(start.Q, start.M, heads), duration=2.0)
    content = problem().to_dict() | {"start": {"fresh": {"heads": heads}}}
    with pytest.raises(ValueError, match=message):
        replan.Problem.from_dict(content)


def test_a_start_from_which_nothing_can_be_computed_is_refused_in_one_line():
    model, start = problem().model, problem().start
    far = replan.Problem(model, replan.Overlaps(1e299 * np.eye(2), start.M, start.V), 2.0)
    with pytest.raises(ValueError, match=r"`model` expects a rate of finite numbers, .*") as caught:
        replan.evaluate(far, strategies.interleaved(far))
    assert "\n" not in str(caught.value)


def test_a_start_of_infinite_loss_is_refused_for_every_kind_of_model():
    model = replan.AutoModel(
        lambda x, task, lr: -lr * x, lambda x: x**2 * np.ones(2), tasks=2, like=1.0
    )
    with pytest.raises(ValueError, match="`start` expects one at which all losses"):
        replan.Problem(model, 1e200, duration=1.0)
    with pytest.raises(ValueError, match="`start` expects an array of numbers"):
        replan.Problem(model, 1 + 1j, duration=1.0)
    with pytest.raises(ValueError, match="`start` expects arrays with the structure and shapes"):
        replan.Problem(model, [1.0], duration=1.0)


@pytest.mark.parametrize("like", [None, "1", 1j, [], {"a": "b"}, [[1.0], "x"]])
def test_a_state_of_anything_but_numbers_is_refused(like):
    with pytest.raises(ValueError, match="`like` expects"):
        replan.AutoModel(lambda x, t, lr: x, lambda x: x, tasks=1, like=like)


def test_sweeps_over_generators():
    assert replan.sweep(double, ({"x": i} for i in range(3)), workers=1) == [
        {"x": 0},
        {"x": 2},
        {"x": 4},
    ]


def test_a_lambda_is_refused_in_one_line_where_workers_must_import_it():
    with pytest.raises(ValueError) as caught:
        replan.sweep(lambda x: {"x": x}, [{"x": 1}], workers=2)
    well_said(caught.value, "function")


def test_what_was_got_is_shown_in_short():
    for value in ("x" * 10**6, ["x"] * 10**6, np.zeros(10**6), 10**5000, "two\nlines", itself()):
        assert len(check.show(value)) < 110 and "\n" not in check.show(value)


# Files with a byte order mark, as some editors and spreadsheets write them


def marked(path, text):
    path.write_text(text, encoding="utf-8-sig")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    return path


def test_files_may_begin_with_a_byte_order_mark(tmp_path):
    assert replan.Problem.load(marked(tmp_path / "p.toml", example())).duration == 25.0
    protocol = strategies.alternating(problem())
    for ending in (".json", ".csv"):
        path = tmp_path / f"protocol{ending}"
        protocol.save(path)
        marked(path, path.read_text())
        assert replan.Protocol.load(path) == protocol
    plan = replan.solve(problem(), Relax(starts=0), max_gradients=20)
    plan.save(tmp_path / "plan.json")
    marked(tmp_path / "plan.json", (tmp_path / "plan.json").read_text())
    assert replan.Plan.load(tmp_path / "plan.json").protocol == plan.protocol


def test_claims_may_begin_with_a_byte_order_mark(tmp_path):
    claims = marked(tmp_path / "claims.json", json.dumps({"figures": {}}))
    paper.make(["readout"], tmp_path, changes={"similarities": [0.0, 0.5]}, workers=1)
    assert "readout" in json.loads(claims.read_text())["figures"]


# Messages are made in one way


def test_messages_show_what_they_got_through_one_function():
    """Nothing that a user gave is put into an error as it is: it may be 100 kB long."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        if "cli" in path.parts:  # what a shell passes on is a line already
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or "ValueError" not in ast.unparse(node):
                continue
            for part in ast.walk(node):
                if isinstance(part, ast.FormattedValue):
                    shown = ast.unparse(part.value)
                    raw = part.conversion == ord("r") or shown.endswith(".tolist()")
                    assert not raw, f"{path.name}, line {part.lineno}: check.show({shown})"
