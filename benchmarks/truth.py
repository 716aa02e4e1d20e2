"""Two real trainings whose learning rate is an array: what a fitted law and its plan are held to.

    python benchmarks/truth.py check text images       pilots, a fit, and its rivals on fresh seeds
    python benchmarks/truth.py pilots text out.csv     trains 8 pilots only: run, step, lr, loss
    python benchmarks/truth.py noise text              spread of two pilots' end loss over seeds

`text` is a character-level transformer on the sources of Python's standard library (so its numbers
belong to one version of Python), `images` a ReLU network on shifted images of Fashion-MNIST.
`check` trains, at 1 and 3 times the pilots' horizon and with 5 seeds, what `replan.advise`
recommends, the best pilot, WSD 20 %, a cosine and the best constant rate. It keeps pilots and end
losses in build/truth and skips what is there: remove them after a change of the law. What it prints
at the end goes to benchmarks/results/truth.txt.

A process uses one core: 30 minutes for the text, 4 for the images.
"""

import argparse
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ["NPROC"] = "1"  # the size of XLA's pool of threads

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array, lax
from numpy.typing import NDArray
from scipy.stats import t

import replan
from common import HERE, show

Parameters = dict[str, Array]
Batch = tuple[Array, Array]
FOLDER = HERE.parent / "build" / "truth"


class Network(NamedTuple):
    """A training without its learning rate."""

    initial: Callable[[Array], Parameters]
    """Draws the parameters."""
    batch: Callable[[Array], Batch]
    """Draws inputs and targets."""
    loss: Callable[[Parameters, Batch], Array]
    update: Callable[[Parameters, Any, Parameters, Array, Array], tuple[Parameters, Any]]
    """Takes parameters, the optimiser's memory, gradient, rate and the number of the update."""
    validation: Batch
    """Stacked batches: the first axis is walked over."""
    peak: float
    """A reasonable rate, not a tuned one."""
    horizon: int
    """Steps of a pilot."""
    every: int
    """Steps between a pilot's measurements."""


# --- The two networks -----------------------------------------------------------------------------

VOCABULARY = "\n" + "".join(chr(i) for i in range(32, 127))
CONTEXT, WIDTH, LAYERS, HEADS, SEQUENCES = 64, 96, 2, 4, 12


@cache
def text() -> Network:
    """Return the transformer on the standard library's sources."""
    train, held_out = (jnp.asarray(part) for part in sources())

    def batch(key: Array) -> Batch:
        begin = jax.random.randint(key, (SEQUENCES, 1), 0, len(train) - CONTEXT)
        return at(train, begin)

    return Network(
        initial=initial_transformer,
        batch=batch,
        loss=next_character,
        update=adamw,
        validation=windows(held_out, 8),
        peak=3e-3,
        horizon=1200,
        every=60,
    )


def sources() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the standard library's characters, as indices: every tenth file is held out."""
    codes = [encoded(path.read_bytes()) for path in source_files()]
    train = [x for i, x in enumerate(codes) if i % 10 != 9]
    return np.concatenate(train), np.concatenate(codes[9::10])


def source_files() -> list[Path]:
    """Return the standard library's sources, without tests and what is no library."""
    folder = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.py"))
    return [folder / file for file in files if not left_out & set(file.parts)]


