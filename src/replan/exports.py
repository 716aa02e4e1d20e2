"""Protocols as the files that other projects' trainers read: see `export`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from replan import check, files
from replan.control import Plan
from replan.errors import ArgumentError, in_file
from replan.protocol import Protocol

_DIGITS = 4  # of weights, which sum to 1 all the same
_YAML_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # that are not text


@dataclass(frozen=True)
class Stage:
    """A part of a training: its steps, the weight of each data set, and its knobs.

    A knob is a number, or a number for each data set.
    """

    start: int
    end: int
    weights: dict[str, float]
    knobs: dict[str, Any]

    @property
    def used(self) -> dict[str, float]:
        """The weights of the data sets that are trained on."""
        return {name: weight for name, weight in self.weights.items() if weight > 0}

    def to_dict(self) -> dict[str, Any]:
        """Return the stage as JSON types."""
        steps = {"start_step": self.start, "end_step": self.end}
        return steps | {"weights": self.weights} | self.knobs


class Source(NamedTuple):
    """What a file holds: a protocol, names of data sets, steps where it says so, and its plan."""

    protocol: Protocol
    names: list[str] | None = None
    steps: int | None = None
    plan: Plan | None = None


def load(path: files.FilePath) -> Source:
    """Read a plan, a protocol, or the schedule that was recommended by a law."""
    if files.suffix(path, [".json", ".csv"]) == ".csv":
        return Source(Protocol.load(path))
    content = files.read_json(path)
    if "recommended" in content:
        with in_file(path):
            return _recommended(content["recommended"])
    if "relaxed" not in content:
        return Source(Protocol.load(path))
    plan = Plan.load(path)
    names = [name.replace(" ", "_") for name in plan.problem.model.task_names]
    return Source(plan.relaxed, names, plan=plan)


def _recommended(table: Any) -> Source:
    """Return the table of `Advice.to_frame`, whose last row ends the training."""
    columns = [*check.instance("recommended", table, dict, "a schedule")]
    if "step" not in columns or not any(x == "lr" or x.startswith("share_") for x in columns):
        raise ArgumentError("recommended", "step, and lr or share_<name>", check.show(columns))
    edges = check.array("step", table["step"], ("n",))
    pieces = np.flatnonzero(np.diff(edges) > 0)
    ends = np.append(edges[pieces], edges[-1]) - edges[0]
    rows = {name: np.array(table[name])[pieces] for name in table if name.startswith("share_")}
    names = [name.removeprefix("share_") for name in rows]
    if rows:
        protocol = Protocol(np.stack(list(rows.values()), axis=1), edges=ends)
    else:
        names, rate = ["data"], np.array(table["lr"])[pieces]
        protocol = Protocol(np.ones((len(pieces), 1)), edges=ends, lr=rate)
    return Source(protocol, names, round(protocol.duration))


def export(
    protocol: Protocol,
    to: str,
    *,
    steps: int,
    names: Sequence[str] | None = None,
    multiple: int = 1,
) -> list[str]:
    """Return a protocol as the text of a file for another project, or a text for each stage.

    - `to`: one of `FORMATS`. Energon and Megatron know no stages: a stage is a text.
    - `steps`: of the whole training. llm-foundry counts tokens: give these.
    - `names`: of the tasks' data sets, by default task_1, …; paths for Energon and Megatron.
    - `multiple`: stages begin at multiples of so many steps.

    Examples:
        >>> from replan.exports import export
        >>> protocol = replan.Protocol.from_segments([(7.0, 1), (18.0, [0.5, 0.5])], tasks=2)
        >>> print(export(protocol, "levanter", steps=1000, names=["web", "code"])[0], end="")
        data:
          train_weights:
            - [0, {"web": 0.0, "code": 1.0}]
            - [280, {"web": 0.5, "code": 0.5}]
    """
    write = FORMATS[check.one_of("to", to, FORMATS)]
    return write(_stages(protocol, steps, names, multiple))


def _stages(
    protocol: Protocol, steps: int, names: Sequence[str] | None, multiple: int
) -> list[Stage]:
    """Return a protocol's steps as stages of a training, but those that last less than a step."""
    steps = check.integer("steps", steps, at_least=1)
    multiple = check.integer("multiple", multiple, at_least=1, at_most=steps)
    names = [f"task_{t + 1}" for t in range(protocol.tasks)] if names is None else list(names)
    if len({check.word("names", name) for name in names}) < max(len(names), protocol.tasks):
        raise ArgumentError(
            "names", f"{protocol.tasks} different ones, one for each task", check.show(names)
        )
    edges = multiple * np.rint(protocol.edges / protocol.duration * steps / multiple)
    edges = np.append(np.minimum(edges[:-1], steps), steps)
    stages = []
    for i in np.flatnonzero(np.diff(edges)).tolist():
        weights = np.round(protocol.shares[i], _DIGITS)
        weights[weights.argmax()] += 1.0 - weights.sum()
        named = dict(zip(names, np.round(weights, _DIGITS).tolist(), strict=True))
        knobs: dict[str, Any] = {}
        for knob, rows in protocol.knobs.items():
            values = [float(f"{x:.6g}") for x in np.atleast_1d(rows[i])]
            knobs[knob] = dict(zip(names, values, strict=True)) if rows.ndim == 2 else values[0]
        stages.append(Stage(int(edges[i]), int(edges[i + 1]), named, knobs))
    return stages


