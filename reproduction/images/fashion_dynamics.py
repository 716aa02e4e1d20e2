"""Fig. 6: two mixed tasks of Fashion-MNIST, three strategies, and their mean losses compared."""

from typing import Any

from reproduction.base import Claim, Run, Tables, below, paired
from reproduction.drawing import figure, legend_above, plain_ticks
from reproduction.images import strategies
from reproduction.images.strategies import MIXED, STYLES, TRAINING, table_of

FULL = {"seeds": 100, "steps": 10_000, "similarity": 0.5, **MIXED, **TRAINING}
QUICK = FULL | {"seeds": 10, "steps": 4000, "first": 4000, "test_samples": 300}


def compute(run: Run, *, seeds: int, steps: int, similarity: float, **settings: Any) -> Tables:
    """Return the table `curves`."""
    tasks = {name: settings[name] for name in MIXED}
    looks = look_times(settings["first"], steps)
    points = [{"similarity": similarity}]
    return {"curves": strategies.learn(run, "fashion-mnist", points, looks, seeds, tasks, settings)}


def look_times(first: int, steps: int) -> list[int]:
    """Return when to test: at every twentieth of the first phase, more often after the change."""
    early = range(0, min(1000, steps), max(1, min(50, steps // 20)))
    return sorted({*range(-first, 0, max(1, first // 20)), *early, *range(0, steps, 250), steps})


def draw(tables: Tables) -> Any:
    """Draw the losses of each strategy, and the mean losses of all."""
    curves, picture = tables["curves"], figure(7.2, 2.7)
    axes = picture.subplots(1, 4, width_ratios=[1, 1, 1, 1.3])
    strategies.draw_strategies(axes[:3], curves)
    axes[0].set_ylabel("test loss")
    strategies.draw_comparison(axes[3], curves)
    axes[3].set(xscale="log", yscale="log", xlabel="step after the change", ylabel="mean loss")
    plain_ticks(axes[3])
    legend_above(picture, axes[0], axes[3], ncols=6)
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 6, on paired differences of the same realisations."""
    curves = tables["curves"]
    no_replay, mixed, rule = (table_of(curves, name) for name in STYLES)
    steps = no_replay.columns
    early, end = steps[steps <= 500].max(), steps[-1]
    switch = curves.drop_duplicates("seed")["switch"]
    switch = switch[switch >= 0]
    judged = [
        Claim(
            "Without replay the mean loss is smaller at first.",
            f"below interleaved after {early} steps, 95 % interval of paired differences",
            [below(no_replay[early] - mixed[early])],
            paired(no_replay[early] - mixed[early]),
            "realisation",
        ),
        worse_in_the_long_run(no_replay, mixed, f"after {end} steps"),
    ]
    for name, other in (("no-replay", no_replay), ("interleaved", mixed)):
        difference = _average(rule) - _average(other)
        at_end = {"difference at the end": (rule[end] - other[end]).mean()}
        judged.append(
            Claim(
                f"Focus-then-replay beats {name} over the entire trajectory.",
                "its loss averaged over all steps on task 2 is lower, 95 % interval",
                [below(difference)],
                paired(difference) | at_end | {"step of the switch": switch},
                "realisation",
            )
        )
    return judged


def worse_in_the_long_run(no_replay: Any, mixed: Any, when: str) -> Claim:
    """Return the claim that no replay ends above interleaved."""
    difference = no_replay.iloc[:, -1] - mixed.iloc[:, -1]
    return Claim(
        "Without replay the mean loss is larger in the long run.",
        f"above interleaved {when}, 95 % interval of paired differences",
        [below(-difference)],
        paired(difference),
        "realisation",
    )


def _average(table: Any) -> Any:
    """Return each realisation's loss averaged over the steps, by the trapezoidal rule."""
    steps = table.columns.to_numpy(dtype=float)
    heights = (table.iloc[:, 1:].to_numpy() + table.iloc[:, :-1].to_numpy()) / 2
    return heights @ (steps[1:] - steps[:-1]) / (steps[-1] - steps[0])
