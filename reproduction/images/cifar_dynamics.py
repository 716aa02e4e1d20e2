"""Figs. 11 and 12: CIFAR-10 by parity of the labels, three strategies and their differences."""

from typing import Any

from reproduction.base import Claim, Run, Tables, below, mean_interval, paired
from reproduction.drawing import draw_interval, figure, legend_above
from reproduction.images import strategies
from reproduction.images.fashion_dynamics import look_times, worse_in_the_long_run
from reproduction.images.strategies import PARITY, STYLES, TRAINING, table_of

FULL = {"seeds": 100, "steps": 10_000, **PARITY, **TRAINING}
QUICK = FULL | {"seeds": 6, "steps": 3000, "first": 3000, "test_samples": 200}


def compute(run: Run, *, seeds: int, steps: int, **settings: Any) -> Tables:
    """Return the table `curves`."""
    tasks = {name: settings[name] for name in PARITY}
    looks = look_times(settings["first"], steps)
    return {"curves": strategies.learn(run, "cifar10", [{}], looks, seeds, tasks, settings)}


def draw(tables: Tables) -> Any:
    """Draw the losses of each strategy, their mean losses with the end enlarged, and the gains."""
    curves, picture = tables["curves"], figure(7.2, 4.8)
    axes = picture.subplot_mosaic("aabbcc;dddeee")
    panels = [axes[name] for name in "abc"]
    strategies.draw_strategies(panels, curves)
    panels[0].set_ylabel("test loss")
    strategies.draw_comparison(axes["d"], curves)
    axes["d"].set(xscale="log", xlabel="step after the change", ylabel="mean loss")
    legend_above(picture, panels[0], axes["d"], ncols=6)
    inset = axes["d"].inset_axes((0.56, 0.5, 0.42, 0.46))
    strategies.draw_comparison(inset, curves[curves["step"] >= 0.7 * curves["step"].max()])
    inset.tick_params(labelsize=7)
    rule = table_of(curves, "focus-then-replay")
    for name in ("no-replay", "interleaved"):
        gain = _gain(table_of(curves, name), rule)
        draw_interval(axes["e"], gain, **STYLES[name], label=f"over {name}")
    axes["e"].axhline(0, color="0.5", linewidth=0.8)
    axes["e"].set(
        xscale="log", xlabel="step after the change", ylabel="gain of focus-then-replay, %"
    )
    axes["e"].legend(fontsize=8)
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about CIFAR-10, on paired differences of the same realisations."""
    curves = tables["curves"]
    no_replay, mixed, rule = (table_of(curves, name) for name in STYLES)
    over = {"no-replay": _gain(no_replay, rule), "interleaved": _gain(mixed, rule)}
    largest = {name: gain[gain.mean().idxmax()] for name, gain in over.items()}
    smallest = {name: -gain[gain.mean().idxmin()] for name, gain in over.items()}
    return [
        Claim(
            "Focus-then-replay gains up to 3 % during learning.",
            "the largest gain over interleaved is from 1.5 to 6 %, 95 % interval at that step",
            [_within(largest["interleaved"], 1.5, 6.0)],
            {
                **paired(largest["interleaved"], "largest gain over interleaved, %"),
                "at step": over["interleaved"].mean().idxmax(),
                "after 500 steps": over["interleaved"].mean()[mixed.columns > 500].max(),
                "largest gain over no-replay, %": largest["no-replay"].mean(),
            },
            "realisation",
        ),
        Claim(
            "It loses less than 0.5 % against interleaved.",
            "where it loses most, 95 % interval",
            [below(smallest["interleaved"] - 0.5)],
            {
                **paired(smallest["interleaved"], "largest loss against interleaved, %"),
                "largest loss against no-replay, %": smallest["no-replay"].mean(),
            },
            "realisation",
        ),
        worse_in_the_long_run(no_replay, mixed, "at the end"),
    ]


def _gain(other: Any, rule: Any) -> Any:
    """Return by how much the rule's loss lies below another's, in percent of the other's."""
    return 100 * (other - rule) / other.mean()


def _within(values: Any, least: float, most: float) -> bool | None:
    """Return whether a mean lies between bounds; None where its interval leaves it open."""
    _, low, high = mean_interval(values)
    if low >= least and high <= most:
        return True
    return False if high < least or low > most else None
