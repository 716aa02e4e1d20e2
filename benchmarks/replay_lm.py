"""How much to replay, and at what rate, when a language model learns a second domain.

    python benchmarks/replay_lm.py        results/replay_lm.txt: all cells, half an hour on one core

A character-level transformer (that of truth.py, 104,768 parameters) learns the code of Python's
standard library (without docstrings and comments), with AdamW and a cosine, and then its
docstrings, so the numbers belong to one version of Python. Docstrings in ROT13 stand for a domain
that has less in common with the old one. All shares of replay train on equally many characters in
total: what is replayed is not new. The old text is kept whole.

Every share has the schedule and the rate that are best for it, searched for on a grid by 2, by the
mean of both domains' losses on validation files with the tuning seeds; the numbers are of other
seeds on other files. `constant` keeps one rate, `re-warmed` rises to it over 5 % of the steps and
falls to a tenth of it along a cosine (arXiv 2403.08763). A seed decides the initialisation, the
first training and the windows of both texts at each step, whatever the share is.

Finished runs are in build/replay_lm.csv, from where the same command continues; remove it after a
change of the training.
"""

import ast
import codecs
import platform
from collections.abc import Callable
from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray
from scipy.stats import t

import truth  # it also keeps JAX to one thread
from common import HERE, show

WIDTH, SEQUENCES = 64, 8
LEARNT, PEAK = 1500, 4e-3  # steps on the old domain, and the rate
STEPS = {"few": 100, "many": 500}
SHARES = [0.0, 0.05, 0.1, 0.25, 0.5, 0.75]
OPTIMIZERS = {"AdamW": (truth.adamw, 1e-3), "SGD": (truth.sgd, 0.1)}  # where the search begins
TUNING, TESTING = [1_000_001, 1_000_002], [1, 2, 3, 4, 5]
CELLS = [
    *(("docstrings", optimizer, size) for size, optimizer in product(STEPS, OPTIMIZERS)),
    *(("ROT13", "AdamW", size) for size in STEPS),
]
KEPT = HERE.parent / "build" / "replay_lm.csv"


# --- The two domains ------------------------------------------------------------------------------


@cache
def domains(new: str) -> tuple[Array, int, dict[str, list[truth.Batch]]]:
    """Return the text to train on, where its second domain begins, and held-out windows by use."""
    parts: list[dict[str, bytes]] = [{"train": b"", "validation": b"", "test": b""} for _ in "12"]
    for i, file in enumerate(truth.source_files()):
        use = {8: "validation", 9: "test"}.get(i % 10, "train")
        code, docstrings = split(file.read_bytes())
        if new == "ROT13":
            docstrings = codecs.encode(docstrings, "rot13")
        for part, text in zip(parts, (code, docstrings), strict=True):
            part[use] += text.encode() + b"\n\n"
    texts = [{use: truth.encoded(x) for use, x in part.items()} for part in parts]
    held_out = {
        use: [truth.windows(jnp.asarray(text[use]), 16) for text in texts]
        for use in ("validation", "test")
    }
    old, new = (text["train"] for text in texts)
    return jnp.asarray(np.concatenate([old, new])), len(old), held_out


def split(source: bytes) -> tuple[str, str]:
    """Return a file's code without docstrings and comments, and its docstrings."""
    tree, docstrings = ast.parse(source), []
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            docstrings.append(docstring)
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree), "\n\n".join(docstrings)


# --- The training ---------------------------------------------------------------------------------


