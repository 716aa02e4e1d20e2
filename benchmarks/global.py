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
import itertools
import json
import os
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import replan
from replan import Control, Flips, Limits, Objective, Overlaps, Problem, Protocol, Range, Relax

COUNT = 340
FLOOR = 1e-13  # losses are differences of numbers near 1: smaller gaps are rounding errors
RTOL = 1e-10
PER_STEP = 16  # parts of a step with which averages over time are integrated
SLICE = 6.0  # seconds for which `search` stays with a problem
RATES = {"erf": (0.3, 3.0), "relu": (0.1, 1.0), "linear": (0.05, 0.5)}  # those of problems

# Random problems. A category gives the arguments of `random_problem`; those of `Problem` may depend
# on what was drawn: rng, tasks, duration, steps.


def weights_of(d, low=0.2) -> list[float]:
    return d.rng.uniform(low, 1.0, d.tasks).tolist()


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


def targets_of(d) -> list[float | None]:
    return [10 ** d.rng.uniform(-3.5, -1.5), *[None] * (d.tasks - 1)]


def switches(d, most=6) -> Limits:
    return Limits(max_switches=int(d.rng.integers(1, most + 1)))


def stays(d) -> Limits:
    return Limits(min_dwell=d.duration * d.rng.uniform(0.05, 0.25))


def rate(shared=False, low=0.02, high=5.0, tasks=True, **others) -> Control:
    return Control(tasks, lr=Range(low, high, shared=shared), **others)


FEATURES_AND_HEADS = {"feature_lr": (0.0, 3.0), "head_lr": (0.0, 3.0)}
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
                           "control": lambda d: Control(**FEATURES_AND_HEADS)},
    "switches": {"limits": switches},
    "five switches": {"limits": lambda d: Limits(max_switches=5), "tasks": (2, 4)},
    "switches and rate": {"limits": switches, "hidden": (2, 3), "steps": (20, 60),
                          "control": lambda d: rate(shared=True)},
    "stays": {"limits": stays},
    "shares": {"limits": share_limits},
    "replay": {"arrivals": arrivals_of, "steps": (40, 80),
               "limits": lambda d: Limits(max_replay=d.rng.uniform(0.1, 0.5))},
    "arrivals": {"arrivals": arrivals_of, "start": "fresh"},
    "departures": {"departures": departures_of},
    "worst": {"objective": lambda d: Objective("worst", weights_of(d))},
    "seen": {"objective": lambda d: Objective("seen"), "arrivals": arrivals_of},
    "running": {"objective": lambda d: Objective(running=weights_of(d, 0.0))},
    "targets": {"objective": lambda d: Objective(targets=targets_of(d))},
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
    lr=None, members=1, risk="mean", committee=False, **arguments,
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
                _model_and_start(rng, activation, T, K, start, committee) for _ in range(members)
            )
        ]
        problem = Problem.ensemble(problems, risk=risk) if members > 1 else problems[0]
        value = replan.evaluate(problem, replan.strategies.interleaved(problem)).loss
    except (replan.ArgumentError, replan.IntegrationError):
        return None
    return problem if value > 1e-7 else None


def _model_and_start(rng, activation: str, T: int, K: int, start: str, committee: bool):
    seed, similarity = int(rng.integers(2**31)), rng.uniform(0.0, 0.9)
    settings = {"hidden": K, "activation": activation, "noise": float(rng.choice([0.0, 0.0, 0.1]))}
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
    """Return a protocol in short: the tasks as "2*13 1" (13 steps of task 2, …), free knobs."""
    short: dict = {}
    if protocol.is_discrete:
        stays = ((task + 1, len(list(steps))) for task, steps in itertools.groupby(protocol.sequence))
        short["tasks"] = " ".join(f"{t}*{n}" if n > 1 else f"{t}" for t, n in stays)
    else:
        rows = protocol.shares
        short["shares"] = (rows[:1] if np.ptp(rows, axis=0).max() == 0 else rows).tolist()
    for name in problem.control.knobs:
        values = np.vectorize(lambda x: float(f"{x:.9g}"))(protocol.knobs[name])
        short[name] = values.tolist() if np.ptp(values) > 0 else float(values.flat[0])
    return short


def protocol_of(problem: Problem, short: dict) -> Protocol:
    knobs = {name: short[name] for name in problem.control.knobs}
    if "shares" in short:
        shares = np.broadcast_to(short["shares"], (problem.steps, problem.model.tasks))
        return Protocol(shares, problem.duration, **knobs)
    stays = (stay.split("*") for stay in short["tasks"].split())
    sequence = [int(task) - 1 for task, *n in stays for _ in range(int(n[0]) if n else 1)]
    return Protocol.from_sequence(sequence, problem.model.tasks, problem.duration, **knobs)


