"""Pilots made by a known law, with noise."""

import numpy as np
import pandas as pd

import replan

LAW = replan.models.RateLaw([[2.4, 1.0, 0.45, 0.12, 60.0, 0.5, 0.6]], peak=1e-3, unit=400.0)
PEAK, WARMUP, STEPS = 1e-3, 200, 10_000


def rates(family, steps=STEPS, peak=PEAK, rows=200):
    """Return steps and rates: a warm-up, then constant, cosine, or a decay over the last x %."""
    at = np.unique(np.concatenate([np.linspace(0, WARMUP, 11), np.linspace(WARMUP, steps, rows)]))
    time = np.clip((at - WARMUP) / (steps - WARMUP), 0, 1)
    shape = {
        "constant": np.ones_like(time),
        "cosine": 0.55 + 0.45 * np.cos(np.pi * time),
    }.get(family)
    if shape is None:
        shape = np.clip((1 - time) / (int(family) / 100), 0, 1)
    return at, peak * np.minimum(1, at / WARMUP) * shape


def table(families=("constant", "cosine", "20"), *, noise=0.001, seed=0, law=LAW, **options):
    """Return pilots as a long table, with correlated noise of log losses."""
    draws = np.random.default_rng(seed)
    parts = []
    for family in families:
        steps, lr = rates(family, **options)
        white = draws.normal(size=len(steps))
        loss = law.curve(steps, lr) * np.exp(noise * white)
        parts.append(pd.DataFrame({"run": family, "step": steps, "lr": lr, "loss": loss}))
    return pd.concat(parts, ignore_index=True)
