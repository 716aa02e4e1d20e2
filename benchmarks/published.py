"""Published training curves: how well `replan.fit` predicts them, beside the multi-power law.

    python benchmarks/published.py mpl            nine schedules, fitted to three (25M and 100M)
    python benchmarks/published.py decays         36 runs of 124M, fitted to three: which is best?
    python benchmarks/published.py splits         fitted to random choices of three: coverage
    python benchmarks/published.py multi-power    the best schedule under the multi-power law
    python benchmarks/published.py shares         72 runs with two shares of code, fitted to 48

The data are not part of the project: `--data` is the folder with mpl_25M.csv, mpl_100M.csv (Luo et
al., arXiv 2503.12811), decays_124M.csv (Schaipp et al., arXiv 2501.18965) and two_phase_72.csv (the
Marin project's public logs). What is printed also goes to benchmarks/results.

The multi-power law (MPL) of the loss at step t, with rates η_0 … η_t that include the warm-up:

    L(t) = L0 + A S_0^−α − B Σ_k (η_k−1 − η_k) G(η_k^−γ S_k),  G(x) = 1 − (1 + C x)^−β,

where S_k is the sum of the rates from step k to step t.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize
from scipy.special import huber

import replan
from common import HERE, show
from replan.pilots.plain import PLAIN

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Curve = tuple[Floats, Steps, Floats]  # the rate of each step, and the losses at some steps

PEAK, WARMUP = 3e-4, 2160
WARM = np.linspace(0, PEAK, WARMUP)
PARAMETERS = {  # L0, A, α, B, C, β, γ as published in the repository MultiPowerLaw
    "25M": (3.04045406, 0.52468604, 0.50786857, 363.78751622, 2.06560812, 0.58279013, 0.64142257),
    "100M": (2.6514477, 0.60115152, 0.45295811, 437.9464276, 2.13245612, 0.59785199, 0.65523644),
}
ERRORS = {"25M": (0.00376, 0.00409), "100M": (0.00435, 0.00583)}  # published: MAE, worst relative
HUBER = 0.001  # as theirs
TRAINED = ("cosine_24000", "constant_24000", "wsdcon_9")

# --- mpl: six curves predicted from three ---------------------------------------------------------


def schedule(run: str) -> Floats:
    """Return the rate of each step of one of the published runs, by its name."""
    kind, *numbers = run.split("_")
    total = 16000 if kind == "wsdcon" else int(numbers[-1])
    begin = {"wsdcon": 8000, "wsd": 20000, "wsdld": 20000}.get(kind, WARMUP)
    after = np.arange(total - begin) / (total - begin)
    falls = {
        "constant": 1 + 0 * after,
        "cosine": 0.1 + 0.45 * (1 + np.cos(np.pi * after)),
        "wsd": 0.1**after,
        "wsdld": 1 - 0.9 * after,
        "wsdcon": int(numbers[0]) / 30 + 0 * after,
    }
    return np.concatenate([WARM, np.full(begin - WARMUP, PEAK), PEAK * falls[kind]])


def power_curve(p: Sequence[float], rates: Floats, steps: Steps) -> tuple[Floats, Floats]:
    """Return the MPL's losses (n,) at steps (n,), and their slopes (7, n) by the parameters."""
    L0, A, alpha, B, C, beta, gamma = p
    total, falls = np.cumsum(rates), -np.diff(rates)
    moved = np.flatnonzero(falls) + 1
    drop, factor, logs = falls[moved - 1], rates[moved] ** -gamma, np.log(rates[moved])
    slopes = np.zeros((4, len(steps)))  # of the sum without B: itself, by C, β and γ
    for i, step in enumerate(steps):
        k = slice(0, np.searchsorted(moved, step, side="right"))
        x = C * factor[k] * (total[step] - total[moved[k] - 1])
        log = np.log1p(x)
        left = drop[k] * np.exp(-beta * log)
        by_log = beta * left * x / (1 + x)
        slopes[:, i] = (drop[k] - left).sum(), by_log.sum() / C, left @ log, -by_log @ logs[k]
    rest = total[steps] ** -alpha
    by_signal = [np.ones(len(steps)), rest, -A * rest * np.log(total[steps])]
    values = L0 + A * rest - B * slopes[0]
    return values, np.concatenate([by_signal, -slopes[:1], -B * slopes[1:]])