def encoded(characters: bytes) -> NDArray[np.uint8]:
    """Return characters as indices, without those that are not in the vocabulary."""
    index = np.full(256, 255, np.uint8)
    index[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(len(VOCABULARY))
    indices = index[np.frombuffer(characters, np.uint8)]
    return indices[indices < 255]


def windows(held_out: Array, batches: int) -> Batch:
    """Return stacked batches of 32 windows, evenly spaced over the text."""
    begin = jnp.linspace(0, len(held_out) - CONTEXT - 1, batches * 32).astype(int)
    return at(held_out, begin.reshape(batches, 32, 1))


def at(characters: Array, begin: Array) -> Batch:
    """Return the windows that begin there (…, 1), and the character after each of theirs."""
    window = characters[begin + jnp.arange(CONTEXT + 1)].astype(int)
    return window[..., :-1], window[..., 1:]


def initial_transformer(key: Array, width: int = WIDTH) -> Parameters:
    """Draw the parameters: 12 × LAYERS × width² and the embedding."""
    inner, outer = width**-0.5, (2 * LAYERS * width) ** -0.5
    scales = {
        "embedding": ((len(VOCABULARY), width), 0.02),
        "qkv": ((LAYERS, width, 3 * width), inner),
        "attended": ((LAYERS, width, width), outer),
        "up": ((LAYERS, width, 4 * width), inner),
        "down": ((LAYERS, 4 * width, width), outer / 2),
    }
    keys = jax.random.split(key, len(scales))
    weights = {
        name: scale * jax.random.normal(k, shape)
        for k, (name, (shape, scale)) in zip(keys, scales.items(), strict=True)
    }
    return weights | {"norm": jnp.ones((2 * LAYERS + 1, width))}


def next_character(parameters: Parameters, batch: Batch) -> Array:
    """Return the mean cross-entropy of the transformer's predictions, in nats per character."""
    return _cross_entropy(_transformer(parameters, batch[0]), batch[1])


def _transformer(p: Parameters, characters: Array) -> Array:
    """Return logits: a pre-norm decoder with tied embeddings and rotary positions."""
    n, length = characters.shape
    mask = jnp.tril(jnp.ones((length, length), bool))
    x = p["embedding"][characters]
    for i in range(LAYERS):
        qkv = _norm(x, p["norm"][2 * i]) @ p["qkv"][i]
        q, k, v = qkv.reshape(n, length, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
        scores = _rotated(q) @ _rotated(k).swapaxes(-1, -2) * q.shape[-1] ** -0.5
        attended = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)) @ v
        x += attended.swapaxes(1, 2).reshape(n, length, -1) @ p["attended"][i]
        x += jax.nn.gelu(_norm(x, p["norm"][2 * i + 1]) @ p["up"][i]) @ p["down"][i]
    return _norm(x, p["norm"][-1]) @ p["embedding"].T


