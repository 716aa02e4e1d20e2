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


def solve(problem: replan.Problem) -> Result:
    S, n = problem.model.teacher_overlaps, problem.steps
    h = problem.duration / n
    x, share = ca.SX.sym("x", 11), ca.SX.sym("share")
    both = (1 - share) * rate(x, 0, S, problem.lr) + share * rate(x, 1, S, problem.lr)
    f = ca.Function("f", [x, share], [both])
    k1 = f(x, share)
    k2 = f(x + h / 2 * k1, share)
    k3 = f(x + h / 2 * k2, share)
    k4 = f(x + h * k3, share)
    step = ca.Function("step", [x, share], [x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)])
    loss = ca.Function("loss", [x], [mean_loss(x, S)])

    start = problem.start
    Q = np.asarray(start.Q)
    x0 = np.array([Q[0, 0], Q[0, 1], Q[1, 1], *np.ravel(start.M), *np.ravel(start.V)])
    states, shares = ca.MX.sym("states", 11, n + 1), ca.MX.sym("shares", n)
    gaps = ca.vec(step.map(n)(states[:, :-1], shares.T) - states[:, 1:])
    nlp = {
        "x": ca.vertcat(ca.vec(states), shares),
        "f": loss(states[:, -1]),
        "g": ca.vertcat(states[:, 0] - x0, gaps),
    }
    solver = ca.nlpsol("solver", "ipopt", nlp, {"ipopt.print_level": 0, "print_time": 0,
                                                "ipopt.sb": "yes"})  # fmt: skip
    path = [x0]
    for _ in range(n):
        path.append(np.array(step(path[-1], 0.5)).ravel())
    free = 11 * (n + 1)
    found = solver(
        x0=np.concatenate([np.ravel(path), np.full(n, 0.5)]),
        lbx=np.concatenate([np.full(free, -np.inf), np.zeros(n)]),
        ubx=np.concatenate([np.full(free, np.inf), np.ones(n)]),
        lbg=0,
        ubg=0,
    )
    second = np.array(found["x"]).ravel()[free:].clip(0, 1)
    protocol = replan.Protocol(np.column_stack([1 - second, second]), problem.duration, problem.lr)
    stats = solver.stats()
    return Result(protocol, stats["iter_count"], stats["return_status"])