def refit(curves: list[Curve], starts: int = 6) -> tuple[Floats, Floats]:
    """Return the MPL with the lowest Huber loss of log losses, and the costs of all starts."""
    known = np.log(np.concatenate([losses for _, _, losses in curves]))
    middle = np.log([0.9 * np.exp(known.min()), 0.5, 0.5, 400, 1.5, 0.5, 0.5])
    around = np.array([0.05, 0.5, 0.4, 0.5, 0.7, 0.4, 0.4])
    rng, slopes, ends = np.random.default_rng(0), [], []

    def residuals(t: Floats) -> Floats:
        found = [power_curve(np.exp(t), rates, steps) for rates, steps, _ in curves]
        values = np.maximum(np.concatenate([x for x, _ in found]), 1e-3)
        slopes[:] = [np.concatenate([x for _, x in found], axis=1) * np.exp(t)[:, None] / values]
        return np.log(values) - known

    for _ in range(starts):
        t = middle + around * rng.uniform(-1, 1, 7)
        for width in (0.03, HUBER):
            end = least_squares(
                residuals, t, lambda _: slopes[0].T, loss="huber", f_scale=width, max_nfev=200
            )
            t = end.x
        ends.append((end.cost, *np.exp(t)))
    return np.array(min(ends)[1:]), np.sort([end[0] for end in ends])


def mpl(data: Path) -> str:
    """Predict six curves of each size from three."""
    return "\n\n".join(_mpl(pd.read_csv(data / f"mpl_{size}.csv"), size) for size in PARAMETERS)


def _mpl(table: pd.DataFrame, size: str) -> str:
    curves = {
        run: (schedule(run), rows.step.to_numpy(), rows.loss.to_numpy())
        for run, rows in table.groupby("run")
    }
    fitted = replan.fit(table[table.run.isin(TRAINED)], warmup=WARMUP)
    predicted = fitted.predict(table[~table.run.isin(TRAINED)].drop(columns="loss"))
    again, costs = refit([curves[run] for run in TRAINED])
    laws = {"published": PARAMETERS[size], "refitted": again}
    rows = []
    for run, ours in predicted.items():
        rates, steps, losses = curves[run]
        errors = {"replan": np.abs(ours.loss - losses)}
        errors |= {x: np.abs(power_curve(p, rates, steps)[0] - losses) for x, p in laws.items()}
        row = {f"{name} MAE": x.mean() for name, x in errors.items()}
        row |= {f"{name} worst": (x / losses).max() for name, x in errors.items()}
        covered = np.mean((ours.low <= losses) & (losses <= ours.high))
        rows.append({"run": run, **row, "replan covers": covered})
    mean = pd.DataFrame(rows).drop(columns="run").mean()
    residuals = [
        np.log(power_curve(PARAMETERS[size], *curves[run][:2])[0] / curves[run][2])
        for run in TRAINED
    ]
    return f"""{size}, fitted to {", ".join(TRAINED)}; the MPL as published and as refitted here
{show([*rows, {"run": "mean", **mean}])}
published MPL: MAE {mean["published MAE"]:.5f}, worst {mean["published worst"]:.5f}; \
{ERRORS[size][0]} and {ERRORS[size][1]} by its authors
Huber loss on the three: published {huber(HUBER, np.concatenate(residuals)).sum():.3g}, \
refitted {costs[0]:.3g} ({sum(costs < 1.001 * costs[0])} of {len(costs)} starts), \
L0, A, α, B, C, β, γ = {", ".join(f"{x:.4g}" for x in again)}"""