def _rotated(x: Array) -> Array:
    """Return queries or keys with their positions (rotary embedding)."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[-2])[:, None] * 1000 ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _norm(x: Array, scale: Array) -> Array:
    return scale * x * lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


SIZES, BATCH = (784, 256, 256, 10), 256


@cache
def images() -> Network:
    """Return the ReLU network on Fashion-MNIST, whose images are shifted by up to two pixels."""
    sys.path.append(str(Path(__file__).parents[1]))
    from reproduction.images.data import load

    data = load("fashion-mnist")
    train = jnp.pad(jnp.asarray(data.train_images), ((0, 0), (2, 2), (2, 2)))
    labels = jnp.asarray(data.train_labels, int)
    mean, deviation = data.train_images.mean(), data.train_images.std()

    def standard(x: Array) -> Array:
        return ((x.astype(jnp.float32) - mean) / deviation).reshape(*x.shape[:-2], -1)

    def batch(key: Array) -> Batch:
        which, shift = jax.random.split(key)
        index = jax.random.randint(which, (BATCH,), 0, len(train))
        begin = jax.random.randint(shift, (BATCH, 2), 0, 5)
        shifted = jax.vmap(lambda i, at: lax.dynamic_slice(train[i], at, (28, 28)))(index, begin)
        return standard(shifted), labels[index]

    test = standard(jnp.asarray(data.test_images[:5000])).reshape(5, 1000, -1)
    return Network(
        initial=_initial_perceptron,
        batch=batch,
        loss=lambda parameters, batch: _cross_entropy(_perceptron(parameters, batch[0]), batch[1]),
        update=sgd,
        validation=(test, jnp.asarray(data.test_labels[:5000], int).reshape(5, 1000)),
        peak=0.08,
        horizon=1500,
        every=75,
    )


def _initial_perceptron(key: Array) -> Parameters:
    keys = jax.random.split(key, len(SIZES) - 1)
    parameters = {}
    for i, (k, n, m) in enumerate(zip(keys, SIZES[:-1], SIZES[1:], strict=True)):
        parameters[f"weight{i}"] = (2 / n) ** 0.5 * jax.random.normal(k, (n, m))
        parameters[f"bias{i}"] = jnp.zeros(m)
    return parameters


def _perceptron(p: Parameters, x: Array) -> Array:
    last = len(SIZES) - 2
    for i in range(last):
        x = jax.nn.relu(x @ p[f"weight{i}"] + p[f"bias{i}"])
    return x @ p[f"weight{last}"] + p[f"bias{last}"]


def _cross_entropy(logits: Array, targets: Array) -> Array:
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


NETWORKS = {"text": text, "images": images}

# --- The training ---------------------------------------------------------------------------------


def adamw(parameters, memory, gradient, rate, step):
    """Update by AdamW: β = 0.9 and 0.95, gradients clipped to norm 1, matrices decay by 0.1."""
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradient.values()))
    clip = jnp.minimum(1, 1 / (norm + 1e-12))
    new, new_memory = {}, {}
    for name, x in parameters.items():
        g, (first, second) = clip * gradient[name], memory[name]
        first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g**2
        unbiased, square = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.95 ** (step + 1))
        decay = 0 if name == "norm" else 0.1
        new[name] = x - rate * (unbiased / (jnp.sqrt(square) + 1e-8) + decay * x)
        new_memory[name] = (first, second)
    return new, new_memory


def sgd(parameters, memory, gradient, rate, step):
    """Update by SGD with momentum 0.9."""
    memory = {name: (0.9 * m + gradient[name], s) for name, (m, s) in memory.items()}
    return {name: x - rate * memory[name][0] for name, x in parameters.items()}, memory


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _advance(name: str, state, rates: Array, begin: Array, key: Array):
    """Make one update for each of the rates."""
    network = NETWORKS[name]()

    def update(state, now):
        step, rate = now
        batch = network.batch(jax.random.fold_in(key, step))
        gradient = jax.grad(network.loss)(state[0], batch)
        return network.update(*state, gradient, rate, step), None

    return lax.scan(update, state, (begin + jnp.arange(len(rates)), rates))[0]


@partial(jax.jit, static_argnums=0)
def _measure(name: str, parameters: Parameters) -> Array:
    network = NETWORKS[name]()
    return jnp.mean(lax.map(partial(network.loss, parameters), network.validation))


def train(
    network: str, rates: NDArray[np.float64], seed: int, every: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Train with `rates[k]` at step k; return after how many updates the loss was measured, and it.

    The validation loss is measured every `every` updates and after the last. The seed decides the
    initialisation and the batch of each step, whatever the rates are.
    """
    initial, batches = jax.random.split(jax.random.key(seed))
    parameters = NETWORKS[network]().initial(initial)
    state = parameters, {name: (0 * x, 0 * x) for name, x in parameters.items()}
    steps, losses = [], []
    for begin in range(0, len(rates), every):
        part = jnp.asarray(rates[begin : begin + every], jnp.float32)
        state = _advance(network, state, part, jnp.asarray(begin), batches)
        steps.append(begin + len(part))
        losses.append(float(_measure(network, state[0])))
    return np.array(steps), np.array(losses)


# --- Schedules: the rate at steps 0 … T, of which the last is where the schedule ends -------------


def constant(peak: float, T: int, warmup: int) -> NDArray[np.float64]:
    """Rise linearly to the peak over the warm-up, then stay."""
    return peak * np.minimum(1, np.arange(1, T + 2) / warmup)


def cosine(peak: float, T: int, warmup: int, to: float = 0.1) -> NDArray[np.float64]:
    """Fall from the peak to `to` times the peak along half a cosine."""
    progress = _progress(T, warmup)
    return constant(peak, T, warmup) * (to + (1 - to) * (1 + np.cos(np.pi * progress)) / 2)


def linear(peak: float, T: int, warmup: int) -> NDArray[np.float64]:
    """Fall linearly to zero from the end of the warm-up on."""
    return constant(peak, T, warmup) * (1 - _progress(T, warmup))


def wsd(peak: float, T: int, warmup: int, fraction: float) -> NDArray[np.float64]:
    """Stay at the peak, then fall linearly to zero over the last fraction of the steps."""
    return constant(peak, T, warmup) * (1 - _progress(T, T - round(fraction * T)))


