"""The problem in CasADi as its users write it: multiple shooting, RK4, IPOPT, exact derivatives.

For K = T = P = 2; the state holds the upper triangle of Q, then M and V. Tasks enter as one share
in [0, 1] per step (the relaxed problem), from the guess ½ and its roll-out.
"""

import casadi as ca
import numpy as np

import replan
from common import Result


def i2(c, a, b):
    return 2 / ca.pi * ca.asin(c[a, b] / ca.sqrt((1 + c[a, a]) * (1 + c[b, b])))


def tilt(c, k):
    return c - c[:, k] @ c[k, :] / (1 + c[k, k])


def unpack(x, S):
    Q = ca.vertcat(ca.horzcat(x[0], x[1]), ca.horzcat(x[1], x[2]))
    M = ca.vertcat(ca.horzcat(x[3], x[4]), ca.horzcat(x[5], x[6]))
    V = ca.vertcat(ca.horzcat(x[7], x[8]), ca.horzcat(x[9], x[10]))
    return ca.vertcat(ca.horzcat(Q, M), ca.horzcat(M.T, S)), V


def rate(x, t, S, lr):
    C, V = unpack(x, S)
    units, w = [0, 1, 2 + t], [V[t, 0], V[t, 1], -1.0]
    drift, diffusion = {}, {}
    for k in range(2):
        once = tilt(C, k)
        scale = 2 / ca.pi / ca.sqrt(1 + C[k, k])
        for a in range(4):
            drift[k, a] = scale * sum(
                w[j] * once[n, a] / ca.sqrt(1 + once[n, n]) for j, n in enumerate(units)
            )
        for h in range(k, 2):
            twice = tilt(once, h)
            diffusion[k, h] = scale / ca.sqrt(1 + once[h, h]) * sum(
                w[i] * w[j] * i2(twice, a, b)
                for i, a in enumerate(units)
                for j, b in enumerate(units)
            )  # fmt: skip
    v = V[t, :]

    def dQ(k, h):
        first = v[k] * drift[k, h] + v[h] * drift[h, k]
        return -lr * first + lr**2 * v[k] * v[h] * diffusion[k, h]

    dM = [-lr * v[k] * drift[k, 2 + p] for k in range(2) for p in range(2)]
    head = [-lr * sum(w[j] * i2(C, k, a) for j, a in enumerate(units)) for k in range(2)]
    dV = [*head, 0, 0] if t == 0 else [0, 0, *head]
    return ca.vertcat(dQ(0, 0), dQ(0, 1), dQ(1, 1), *dM, *dV)


def mean_loss(x, S):
    C, V = unpack(x, S)
    total = 0
    for t in range(2):
        units, w = [0, 1, 2 + t], [V[t, 0], V[t, 1], -1.0]
        total += 0.25 * sum(
            w[i] * w[j] * i2(C, a, b) for i, a in enumerate(units) for j, b in enumerate(units)
        )
    return total