# --- decays: which of the published runs is best --------------------------------------------------

PAIRS = (  # of pilots, beside the constant run
    ("linear 20 % 15000", "cosine to 10 % 15000"),
    ("linear 10 % 15000", "cosine to 10 % 15000"),
    ("linear 40 % 15000", "cosine to 10 % 15000"),
    ("linear 20 % 15000", "cosine to 0 25000"),
    ("sqrt 20 % 25000", "cosine to 10 % 15000"),
    ("linear 90 % 15000", "cosine to 10 % 25000"),
)
RULES = (*(f"linear {x} %" for x in (10, 20, 40, 60, 80, 90)), "cosine to 10 %", "cosine to 0")
CONSTANT = "constant 50000"


def label(run: str) -> str:
    """Return a short name: shape, fraction of the decay and horizon."""
    name = run.replace("cos-10", "cosine to 10 %").replace("cos-zero", "cosine to 0")
    name = re.sub(r"^ann.*decay_(\w+)_0\.(\d)_", r"\1 \g<2>0 %-", name)
    name = re.sub("^stable", "constant", re.sub("^sl_", "cosine again-", name))  # to 10 % again
    return re.sub("-.*iter|-iter", " ", name)


def horizon(run: str) -> int:
    return int(run.rpartition(" ")[2])


def decays(data: Path) -> str:
    """Predict all runs from three, and let the law choose one of each horizon."""
    table = pd.read_csv(data / "decays_124M.csv")
    table = table.assign(run=table.run.map(label))
    ends = table.dropna().groupby("run").loss.last()
    best = ends.groupby(horizon).min()[ends.groupby(horizon).size() > 1]

    def regrets(chosen: Iterable[str]) -> dict[str, float]:
        """Return how much higher than the best run of a horizon the chosen one ends."""
        found = {horizon(run): ends[run] - best[horizon(run)] for run in chosen}
        by_horizon = {f"at {x}": found.get(x, np.nan) for x in best.index}
        return by_horizon | {"mean regret": np.mean(list(found.values()))}

    rows = []
    for whole in (True, False):
        for pair in PAIRS:
            until = horizon(CONSTANT) if whole else max(map(horizon, pair))
            used = table[table.run.isin(pair) | ((table.run == CONSTANT) & (table.step <= until))]
            errors, predicted = _errors(replan.fit(used), table)
            chosen = predicted.groupby(horizon).idxmin()[best.index]
            row = {"pilots beside the constant": ", ".join(pair), "constant until": until}
            rows.append(row | errors | regrets(chosen))
    fixed = [
        {"always": rule, **regrets(x for x in ends.index if x.startswith(f"{rule} "))}
        for rule in RULES
    ]
    means = [np.mean([x["mean regret"] for x in half]) for half in (rows[:6], rows[6:])]
    twice = [abs(ends[f"cosine again {x}"] - ends[f"cosine to 10 % {x}"]) for x in (15000, 25000)]
    return f"""errors on all other runs, after 8 % of the shortest pilot, and regrets by horizon
{show(rows)}
mean regret: {means[0]:.4f} with the whole constant run, {means[1]:.4f} with a part of it

regrets of fixed rules; the longest decay is that over 90 %
{show(fixed)}
two runs with the same cosine end {twice[0]:.4f} (15000) and {twice[1]:.4f} (25000) apart"""