def true_value(problem: Problem, short: dict) -> float:
    protocol = protocol_of(problem, short)
    if problem.objective.averages_count:
        protocol = protocol.refine(PER_STEP)
    for rtol in (RTOL, 1e-7, 1e-5):
        run = replan.evaluate(problem, protocol, rtol=rtol, throw=False)
        if run.status == "ok":
            return run.loss
    return np.inf


def load(path: str) -> dict:
    if Path(path).exists():
        return json.loads(Path(path).read_text(encoding="utf-8"))
    return {"problems": {}}


def write(path: str, content: dict) -> None:
    rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in content["problems"].items()]
    head = "".join(f"{json.dumps(k)}: {json.dumps(content[k])},\n" for k in content if k != "problems")
    text = f'{{\n{head}"problems": {{\n' + ",\n".join(rows) + "\n}}\n"
    Path(f"{path}.new").write_text(text, encoding="utf-8")
    os.replace(f"{path}.new", path)


# run


def run(options) -> None:
    content = load(options.out) | {"seed": options.seed, "replan": replan.__version__}
    extra = {"effort": options.effort} if options.effort else {}
    solver = Relax(tolerance=options.tolerance) if options.tolerance else None
    for name, problem in problems(options.seed, options.count, options.only):
        if name in content["problems"]:
            continue
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            plan = replan.solve(problem, solver, **extra)
        except Exception as error:  # is counted, and does not end the benchmark
            row = {"value": None, "status": f"{type(error).__name__}: {error}"}
        else:
            row = {
                "value": 0.0,
                "claimed": plan.loss,
                "status": plan.status,
                "gradients": plan.statistics["gradients"],
                "roll_outs": plan.statistics["roll_outs"],
                "seconds": round(time.perf_counter() - begin, 4),
                "cpu": round(time.process_time() - cpu, 4),
                "certificate": json.loads(json.dumps(dataclasses.asdict(plan.certificate), default=str)),
                "protocol": recorded(problem, plan.protocol),
            }
            row["value"] = true_value(problem, row["protocol"])
        content["problems"][name] = row
        write(options.out, content)
        print(name, row["value"], row["status"], row.get("gradients"), row.get("cpu"), flush=True)


# search


def random_protocol(problem: Problem, rng) -> Protocol:
    """Return a protocol of a few stays, or mixtures, with other knobs in each."""
    steps, T = problem.steps, problem.model.tasks
    pieces = int(rng.integers(1, min(8, steps) + 1))
    piece = np.searchsorted(np.sort(rng.choice(steps, pieces - 1, replace=False)), np.arange(steps), side="right")
    rows = np.eye(T)[rng.integers(T, size=pieces)]
    if rng.random() < 0.5:
        rows = rng.dirichlet(np.full(T, 0.5), pieces)
    return _completed(problem, rows[piece], {
        name: _within(free, free.low + (free.high - free.low) * rng.random(pieces)[piece] ** rng.choice([1, 3]))
        for name, free in problem.control.knobs.items()
    })