def shoot(rate, objective, start, knobs, steps, length, ends=(), mean=None):
    """Solve min objective(x, ends) over controls that are constant in each of `steps` steps.

    rate(x, u) and objective(x, e) are CasADi expressions. knobs, ends: (low, high, guess) of each
    control and end parameter. mean: what the first control is on average, if that is fixed.
    Returns the controls (steps, knobs), the end parameters and IPOPT's statistics.
    """
    n, m, count = len(start), len(knobs), len(ends)
    x, u, e = ca.SX.sym("x", n), ca.SX.sym("u", m), ca.SX.sym("e", count)
    f = ca.Function("f", [x, u], [rate(x, u)], {"cse": True})
    k1 = f(x, u)
    k2 = f(x + length / 2 * k1, u)
    k3 = f(x + length / 2 * k2, u)
    k4 = f(x + length * k3, u)
    end = x + length / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    step = ca.Function("step", [x, u], [end], {"cse": True})  # a quarter faster
    value = ca.Function("value", [x, e], [objective(x, e)], {"cse": True})

    states, controls = ca.MX.sym("states", n, steps + 1), ca.MX.sym("controls", m, steps)
    free = ca.MX.sym("ends", count)
    gaps = ca.vec(step.map(steps)(states[:, :-1], controls) - states[:, 1:])
    constraints = [states[:, 0] - start, gaps]
    if mean is not None:
        constraints.append(ca.sum2(controls[0, :]) / steps - mean)
    nlp = {
        "x": ca.vertcat(ca.vec(states), ca.vec(controls), free),
        "f": value(states[:, -1], free),
        "g": ca.vertcat(*constraints),
    }
    quiet = {"ipopt.print_level": 0, "print_time": 0, "ipopt.sb": "yes"}
    solver = ca.nlpsol("solver", "ipopt", nlp, quiet)
    low, high, guess = np.array([*knobs]).T
    low_end, high_end, guess_end = np.array([*ends]).reshape(-1, 3).T
    path = [np.asarray(start, dtype=float)]
    for _ in range(steps):
        path.append(np.array(step(path[-1], guess)).ravel())
    size = n * (steps + 1)
    found = solver(
        x0=np.concatenate([np.ravel(path), np.tile(guess, steps), guess_end]),
        lbx=np.concatenate([np.full(size, -np.inf), np.tile(low, steps), low_end]),
        ubx=np.concatenate([np.full(size, np.inf), np.tile(high, steps), high_end]),
        lbg=0,
        ubg=0,
    )
    best = np.array(found["x"]).ravel()[size:]
    rows = best[: m * steps].reshape(steps, m).clip(low, high)
    return rows, best[m * steps :], solver.stats()


def shoot_with_opti(rate, objective, start, knobs, steps, length, ends=(), mean=None):
    """Like `shoot`, written as in CasADi's examples: `Opti`, with every step in one expression."""
    opti = ca.Opti()
    X, U = opti.variable(len(start), steps + 1), opti.variable(len(knobs), steps)
    e = opti.variable(len(ends)) if ends else ca.MX(0, 1)
    for i in range(steps):
        x, u = X[:, i], U[:, i]
        k1 = rate(x, u)
        k2 = rate(x + length / 2 * k1, u)
        k3 = rate(x + length / 2 * k2, u)
        k4 = rate(x + length * k3, u)
        opti.subject_to(X[:, i + 1] == x + length / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    opti.subject_to(X[:, 0] == start)
    x, u = ca.SX.sym("x", len(start)), ca.SX.sym("u", len(knobs))
    slope = ca.Function("slope", [x, u], [rate(x, u)])
    path = [np.asarray(start, dtype=float)]
    for _ in range(steps):  # Euler will do for a guess
        path.append(path[-1] + length * np.array(slope(path[-1], [g for *_, g in knobs])).ravel())
    opti.set_initial(X, np.array(path).T)
    for variable, bounds in ((U, knobs), (e, ends)):
        for i, (low, high, guess) in enumerate(bounds):
            opti.subject_to(opti.bounded(low, variable[i, :], high))
            opti.set_initial(variable[i, :], guess)
    if mean is not None:
        opti.subject_to(ca.sum2(U[0, :]) / steps == mean)
    opti.minimize(objective(X[:, -1], e))
    opti.solver("ipopt", {"print_time": 0}, {"print_level": 0, "sb": "yes"})
    found = opti.solve()
    low, high, _ = np.array([*knobs]).T
    rows = np.reshape(found.value(U), (len(knobs), steps)).T.clip(low, high)
    return rows, found.value(e) if ends else np.zeros(0), found.stats()


def solve(problem: replan.Problem) -> Result:
    S, n = problem.model.teacher_overlaps, problem.steps

    def both(x, share):
        return (1 - share) * rate(x, 0, S, problem.knobs["lr"]) + share * rate(
            x, 1, S, problem.knobs["lr"]
        )

    start = problem.start
    Q = np.asarray(start.Q)
    x0 = np.array([Q[0, 0], Q[0, 1], Q[1, 1], *np.ravel(start.M), *np.ravel(start.V)])
    second, _, stats = shoot(
        both, lambda x, e: mean_loss(x, S), x0, [(0.0, 1.0, 0.5)], n, problem.duration / n
    )
    protocol = replan.Protocol(
        np.hstack([1 - second, second]), problem.duration, lr=problem.knobs["lr"]
    )
    return Result(protocol, stats["iter_count"], stats["return_status"])