def _errors(fitted: replan.Fit, table: pd.DataFrame) -> tuple[dict[str, float], pd.Series]:
    """Return the errors on all runs but the pilots, and the predicted end loss of every run."""
    predicted = fitted.predict(table.drop(columns="loss"))
    parts = [pd.DataFrame(predicted[run]._asdict()) for run in table.run.unique()]
    rows = pd.concat([table, pd.concat(parts, ignore_index=True).add_prefix("p_")], axis=1).dropna()
    assert (rows.p_steps == rows.step).all()
    ends = rows.groupby("run").last()
    others = rows[~rows.run.isin([run.name for run in fitted.pilots.runs])]
    away = (ends.p_loss - ends.loss).abs()[others.run.unique()]
    others = others[others.step >= fitted.pilots.early]
    return {
        "MAE": (others.p_loss - others.loss).abs().mean(),
        "end MAE": away.mean(),
        "covered": others.loss.between(others.p_low, others.p_high).mean(),
    }, ends.p_loss


# --- splits: errors and coverage of other choices of three ----------------------------------------


def splits(data: Path, count: int = 12) -> str:
    """Predict all other runs from random choices of three; of the 124M, one is the constant."""
    rng = np.random.default_rng(0)
    texts = []
    for name in ("decays_124M", "mpl_25M", "mpl_100M"):
        table = pd.read_csv(data / f"{name}.csv")
        is_124M = name == "decays_124M"
        table = table.assign(run=table.run.map(label) if is_124M else table.run)
        runs = [run for run in table.run.unique() if run != CONSTANT]
        rows = []
        for _ in range(count):
            chosen = rng.choice(runs, 2 if is_124M else 3, replace=False)
            pilots = table.run.isin([*chosen, CONSTANT])
            fitted = replan.fit(table[pilots], warmup=0 if is_124M else WARMUP)
            errors = _errors(fitted, table)[0]
            rows.append({"pilots": ", ".join(chosen), **errors, "left out": fitted.coverage})
        mean = pd.DataFrame(rows).drop(columns="pilots").mean()
        within = sum(0.80 <= row["covered"] <= 0.97 for row in rows)
        beside = f", beside {CONSTANT}" if is_124M else ""
        texts.append(f"""{name}, three random pilots{beside}: errors on all others, coverage, and \
that of left-out pilots
{show([*rows, {"pilots": "mean", **mean}])}
coverage from 0.80 to 0.97 in {within} of {count}""")
    return "\n\n".join(texts)


# --- multi-power: the best schedule under the law -------------------------------------------------

SIZE, HORIZON = "100M", 24000  # of their optimised schedule
THEIRS = 2.92469  # the law's loss of their schedule, optimized_schedules/100.npy
LEAST = 1e-10  # rate, as theirs


def end_loss(rates: Floats, lengths: Floats) -> tuple[float, Floats, Floats]:
    """Return the MPL's loss after pieces of constant rate, and its slopes by rates and lengths.

    The warm-up comes before, step by step. Pieces of length 1 are steps.
    """
    L0, A, alpha, B, C, beta, gamma = PARAMETERS[SIZE]
    eta = np.concatenate([WARM, rates])
    length = np.concatenate([np.ones(WARMUP), lengths])
    ahead = np.cumsum((eta * length)[::-1])[::-1]
    fall, rate = -np.diff(eta), eta[1:]
    x = C * rate**-gamma * ahead[1:]
    left = (1 + x) ** -beta
    loss = L0 + A * ahead[0] ** -alpha - B * fall @ (1 - left)
    by_log = -B * fall * beta * left * x / (1 + x)  # by the logarithm of x
    by_total = -alpha * A * ahead[0] ** (-alpha - 1)
    by_area = np.cumsum(np.append(by_total, by_log / ahead[1:]))
    by_rate = by_area * length
    by_rate[1:] += B * (1 - left) - gamma * by_log / rate
    by_rate[:-1] -= B * (1 - left)
    return float(loss), by_rate[WARMUP:], (by_area * eta)[WARMUP:]


