"""How often `solve` finds the best known plan: random problems, long searches, shares within 1 %.

    python benchmarks/global.py run --out run.json [--effort high] [--only CATEGORY]
    python benchmarks/global.py search --out best.json --budget SECONDS [run.json …]
    python benchmarks/global.py table best.json before.json after.json

`run` solves every problem once, `search` many times from other starts with tighter tolerances, and
keeps the best protocols; both continue a file that exists. `table` compares the runs with the best
protocol of all files. Values are those of the recorded protocols, integrated to 1e-10 on steps fine
enough for averages over time, whatever a plan says of itself.
"""

import argparse
import dataclasses
import json
import os
import time
import zlib
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import replan
from replan import Control, Flips, Limits, Objective, Overlaps, Problem, Protocol, Range, Relax
from replan.problem.discrete import allows

COUNT = 340
FLOOR = 1e-13  # losses are differences of numbers near 1: smaller gaps are rounding errors
RTOLS = (1e-10, 1e-7, 1e-5)  # of values, the first that can be reached
PER_STEP = 16  # parts of a step with which averages over time are integrated
SLICE = 2.0  # seconds of the processor for which `search` stays with a problem
LONGEST = 30.0  # seconds of one of its searches
RATES = {"erf": (0.3, 3.0), "relu": (0.1, 1.0), "linear": (0.05, 0.5)}  # those of problems

# Random problems. A category gives the arguments of `random_problem`; those of `Problem` may depend
# on what was drawn: rng, tasks, duration, steps.


