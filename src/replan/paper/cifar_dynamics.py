"""Figs. 11 and 12: CIFAR-10 by parity of the labels, three strategies and their differences."""

from __future__ import annotations

from typing import Any

from replan._common import plotting
from replan.paper import _images as images
from replan.paper._parts import Run, Tables
from replan.paper.claims import Claim
from replan.paper.fashion_dynamics import looks
from replan.statistics import mean_interval

FULL = {"seeds": 100, "steps": 10_000, **images.PARITY, **images.TRAINING}
QUICK = FULL | {"seeds": 6, "steps": 3000, "first": 3000, "test_samples": 200}


def compute(run: Run, *, seeds: int, steps: int, **settings: Any) -> Tables:
    """Return the table `curves`."""
    tasks = {name: settings[name] for name in images.PARITY}
    found = images.learn(run, "cifar10", [tasks], looks(settings["first"], steps), seeds, settings)
    return {"curves": found.drop(columns="similarity")}


def draw(tables: Tables) -> plotting.Picture:
    """Draw the losses of each strategy, their mean losses with the end enlarged, and the gains."""
    curves = tables["curves"]
    with plotting.figure(width=7.2, height=4.8) as figure:
        axes = figure.subplot_mosaic("aabbcc;dddeee")
        panels = [axes[name] for name in "abc"]
        images.draw_strategies(panels, curves)
        panels[0].set_ylabel("test loss")
        images.draw_comparison(axes["d"], curves)
        axes["d"].set(xscale="log", xlabel="step after the change", ylabel="mean loss")
        images.legend_of(figure, panels[0], axes["d"])
        inset = axes["d"].inset_axes((0.56, 0.5, 0.42, 0.46))
        end = curves["step"].max()
        images.draw_comparison(inset, curves[curves["step"] >= 0.7 * end])
        inset.tick_params(labelsize=7)
        _draw_differences(axes["e"], curves)
    return figure


def _draw_differences(axes: Any, curves: Any) -> None:
    rule = images.table_of(curves, "focus-then-replay")
    for name in ("no-replay", "interleaved"):
        gain = _gain(images.table_of(curves, name), rule)
        images.draw_interval(axes, gain, images.STYLES[name] | {"label": f"over {name}"})
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set(xscale="log", xlabel="step after the change", ylabel="gain of focus-then-replay, %")
    axes.legend(fontsize=8)


def _gain(other: Any, rule: Any) -> Any:
    """Return by how much the rule's loss lies below another's, in percent of the other's."""
    return 100 * (other - rule) / other.mean()


def _within(values: Any, least: float, most: float) -> bool | None:
    """Return whether a mean lies between bounds; None where its interval leaves it open."""
    _, low, high = mean_interval(values)
    if low >= least and high <= most:
        return True
    return False if high < least or low > most else None


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about CIFAR-10, on paired differences of the same realisations."""
    curves = tables["curves"]
    no_replay, mixed, rule = (images.table_of(curves, name) for name in images.STYLES)
    over = {name: _gain(other, rule) for name, other in
            (("no-replay", no_replay), ("interleaved", mixed))}  # fmt: skip
    largest = {name: gain[gain.mean().idxmax()] for name, gain in over.items()}
    smallest = {name: -gain[gain.mean().idxmin()] for name, gain in over.items()}
    return [
        Claim(
            "Focus-then-replay gains up to 3 % during learning.",
            "the largest gain over interleaved is from 1.5 to 6 %, 95 % interval at that step",
            [_within(largest["interleaved"], 1.5, 6.0)],
            {
                **images.numbers("largest gain over interleaved, %", largest["interleaved"]),
                "at step": over["interleaved"].mean().idxmax(),
                "after 500 steps": over["interleaved"].mean()[mixed.columns > 500].max(),
                "largest gain over no-replay, %": largest["no-replay"].mean(),
            },
            "realisation",
        ),
        Claim(
            "It loses less than 0.5 % against interleaved.",
            "where it loses most, 95 % interval",
            [images.below(smallest["interleaved"] - 0.5)],
            {
                **images.numbers("largest loss against interleaved, %", smallest["interleaved"]),
                "largest loss against no-replay, %": smallest["no-replay"].mean(),
            },
            "realisation",
        ),
        Claim(
            "Without replay the mean loss is larger in the long run.",
            "above interleaved at the end, 95 % interval of paired differences",
            [images.below(mixed.iloc[:, -1] - no_replay.iloc[:, -1])],
            images.numbers("difference", no_replay.iloc[:, -1] - mixed.iloc[:, -1]),
            "realisation",
        ),
    ]