def falling(pieces: int, rng: np.random.Generator) -> tuple[float, Floats]:
    """Return the loss and the rates of the best schedule of so many falling pieces, by one start.

    Free are the lengths (a softmax) and the falls of the logarithm of the rate, at least 0.
    """
    steps = HORIZON - WARMUP
    spare = steps - pieces  # each piece has a step at least

    def read(t: Floats) -> tuple[Floats, Floats]:
        share = np.exp(t[:pieces] - t[:pieces].max())
        return PEAK * np.exp(-np.cumsum(t[pieces:])), share / share.sum()

    def value(t: Floats) -> tuple[float, Floats]:
        rates, share = read(t)
        loss, by_rate, by_length = end_loss(rates, 1 + spare * share)
        by_share = spare * share * (by_length - share @ by_length)
        return loss, np.concatenate([by_share, -np.cumsum((by_rate * rates)[::-1])[::-1]])

    start = np.concatenate([rng.normal(-1, 0.5, pieces), rng.uniform(0, 8 / pieces, pieces)])
    start[[0, pieces]] = 2, 0
    bounds = [(None, None)] * pieces + [(0, None)] * pieces
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 40}
    end = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    rates, share = read(end.x)
    edges = np.round(np.cumsum(1 + spare * share)).astype(int)  # whole steps
    each = np.repeat(rates, np.diff(edges, prepend=0))
    return end_loss(each, np.ones(steps))[0], each


def plain_loss(rates: Floats) -> float:
    """Return the MPL's loss after all steps, as the formula says, to check the other one."""
    L0, A, alpha, B, C, beta, gamma = PARAMETERS[SIZE]
    eta = rates.tolist()
    loss = L0 + A * sum(eta) ** -alpha
    for k in range(1, len(eta)):
        area = 0.0
        for rate in eta[k:]:
            area += rate
        loss -= B * (eta[k - 1] - eta[k]) * (1 - (1 + C * eta[k] ** -gamma * area) ** -beta)
    return loss


def multi_power(theirs: Path | None) -> str:
    """Find the best falling schedule, and let the rate rise."""
    rng, one = np.random.default_rng(0), np.ones(HORIZON - WARMUP)
    before = end_loss(np.load(theirs), one)[0] if theirs else THEIRS
    rows, found = [], []
    for pieces in (2, 3, 4, 8, 16, 32, 64):
        ends = sorted((falling(pieces, rng) for _ in range(6)), key=lambda end: end[0])
        found.append(ends[0])
        agree = sum(loss < ends[0][0] + 1e-6 for loss, _ in ends)
        rows.append({"pieces": pieces, "loss": f"{ends[0][0]:.6f}", "starts of 6": agree})
    lowest = min(loss for loss, _ in found)
    loss, rates = next(end for end in found if end[0] < lowest + 1e-6)  # the fewest pieces
    falls = np.flatnonzero(rates[1:] < 0.99 * rates[:-1]) + 1
    shape = [f"{rates[k]:.3g} from step {WARMUP + k}" for k in falls]

    def value(x: Floats) -> tuple[float, Floats]:
        loss, slopes, _ = end_loss(PEAK * x, one)
        return loss, PEAK * slopes

    free = []
    for top in (1, 3):
        least, options = LEAST / PEAK, {"maxiter": 200}
        start, bounds = rng.uniform(least, top, len(one)), [(least, top)] * len(one)
        end = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        saw = value(np.resize([top, least], len(one)))[0]
        row = {"largest rate / peak": top, "random": value(start)[0], "L-BFGS-B": end.fun}
        free.append(row | {"largest and 1e-10 in turn": saw})
    return f"""multi-power law of {SIZE}, {HORIZON} steps, peak {PEAK:g}: loss at the end
{show(rows)}
best falling schedule {loss:.9f}, by two loops over the steps \
{plain_loss(np.concatenate([WARM, rates])):.9f}; the authors' schedule {before:.6f}
it keeps the peak, then {", ".join(shape)}

where the rate may rise: random rates, 200 iterations of L-BFGS-B from there, and a saw
{show(free)}"""


# --- shares: end losses of a mixture of web text and code -----------------------------------------

