"""A stream of tasks that arrive one after another: what planning gains, and with how many tasks.

Not a figure of the paper, which has one or two new tasks.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from replan._common import plotting
from replan.check import Floats
from replan.paper._parts import Run, Tables, protocol_of, protocol_rows, typical
from replan.paper._stream_contenders import (
    CONTENDERS,
    FEW,
    FIXED,
    FOCUS,
    INTERLEAVED,
    NO_REPLAY,
    PLAN,
    STRATEGIES,
    case,
    stream,
)
from replan.paper.claims import Claim
from replan.statistics import Interval, mean_interval

FULL = {
    "seeds": 10,
    "tasks": [2, 3, 4, 5, 6, 7, 8, 9, 10],
    "interval": 25.0,
    "steps": 10,
    "similarity": 0.6,
    "switches": 4,
}
QUICK = FULL | {"seeds": 2, "tasks": [2, 3, 4], "steps": 5}

LOOKS: dict[str, dict[str, Any]] = {
    PLAN: {"color": "#CC3311", "marker": "o"},
    FEW: {"color": "#EE7733", "marker": "^"},
    FOCUS: {"color": "#0072B2", "marker": "s"},
    FIXED: {"color": "#009988", "marker": "D"},
    INTERLEAVED: {"color": "0.25", "marker": "v"},
    NO_REPLAY: {"color": "#AA4499", "marker": "X"},
}
_OPPONENTS = (FOCUS, FIXED, INTERLEAVED)  # over which gains are drawn against the number of tasks
_FLOOR = 3e-4  # of the losses drawn: task 1 begins far below
_SAME = 1e-6  # times that differ by less are the same
_LEAST = 3  # initialisations, below which claims are undecided


def compute(
    run: Run,
    *,
    seeds: int,
    tasks: list[int],
    interval: float,
    steps: int,
    similarity: float,
    switches: int,
) -> Tables:
    """Return the tables `losses`, `gains`, `plans`, and `curves` and `protocols` of most tasks.

    `steps`, `switches`: of protocols, and at most of the plan with few, between two arrivals.
    """
    if min(tasks) < 2:
        raise ValueError(f"`tasks` expects numbers of at least 2, got {min(tasks)}")
    most = max(tasks)
    # The longest first, so that no worker is left with one when all others are done.
    points = [{"tasks": t, "seed": s} for t, s in product(sorted(tasks)[::-1], range(seeds))]
    results = run(
        case,
        [
            {
                "problem": stream(**point, interval=interval, steps=steps, similarity=similarity),
                "switches": switches * (most - 1) if point["tasks"] == most else None,
            }
            for point in points
        ],
    )
    pairs = list(zip(points, results, strict=True))
    losses = pd.DataFrame(
        [
            point | {"strategy": name, "loss": loss, "forgetting": result["forgetting"][name]}
            for point, result in pairs
            for name, loss in result["losses"].items()
        ]
    )
    shown = {point["seed"]: result for point, result in pairs if point["tasks"] == most}
    return {
        "losses": losses,
        "gains": _gains(losses),
        "plans": pd.DataFrame([point | result["plan"] for point, result in pairs]),
        "curves": pd.concat(
            pd.DataFrame(curve, columns=[f"loss_{t + 1}" for t in range(most)]).assign(
                time=result["time"], strategy=name, seed=seed
            )
            for seed, result in shown.items()
            for name, curve in result["curves"].items()
        ),
        "protocols": pd.concat(
            protocol_rows(made).assign(strategy=name, seed=seed)
            for seed, result in shown.items()
            for name, made in result["protocols"].items()
        ),
    }


def _wide(losses: pd.DataFrame, strategy: str) -> pd.DataFrame:
    """Return the losses of a strategy with a row for each initialisation, columns by tasks."""
    chosen = losses[losses["strategy"] == strategy]
    return chosen.pivot(index="seed", columns="tasks", values="loss")


def _ratio(losses: pd.DataFrame, other: str) -> pd.DataFrame:
    """Return how many times the plan's loss another ends at: a row for each initialisation."""
    found = _wide(losses, other)
    return found / _wide(losses, PLAN)[found.columns]