def perturbed(problem: Problem, protocol: Protocol, rng) -> Protocol:
    """Return a protocol with some stays shifted, replaced or mixed, and other knobs."""
    steps, shares = problem.steps, protocol.shares.copy()
    for _ in range(int(rng.integers(0, 4))):
        first, last = np.sort(rng.integers(0, steps + 1, 2))
        last = min(last, first + max(1, steps // 4))
        kind = rng.integers(3)
        if kind == 0:
            shares[first:last] = np.eye(problem.model.tasks)[rng.integers(problem.model.tasks)]
        elif kind == 1:
            shares[first:] = np.roll(shares[first:], int(rng.integers(-3, 4)), axis=0)
        else:
            shares[first:last] = shares[first:last].mean(axis=0) if last > first else 0
    middles, at = np.linspace(0, 1, 5), np.linspace(0, 1, steps)
    size = rng.choice([0.0, 0.1, 0.7])
    factors = {name: np.exp(np.interp(at, middles, size * rng.standard_normal(5))) for name in problem.control.knobs}
    return _completed(problem, shares, {
        name: _within(free, (protocol.knobs[name].T * factors[name]).T)
        for name, free in problem.control.knobs.items()
    })


def _within(free: Range, values):
    return np.clip(np.full_like(values, values.mean()) if free.constant else values, free.low, free.high)


def _completed(problem: Problem, shares, knobs: dict) -> Protocol:
    if not problem.control.tasks or problem.model.tasks == 1:
        shares = np.full_like(shares, 1 / problem.model.tasks)
    elif problem.control.tasks == "constant":
        shares = np.tile(shares.mean(axis=0), (problem.steps, 1))
    shares = problem.availability.renormalise(shares, problem.edges)
    return Protocol(shares / shares.sum(axis=1, keepdims=True), problem.duration, **knobs)


def attempt(problem: Problem, best: dict | None, number: int):
    """Return what a search finds, the n-th of many, and its name; None where there is none."""
    rng = np.random.default_rng(number)
    only_tasks = problem.control.tasks is True and problem.model.tasks > 1 and not problem.control.knobs
    kinds = ["starts", "perturbed", "random", "perturbed"] + ["flips", "flips of perturbed"] * only_tasks
    kind = kinds[number % len(kinds)]
    if number == 0 and only_tasks and problem.model.tasks**problem.steps <= 2**14:
        kind, solver, initial = "exhaustive", replan.Exhaustive(), None
    elif kind == "starts":
        solver, initial = Relax(seed=number, starts=8, tolerance=1e-6 if number else 1e-4), None
    else:
        solver = (Flips if "flips" in kind else Relax)(starts=0, tolerance=1e-7 if "flips" in kind else 1e-6)
        initial = [random_protocol(problem, rng) for _ in range(3)]
        if "perturbed" in kind and best:
            initial = perturbed(problem, protocol_of(problem, best["protocol"]), rng)
    try:
        return kind, replan.solve(problem, solver, initial=initial, max_gradients=3000)
    except (replan.ArgumentError, replan.IntegrationError) as error:
        print("!", kind, error)
        return kind, None


def search(options) -> None:
    content, end = load(options.out) | {"seed": options.seed}, time.time() + options.budget
    known, cases = content["problems"], list(problems(options.seed, options.count, options.only))
    while time.time() < end:
        for path in options.files:
            merge(known, load(path)["problems"], path)
        for name, problem in sorted(cases, key=lambda case: known.get(case[0], {}).get("tries", 0)):
            slice_end = time.time() + SLICE
            row = known.setdefault(name, {"value": np.inf})
            before = row["value"]
            while time.time() < min(slice_end, end):
                kind, plan = attempt(problem, row if "protocol" in row else None, row.get("tries", 0))
                row["tries"] = row.get("tries", 0) + 1
                if plan is not None:
                    short = recorded(problem, plan.protocol)
                    value = true_value(problem, short)
                    if value < row["value"]:
                        row |= {"value": value, "by": f"{kind}, try {row['tries']}", "protocol": short}
                if kind == "exhaustive":
                    break
            write(options.out, content)
            print(f"{name}: {before:.6g} → {row['value']:.6g} {row.get('by')}", flush=True)
            if time.time() > end:
                break


def merge(known: dict, rows: dict, source: str) -> None:
    """Take over better protocols."""
    for name, row in rows.items():
        best = known.setdefault(name, {"value": np.inf})
        if row["value"] is not None and row["value"] < best["value"]:
            best |= {"value": row["value"], "by": row.get("by", Path(source).stem), "protocol": row["protocol"]}


# table


def gap(row: dict, best: dict) -> float:
    """Return how far a value lies above the best known, relatively."""
    if row["value"] is None:
        return np.inf
    return max(row["value"] - best["value"] - FLOOR, 0.0) / abs(best["value"])


def table(options) -> None:
    known: dict = {}
    files = {path: load(path)["problems"] for path in options.files}
    for path, rows in files.items():
        merge(known, rows, path)
    runs = {Path(path).stem: rows for path, rows in files.items() if any("status" in r for r in rows.values())}
    print("| | n | run | ≤ 0.1 % | ≤ 0.5 % | ≤ 1 % | converged, beaten by > 1 % | failed | gradients, median | s, median | s, total |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for category in ["all", *CATEGORIES]:
        for run_name, rows in runs.items():
            mine = {n: r for n, r in rows.items() if category in ("all", n.rsplit(" ", 1)[0])}
            if not mine:
                continue
            gaps = np.array([gap(row, known[name]) for name, row in mine.items()])
            converged = np.array([row["status"] == "converged" for row in mine.values()])
            solved = [row for row in mine.values() if row["value"] is not None]
            shares = [f"{100 * np.mean(gaps <= limit):.1f} %" for limit in (1e-3, 5e-3, 1e-2)]
            cpu = [row["cpu"] for row in solved]
            cells = [
                category, len(mine), run_name, *shares, int(np.sum(converged & (gaps > 0.01))), len(mine) - len(solved),
                f"{np.median([row['gradients'] for row in solved]):.0f}", f"{np.median(cpu):.2f}", f"{sum(cpu):.0f}",
            ]
            print("| " + " | ".join(map(str, cells)) + " |")
    for run_name, rows in runs.items():
        print(f"\nFarthest from the best known, {run_name}:\n")
        ranked = sorted(rows, key=lambda name: -gap(rows[name], known[name]))[: options.worst]
        for name in ranked:
            row, best = rows[name], known[name]
            print(f"- {name}: {100 * gap(row, best):.3g} % above {best['value']:.6g} ({best['by']}), {row['status']}")


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
    options = parser.parse_args()
    {"run": run, "search": search, "table": table}[options.command](options)


if __name__ == "__main__":
    main()