def arrivals_of(d) -> list[float]:
    """Task 1 from the start, the others one after another, the last before two thirds."""
    at = np.sort(d.rng.choice(np.arange(1, 2 * d.steps // 3), d.tasks - 1, replace=False))
    return [0.0, *(at * d.duration / d.steps).tolist()]


def departures_of(d) -> list[float]:
    """Task 1 leaves in the second half."""
    at = int(d.rng.integers(d.steps // 2, d.steps))
    return [at * d.duration / d.steps, *[np.inf] * (d.tasks - 1)]


def share_limits(d) -> Limits:
    most = np.ones(d.tasks)
    most[d.rng.integers(d.tasks)] = d.rng.uniform(0.15, 0.4)
    return Limits(min_share=np.full(d.tasks, d.rng.uniform(0.0, 0.15)), max_share=most)


def switches(d) -> Limits:
    return Limits(max_switches=int(d.rng.integers(1, 7)))


def rate(shared=False, high=5.0, tasks=True) -> Control:
    return Control(tasks, lr=Range(0.02, high, shared=shared))


CATEGORIES: dict[str, dict] = {
    "erf, fresh": {"start": "fresh", "duration": (10, 60)},
    "erf, pretrained": {"start": "pretrained"},
    "ReLU, fresh": {"activation": "relu", "start": "fresh", "hidden": (2, 3)},
    "ReLU, pretrained": {"activation": "relu", "start": "pretrained", "hidden": (2, 3)},
    "ReLU, dead unit": {"activation": "relu", "start": "dead", "hidden": (2, 3)},
    "linear": {"activation": "linear", "hidden": (1, 4)},
    "committee": {"committee": True, "tasks": (2, 2)},
    "one task": {"tasks": (1, 1), "hidden": (1, 4), "start": "fresh", "duration": (10, 60),
                 "control": lambda d: rate()},
    "five or six hidden units": {"hidden": (5, 6), "steps": (20, 50)},
    "four or five tasks": {"tasks": (4, 5), "steps": (20, 50)},
    "one to twelve steps": {"steps": (1, 12)},
    "1,000 steps": {"steps": (1000, 1000), "tasks": (2, 2), "hidden": (2, 2)},
    "constant shares": {"control": lambda d: Control("constant")},
    "rate shared": {"control": lambda d: rate(shared=True)},
    "rate per task": {"control": lambda d: rate()},
    "rate to 12": {"tasks": (3, 3), "hidden": (4, 4), "duration": (4, 10), "steps": (10, 25),
                   "control": lambda d: rate(high=12.0)},
    "rate alone": {"control": lambda d: rate(tasks=False), "tasks": (1, 3)},
    "heads": {"control": lambda d: Control(head_lr=(0.0, 5.0))},
    "features and heads": {"duration": (60, 60), "steps": (20, 20), "tasks": (1, 3), "lr": (1, 1),
                           "hidden": (2, 3), "noise": 0.0,
                           "control": lambda d: Control(feature_lr=(0.0, 3.0), head_lr=(0.0, 3.0))},
    "switches": {"limits": switches},
    "five switches": {"limits": lambda d: Limits(max_switches=5), "tasks": (2, 4)},
    "switches and rate": {"limits": switches, "hidden": (2, 3), "steps": (20, 60),
                          "control": lambda d: rate(shared=True)},
    "stays": {"limits": lambda d: Limits(min_dwell=d.duration * d.rng.uniform(0.05, 0.25))},
    "shares": {"limits": share_limits},
    "replay": {"arrivals": arrivals_of, "steps": (40, 80),
               "limits": lambda d: Limits(max_replay=d.rng.uniform(0.1, 0.5))},
    "arrivals": {"arrivals": arrivals_of, "start": "fresh"},
    "departures": {"departures": departures_of},
    "worst": {"objective": lambda d: Objective("worst", d.rng.uniform(0.2, 1, d.tasks))},
    "seen": {"objective": lambda d: Objective("seen"), "arrivals": arrivals_of},
    "running": {"objective": lambda d: Objective(running=d.rng.random(d.tasks))},
    "targets": {"objective": lambda d: Objective(
        targets=[10 ** d.rng.uniform(-3.5, -1.5), *[None] * (d.tasks - 1)])},
    "ensemble, mean": {"members": 3, "steps": (20, 40), "hidden": (2, 3)},
    "ensemble, worst": {"members": 4, "steps": (20, 40), "hidden": (2, 3), "risk": "worst"},
    "ensemble, CVaR": {"members": 5, "steps": (20, 40), "hidden": (2, 3), "risk": 0.4},
}  # fmt: skip


def problems(seed: int = 0, count: int = COUNT, only: str = ""):
    """Yield names and problems, the categories in turn; each depends on its name and the seed."""
    for i in range(count):
        category = list(CATEGORIES)[i % len(CATEGORIES)]
        number = i // len(CATEGORIES) + 1
        if only and only != category:
            continue
        rng = np.random.default_rng([seed, zlib.crc32(category.encode()), number])
        problem = None
        while problem is None:  # limits that cannot be kept, or too large a learning rate
            problem = random_problem(rng, **CATEGORIES[category])
        yield f"{category} {number}", problem


def random_problem(
    rng, activation="erf", tasks=(2, 3), hidden=(2, 4), start="", duration=(5, 40), steps=(20, 100),
    lr=None, noise=None, members=1, risk="mean", committee=False, **arguments,
) -> Problem | None:  # fmt: skip
    """Return a problem, None where it makes no sense."""
    T, K, steps = (int(rng.integers(low, high + 1)) for low, high in (tasks, hidden, steps))
    duration = float(np.round(rng.uniform(*duration), 1))
    low, high = lr or RATES[activation]
    d = SimpleNamespace(rng=rng, tasks=T, duration=duration, steps=steps)
    lr = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    try:
        given = {name: make(d) for name, make in arguments.items()}
        problems = [
            Problem(model, begin, duration, steps=steps, lr=lr, **given)
            for model, begin in (
                _model_and_start(rng, activation, T, K, start, noise, committee)
                for _ in range(members)
            )
        ]
        problem = Problem.ensemble(problems, risk=risk) if members > 1 else problems[0]
        value = replan.evaluate(problem, replan.strategies.interleaved(problem)).loss
    except (replan.ArgumentError, replan.IntegrationError):
        return None
    return problem if value > 1e-7 else None


def _model_and_start(rng, activation: str, T: int, K: int, start: str, noise, committee: bool):
    seed, similarity = int(rng.integers(2**31)), rng.uniform(0.0, 0.9)
    noise = float(rng.choice([0.0, 0.0, 0.1]) if noise is None else noise)
    settings = {"hidden": K, "activation": activation, "noise": noise}
    model = replan.TeacherStudent.stream(T, similarity, teachers="random", seed=seed, **settings)
    if committee:
        mixed = replan.TeacherStudent.stream(2 * T, similarity, teachers="random", seed=seed)
        heads = rng.standard_normal((T, 2 * T)) / np.sqrt(2)
        model = replan.TeacherStudent(mixed.teacher_overlaps, teacher_heads=heads, **settings)
    elif rng.random() < 0.5:
        model = replan.TeacherStudent.similar(similarity, T, **settings)
    kind = start or str(rng.choice(["fresh", "pretrained"]))
    variance = 10 ** rng.uniform(-3, -1)
    begin = model.fresh(seed, weight_variance=variance, head_variance=10 ** rng.uniform(-2, -1))
    if kind == "pretrained" or (kind == "dead" and rng.random() < 0.5):
        lr = RATES[activation][1] / (3 if activation == "erf" else 2)
        begin = model.pretrain(0, rng.uniform(20.0, 200.0), lr=lr, start=begin, rtol=1e-7)
    return model, _dead(model, begin, rng) if kind == "dead" else begin


def _dead(model, begin: Overlaps, rng) -> Overlaps:
    """Return overlaps whose first unit has no weights, no heads, or is opposite to teacher 1."""
    Q, M, V = begin.Q.copy(), begin.M.copy(), begin.V.copy()
    kind = rng.integers(3)
    if kind == 0:
        Q[0], Q[:, 0], M[0] = 0.0, 0.0, 0.0
    elif kind == 1:
        V[:, 0] = 0.0
    else:
        length = rng.uniform(0.1, 1.0)
        Q[0] = Q[:, 0] = -length * M[:, 0]
        Q[0, 0], M[0] = length**2, -length * model.teacher_overlaps[0]
    return Overlaps(Q, M, V)


# Protocols as they are recorded


def recorded(problem: Problem, protocol: Protocol) -> dict:
    """Return a protocol in short: tasks as "2*13 1" (13 steps of task 2, …), and free knobs."""
    short: dict = {"shares": protocol.shares[0].tolist()}  # mixtures are constant
    if protocol.is_discrete:
        stays = [(task + 1, len(list(group))) for task, group in groupby(protocol.sequence)]
        short = {"tasks": " ".join(f"{task}*{n}" if n > 1 else f"{task}" for task, n in stays)}
    for name in problem.control.knobs:
        values = np.vectorize(lambda x: float(f"{x:.9g}"))(protocol.knobs[name])
        short[name] = values.tolist() if np.ptp(values) > 0 else float(values.flat[0])
    return short


def protocol_of(problem: Problem, short: dict) -> Protocol:
    knobs = {name: short[name] for name in problem.control.knobs}
    if "shares" in short:
        return Protocol(np.tile(short["shares"], (problem.steps, 1)), problem.duration, **knobs)
    stays = [stay.split("*") for stay in short["tasks"].split()]
    sequence = [int(task) - 1 for task, *n in stays for _ in range(int(n[0]) if n else 1)]
    return Protocol.from_sequence(sequence, problem.model.tasks, problem.duration, **knobs)


def true_value(problem: Problem, short: dict) -> float:
    """Return the objective of a recorded protocol, infinity where it breaks a limit."""
    protocol = protocol_of(problem, short)
    for name, free in problem.control.knobs.items():
        if not np.all((protocol.knobs[name] >= free.low) & (protocol.knobs[name] <= free.high)):
            return np.inf
    if problem.control.tasks is True and not allows(problem.step_limits, protocol.sequence):
        return np.inf
    if problem.objective.averages_count:
        protocol = protocol.refine(PER_STEP)
    runs = (replan.evaluate(problem, protocol, rtol=rtol, throw=False) for rtol in RTOLS)
    return next((run.loss for run in runs if run.status == "ok"), np.inf)


def load(path: str) -> dict[str, dict]:
    known = Path(path).exists()
    return json.loads(Path(path).read_text(encoding="utf-8"))["problems"] if known else {}


def write(path: str, rows: dict[str, dict]) -> None:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    Path(f"{path}.new").write_text(f'{{"problems": {{\n{lines}\n}}}}\n', encoding="utf-8")
    os.replace(f"{path}.new", path)


def merge(best: dict[str, dict], rows: dict[str, dict], source: str) -> None:
    """Take over better protocols."""
    for name, row in rows.items():
        known = best.setdefault(name, {"value": np.inf, "tries": 0})
        if row["value"] is not None and row["value"] < known["value"]:
            known |= {"value": row["value"], "by": row.get("by", source)}
            known["protocol"] = row["protocol"]


# run


def run(options) -> None:
    rows = load(options.out)
    extra = {"effort": options.effort} if options.effort else {}
    solver = Relax(tolerance=options.tolerance) if options.tolerance else None
    for name, problem in problems(options.seed, options.count, options.only):
        if name in rows:
            continue
        begin = time.process_time()
        try:
            plan = replan.solve(problem, solver, **extra)
        except Exception as error:  # counted; the benchmark continues
            rows[name] = {"value": None, "status": f"{type(error).__name__}: {error}"}
        else:
            cpu, short = time.process_time() - begin, recorded(problem, plan.protocol)
            rows[name] = {"value": true_value(problem, short), "status": plan.status, "cpu": cpu}
            rows[name] |= {
                key: plan.statistics[key] for key in ("gradients", "roll_outs", "seconds")
            }
            rows[name] |= {"certificate": dataclasses.asdict(plan.certificate), "protocol": short}
        write(options.out, rows)
        print(name, *(rows[name].get(key) for key in ("value", "status", "cpu")), flush=True)


# search


def varied(problem: Problem, rng, best: Protocol | None) -> Protocol:
    """Return a random protocol of a few stays or mixtures, or the best one with some changed."""
    steps, T = problem.steps, problem.model.tasks
    cuts = rng.choice(np.arange(1, steps), min(int(rng.integers(8)), steps - 1), replace=False)
    pieces, piece = cuts.size + 1, np.searchsorted(np.sort(cuts), np.arange(steps), side="right")
    stays, mixtures = np.eye(T)[rng.integers(T, size=pieces)], rng.dirichlet(np.ones(T), pieces)
    shares = (stays if rng.random() < 0.5 else mixtures)[piece]
    if best is not None:
        kept = (rng.random(pieces) < 0.7)[piece]
        shares[kept] = np.roll(best.shares, int(rng.integers(-2, 3)), axis=0)[kept]
    if problem.control.tasks is not True:
        row = shares.mean(axis=0) if problem.control.tasks else np.full(T, 1 / T)
        shares = np.tile(row, (steps, 1))
    shares = problem.availability.renormalise(shares, problem.edges)
    knobs = {}
    for name, free in problem.control.knobs.items():
        values = free.low + (free.high - free.low) * rng.random(pieces)[piece] ** rng.choice([1, 3])
        if best is not None:
            size = rng.choice([0.0, 0.1, 0.7])
            values = (best.knobs[name].T * np.exp(size * rng.standard_normal(pieces))[piece]).T
        knobs[name] = np.clip(values, free.low, free.high)
    return Protocol(shares / shares.sum(axis=1, keepdims=True), problem.duration, **knobs)


def attempt(problem: Problem, known: dict, number: int) -> tuple[str, replan.Plan]:
    """Search for the n-th time; return the kind of search and what it found."""
    rng, end = np.random.default_rng(number), time.process_time() + LONGEST
    only_tasks = problem.control == Control() and problem.model.tasks > 1
    kinds = ["starts", "near", "random", "near", *["flips", "flips near"] * only_tasks]
    kind, initial = kinds[number % len(kinds)], None
    solver = Flips(0, tolerance=1e-7) if "flips" in kind else Relax(0, tolerance=1e-6)
    if number == 0 and only_tasks and problem.model.tasks**problem.steps <= 2**14:
        kind, solver = "exhaustive", replan.Exhaustive()
    elif kind == "starts":
        solver = Relax(8, seed=number, tolerance=1e-6 if number else 1e-4)
    else:
        near = "near" in kind and "protocol" in known
        best = protocol_of(problem, known["protocol"]) if near else None
        initial = [varied(problem, rng, best) for _ in range(1 if near else 3)]

    def watch(_) -> None:
        if time.process_time() > end:
            raise KeyboardInterrupt  # ends the search with its best plan

    return kind, replan.solve(problem, solver, initial=initial, progress=watch)


def search(options) -> None:
    best, end = load(options.out), time.time() + options.budget
    while True:
        for path in options.files:
            merge(best, load(path), Path(path).stem)
        for name, problem in problems(options.seed, options.count, options.only):
            known = best.setdefault(name, {"value": np.inf, "tries": 0})
            before, until = known["value"], time.process_time() + SLICE
            while time.process_time() < until and time.time() < end:
                known["tries"] += 1
                try:
                    kind, plan = attempt(problem, known, known["tries"] - 1)
                except replan.IntegrationError:  # all of its starts diverge
                    continue
                short = recorded(problem, plan.protocol)
                by = f"{kind}, try {known['tries']}"
                merge(best, {name: {"value": true_value(problem, short), "protocol": short}}, by)
                if kind == "exhaustive":
                    break
            print(f"{name}: {before:.9g} → {known['value']:.9g} {known.get('by')}", flush=True)
            write(options.out, best)
            if time.time() > end:
                return


# table


def gap(row: dict, best: dict) -> float:
    """Return how far a value lies above the best known, relative to it."""
    if row["value"] is None:
        return np.inf
    return max(row["value"] - best["value"] - FLOOR, 0.0) / abs(best["value"])


def summary(category: str, source: str, rows: dict[str, dict], best: dict[str, dict]) -> dict:
    """Return a row of the table."""
    gaps = np.array([gap(row, best[name]) for name, row in rows.items()])
    converged = np.array([row["status"] == "converged" for row in rows.values()])
    solved = [row for row in rows.values() if row["value"] is not None]
    return {
        "problems": category,
        "": len(rows),
        "run": source,
        **{f"≤ {100 * x:g} %": f"{100 * np.mean(gaps <= x):.1f} %" for x in (1e-3, 5e-3, 1e-2)},
        "falsely converged": int(np.sum(converged & (gaps > 0.01))),
        "failed": len(rows) - len(solved),
        "gradients": f"{np.median([row['gradients'] for row in solved]):.0f}",
        "s": f"{np.median([row['cpu'] for row in solved]):.2f}",
        "s in all": f"{sum(row['cpu'] for row in solved):.0f}",
    }


def table(options) -> None:
    best: dict[str, dict] = {}
    files = {Path(path).stem: load(path) for path in options.files}
    for source, rows in files.items():
        merge(best, rows, source)
    runs = {source: rows for source, rows in files.items() if "status" in next(iter(rows.values()))}
    lines = [
        summary(category, source, chosen, best)
        for category in ["all", *CATEGORIES]
        for source, rows in runs.items()
        if (chosen := {n: r for n, r in rows.items() if category in ("all", n.rsplit(" ", 1)[0])})
    ]
    print(f"| {' | '.join(lines[0])} |\n|{'---|' * len(lines[0])}")
    print("\n".join(f"| {' | '.join(map(str, line.values()))} |" for line in lines))
    for source, rows in runs.items():
        print(f"\n{source}, farthest from the best known:\n")
        for name in sorted(rows, key=lambda name: -gap(rows[name], best[name]))[: options.worst]:
            above = f"{100 * gap(rows[name], best[name]):.3g} % above {best[name]['value']:.6g}"
            print(f"- {name}: {above} ({best[name]['by']}), {rows[name]['status']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["run", "search", "table"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--effort")
    parser.add_argument("--tolerance", type=float)
    parser.add_argument("--only", default="", help="one category")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of `search`")
    parser.add_argument("--worst", type=int, default=20, help="how many problems `table` lists")
    options = parser.parse_intermixed_args()
    {"run": run, "search": search, "table": table}[options.command](options)


if __name__ == "__main__":
    main()