def _geometric(values: pd.DataFrame | pd.Series) -> Interval:
    """Return the geometric mean over initialisations, the rows, and its 95 % interval."""
    return Interval(*(np.exp(x) for x in mean_interval(np.log(values.to_numpy()))))


def _gains(losses: pd.DataFrame) -> pd.DataFrame:
    """Return a table of what the plan gains over all others, by the number of tasks."""
    rows = []
    for name in (FEW, *STRATEGIES):
        ratios = _ratio(losses, name)
        for number, gain, low, high in zip(ratios.columns, *_geometric(ratios), strict=True):
            rows.append({"tasks": number, "over": name, "gain": gain, "from": low, "to": high})
    return pd.DataFrame(rows)


def draw(tables: Tables) -> plotting.Picture:
    """Draw the curves of a typical stream, final losses and forgetting, and gains by tasks."""
    losses = tables["losses"]
    most = losses["tasks"].max()
    seed = typical(_wide(losses, PLAN)[most])
    with plotting.figure(width=7.6, height=8.8) as figure:
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[5, 3])[:, 0]
        _draw_streams(upper, tables, seed)
        left, right = lower.subfigures(1, 2, width_ratios=[4, 3])
        _draw_ends(left, losses[losses["tasks"] == most])
        _draw_gains(right, losses)
    return figure


def _draw_streams(figure: Any, tables: Tables, seed: int) -> None:
    """Fill a figure with the losses of every contender under its colour bar."""
    curves = tables["curves"].query("seed == @seed")
    protocols = tables["protocols"].query("seed == @seed")
    columns = [name for name in curves if str(name).startswith("loss_")]
    colours = plotting.ordered_colours(len(columns))
    axes = figure.subplots(4, 3, sharex=True, sharey="row", height_ratios=[3, 10, 3, 10])
    bars, panels = axes[::2].ravel(), axes[1::2].ravel()
    arrivals = [0.0, *_arrivals(protocols)]
    high = curves[columns].to_numpy().max()
    for name, bar, panel in zip(CONTENDERS, bars, panels, strict=True):
        rows = protocols[protocols["strategy"] == name]
        plotting.draw_protocol(bar, protocol_of(rows), colours=colours)
        bar.set_title(name, fontsize=9)
        bar.tick_params(bottom=False)
        one = curves[curves["strategy"] == name]
        times = one["time"].to_numpy()
        for column, colour, arrival in zip(columns, colours, arrivals, strict=True):
            loss = one[column].to_numpy()
            there = times >= arrival
            panel.plot(times[~there], loss[~there], color=colour, linewidth=0.9, alpha=0.35)
            panel.plot(times[there], loss[there], color=colour, linewidth=1.3)
        panel.plot(times, one[columns].mean(axis=1), color="black", linewidth=2.0)
        panel.set(yscale="log", xlim=(0, times[-1]), ylim=(_FLOOR, 1.2 * high))
    for panel in panels[3:]:
        panel.set_xlabel("training time α")
    for panel in panels[::3]:
        panel.set_ylabel("loss")
    _number_tasks(figure, colours)


def _number_tasks(figure: Any, colours: list[str]) -> None:
    """Put a row of the tasks' numbers in their colours above the panels."""
    handles: list[Any] = [Patch(color=colour, label=f"{t}") for t, colour in enumerate(colours, 1)]
    handles.append(Line2D([], [], color="black", linewidth=2.0, label="mean"))
    figure.legend(
        handles=handles, title="losses of tasks in the order of their arrival", ncols=len(handles),
        loc="outside upper center", handlelength=1.0, columnspacing=0.9, handletextpad=0.4,
        title_fontsize=9,
    )  # fmt: skip


