"""A damped forward-backward sweep in plain numpy, as it is usually written.

Euler forwards, Euler backwards, at every step the task with the smallest Hamiltonian; 0.99 of the
old states and adjoints is mixed with 0.01 of the new ones; at most 10,000 sweeps, fewer if the
tasks have not changed for 500. The first axis of arrays is the step, so that Hamiltonians and
Jacobians (by central differences) of the whole trajectory are computed at once.
"""

import numpy as np

import replan
from common import Result

KEPT = 0.99
SWEEPS = 10_000
STEADY = 500


def i2(C):
    """E[g g] of all pairs, for covariances (…, U, U)."""
    norm = 1 / np.sqrt(1 + np.diagonal(C, axis1=-2, axis2=-1))
    return 2 / np.pi * np.arcsin(C * norm[..., :, None] * norm[..., None, :])


def tilt(C, k):
    column = C[..., :, k]
    return C - column[..., :, None] * column[..., None, :] / (1 + C[..., k, k])[..., None, None]


def covariance(x, S):
    Q, M = x[..., :4].reshape(*x.shape[:-1], 2, 2), x[..., 4:8].reshape(*x.shape[:-1], 2, 2)
    bottom = np.concatenate([np.swapaxes(M, -1, -2), np.broadcast_to(S, M.shape)], axis=-1)
    return np.concatenate([np.concatenate([Q, M], axis=-1), bottom], axis=-2)


def weights(x, t):
    w = np.zeros((*x.shape[:-1], 4))
    w[..., :2] = x[..., 8 + 2 * t : 10 + 2 * t]
    w[..., 2 + t] = -1.0
    return w


def rate(x, t, S, lr):
    """Return the right-hand side (…, 12) for task t at states (…, 12)."""
    C, w = covariance(x, S), weights(x, t)
    out = np.zeros_like(x)
    dQ, dM = np.zeros((*x.shape[:-1], 2, 2)), np.zeros((*x.shape[:-1], 2, 2))
    for k in range(2):
        once = tilt(C, k)
        norm = 1 / np.sqrt(1 + np.diagonal(once, axis1=-2, axis2=-1))
        scale = 2 / np.pi / np.sqrt(1 + C[..., k, k])
        drift = scale[..., None] * ((w * norm)[..., None, :] @ once)[..., 0, :]
        dQ[..., k, :] -= lr * w[..., k, None] * drift[..., :2]
        dQ[..., :, k] -= lr * w[..., k, None] * drift[..., :2]
        dM[..., k, :] -= lr * w[..., k, None] * drift[..., 2:]
        for h in range(2):
            square = (w[..., None, :] @ i2(tilt(once, h)) @ w[..., :, None])[..., 0, 0]
            dQ[..., k, h] += lr**2 * w[..., k] * w[..., h] * scale * norm[..., h] * square
    out[..., :4] = dQ.reshape(*x.shape[:-1], 4)
    out[..., 4:8] = dM.reshape(*x.shape[:-1], 4)
    out[..., 8 + 2 * t : 10 + 2 * t] = -lr * (i2(C) @ w[..., :, None])[..., :2, 0]
    return out


def losses(x, S):
    moments = i2(covariance(x, S))
    return np.array([0.5 * weights(x, t) @ moments @ weights(x, t) for t in range(2)])


def jacobians(x, tasks, S, lr, step=1e-6):
    """∂f/∂x (steps, 12, 12) along a trajectory (steps, 12)."""
    moved = step * np.eye(12)
    points = np.stack([x[:, None] + moved, x[:, None] - moved])
    slopes = np.empty_like(points)
    for t in range(2):
        slopes[:, tasks == t] = rate(points[:, tasks == t], t, S, lr)
    ahead, behind = slopes
    return np.swapaxes(ahead - behind, -1, -2) / (2 * step)


def solve(problem: replan.Problem) -> Result:
    S, n, lr = problem.model.teacher_overlaps, problem.steps, problem.knobs["lr"]
    h = problem.duration / n
    tasks = np.arange(n) % 2
    states = adjoints = None
    best, value, sweeps, steady = tasks, np.inf, 0, 0
    while sweeps < SWEEPS and steady < STEADY:
        sweeps += 1
        new = np.empty((n + 1, 12))
        new[0] = problem.state
        for i in range(n):
            new[i + 1] = new[i] + h * rate(new[i], tasks[i], S, lr)
        loss = losses(new[-1], S).mean()
        if loss < value:
            best, value = tasks, loss
        states = new if states is None else KEPT * states + (1 - KEPT) * new
        J = jacobians(states[:-1], tasks, S, lr)
        back = np.empty((n + 1, 12))
        back[-1] = final_gradient(states[-1], S)
        for i in range(n - 1, -1, -1):
            back[i] = back[i + 1] + h * back[i + 1] @ J[i]
        adjoints = back if adjoints is None else KEPT * adjoints + (1 - KEPT) * back
        hamiltonians = [np.sum(adjoints[1:] * rate(states[:-1], t, S, lr), axis=1) for t in (0, 1)]
        chosen = np.argmin(hamiltonians, axis=0)
        steady = steady + 1 if np.array_equal(chosen, tasks) else 0
        tasks = chosen
    status = "steady" if steady == STEADY else "not converged"
    return Result(replan.Protocol.from_sequence(best, 2, problem.duration, lr=lr), sweeps, status)


def final_gradient(x, S, step=1e-6):
    moved = step * np.eye(12)
    return np.array(
        [(losses(x + m, S).mean() - losses(x - m, S).mean()) / (2 * step) for m in moved]
    )