def drop(peak: float, T: int, warmup: int, at: float, to: float) -> NDArray[np.float64]:
    """Drop to `to` times the peak after a fraction `at` of the steps."""
    return constant(peak, T, warmup) * np.where(np.arange(T + 1) < round(at * T), 1, to)


def _progress(T: int, begin: int) -> NDArray[np.float64]:
    return np.clip((np.arange(T + 1) - begin) / (T - begin), 0, 1)


def warmup(network: str) -> int:
    """Return the steps of the warm-up, the same at all horizons: 5 % of a pilot's."""
    return NETWORKS[network]().horizon // 20


def pilot_schedules(network: str) -> dict[str, NDArray[np.float64]]:
    """Return the pilots' rates at steps 0 … T."""
    p, T, w = NETWORKS[network]().peak, NETWORKS[network]().horizon, warmup(network)
    return {
        "constant": constant(p, T, w),
        "constant-half": constant(p / 2, T, w),
        "constant-double": constant(2 * p, T, w),
        "cosine": cosine(p, T, w),
        "linear": linear(p, T, w),
        "wsd": wsd(p, T, w, 0.2),
        "drop-0.3": drop(p, T, w, 0.5, 0.3),
        "drop-0.1": drop(p, T, w, 0.4, 0.1),
    }


# --- Tables and the command line ------------------------------------------------------------------


def pilots(network: str) -> pd.DataFrame:
    """Train the pilots with seed 0; return a table of run, step, lr and loss.

    A row's rate holds from its step on, and its loss (if measured) is that before this step's
    update. There is a row every ten steps, at each measurement and on both sides of a jump.
    """
    tables = []
    for run, schedule in pilot_schedules(network).items():
        begin = time.perf_counter()
        measured, losses = train(network, schedule[:-1], 0, NETWORKS[network]().every)
        seconds = time.perf_counter() - begin
        print(f"{run:16} end loss {losses[-1]:.4f}  {seconds:.1f} s", flush=True)
        jumps = np.flatnonzero(schedule[1:] < 0.8 * schedule[:-1])
        jumps = jumps[schedule[jumps] == schedule.max()]  # not a decay's last steps to zero
        steps = np.arange(0, len(schedule), 10)
        steps = np.unique(np.concatenate([steps, measured, jumps, jumps + 1]))
        table = pd.DataFrame({"run": run, "step": steps, "lr": schedule[steps]})
        tables.append(table.assign(loss=table.step.map(dict(zip(measured, losses, strict=True)))))
    return pd.concat(tables, ignore_index=True)


def rivals(
    network: str, fitted: replan.Fit, times: int
) -> tuple[str, dict[str, NDArray[np.float64]]]:
    """Return what the law recommends, in words, and the rates of it and of its rivals."""
    before, begin, best = warmup(network), fitted.covered["starts_at"], fitted.covered["best"]
    T = times * NETWORKS[network]().horizon
    advice = replan.advise(fitted.problem(T - begin))
    table, peak = advice.to_frame(), best["peak"]
    fixed = float(advice.candidates[0].schedule[0])
    steps = np.arange(T + 1)
    after = np.clip((steps - begin) / (T - begin), 0.0, 1.0)
    ramp = np.minimum(1.0, (steps + 1) / before)
    found = {
        "recommended": np.interp(steps, table["step"], table["lr"]) * ramp,
        "best pilot": np.interp(after, best["times"], best["rates"]) * ramp,
        "WSD 20 %": wsd(peak, T, before, 0.2),
        "cosine": cosine(peak, T, before),
        "best constant": constant(fixed, T, before),
    }
    if best["run"] == "wsd":  # the same run twice
        del found["best pilot"]
    return (
        f"{network}, {T} steps, {times} times the pilots: recommended is {advice.chosen.name}; "
        f"best pilot {best['run']}; best constant {fixed:.3g}"
    ), found