def _draw_ends(figure: Any, losses: pd.DataFrame) -> None:
    """Fill a figure with final losses and forgetting by contender; lines join initialisations."""
    axes = figure.subplots(1, 2, sharey=True)
    heights = np.arange(len(CONTENDERS))[::-1]
    words = {"loss": "final mean loss", "forgetting": "mean forgetting"}
    for panel, (value, label) in zip(axes, words.items(), strict=True):
        found = losses.pivot(index="strategy", columns="seed", values=value).astype(float)
        found = found.loc[list(CONTENDERS)]
        panel.plot(found, heights, color="0.75", linewidth=0.8, marker=".", markersize=4)
        panel.set(xscale="log", xlabel=label, ylim=(-0.5, len(heights) - 0.5))
        panel.autoscale(enable=False)  # intervals of few initialisations are wide
        for height, (name, values) in zip(heights, found.iterrows(), strict=True):
            if (values > 0).all():
                _draw_interval(panel, _geometric(values), height, **LOOKS[str(name)])
    for height, name in zip(heights[1:], CONTENDERS[1:], strict=True):
        ratio = _geometric(_ratio(losses, name).iloc[:, -1]).mean
        plotting.write_beside(axes[0], height, f"× {ratio:.3g}")
    axes[0].set_yticks(heights, CONTENDERS)
    axes[0].set_title(f"{losses['tasks'].max()} tasks (× the plan's loss)", fontsize=9, loc="left")


def _draw_interval(axes: Any, interval: Interval, height: float, **look: Any) -> None:
    """Draw a mean and its interval on a horizontal line; one that is infinite is left out."""
    if np.isfinite(interval.high):
        axes.hlines(height, interval.low, interval.high, color="black", linewidth=2.0, zorder=3)
    axes.plot(
        interval.mean, height, markersize=6.5, markeredgecolor="black", linestyle="", zorder=4,
        **look,
    )  # fmt: skip


def _draw_gains(figure: Any, losses: pd.DataFrame) -> None:
    """Fill a figure with the gains over three opponents, against the number of tasks."""
    axes = figure.subplots()
    every = pd.concat([_ratio(losses, name) for name in _OPPONENTS]).to_numpy()
    for i, name in enumerate(_OPPONENTS):
        ratios = _ratio(losses, name)
        gain, low, high = _geometric(ratios)
        known = np.isfinite(high)
        tasks = ratios.columns + 0.08 * (i - 1)  # beside one another
        axes.vlines(
            tasks[known], low[known], high[known], color=LOOKS[name]["color"], linewidth=1.6
        )
        axes.plot(tasks, gain, markersize=5, label=f"over {name}", **LOOKS[name])
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set(
        yscale="log", xlabel="number of tasks", ylabel="loss / the plan's loss",
        xticks=sorted(losses["tasks"].unique()),
        ylim=(0.9 * min(1.0, every.min()), 1.1 * every.max()),
    )  # fmt: skip
    plotting.plain_ticks(axes)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)


def claims(tables: Tables) -> list[Claim]:
    """Check what planning gains on streams, and how plans look."""
    losses, protocols = tables["losses"], tables["protocols"]
    plans = protocols[protocols["strategy"] == PLAN].groupby("seed")
    late = pd.Series({seed: _late_rank(rows) for seed, rows in plans})
    opening = pd.Series({seed: _opening(rows) for seed, rows in plans})
    few = _ratio(losses, FEW).iloc[:, -1]
    limited = protocols[protocols["strategy"] == FEW].groupby("seed")
    switches = pd.Series({seed: _switches(rows) for seed, rows in limited})
    return [
        _ends_lowest(losses),
        _worth_much(losses),
        *(_grows(losses, name) for name in _OPPONENTS),
        _forgets_least(losses),
        Claim(
            "Few switches cost at most a quarter.",
            "with one task at a time and few switches the plan ends at most 25 % higher",
            list(few <= 1.25),
            {"loss / the plan's loss": few, "switches": switches},
            least=_LEAST,
        ),
        Claim(
            "The plan opens every arrival with the new task.",
            "in its first step it has more than half of the samples, in 80 % of the arrivals",
            list(opening >= 0.8),
            {"part of the arrivals": opening},
            least=_LEAST,
        ),
        Claim(
            "After the last arrival the plan replays recent tasks more than old ones.",
            "mean rank of what is replayed above 0.55 (0 the oldest, 1 the most recent old task)",
            [None if np.isnan(x) else x > 0.55 for x in late],
            {"mean rank": late},
            least=_LEAST,
        ),
    ]


