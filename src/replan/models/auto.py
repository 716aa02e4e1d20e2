"""AutoModel: any model from its `rate` and `losses`, gradients by automatic differentiation.

Needs the extra `jax`. Every RK4 step is differentiated on its own (one `vjp` per step inside a
loop): differentiating the unrolled loop costs several times as much to run and to compile. Loops
have as many steps as they are told at run time, and parameters are arguments, so that each function
is compiled once; JAX keeps the compiled code on disk for the next process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.core.schedule import Gradients, Schedule
from replan.errors import ArgumentError
from replan.models.base import DifferentiableModel
from replan.models.knobs import LR, Knob

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

_AT_ONCE = 1024  # steps, or states, in one call of compiled code
COST = "cost"  # the name of the loss that a running cost adds up to


def _load_jax() -> None:
    """Import JAX when the first model is made: it takes seconds, and is optional."""
    global jax, jnp, ravel_pytree
    try:
        import jax
        import jax.numpy as jnp
        from jax.flatten_util import ravel_pytree
    except ImportError as error:
        raise ImportError("AutoModel needs JAX: pip install 'replan[jax]'") from error
    config: Any = jax.config  # its settings have no types
    if config.jax_compilation_cache_dir is None:  # else it is the user's choice
        from replan.core.compiled import cache_folder

        folder = cache_folder("jax")
        if folder is not None:
            config.update("jax_compilation_cache_dir", str(folder))
            config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


class AutoModel(DifferentiableModel):
    """A dynamics given by two functions on states of any structure (a pytree of arrays).

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

    - `knobs`: what training may turn, in the order in which `rate` has them after the task; by
      default the learning rate alone.
    - `parameters`: numbers and arrays that all functions get by keyword. `with_parameters` changes
      them, without compiling anything again.
    - `loss_names`: the names of the losses, by default those of the tasks.
    - `cost(state, task, lr)`: with the arguments of `rate`, a number: what training costs per unit
      of time. Its integral is a further loss, "cost", with the weight of the others unless the
      problem says otherwise.

    All numbers are float64. JAX keeps what it compiles in replan's cache, for the whole process,
    unless `jax_compilation_cache_dir` is set before the first model is made. No file can hold the
    functions: results of such a model are loaded with `model=`, or else only as far as the file
    holds them. A subclass that makes the functions from settings can be registered, with a `kind`,
    `from_dict` and `to_dict` of its own.

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
        cost: Callable[..., Any] | None = None,
    ) -> None:
        _load_jax()
        self._task_names = _names(tasks)
        self.tasks = len(self._task_names)
        self.knobs = tuple(
            check.instance("knobs", knob, Knob, "a list of Knob(…)")
            for knob in check.items("knobs", knobs, "Knob(…)")
        )
        check.function("rate", rate)
        check.function("losses", losses)
        if cost is not None:
            check.function("cost", cost)
        with jax.enable_x64(True):
            state = _doubles("like", like)
            if ravel_pytree(state)[0].size == 0:
                raise ArgumentError("like", "a state of at least one number", check.show(like))
            self.parameters = {
                name: _doubles(check.word("parameters", name), value)
                for name, value in (parameters or {}).items()
            }
            self._program = _Program(self, rate, losses, cost, state)
            names = self._task_names if loss_names is None else _words("loss_names", loss_names)
            if cost is not None and COST in names:
                raise ValueError(
                    f"`loss_names` expects other names than '{COST}', that of the running cost"
                )
            hint = ": give `loss_names`" if loss_names is None else ""
            self._program.check(self.parameters, len(names), hint)
        self._loss_names = (*names, *([COST] * self._program.costs))

    @property
    def task_names(self) -> tuple[str, ...]:
        """What people call the tasks."""
        return self._task_names

    @property
    def loss_names(self) -> tuple[str, ...]:
        """What people call the losses."""
        return self._loss_names

    @property
    def size(self) -> int:
        """The number n of numbers in a state; the integral of the cost so far is one of them."""
        return self._program.size

    def with_parameters(self, **parameters: Any) -> AutoModel:
        """Return the same model with other values of some parameters; nothing is compiled again."""
        changed = {}
        with jax.enable_x64(True):
            for name, value in parameters.items():
                check.one_of("parameters", name, self.parameters)
                changed[name] = _doubles(name, value)
                before, now = _show(self.parameters[name]), _show(changed[name])
                if now != before:
                    raise ArgumentError(name, f"the structure and shapes {before}", now)
        other = copy.copy(self)
        other.parameters = self.parameters | changed
        return other

    # The interface

    def pack(self, start: Any) -> Floats:
        """Return a state with the structure of `like` as a vector (n,)."""
        with jax.enable_x64(True):
            state = _doubles("start", start)
            flat = np.array(ravel_pytree(state)[0])
        if _show(state) != self._program.shapes:
            raise ArgumentError(
                "start",
                f"arrays with the structure and shapes of `like`, {self._program.shapes:.200}",
                f"{_show(state):.200}",
            )
        return np.append(flat, np.zeros(self._program.costs))

    def unpack(self, states: Floats) -> Any:
        """Return states (…, n) in the structure of `like`, with the same leading axes."""
        if states.shape[-1] != self.size:
            raise ArgumentError("states", f"{self.size} numbers each", f"{states.shape[-1]}")
        rows = states.reshape(-1, self.size)[:, : self.size - self._program.costs]
        with jax.enable_x64(True):
            found = jax.vmap(self._program.unravel)(jnp.asarray(rows))
        lead = states.shape[:-1]
        return jax.tree_util.tree_map(lambda a: np.array(a).reshape((*lead, *a.shape[1:])), found)

    def losses(self, states: Floats) -> Floats:
        """Return all losses (…, L) at states (…, n); see `Model.losses`."""
        rows = states.reshape(-1, states.shape[-1])
        found = self._run("losses", (), (rows,))
        return np.asarray(found[0]).reshape(*states.shape[:-1], len(self.loss_names))

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        rows = states.reshape(-1, states.shape[-1])
        found = self._run("losses_vjp", (), (rows, cotangents.reshape(len(rows), -1)))
        return np.asarray(found[0]).reshape(states.shape)

    def roll_out(self, start: Floats, pieces: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of RK4; see `Model.roll_out`."""
        ends = self._ends(start, _single_steps(pieces))
        states = np.vstack([start, ends[np.cumsum(pieces.substeps) - 1]])
        bad = np.flatnonzero(~np.isfinite(states).all(axis=1))
        return states[: bad[0]] if bad.size else states

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, pieces: Schedule, tape: Any = None
    ) -> Gradients:
        """Return the exact gradients of a roll-out; see `DifferentiableModel.roll_out_vjp`."""
        rows = _single_steps(pieces)
        last = np.cumsum(pieces.substeps) - 1
        first = last - pieces.substeps + 1
        after = np.zeros((len(rows[2]), self.size))
        after[last] = cotangents[1:]
        before = np.vstack([states[:1], self._ends(states[0], rows)[:-1]])
        backwards = [part[::-1] for part in (before, after, *rows)]
        adjoints, by_shares, by_knobs = (
            part[::-1] for part in self._run("backward", (np.zeros(self.size),), backwards)
        )
        return Gradients(
            np.vstack([adjoints[first], np.zeros(self.size)]) + cotangents,
            np.add.reduceat(by_shares, first),
            np.add.reduceat(by_knobs, first),
        )

    def _ends(self, start: Floats, rows: tuple[Floats, ...]) -> Floats:
        """Return the states (steps, n) after each single step."""
        return self._run("forward", (start,), rows)[0]

    def _run(self, name: str, carry: tuple[Floats, ...], rows: Sequence[Floats]) -> list[Floats]:
        """Run a loop over rows in calls short enough for Ctrl-C to take effect.

        carry: what the first call begins from; the others begin from the last row before them.
        """
        parts = []
        for first in range(0, len(rows[0]), _AT_ONCE):
            some = [np.ascontiguousarray(part[first : first + _AT_ONCE]) for part in rows]
            count = len(some[0])
            full = [
                np.concatenate([part, np.zeros((_AT_ONCE - count, *part.shape[1:]))])
                for part in some
            ]
            with jax.enable_x64(True):
                found = self._program.compiled[name](self.parameters, count, *carry, *full)
                parts.append([np.array(part)[:count] for part in found])
            carry = (parts[-1][0][-1],) if carry else ()
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return the names of the functions, which cannot be put in a file, and the parameters."""
        content: dict[str, Any] = {
            "rate": getattr(self._program.rate, "__name__", "rate"),
            "losses": getattr(self._program.losses, "__name__", "losses"),
            "tasks": self.tasks,
        }
        if self.parameters:
            content["parameters"] = {
                name: jax.tree_util.tree_map(lambda a: np.asarray(a).tolist(), value)
                for name, value in self.parameters.items()
            }
        return content


class _Program:
    """The functions of a model in JAX, and what it derives from them; parameters are arguments.

    Loops are over rows (steps, …) of which only the first `count` are meant.
    """

    def __init__(
        self,
        model: AutoModel,
        rate: Callable[..., Any],
        losses: Callable[..., Any],
        cost: Callable[..., Any] | None,
        like: Any,
    ) -> None:
        self.rate, self.losses, self.cost, self.like = rate, losses, cost, like
        self.tasks, self.knobs = model.tasks, model.knobs
        self.columns = list(model.layout.columns.values())
        flat, self.unravel = ravel_pytree(like)
        self.costs = int(cost is not None)
        self.size, self.shapes = int(flat.size) + self.costs, _show(like)
        self.by_index = False  # whether the functions take traced tasks
        loops = {
            "forward": self._forward,
            "backward": self._backward,
            "losses": self._loop(self._flat_losses),
            "losses_vjp": self._loop(self._pull_flat_losses),
        }
        self.compiled = {name: jax.jit(loop) for name, loop in loops.items()}

    def check(self, parameters: Any, losses: int, hint: str) -> None:
        """Refuse functions that do not return what they should, such as the number of losses."""
        knobs = [1.0] * len(self.knobs)
        names = ", ".join(["state", "task", *(knob.name for knob in self.knobs)])
        functions = {"rate": self.rate} | ({"cost": self.cost} if self.cost else {})

        def trace(name: str, task: Any) -> Any:
            function, given = functions[name], (self.like, parameters, knobs)
            if isinstance(task, int):
                return _traced(name, names, lambda x, p, k: function(x, task, *k, **p), *given)
            return _traced(name, names, lambda x, p, k, t: function(x, t, *k, **p), *given, task)

        try:
            for name in functions:
                trace(name, jnp.zeros((), jnp.int32))
            self.by_index = self.tasks > 1
        except ValueError:  # it may need the task as a Python int
            pass
        for task in range(self.tasks):
            given = _show(trace("rate", task))
            if given != self.shapes:
                raise ArgumentError(
                    "rate",
                    "a function that returns the structure and shapes of the"
                    f" state, {self.shapes:.150}",
                    f"{given:.150} for task {task}",
                )
            if self.cost is not None and _show(trace("cost", task)) != "()":
                raise ArgumentError(
                    "cost",
                    "a function that returns a number",
                    f"{_show(trace('cost', task)):.150} for task {task}",
                )
        shape = _show(
            _traced("losses", "state", lambda x, p: self.losses(x, **p), self.like, parameters)
        )
        if shape != f"({losses},)":
            one_by_one = shape.startswith("(") and shape.count(",") == 1
            raise ArgumentError(
                "losses",
                f"a function that returns an array of shape ({losses},)",
                f"{shape:.200}{(hint if one_by_one else '')}",
            )

    def _slope(self, p: Any, x: Any, shares: Any, knobs: Any) -> Any:
        state = self.unravel(x[: self.size - self.costs])

        def of_task(task: Any, share: Any, values: Any) -> Any:
            found = ravel_pytree(self.rate(state, task, *values, **p))[0]
            if self.cost is not None:
                found = jnp.append(found, self.cost(state, task, *values, **p))
            return share * found

        values = [jnp.broadcast_to(knobs[c], (self.tasks,)) for c in self.columns]
        if self.by_index:
            rows = jax.vmap(of_task)(jnp.arange(self.tasks), shares, values)
            return rows.sum(axis=0)
        parts = [of_task(t, shares[t], [v[t] for v in values]) for t in range(self.tasks)]
        return sum(parts[1:], parts[0])

    def _step(self, p: Any, x: Any, shares: Any, knobs: Any, length: Any) -> Any:
        k1 = self._slope(p, x, shares, knobs)
        k2 = self._slope(p, x + 0.5 * length * k1, shares, knobs)
        k3 = self._slope(p, x + 0.5 * length * k2, shares, knobs)
        k4 = self._slope(p, x + length * k3, shares, knobs)
        return x + length / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    def _forward(self, p: Any, count: Any, start: Any, *rows: Any) -> Any:
        """Return the states (rows, n) after each step."""

        def move(i: Any, carry: Any) -> Any:
            x, ends = carry
            x = self._step(p, x, *(part[i] for part in rows))
            return x, ends.at[i].set(x)

        ends = jnp.zeros((rows[0].shape[0], self.size))
        return (jax.lax.fori_loop(0, count, move, (start, ends))[1],)

    def _backward(self, p: Any, count: Any, back: Any, *rows: Any) -> Any:
        """Return the gradients by state, shares and knobs of each step, the rows last first."""
        _, _, shares, knobs, _ = rows

        def move(i: Any, carry: Any) -> Any:
            back, *found = carry
            x, cotangent, share, values, length = (part[i] for part in rows)
            _, pull = jax.vjp(lambda a, b, c: self._step(p, a, b, c, length), x, share, values)
            pulled = pull(back + cotangent)
            return (
                pulled[0],
                *(all_.at[i].set(one) for all_, one in zip(found, pulled, strict=True)),
            )

        zeros = jnp.zeros((rows[0].shape[0], self.size)), 0 * shares, 0 * knobs
        return jax.lax.fori_loop(0, count, move, (back, *zeros))[1:]

    def _flat_losses(self, p: Any, x: Any) -> Any:
        losses = jnp.asarray(self.losses(self.unravel(x[: self.size - self.costs]), **p))
        return jnp.append(losses, x[-1]) if self.costs else losses

    def _pull_flat_losses(self, p: Any, x: Any, cotangent: Any) -> Any:
        return jax.vjp(lambda a: self._flat_losses(p, a), x)[1](cotangent)[0]

    def _loop(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a loop of a function over rows."""

        def run(p: Any, count: Any, *rows: Any) -> Any:
            like = jax.eval_shape(function, p, *(part[0] for part in rows))

            def move(i: Any, out: Any) -> Any:
                return out.at[i].set(function(p, *(part[i] for part in rows)))

            zeros = jnp.zeros((rows[0].shape[0], *like.shape))
            return (jax.lax.fori_loop(0, count, move, zeros),)

        return run


def _names(tasks: int | Sequence[str]) -> tuple[str, ...]:
    """Return the names of tasks that are given by them or by their number."""
    if isinstance(tasks, list | tuple):
        return _words("tasks", tasks)
    return tuple(f"task {t + 1}" for t in range(check.integer("tasks", tasks, at_least=1)))


def _words(name: str, given: Sequence[str]) -> tuple[str, ...]:
    words = tuple(check.word(name, word) for word in check.items(name, given, "words"))
    if not words or len(set(words)) < len(words):
        raise ArgumentError(name, "different words", check.show(given))
    return words


def _traced(name: str, arguments: str, function: Callable[..., Any], *given: Any) -> Any:
    """Return the shapes of what a function of the user's returns; refuse what JAX cannot trace."""
    try:
        return jax.eval_shape(function, *given)
    except Exception as error:  # whatever is wrong in the user's code
        why = str(error).strip().partition("\n")[0]
        raise ArgumentError(
            name,
            f"a function of ({arguments}) in JAX code, with functions of"
            " `jax.numpy` and no `if` that depends on the state",
            f"{type(error).__name__}: {why}",
        ) from error


def _doubles(name: str, state: Any) -> Any:
    """Return a state, an argument of that name, as JAX arrays of float64."""
    return jax.tree_util.tree_map(lambda a: jnp.asarray(check.array(name, a)), state)


def _show(state: Any) -> str:
    """Return the structure of a state with the shape of each of its arrays.

    An array that is not of real numbers is shown with its type, and so fits nothing.
    """

    def leaf(a: Any) -> Any:
        real = jnp.issubdtype(a.dtype, jnp.floating) or jnp.issubdtype(a.dtype, jnp.integer)
        return _Shape(a.shape) if real else a

    return str(jax.tree_util.tree_map(leaf, state))


class _Shape(tuple[int, ...]):
    """The shape of an array, a leaf of a structure."""


def _single_steps(pieces: Schedule) -> tuple[Floats, Floats, Floats]:
    """Return shares, knobs and lengths of every single RK4 step."""
    rows = np.repeat(np.arange(len(pieces.lengths)), pieces.substeps)
    return pieces.shares[rows], pieces.knobs[rows], (pieces.lengths / pieces.substeps)[rows]