def check(network: str, seeds: list[int]) -> str:
    """Train the recommended schedules and their rivals; return tables of the end losses."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    made, ends = FOLDER / f"{network}-pilots.csv", FOLDER / f"{network}-ends.csv"
    if not made.exists():
        pilots(network).to_csv(made, index=False, float_format="%.6g")
    if not ends.exists():
        ends.write_text("horizon,run,seed,loss\n")
    texts, fitted = [], replan.fit(made)
    for times in (1, 3):
        words, schedules = rivals(network, fitted, times)
        for seed in seeds:
            for run, schedule in schedules.items():
                done = pd.read_csv(ends).set_index(["horizon", "run", "seed"]).index
                if (times, run, seed) not in done:
                    loss = train(network, schedule[:-1], seed, 10 * NETWORKS[network]().every)[1][
                        -1
                    ]
                    row = pd.DataFrame([[times, run, seed, loss]])
                    row.to_csv(ends, mode="a", header=False, index=False)
                    print(f"{network} {times}x {run} seed {seed}: {loss:.4f}", flush=True)
        table = pd.read_csv(ends).query("horizon == @times and seed in @seeds")
        table = table.pivot(index="run", columns="seed", values="loss")
        texts.append(f"{words}\n{compared(table, predicted(fitted, schedules))}")
    return "\n\n".join(texts)


def predicted(
    fitted: replan.Fit, schedules: dict[str, NDArray[np.float64]]
) -> dict[str, tuple[float, float, float]]:
    """Return the predicted end loss of each schedule with its 90 % interval."""
    tables = [
        pd.DataFrame({"run": run, "step": np.arange(len(rates)), "lr": rates})
        for run, rates in schedules.items()
    ]
    found = fitted.predict(pd.concat(tables))
    return {run: (x.loss[-1], x.low[-1], x.high[-1]) for run, x in found.items()}


def compared(ends: pd.DataFrame, predicted: dict[str, tuple[float, float, float]]) -> str:
    """Return a table of end losses (runs, seeds), and how much lower the recommended is (90 %)."""
    rows = []
    for run, losses in ends.loc[ends.mean(axis=1).sort_values().index].iterrows():
        gains = losses - ends.loc["recommended"]
        half = t.ppf(0.95, len(gains) - 1) * gains.std() / np.sqrt(len(gains))
        paired = {"recommended is lower by": f"{gains.mean():+.4f}", "±": f"{half:.4f}"}
        each = {f"seed {seed}": f"{loss:.4f}" for seed, loss in losses.items()}
        value, low, high = predicted[run]
        law = {"predicted": f"{value:.4f}", "90 %": f"{low:.4f} to {high:.4f}"}
        rows.append({"schedule": run, "mean": f"{losses.mean():.4f}", **paired, **law, **each})
    return show(rows)


def noise(network: str, seeds: list[int]) -> None:
    """Print the spread over seeds of the end losses of the constant and the WSD pilot."""
    schedules = pilot_schedules(network)
    ends = {
        run: np.array([train(network, schedules[run][:-1], s, 500)[1][-1] for s in seeds])
        for run in ("constant", "wsd")
    }
    ends["constant - wsd"] = ends["constant"] - ends["wsd"]
    for run, losses in ends.items():
        print(f"{run:16} mean {losses.mean():.4f}  std {losses.std(ddof=1):.4f}  {losses.round(4)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check")
    command.add_argument("networks", nargs="+", choices=NETWORKS)
    command.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    command = commands.add_parser("pilots")
    command.add_argument("network", choices=NETWORKS)
    command.add_argument("out", type=Path)
    command = commands.add_parser("noise")
    command.add_argument("network", choices=NETWORKS)
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    if chosen.command == "pilots":
        pilots(chosen.network).to_csv(chosen.out, index=False, float_format="%.6g")
    elif chosen.command == "noise":
        noise(chosen.network, chosen.seeds)
    else:
        text = "\n\n".join(check(network, chosen.seeds) for network in chosen.networks)
        versions = f"replan {replan.__version__}, jax {jax.__version__}, numpy {np.__version__}"
        text += f"\n\nPython {platform.python_version()}, {versions}\n"
        print(text)
        (HERE / "results" / "truth.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