def _ends_lowest(losses: pd.DataFrame) -> Claim:
    best = pd.concat([_ratio(losses, name) for name in STRATEGIES]).groupby("seed").min()
    return Claim(
        "The plan always ends below every strategy, with any number of tasks.",
        "by at least 1 % below each of the four (some are among the solver's starts)",
        list((best > 1.01).all(axis=1)),
        {
            "best strategy / plan, most tasks": best.iloc[:, -1],
            "smallest over the numbers of tasks": best.min(axis=1),
        },
        always=True,
        least=_LEAST,
    )


def _worth_much(losses: pd.DataFrame) -> Claim:
    focus, fixed = (_ratio(losses, name).iloc[:, -1] for name in (FOCUS, FIXED))
    return Claim(
        "With most tasks planning is worth a third of the loss of either good strategy.",
        "focus-then-replay and the tuned fixed share end at least 1.5 times as high",
        list(np.minimum(focus, fixed) >= 1.5),
        {"focus-then-replay / plan": focus, "fixed share, tuned / plan": fixed},
        least=_LEAST,
    )


def _grows(losses: pd.DataFrame, opponent: str) -> Claim:
    """Return the claim about the slope of log(gain) against log(tasks), by initialisation."""
    ratios = _ratio(losses, opponent)
    tasks = np.log(ratios.columns.to_numpy(float))
    away = tasks - tasks.mean()
    slopes = np.log(ratios.to_numpy()) @ away / max(away @ away, 1e-300)
    mean, low, high = mean_interval(slopes)
    return Claim(
        f"The gain grows with the number of tasks: over {opponent}.",
        "the slope of log(gain) against log(tasks) is positive",
        list(slopes > 0),
        {
            "slope": slopes, "mean slope": mean, "its 95 % interval from": low, "to": high,
            "gain with fewest tasks": ratios.iloc[:, 0], "with most": ratios.iloc[:, -1],
            "tasks of the largest gain": ratios.idxmax(axis=1),
        },
        least=_LEAST,
    )  # fmt: skip


def _forgets_least(losses: pd.DataFrame) -> Claim:
    """Return the claim about forgetting with most tasks, open where it is not defined."""
    most = losses[losses["tasks"] == losses["tasks"].max()]
    found = most.pivot(index="seed", columns="strategy", values="forgetting").astype(float)
    least = found[list(STRATEGIES)].min(axis=1)
    return Claim(
        "The plan forgets less than every strategy.",
        "mean forgetting of the tasks, with most of them, below those of all four",
        [None if np.isnan(x) else x < 1 for x in found[PLAN] / least],
        {
            "plan's forgetting": found[PLAN],
            **{f"of {name} / of the plan": found[name] / found[PLAN] for name in _OPPONENTS},
        },
        least=_LEAST,
    )


def _arrivals(rows: pd.DataFrame) -> Floats:
    """Return when tasks 2 to T arrive (T − 1,), in a stream whose protocols the rows are."""
    return np.linspace(0.0, rows["end"].max(), len(_shares(rows).columns))[:-1]


def _shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the shares in a table of protocols, a column for each task."""
    return rows.filter(regex="^share_")


def _switches(rows: pd.DataFrame) -> int:
    """Return how often the shares of a protocol change."""
    return int(np.any(np.diff(_shares(rows), axis=0) != 0, axis=1).sum())


def _opening(rows: pd.DataFrame) -> float:
    """Return in what part of the arrivals the first step is mostly on the new task."""
    steps = np.searchsorted(rows["start"], _arrivals(rows) - _SAME)
    new = np.arange(1, len(steps) + 1)
    return float(np.mean(_shares(rows).to_numpy()[steps, new] > 0.5))


def _late_rank(rows: pd.DataFrame) -> float:
    """Return the mean rank of the tasks replayed after the last arrival, from 0 to 1.

    NaN where fewer than two can be replayed, or none is.
    """
    last = rows[rows["start"] >= _arrivals(rows)[-1] - _SAME]
    replayed = (last["end"] - last["start"]).to_numpy() @ _shares(last).to_numpy()[:, :-1]
    if len(replayed) < 2 or not replayed.any():
        return float("nan")
    return float(np.average(np.linspace(0.0, 1.0, len(replayed)), weights=replayed))