@cache
def learnt(seed: int) -> truth.Parameters:
    """Return the parameters after the first domain."""
    initial = truth.initial_transformer(jax.random.key(seed), WIDTH)
    rates = truth.cosine(PEAK, LEARNT, LEARNT // 20)[:-1]
    return train("docstrings", "AdamW", initial, rates, 1.0, 2 * seed)


def train(
    new: str, optimizer: str, parameters: truth.Parameters, rates: NDArray[np.float64],
    share: float, seed: int,
) -> truth.Parameters:  # fmt: skip
    """Train with `rates[k]` at step k, and `share` of the sequences from the old domain, evenly."""
    due = np.floor(share * np.arange(len(rates) * SEQUENCES + 1) + 1e-9)
    old = np.diff(due).reshape(-1, SEQUENCES) > 0
    text, border, _ = domains(new)
    return _trained(
        optimizer, parameters, jnp.asarray(rates, jnp.float32), old, jax.random.key(seed), text,
        border,
    )  # fmt: skip


@partial(jax.jit, static_argnums=(0, 6))
def _trained(optimizer, parameters, rates, old, key, text, border):
    def update(state, now):
        step, rate, from_old = now
        keys = jax.random.split(jax.random.fold_in(key, step))
        begins = [
            jax.random.randint(k, (SEQUENCES,), first, end - truth.CONTEXT)
            for k, first, end in zip(keys, (0, border), (border, len(text)), strict=True)
        ]
        batch = truth.at(text, jnp.where(from_old, *begins)[:, None])
        gradient = jax.grad(truth.next_character)(state[0], batch)
        return OPTIMIZERS[optimizer][0](*state, gradient, rate, step), None

    memory = {name: (0 * x, 0 * x) for name, x in parameters.items()}
    return lax.scan(update, (parameters, memory), (jnp.arange(len(rates)), rates, old))[0][0]


@jax.jit
def _measured(parameters: truth.Parameters, batches: truth.Batch) -> Array:
    return jnp.mean(lax.map(partial(truth.next_character, parameters), batches))


SCHEDULES: dict[str, Callable[[float, int], NDArray[np.float64]]] = {
    "constant": lambda rate, steps: np.full(steps, rate),
    "re-warmed": lambda rate, steps: truth.cosine(rate, steps, steps // 20)[:-1],
}
CASE = ["new", "optimizer", "size", "share", "schedule", "rate", "seed"]


class Runs:
    """Losses of both domains after each run, appended to a file."""

    def __init__(self) -> None:
        KEPT.parent.mkdir(exist_ok=True)
        if not KEPT.exists():
            KEPT.write_text(",".join([*CASE, "old", "new"]) + "\n")
        lines = [line.split(",") for line in KEPT.read_text().splitlines()[1:]]
        self.known = {tuple(x[:-2]): [float(loss) for loss in x[-2:]] for x in lines}

    def losses(self, case: tuple, seeds: list[int]) -> NDArray[np.float64]:
        """Return the losses (seeds, 2) of a case without its seed; infinite if it diverged."""
        found = []
        for seed in seeds:
            key = tuple(map(str, (*case, seed)))  # as in the file
            if key not in self.known:
                self.known[key] = self._run(*case, seed)
            found.append(self.known[key])
        return np.nan_to_num(found, nan=np.inf)

    def _run(self, new, optimizer, size, share, schedule, rate, seed) -> list[float]:
        rates = SCHEDULES[schedule](rate, STEPS[size])
        end = train(new, optimizer, learnt(seed), rates, share, 2 * seed + 1)
        held_out = domains(new)[2]["validation" if seed in TUNING else "test"]
        losses = [float(_measured(end, batches)) for batches in held_out]
        line = ",".join(map(str, (new, optimizer, size, share, schedule, rate, seed, *losses)))
        with KEPT.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)
        return losses

    def tuned(self, case: tuple, guess: float) -> tuple[float, dict[float, float]]:
        """Return the rate whose neighbours on the grid are no better, and all losses by rate."""
        tried: dict[float, float] = {}
        while True:
            for rate in (guess / 2, guess, guess * 2):
                tried[rate] = self.losses((*case, rate), TUNING).mean()
            best = min(tried, key=tried.__getitem__)
            if best == guess:
                return guess, dict(sorted(tried.items()))
            guess = best


# --- Tables ---------------------------------------------------------------------------------------


def cell(runs: Runs, new: str, optimizer: str, size: str) -> str:
    """Return the tables of a new domain, an optimizer and a number of steps."""
    guesses = dict.fromkeys(SCHEDULES, OPTIMIZERS[optimizer][1])
    chosen, tests, tried = {}, {}, []
    for share in SHARES:
        for schedule in SCHEDULES:
            case = new, optimizer, size, share, schedule
            guesses[schedule], losses = runs.tuned(case, guesses[schedule])
            tests[share, schedule] = runs.losses((*case, guesses[schedule]), TESTING)
            each = "  ".join(f"{rate:g}: {loss:.4f}" for rate, loss in losses.items())
            tried.append(f"{100 * share:g} %, {schedule}  {each}")
            choice = losses[guesses[schedule]], schedule, guesses[schedule]
            chosen[share] = min(chosen.get(share, choice), choice)
    best = min(SHARES, key=lambda share: chosen[share][0])
    ends = {share: tests[share, chosen[share][1]] for share in SHARES}
    rows = []
    for share in SHARES:
        on_old, on_new = ends[share].mean(axis=0)
        difference = (ends[share] - ends[best]).mean(axis=1)
        warmed = (tests[share, "re-warmed"] - tests[share, "constant"]).mean(axis=1)
        rows.append({
            "share %": f"{100 * share:g}", "schedule": chosen[share][1],
            "rate": chosen[share][2], "old": f"{on_old:.4f}", "new": f"{on_new:.4f}",
            "loss": interval(ends[share].mean(axis=1), ""),
            f"loss − {100 * best:g} %": "–" if share == best else interval(difference),
            "re-warmed − constant": interval(warmed),
        })  # fmt: skip
    characters = STEPS[size] * SEQUENCES * truth.CONTEXT
    title = f"{new}, {optimizer}, {characters:,} characters; best on validation: {100 * best:g} %"
    return "\n".join([title, show(rows), "tried, validation loss by rate:", *tried])


def interval(values: NDArray[np.float64], sign: str = "+") -> str:
    """Return a mean with its 95 % interval."""
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():{sign}.4f} ± {half:.4f}"


def main() -> None:
    runs = Runs()
    tables = [cell(runs, *case) for case in CELLS]
    head = (
        "python benchmarks/replay_lm.py: test losses, nats per character, 95 % intervals; tuned "
        f"with seeds {TUNING}, tested with {TESTING}"
    )
    for new in dict.fromkeys(case[0] for case in CELLS):
        before = np.array([
            [float(_measured(learnt(seed), batches)) for batches in domains(new)[2]["test"]]
            for seed in TESTING
        ]).mean(axis=0)  # fmt: skip
        head += f"\nbefore {new}: old {before[0]:.4f}, new {before[1]:.4f}"
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}"
    text = "\n\n".join([head, *tables, versions]) + "\n"
    print(text)
    (HERE / "results" / "replay_lm.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