EVALS = {"code": "eval/paloma/dolma_100_programing_languages/bpb",
         "python": "eval/uncheatable_eval/github_python/bpb",
         "web": "eval/paloma/c4_100_domains/bpb"}  # fmt: skip
SPLITS, FITTED = 5, 48
PASSES = 26  # over the code, at a share of 1


def shares(data: Path) -> str:
    """Predict the end losses of 24 runs from 48, five times; and plan by the law of all."""
    ends = pd.read_csv(data / "two_phase_72.csv")
    steps = np.linspace(0, 1000, 21)  # of a million tokens, at a cosine rate that falls to 10 %
    rate = 0.1 + 0.45 * (1 + np.cos(np.pi * steps / 1000))
    parts = []
    for i, run in ends.iterrows():
        code = np.where(steps < 500, run.phase0_starcoder, run.phase1_starcoder)
        part = {"run": f"r{i}", "step": steps, "lr": rate, "tokens": 1e6 * steps}
        part |= {"share_web": 1 - code, "share_code": code, "unique_tokens_code": 1e9 / PASSES}
        part |= {f"loss_{x}": np.where(steps == 1000, run[y], np.nan) for x, y in EVALS.items()}
        parts.append(pd.DataFrame(part))
    table = pd.concat(parts)
    rows = [
        {"loss": loss, "split": seed + 1, **_split(table, loss, seed)}
        for loss in EVALS
        for seed in range(SPLITS)
    ]
    whole = replan.fit(table, loss="code")
    return f"""mean errors (%) of the end losses of 24 runs, fitted to {FITTED}; covers: by 90 % \
intervals
{show(rows)}

all 72, code alone:
{replan.advise(whole.problem())}

{replan.levers(whole.problem())}"""


def _split(table: pd.DataFrame, loss: str, seed: int) -> dict[str, float]:
    """Return the errors on the runs that are not fitted, by the law and by plain regressions."""
    order = np.random.default_rng(seed).permutation(table.run.unique())
    kept, out = order[:FITTED], order[FITTED:]
    fitted = replan.fit(table[table.run.isin(kept)], loss=loss)
    predicted = fitted.predict(table[table.run.isin(out)].filter(regex="^(?!loss)"))
    last = table.groupby("run").last()
    true = last[f"loss_{loss}"][out].to_numpy()
    law = np.array([predicted[run].loss[-1] for run in out])
    covered = [
        predicted[x].low[-1] <= y <= predicted[x].high[-1] for x, y in zip(out, true, strict=True)
    ]
    first = table.groupby("run").share_code.first()
    x = np.column_stack([first, last.share_code[first.index]])
    rows = first.index.get_indexer(kept), first.index.get_indexer(out)
    y = np.log(last[f"loss_{loss}"][kept].to_numpy())
    others = {name: np.exp(rule(x[rows[0]], y, x[rows[1]])) for name, rule in PLAIN.items()}
    errors = {name: 100 * np.abs(z / true - 1).mean() for name, z in {"law": law, **others}.items()}
    return errors | {"worst of the law": 100 * np.abs(law / true - 1).max(),
                     "covers": np.mean(covered)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["mpl", "decays", "splits", "multi-power", "shares"])
    parser.add_argument("--data", type=Path, default=HERE.parent / "../shared/pilots")
    parser.add_argument("--theirs", type=Path, help="their optimized_schedules/100.npy")
    chosen = parser.parse_args()
    if chosen.command == "multi-power":
        text = multi_power(chosen.theirs)
    else:
        text = {"mpl": mpl, "decays": decays, "splits": splits, "shares": shares}[chosen.command](
            chosen.data
        )
    print(text)
    text += f"\n\nreplan {replan.__version__}, numpy {np.__version__}, scipy {scipy.__version__}\n"
    path = HERE / "results" / f"published-{chosen.command}.txt"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
