"""One SGD step of `simulate`: against drawing its random numbers in numpy, and by engine and N.

    python benchmarks/simulate.py     prints the tables, writes benchmarks/results/simulate.*

K = T = P = 2. Numpy draws blocks of K + P normals and a χ² for every step, which are all the random
numbers in a step of the reduced engine.
"""

import numpy as np

import replan
from common import best_times, save
from replan.models.capabilities import Chain

STEPS = 200_000


def chain(engine: str, N: int) -> Chain:
    model = replan.TeacherStudent.similar(0.3)
    begin = model.begin_chain(engine, model.pack(model.fresh(0)), N)
    return begin.resume(np.random.default_rng(0))


def reduced(N: int, steps: int = STEPS):
    run, tasks, knobs = chain("reduced", N), np.arange(steps) % 2, np.ones((steps, 3))
    return lambda: run.advance(tasks, knobs)


def draws(N: int):
    rng = np.random.default_rng(0)

    def draw():
        rng.standard_normal((STEPS, 4))
        rng.chisquare(N - 4, STEPS)

    return draw


def full(N: int, steps: int):
    run, tasks, knobs = chain("full", N), np.arange(steps) % 2, np.ones((steps, 3))
    return lambda: run.advance(tasks, knobs)


def main() -> None:
    numbers, steps = best_times(draws(20_000), reduced(20_000))
    against_draws = {
        "reduced ns per step": 1e9 * steps / STEPS,
        "draws ns per step": 1e9 * numbers / STEPS,
        "ratio": steps / numbers,
    }
    slow, fast = best_times(full(20_000, 200), reduced(20_000), repeats=5)
    engines = {
        "N": 20_000,
        "full µs per step": 1e6 * slow / 200,
        "reduced µs per step": 1e6 * fast / STEPS,
        "ratio": slow / 200 / (fast / STEPS),
    }
    sizes = (100, 10_000, 1_000_000, 100_000_000)
    times = best_times(*(reduced(N) for N in sizes), repeats=5)
    growth = [
        {"N": N, "ns per step": 1e9 * seconds / STEPS}
        for N, seconds in zip(sizes, times, strict=True)
    ]
    save("simulate", {"draws": [against_draws], "engines": [engines], "dimension": growth})
    assert against_draws["ratio"] <= 5, "a step takes more than five times its random numbers"
    assert engines["ratio"] >= 1000, "the reduced engine is less than 1,000 times faster"
    assert max(times) <= 1.3 * min(times), "the cost grows with N"


if __name__ == "__main__":
    main()