def _json(stages: list[Stage]) -> list[str]:
    rows = [stage.to_dict() for stage in stages]
    return [json.dumps({"steps": stages[-1].end, "stages": rows}, indent=2) + "\n"]


def _yaml(stages: list[Stage]) -> list[str]:
    return [_block({"steps": stages[-1].end, "stages": [stage.to_dict() for stage in stages]})]


def _csv(stages: list[Stage]) -> list[str]:
    """Return columns start_step, end_step, weight_<name>, …, and each knob, or <knob>_<name>."""
    text, rows = io.StringIO(), []
    for stage in stages:
        row = {"start_step": stage.start, "end_step": stage.end}
        for column, value in {"weight": stage.weights, **stage.knobs}.items():
            many = value.items() if isinstance(value, dict) else ()
            row |= {f"{column}_{name}": x for name, x in many} if many else {column: value}
        rows.append(row)
    table = csv.DictWriter(text, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return [text.getvalue()]


def _datasets(stages: list[Stage]) -> list[str]:
    """Return the arguments of `datasets.interleave_datasets` in each stage."""
    rows = [
        {
            "start_step": stage.start,
            "end_step": stage.end,
            "datasets": list(stage.used),
            "probabilities": list(stage.used.values()),
        }
        for stage in stages
    ]
    return [json.dumps({"steps": stages[-1].end, "stages": rows}, indent=2) + "\n"]


def _levanter(stages: list[Stage]) -> list[str]:
    """Return `train_weights` of `LmDataConfig`, by training step."""
    return [_block({"data": {"train_weights": [[x.start, x.weights] for x in stages]}})]


def _energon(stages: list[Stage]) -> list[str]:
    """Return a `MetadatasetV2` for each stage."""
    return [
        _block(
            {
                "__module__": "megatron.energon",
                "__class__": "MetadatasetV2",
                "splits": {
                    "train": {"blend": [{"weight": x, "path": name} for name, x in s.used.items()]}
                },
            }
        )
        for s in stages
    ]


def _megatron(stages: list[Stage]) -> list[str]:
    """Return the values of `--data-path`, or the file of `--data-args-path`, for each stage."""
    if any(len(name.split()) > 1 for name in stages[0].weights):
        raise ArgumentError(
            "names", "without spaces for Megatron", check.show([*stages[0].weights])
        )
    return [" ".join(f"{x} {name}" for name, x in s.used.items()) + "\n" for s in stages]


def _llm_foundry(stages: list[Stage]) -> list[str]:
    """Return the streams of the first stage, and the `curriculum_learning` of the others."""
    parts = [
        {
            "duration": f"{s.end - s.start}tok",
            "dataset": {
                "streams": {name: {"local": name, "proportion": x} for name, x in s.used.items()}
            },
        }
        for s in stages
    ]
    first, *rest = parts
    content: dict[str, Any] = {
        "max_duration": f"{stages[-1].end}tok",
        "train_loader": {"dataset": first["dataset"]},
    }
    if rest:
        callback = {"duration": first["duration"], "schedule": rest}
        content["callbacks"] = {"curriculum_learning": callback}
    return [_block(content)]


def _lambda_lr(stages: list[Stage]) -> list[str]:
    """Return the largest rate, and the rate of every step as a factor of it, for `LambdaLR`.

    The last factor is there twice: schedulers ask for the rate after the last step, too.
    """
    rates = [stage.knobs.get("lr") for stage in stages]
    if any(isinstance(rate, dict | None) for rate in rates):
        got = "no rate" if rates[0] is None else "a rate for each task"
        raise ArgumentError("to", "csv or json unless all tasks have one learning rate", got)
    counts = [stage.end - stage.start for stage in stages]
    values = np.repeat(np.array(rates, np.float64), [*counts[:-1], counts[-1] + 1])
    peak = float(values.max()) or 1.0
    return [json.dumps({"peak": peak, "factors": (values / peak).tolist()}) + "\n"]


FORMATS: dict[str, Callable[[list[Stage]], list[str]]] = {
    "json": _json,
    "yaml": _yaml,
    "csv": _csv,
    "datasets": _datasets,
    "levanter": _levanter,
    "energon": _energon,
    "megatron": _megatron,
    "llm-foundry": _llm_foundry,
    "lambda-lr": _lambda_lr,
}


WEIGHTS_ALONE = ("datasets", "levanter", "energon", "megatron", "llm-foundry")


# YAML, without a library


def _block(content: dict[str, Any], indent: str = "") -> str:
    """Return nested dicts as YAML; each item of a list is in one line."""
    text = ""
    for key, value in content.items():
        plain = key.isidentifier() and key.lower() not in _YAML_WORDS
        text += f"{indent}{key if plain else json.dumps(key)}:"
        if isinstance(value, dict):
            text += "\n" + _block(value, f"{indent}  ")
        elif isinstance(value, list):
            text += "".join(f"\n{indent}  - {_flow(item)}" for item in value) + "\n"
        else:
            text += f" {_flow(value)}\n"
    return text


def _flow(value: Any) -> str:
    """Return a value as JSON in one line, with a point in every float: else 1e-05 is a word."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_flow(x)}" for key, x in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
