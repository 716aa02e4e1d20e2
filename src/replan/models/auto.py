"""AutoModel: any model from its `rate` and `losses`, gradients by automatic differentiation.

Needs the extra `jax`. Every RK4 step is differentiated on its own (one `vjp` per step inside a
loop): differentiating the unrolled loop costs several times as much to run and to compile. Loops
learn their number of steps at run time, and parameters are arguments, so that each function is
compiled once; JAX keeps the compiled code on disk for the next process.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.core.schedule import Gradients, Schedule
from replan.errors import ArgumentError
from replan.models.base import DifferentiableModel
from replan.models.knobs import LR, Knob, KnobLayout

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

_CHUNK = 1024  # steps, or states, in one call of compiled code: Ctrl-C takes effect between two


def _load_jax() -> None:
    """Import JAX when the first model is made: it takes seconds, and is optional."""
    global jax, jnp, ravel_pytree
    try:
        import jax
        import jax.numpy as jnp
        from jax.flatten_util import ravel_pytree
    except ImportError as error:
        raise ImportError("models by autodiff need JAX: pip install 'replan[jax]'") from error
    config: Any = jax.config  # its settings have no types
    if config.jax_compilation_cache_dir is None:  # else it is the user's choice
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        config.update("jax_compilation_cache_dir", os.path.join(caches, "replan", "jax"))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


class AutoModel(DifferentiableModel):
    """A model given by two functions of a state of any structure (a pytree of arrays).

    **Main arguments**

    - `rate(state, task, lr)`: d(state)/dα while training on `task` (from 0) at a learning rate; JAX
      code that returns the structure and the shapes of the state. `task` is a traced integer, for
      `jnp.where` and indexing; a function that needs a Python int, as for an `if`, gets one, and
      takes longer to compile. JAX takes the last element where an index is too large: an array of
      values by task needs one for each.
    - `losses(state)`: all losses, an array (L,).
    - `tasks`: T, or the names of the tasks.
    - `like`: a state, for its structure and shapes.

    **Other arguments**

    - `knobs`: what training may turn, in the order in which `rate` takes them after the task; by
      default the learning rate alone.
    - `parameters`: numbers and arrays that all functions get by keyword. `with_parameters` changes
      them without compiling again.
    - `loss_names`: the names of the losses, by default those of the tasks.

    A running cost is one more entry of the state, whose rate is the cost, and one more loss.

    All numbers are float64. Models with the same functions, tasks and knobs share what JAX
    compiles, and JAX keeps it in replan's cache unless `jax_compilation_cache_dir` is set before
    the first model is made. Files cannot hold the functions: load results with `model=`, or
    register a subclass with a `kind`, `from_dict` and `to_dict`, as in `replan.models.gallery`.

    Examples:
        >>> import jax.numpy as jnp
        >>> def rate(state, task, lr):  # practice of one skill; the other fades
        ...     return lr * (task == jnp.arange(2)) * (1 - state) - 0.2 * state
        >>> def losses(state):
        ...     return (1 - state) ** 2
        >>> model = replan.AutoModel(rate, losses, tasks=2, like=np.zeros(2))
        >>> problem = replan.Problem(model, np.zeros(2), duration=5.0, steps=10)
        >>> run = replan.evaluate(problem, replan.strategies.sequential(problem))
        >>> print(run.final_losses.round(3))
        [0.27  0.043]
    """

    kind = "auto"
    task_names: tuple[str, ...] = ()
    loss_names: tuple[str, ...] = ()

    def __init__(
        self,
        rate: Callable[..., Any],
        losses: Callable[..., Any],
        *,
        tasks: int | Sequence[str],
        like: Any,
        knobs: Sequence[Knob] = (LR,),
        parameters: Mapping[str, Any] | None = None,
        loss_names: Sequence[str] | None = None,
    ) -> None:
        _load_jax()
        if not isinstance(tasks, list | tuple):
            tasks = [f"task {t + 1}" for t in range(check.integer("tasks", tasks, at_least=1))]
        self.task_names = _words("tasks", tasks)
        self.tasks = len(self.task_names)
        self.knobs = tuple(
            check.instance("knobs", knob, Knob, "a list of Knob(…)")
            for knob in check.items("knobs", knobs, "Knob(…)")
        )
        check.function("rate", rate)
        check.function("losses", losses)
        self.loss_names = (
            self.task_names if loss_names is None else _words("loss_names", loss_names)
        )
        with jax.enable_x64(True):
            arrays, structure = jax.tree_util.tree_flatten(_numbers("like", like))
            shapes = tuple(a.shape for a in arrays)
            if sum(a.size for a in arrays) == 0:
                raise ArgumentError("like", "a state of at least one number", check.show(like))
            self.parameters = {
                name: _numbers(check.word("parameters", name), value)
                for name, value in (parameters or {}).items()
            }
            plain = inspect.isfunction(rate) and inspect.isfunction(losses)
            make = _shared_program if plain else _Program
            self._program = make(rate, losses, self.tasks, self.knobs, structure, shapes)
            self._program.check(self.parameters, len(self.loss_names))
        self.size = self._program.size  # the length n of a state

    def with_parameters(self, **parameters: Any) -> AutoModel:
        """Return the same model with other values of some parameters; nothing is compiled again."""
        changed = {}
        with jax.enable_x64(True):
            for name, value in parameters.items():
                check.one_of("parameters", name, self.parameters)
                changed[name] = _numbers(name, value)
                before, now = _show(self.parameters[name]), _show(changed[name])
                if now != before:
                    raise ArgumentError(name, f"of the structure and shapes {before}", now)
        other = copy.copy(self)
        other.parameters = self.parameters | changed
        return other

    # The interface

    def pack(self, start: Any) -> Floats:
        """Return a state with the structure of `like` as a vector (n,)."""

        def leaf(like: Any, value: Any) -> Floats:  # a list may stand for an array
            return check.array("start", value, like.shape)

        with jax.enable_x64(True):
            try:
                state = jax.tree_util.tree_map(leaf, self._program.like, start)
            except ArgumentError:
                raise
            except (TypeError, ValueError):
                expected = f"of the structure and shapes of `like`, {self._program.shown:.200}"
                raise ArgumentError("start", expected, check.show(start)) from None
            return np.array(ravel_pytree(state)[0])

    def unpack(self, states: Floats) -> Any:
        """Return states (…, n) in the structure of `like`, with the same leading axes."""
        if states.shape[-1] != self.size:
            raise ArgumentError("states", f"{self.size} numbers each", f"{states.shape[-1]}")
        with jax.enable_x64(True):
            rows = jnp.asarray(states.reshape(-1, self.size))
            trees = jax.vmap(self._program.unravel)(rows)
        lead = states.shape[:-1]
        return jax.tree_util.tree_map(lambda a: np.array(a).reshape((*lead, *a.shape[1:])), trees)

    def losses(self, states: Floats) -> Floats:
        """Return all losses (…, L) at states (…, n); see `Model.losses`."""
        rows = states.reshape(-1, states.shape[-1])
        [losses] = self._run("losses", (), (rows,))
        return losses.reshape(*states.shape[:-1], len(self.loss_names))

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        rows = states.reshape(-1, states.shape[-1])
        [gradients] = self._run("losses_vjp", (), (rows, cotangents.reshape(len(rows), -1)))
        return gradients.reshape(states.shape)

    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of RK4; see `Model.roll_out`."""
        [ends] = self._run("forward", (start,), _single_steps(schedule))
        states = np.vstack([start, ends[np.cumsum(schedule.substeps) - 1]])
        bad = np.flatnonzero(~np.isfinite(states).all(axis=1))
        return states[: bad[0]] if bad.size else states

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tape: Any = None
    ) -> Gradients:
        """Return the exact gradients of a roll-out; see `DifferentiableModel.roll_out_vjp`."""
        steps = _single_steps(schedule)
        last = np.cumsum(schedule.substeps) - 1
        first = last - schedule.substeps + 1
        after = np.zeros((len(steps[2]), self.size))
        after[last] = cotangents[1:]
        [ends] = self._run("forward", (states[0],), steps)
        before = np.vstack([states[:1], ends[:-1]])
        backwards = [rows[::-1] for rows in (before, after, *steps)]
        adjoints, by_shares, by_knobs = (
            rows[::-1] for rows in self._run("backward", (np.zeros(self.size),), backwards)
        )
        return Gradients(
            np.vstack([adjoints[first], np.zeros(self.size)]) + cotangents,
            np.add.reduceat(by_shares, first),
            np.add.reduceat(by_knobs, first),
        )

    def _run(self, name: str, carry: tuple[Floats, ...], rows: Sequence[Floats]) -> list[Floats]:
        """Run a loop of the program over rows, in chunks.

        carry: where the first chunk begins; the others begin from the last row before them.
        """
        chunks = []
        for first in range(0, len(rows[0]), _CHUNK):
            chunk = [column[first : first + _CHUNK] for column in rows]
            count = len(chunk[0])
            padded = [
                np.concatenate([column, np.zeros((_CHUNK - count, *column.shape[1:]))])
                for column in chunk
            ]
            with jax.enable_x64(True):
                results = self._program.compiled[name](self.parameters, count, *carry, *padded)
                chunks.append([np.array(column)[:count] for column in results])
            carry = (chunks[-1][0][-1],) if carry else ()
        return [np.concatenate(column) for column in zip(*chunks, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters by name; no file can hold the functions."""
        return {
            name: jax.tree_util.tree_map(lambda a: a.tolist(), value)
            for name, value in self.parameters.items()
        }


class _Program:
    """A model's functions in JAX and the loops made of them; parameters are arguments.

    Loops run over rows (steps, …), of which only the first `count` are used.
    """

    def __init__(
        self,
        rate: Callable[..., Any],
        losses: Callable[..., Any],
        tasks: int,
        knobs: tuple[Knob, ...],
        structure: Any,
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        self.rate, self.losses, self.tasks, self.knobs = rate, losses, tasks, knobs
        self.columns = list(KnobLayout(knobs, tasks).columns.values())
        self.like = jax.tree_util.tree_unflatten(structure, [jnp.zeros(s) for s in shapes])
        flat, self.unravel = ravel_pytree(self.like)
        self.size, self.shown = int(flat.size), _show(self.like)
        self.traces_task = False  # whether `rate` takes a traced task
        loops = {
            "forward": self._forward,
            "backward": self._backward,
            "losses": self._loop(self._flat_losses),
            "losses_vjp": self._loop(self._flat_losses_vjp),
        }
        self.compiled = {name: jax.jit(loop) for name, loop in loops.items()}

    def check(self, parameters: Any, losses: int) -> None:
        """Refuse functions that do not return what they should."""
        arguments = self.like, parameters, [1.0] * len(self.knobs)
        names = ", ".join(["state", "task", *(knob.name for knob in self.knobs)])

        def rate(task: Any, x: Any, p: Any, knobs: Any) -> Any:
            return self.rate(x, task, *knobs, **p)

        with suppress(Exception):  # it may need the task as a Python int
            jax.eval_shape(rate, jnp.zeros((), jnp.int32), *arguments)
            self.traces_task = self.tasks > 1
        for task in range(self.tasks):
            shown = _traced("rate", names, partial(rate, task), *arguments)
            if shown != self.shown:
                expected = f"a function that returns a state of the shapes {self.shown:.150}"
                raise ArgumentError("rate", expected, f"{shown:.150} for task {task}")
        shown = _traced("losses", "state", lambda x, p: self.losses(x, **p), *arguments[:2])
        if shown != f"({losses},)":
            expected = f"a function that returns an array of shape ({losses},), as `loss_names`"
            raise ArgumentError("losses", expected, f"{shown:.200}")

    def _slope(self, p: Any, x: Any, shares: Any, knobs: Any) -> Any:
        """Return Σ_t share_t × the rate of the state (n,) on task t."""
        state = self.unravel(x)

        def on_task(task: Any, share: Any, values: Any) -> Any:
            return share * ravel_pytree(self.rate(state, task, *values, **p))[0]

        values = [jnp.broadcast_to(knobs[c], (self.tasks,)) for c in self.columns]
        if self.traces_task:
            return jax.vmap(on_task)(jnp.arange(self.tasks), shares, values).sum(axis=0)
        slopes = [on_task(t, shares[t], [v[t] for v in values]) for t in range(self.tasks)]
        return sum(slopes[1:], slopes[0])

    def _step(self, p: Any, x: Any, shares: Any, knobs: Any, length: Any) -> Any:
        k1 = self._slope(p, x, shares, knobs)
        k2 = self._slope(p, x + 0.5 * length * k1, shares, knobs)
        k3 = self._slope(p, x + 0.5 * length * k2, shares, knobs)
        k4 = self._slope(p, x + length * k3, shares, knobs)
        return x + length / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    def _forward(self, p: Any, count: Any, start: Any, *rows: Any) -> Any:
        """Return the states (rows, n) after each step."""

        def advance(i: Any, carry: Any) -> Any:
            x, ends = carry
            x = self._step(p, x, *(column[i] for column in rows))
            return x, ends.at[i].set(x)

        ends = jnp.zeros((rows[0].shape[0], self.size))
        return (jax.lax.fori_loop(0, count, advance, (start, ends))[1],)

    def _backward(self, p: Any, count: Any, adjoint: Any, *rows: Any) -> Any:
        """Return the gradients by state, shares and knobs of each step, the last one first."""
        _, _, shares, knobs, _ = rows

        def retreat(i: Any, carry: Any) -> Any:
            adjoint, *totals = carry
            x, cotangent, share, values, length = (column[i] for column in rows)
            _, vjp = jax.vjp(lambda a, b, c: self._step(p, a, b, c, length), x, share, values)
            gradients = vjp(adjoint + cotangent)
            pairs = zip(totals, gradients, strict=True)
            return gradients[0], *(total.at[i].set(gradient) for total, gradient in pairs)

        zeros = jnp.zeros((rows[0].shape[0], self.size)), 0 * shares, 0 * knobs
        return jax.lax.fori_loop(0, count, retreat, (adjoint, *zeros))[1:]

    def _flat_losses(self, p: Any, x: Any) -> Any:
        return jnp.asarray(self.losses(self.unravel(x), **p))

    def _flat_losses_vjp(self, p: Any, x: Any, cotangent: Any) -> Any:
        return jax.vjp(lambda a: self._flat_losses(p, a), x)[1](cotangent)[0]

    def _loop(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a loop of a function over rows."""

        def run(p: Any, count: Any, *rows: Any) -> Any:
            like = jax.eval_shape(function, p, *(column[0] for column in rows))

            def fill(i: Any, out: Any) -> Any:
                return out.at[i].set(function(p, *(column[i] for column in rows)))

            zeros = jnp.zeros((rows[0].shape[0], *like.shape))
            return (jax.lax.fori_loop(0, count, fill, zeros),)

        return run


_shared_program = lru_cache(maxsize=64)(_Program)


def _words(name: str, names: Sequence[str]) -> tuple[str, ...]:
    words = tuple(check.word(name, word) for word in check.items(name, names, "words"))
    if not words or len(set(words)) < len(words):
        raise ArgumentError(name, "different words", check.show(names))
    return words


def _traced(name: str, signature: str, function: Callable[..., Any], *arguments: Any) -> str:
    """Return the shapes that a user's function returns; refuse one that JAX cannot trace."""
    try:
        return _show(jax.eval_shape(function, *arguments))
    except Exception as error:  # whatever is wrong in the user's code
        why = str(error).strip().partition("\n")[0]
        expected = f"a function of ({signature}) in JAX code, without `if` on the state"
        raise ArgumentError(name, expected, f"{type(error).__name__}: {why}") from error


def _numbers(name: str, state: Any) -> Any:
    """Return a state, an argument of that name, as arrays of float64."""
    return jax.tree_util.tree_map(lambda a: check.array(name, a), state)


def _show(state: Any) -> str:
    """Return the structure of a state with the shape of each of its arrays.

    An array that is not of real numbers is shown with its type, and so fits nothing.
    """

    def leaf(a: Any) -> Any:
        real = jnp.issubdtype(a.dtype, jnp.floating) or jnp.issubdtype(a.dtype, jnp.integer)
        return a.shape if real else a

    return str(jax.tree_util.tree_map(leaf, state))


def _single_steps(schedule: Schedule) -> tuple[Floats, Floats, Floats]:
    """Return shares, knobs and lengths of every single RK4 step."""
    rows = np.repeat(np.arange(len(schedule.lengths)), schedule.substeps)
    return schedule.shares[rows], schedule.knobs[rows], (schedule.lengths / schedule.substeps)[rows]
