"""How well plans of the image network do on realisations and images that they have not seen.

Plans are made on 1 to 50 realisations of one problem on Fashion-MNIST (784 × 8, similarity 0.5,
500 samples of task 2, 200 images of task 1 kept), with shares and learning rates free at each of
ten steps, from equal shares and the best constant rate, and tested on 200 others. Needs
Fashion-MNIST (`replan data fetch fashion-mnist`).
"""

import numpy as np

import replan
from common import save
from replan import networks

COUNTS = (1, 2, 5, 10, 20, 50)
UNSEEN = 200
RATES = np.geomspace(0.05, 1.6, 11)


def problem_of(tasks: networks.ImageTasks, realisations: int | range) -> replan.Problem:
    model = networks.ImageNetwork(tasks, memory=200, samples=500, realisations=realisations)
    return replan.Problem(
        model, model.pretrain(10_000, lr=0.1), duration=500.0, steps=10, lr=0.2,
        control=replan.Control(tasks=True, lr=(0.0, 2.0)),
    )  # fmt: skip


def row(tasks: networks.ImageTasks, count: int) -> dict:
    problem = problem_of(tasks, count)
    mixed = replan.strategies.interleaved(problem)
    tried = {lr: mixed.with_knobs(lr=lr) for lr in RATES}
    values = {lr: replan.evaluate(problem, protocol, throw=False) for lr, protocol in tried.items()}
    good = {lr: run.loss for lr, run in values.items() if run.status == "ok"}
    constant = tried[min(good, key=good.get)]
    plan = replan.solve(problem, start=constant, starts=0, max_gradients=100, throw=False)
    found = networks.test(
        problem, {"constant": constant, "plan": plan.protocol}, realisations=UNSEEN
    )
    print(found, flush=True)
    gain = found.difference("plan", "constant")
    planned = found.planned_value("plan").mean - found.planned_value("constant").mean
    return {
        "realisations": count,
        "constant, planned on": float(found.planned_value("constant").mean),
        "plan, planned on": float(found.planned_value("plan").mean),
        "constant, unseen": float(found.value("constant").mean),
        "plan, unseen": float(found.value("plan").mean),
        "±": float(found.value("plan").half_width),
        "plan − constant, planned on": float(planned),
        "plan − constant, unseen": float(gain.mean),
        "± paired": float(gain.half_width),
        "limit / rates": found.stability["plan"],
        "gradients": plan.statistics["gradients"],
    }


if __name__ == "__main__":
    tasks = networks.mixed_tasks(networks.fashion_mnist(), 0.5)
    title = f"plans made on some realisations, tested on {UNSEEN} others"
    save("held_out_gap", {title: [row(tasks, count) for count in COUNTS]})
