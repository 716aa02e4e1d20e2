"""Which setting decides how the strategies compare on real images? One is changed at a time.

Needs `replan data fetch fashion-mnist` and `replan data fetch cifar10`, and two minutes on two
cores. The table is in docs/real-images.md.
"""

import numpy as np

from replan import networks

LOOKS = [0, 50, 100, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 10_000]
CHANGES = [
    {}, {"lr": 0.003}, {"lr": 0.03}, {"lr": 0.1}, {"normalise": "standard"}, {"hidden": 32},
    {"head_std": 0.1}, {"smoothing": 0.0}, {"smoothing": 0.0, "sample": 1000}, {"interval": 10},
]  # fmt: skip


def measure(tasks, training, realisations):
    """Return a row of the table: from means over realisations, in per cent where it says so."""
    found = networks.experiment(tasks, LOOKS, training=training, realisations=realisations)
    steps, switches = found.times[1:].astype(int), found.switches("focus-then-replay")
    none, mixed, rule = (
        found.mean(name)[:, 1:].mean(axis=0)
        for name in ("no-replay", "interleaved", "focus-then-replay")
    )
    worse = steps[none > mixed]
    return {
        "switch": np.median(switches[switches >= 0]),
        "no-replay worse from": worse[0] if worse.size else "never",
        "excess over the better, %": np.max(100 * (rule / np.minimum(none, mixed) - 1)),
        "gain over interleaved, %": np.max(100 * (1 - rule / mixed)),
        "loss against it, %": np.max(100 * (rule / mixed - 1)),
    }


def main():
    """Print a row of the table for every data set and change."""
    fashion, cifar = networks.fashion_mnist(), networks.cifar10()
    for data, realisations in (("fashion-mnist", 40), ("cifar10", 20)):
        for change in CHANGES:
            rest = {key: value for key, value in change.items() if key != "normalise"}
            normalise = change.get("normalise", "unit")
            if data == "cifar10":
                tasks = networks.parity_tasks(cifar, normalise=normalise)
            else:
                tasks = networks.mixed_tasks(fashion, 0.5, normalise=normalise)
            row = measure(tasks, networks.Training(**rest), realisations)
            numbers = " | ".join(
                f"{x:.2f}" if isinstance(x, float) and name[-1] == "%" else f"{x}"
                for name, x in row.items()
            )
            print(f"| {data} | {change or 'defaults'} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
