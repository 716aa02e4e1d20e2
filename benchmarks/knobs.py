"""The kinds of the follow-up (curriculum, dropout, denoising) against CasADi, and cold starts.

    python benchmarks/knobs.py           prints the tables, writes benchmarks/results/knobs.*
    python benchmarks/knobs.py start     makes one table again (solve or start)

The problems are those that `replan new --kind` writes. CasADi solves them on the same grid with RK4
and IPOPT, twice (see casadi_peer.py): written as in its examples, with `Opti`, and at its best, one
compact function mapped over the steps. Its values are those of `evaluate` for the controls that it
found. Needs CasADi (extra `bench`); takes some minutes.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import casadi as ca
import numpy as np

import casadi_peer
import replan
from casadi_peer import i2, tilt
from common import save

REPEATS = 3
KINDS = ("curriculum", "dropout", "denoising")


def problem_of(kind: str, folder: Path) -> replan.Problem:
    path = folder / f"{kind}.toml"
    program = "from replan.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, "new", "--kind", kind, str(path)], check=True,
                   capture_output=True)  # fmt: skip
    return replan.Problem.load(path)


# The follow-up's equations in CasADi


def curriculum(problem: replan.Problem, shoot):
    T, levels, lr = problem.model.teacher, problem.model.difficulties, problem.knobs["lr"]

    def rate_on(x, level):
        q1, q2, m = x[0], x[1], x[2]
        s = q1 + level * q2
        D = (2 + s) * T - m**2
        A = 2 * lr**2 / (ca.pi**2 * ca.sqrt(1 + s)) * (
            ca.pi / 2 + ca.asin(s / (2 + 3 * s))
            - 2 * ca.asin(m / ca.sqrt((2 + 3 * s) * ((1 + s) * T - m**2)))
        )  # fmt: skip
        pace = 4 * lr / (ca.pi * (2 + s))
        return ca.vertcat(
            pace * (-q1 / ca.sqrt(1 + s) + m * (2 + level * q2) / ca.sqrt(D)) + A,
            -pace * level * q2 * (1 / ca.sqrt(1 + s) + m / ca.sqrt(D)) + level * A,
            pace / 2 * (-m / ca.sqrt(1 + s) + ca.sqrt(D)),
        )

    def rate(x, u):
        return (1 - u) * rate_on(x, levels[0]) + u * rate_on(x, levels[1])

    def error(x, _):
        return 0.5 * sum(ca.acos(x[2] / ca.sqrt((x[0] + d * x[1]) * T)) / ca.pi for d in levels)

    hard, _, stats = shoot(
        rate, error, problem.state, [(0.0, 1.0, 0.5)], problem.steps,
        problem.duration / problem.steps, mean=0.5,
    )  # fmt: skip
    shares = np.hstack([1 - hard, hard])
    return replan.Protocol(shares, problem.duration, lr=lr), stats


def dropout(problem: replan.Problem, shoot):
    lr, noise = problem.knobs["lr"], problem.model.noise
    w = [1.0, 1.0, -1.0]  # two students, one teacher

    def covariance(x):
        return ca.vertcat(
            ca.horzcat(x[0], x[1], x[4]), ca.horzcat(x[2], x[3], x[5]), ca.horzcat(x[4], x[5], 1.0)
        )

    def power(keep, *units):
        return keep ** len({unit for unit in units if unit < 2})

    def rate(x, keep):
        C = covariance(x)
        once = [tilt(C, k) for k in range(2)]
        scale = [2 / ca.pi / ca.sqrt(1 + C[k, k]) for k in range(2)]

        def drift(k, a):
            return scale[k] * sum(
                power(keep, k, n) * w[n] * once[k][n, a] / ca.sqrt(1 + once[k][n, n])
                for n in range(3)
            )

        def diffusion(k, h):
            twice = tilt(once[k], h)
            inner = sum(
                power(keep, k, h, a, b) * w[a] * w[b] * i2(twice, a, b)
                for a, b in itertools.product(range(3), repeat=2)
            )
            total = inner + noise**2 * power(keep, k, h)
            return scale[k] / ca.sqrt(1 + once[k][h, h]) * total

        def dQ(k, h):
            return -lr * (drift(k, h) + drift(h, k)) + lr**2 * diffusion(k, h)

        dM = [-lr * drift(k, 2) for k in range(2)]
        return ca.vertcat(dQ(0, 0), dQ(0, 1), dQ(1, 0), dQ(1, 1), *dM)

    def error(x, factor):
        C, v = covariance(x), [factor, factor, -1.0]
        pairs = itertools.product(range(3), repeat=2)
        return 0.5 * sum(v[a] * v[b] * i2(C, a, b) for a, b in pairs)

    keep, _, stats = shoot(
        rate, error, problem.state, [(0.0, 1.0, 0.7)], problem.steps,
        problem.duration / problem.steps, ends=[(0.0, 10.0, 0.7)],
    )  # fmt: skip
    knobs = {"lr": lr, "keep": keep[:, 0]}
    return replan.Protocol(np.ones((problem.steps, 1)), problem.duration, **knobs), stats


def denoising(problem: replan.Problem, shoot):
    model, lr = problem.model, problem.knobs["lr"]
    a, variance = model.mean, model.variance

    def averages(x, noise):
        m, q, b = x[0], x[1], x[2]
        kappa = ca.sqrt(1 - noise)
        lam = m**2 + variance * q
        seen = kappa**2 * lam + noise * q
        rest = (1 - b * kappa) ** 2 * variance + b**2 * noise
        return kappa, lam, seen, rest

    def rate(x, noise):
        m, q, b = x[0], x[1], x[2]
        kappa, lam, seen, rest = averages(x, noise)
        e, signal = b + q, m * (a + variance)
        power = kappa**2 * variance + noise
        mixed = (1 - b * kappa) * kappa * variance - b * noise
        pull = kappa * lam - e * seen
        square = lam - 2 * kappa * e * lam + e**2 * seen
        run_interruptibly = kappa**2 * signal + noise * m
        return ca.vertcat(
            lr * (2 * kappa * signal - (b + e) * run_interruptibly - m * seen),
            4 * lr * pull + lr**2 * (seen * rest + 2 * pull * mixed + square * power),
            lr * mixed,
        )

    def error(x, _):
        kappa, lam, seen, rest = averages(x, model.test_noise)
        q, b = x[1], x[2]
        return rest + a * (1 - b * kappa) ** 2 - 2 * kappa * lam + (2 * b + q) * seen

    noise, _, stats = shoot(
        rate, error, problem.state, [(0.0, 0.95, 0.3)], problem.steps,
        problem.duration / problem.steps,
    )  # fmt: skip
    knobs = {"lr": lr, "noise": noise[:, 0]}
    return replan.Protocol(np.ones((problem.steps, 1)), problem.duration, **knobs), stats


PEERS = {"curriculum": curriculum, "dropout": dropout, "denoising": denoising}


def timed(function):
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def against_casadi(kind: str, folder: Path) -> dict:
    problem = problem_of(kind, folder)
    replan.solve(problem)
    ours, best = [], []
    for _ in range(REPEATS):  # alternately
        ours += [timed(lambda: replan.solve(problem)) for _ in range(3)]
        best.append(timed(lambda: PEERS[kind](problem, casadi_peer.shoot)))
    (seconds, plan), (compact, (protocol, stats)) = (
        min(runs, key=lambda pair: pair[0]) for runs in (ours, best)
    )
    with_opti, (other, _) = timed(lambda: PEERS[kind](problem, casadi_peer.shoot_with_opti))
    values = [replan.evaluate(problem, found).loss for found in (protocol, other)]
    return {
        "kind": kind,
        "solve s": seconds,
        "Opti s": with_opti,
        "compact s": compact,
        "Opti / solve": with_opti / seconds,
        "compact / solve": compact / seconds,
        "solve": f"{plan.loss:.9f}",
        "relaxed": f"{plan.certificate.relaxed_value:.9f}",
        "CasADi": f"{min(values):.9f}",
        "gradients": plan.statistics["gradients"],
        "iterations": stats["iter_count"],
    }


def first_plans(kind: str, folder: Path) -> dict:
    """Seconds from the start of a process to its plan: an empty cache, then a filled one."""
    problem_of(kind, folder)
    program = f"import replan; replan.solve(replan.Problem.load({str(folder / kind)!r} + '.toml'))"
    with tempfile.TemporaryDirectory() as cache:
        command = ["env", f"NUMBA_CACHE_DIR={cache}", sys.executable, "-c", program]
        cold, filled = (timed(lambda: subprocess.run(command, check=True))[0] for _ in range(2))
    return {"kind": kind, "empty cache s": cold, "filled cache s": filled}


def main() -> None:
    makers = {"solve": against_casadi, "start": first_plans}
    tables = {}
    for name in sys.argv[1:] or makers:
        with tempfile.TemporaryDirectory() as folder:
            tables[name] = [makers[name](kind, Path(folder)) for kind in KINDS]
    tables = save("knobs", tables)
    for row in tables["solve"]:
        assert row["Opti / solve"] >= 50, f"CasADi is too close: {row['kind']}"
        assert float(row["solve"]) <= float(row["CasADi"]), f"CasADi ends lower: {row['kind']}"
    for row in tables["start"]:
        assert row["empty cache s"] < 20, f"a cold start takes too long: {row['kind']}"
        assert row["filled cache s"] < 5, f"a warm start takes too long: {row['kind']}"


if __name__ == "__main__":
    main()
