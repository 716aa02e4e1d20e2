"""AutoDynamics: any model from its `rate` and `losses`, gradients by automatic differentiation.

Needs the extra `jax`. Every RK4 step is differentiated on its own (one `vjp` per step inside a
scan): differentiating the unrolled scan costs several times as much to run and to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from replan._common import check
from replan._common.check import Floats
from replan.dynamics._dynamics import DifferentiableDynamics, Pieces, Pulled

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

_AT_ONCE = 4096  # single steps in one call of compiled code


def _load_jax() -> None:
    """Import JAX when the first model is made: it takes seconds, and is optional."""
    global jax, jnp, ravel_pytree
    try:
        import jax
        import jax.numpy as jnp
        from jax.flatten_util import ravel_pytree
    except ImportError as error:
        raise ImportError("AutoDynamics needs JAX: pip install 'replan[jax]'") from error


class AutoDynamics(DifferentiableDynamics):
    """A dynamics given by two functions on states of any structure (a pytree of arrays).

    - `rate(state, task, lr)`: d(state)/dα while training on `task` (an int from 0) at a learning
      rate; JAX code that returns the structure and the shapes of the state.
    - `losses(state)`: the loss of every task, an array (T,).
    - `tasks`: T.
    - `like`: a state, for its structure and shapes.

    All numbers are float64. No file can hold the functions: results of such a model are loaded
    with `model=`, or else only as far as the file holds them. A subclass that makes the
    functions from settings can be registered, with a `kind`, `from_dict` and `to_dict` of its own.
    """

    kind = "auto"

    def __init__(
        self,
        rate: Callable[[Any, int, Any], Any],
        losses: Callable[[Any], Any],
        *,
        tasks: int,
        like: Any,
    ) -> None:
        _load_jax()
        self.tasks = check.integer("tasks", tasks, at_least=1)
        self._rate = check.function("rate", rate)
        self._losses = check.function("losses", losses)
        with jax.enable_x64(True):
            state = _doubles("like", like)
            flat, self._unravel = ravel_pytree(state)
            self._shapes, self.size = _show(state), int(flat.size)
            if self.size == 0:
                raise ValueError(
                    f"`like` expects a state of at least one number, got {check.show(like)}"
                )
            self._forward = jax.jit(self._scan_forward)
            self._backward = jax.jit(self._scan_backward)
            self._all_losses = jax.jit(jax.vmap(self._flat_losses))
            self._pull_all_losses = jax.jit(jax.vmap(self._pull_flat_losses))
            for task in range(self.tasks):
                given = _traced("rate", lambda x, lr, t=task: rate(x, t, lr), state, 1.0)
                if _show(given) != self._shapes:
                    raise ValueError(
                        "`rate` expects a function that returns the structure and shapes of the "
                        f"state, {self._shapes:.150}, got {_show(given):.150} for task {task}"
                    )
            given = _traced("losses", losses, state)
        if _show(given) != f"({self.tasks},)":
            raise ValueError(
                f"`losses` expects a function that returns an array of shape ({self.tasks},), "
                f"got {_show(given):.200}"
            )

    # One step, and what JAX derives from it

    def _slope(self, x: Any, shares: Any, lr: Any) -> Any:
        state = self._unravel(x)
        parts = [
            shares[t] * ravel_pytree(self._rate(state, t, lr[t]))[0] for t in range(self.tasks)
        ]
        return sum(parts[1:], parts[0])

    def _step(self, x: Any, shares: Any, lr: Any, length: Any) -> Any:
        k1 = self._slope(x, shares, lr)
        k2 = self._slope(x + 0.5 * length * k1, shares, lr)
        k3 = self._slope(x + 0.5 * length * k2, shares, lr)
        k4 = self._slope(x + length * k3, shares, lr)
        return x + length / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    def _scan_forward(self, start: Any, shares: Any, lr: Any, lengths: Any) -> Any:
        def move(x: Any, row: Any) -> tuple[Any, Any]:
            x = self._step(x, *row)
            return x, x

        return jax.lax.scan(move, start, (shares, lr, lengths))[1]

    def _scan_backward(
        self, back: Any, states: Any, cotangents: Any, shares: Any, lr: Any, lengths: Any
    ) -> Any:
        def move(back: Any, row: Any) -> tuple[Any, Any]:
            x, cotangent, share, rate, length = row
            back = back + cotangent
            _, pull = jax.vjp(lambda a, b, c: self._step(a, b, c, length), x, share, rate)
            before, by_share, by_lr = pull(back)
            return before, (before, by_share, by_lr)

        rows = (states, cotangents, shares, lr, lengths)
        return jax.lax.scan(move, back, rows, reverse=True)[1]

    def _flat_losses(self, x: Any) -> Any:
        return jnp.asarray(self._losses(self._unravel(x)))

    def _pull_flat_losses(self, x: Any, cotangent: Any) -> Any:
        return jax.vjp(self._flat_losses, x)[1](cotangent)[0]

    # The interface

    def pack(self, start: Any) -> Floats:
        """Return a state with the structure of `like` as a vector (n,)."""
        with jax.enable_x64(True):
            state = _doubles("start", start)
            flat = np.array(ravel_pytree(state)[0])
        if _show(state) != self._shapes:
            raise ValueError(
                "`start` expects arrays with the structure and shapes of `like`, "
                f"{self._shapes:.200}, "
                f"got {_show(state):.200}"
            )
        return flat

    def unpack(self, states: Floats) -> Any:
        """Return states (…, n) in the structure of `like`, with the same leading axes."""
        if states.shape[-1] != self.size:
            raise ValueError(f"`states` expects {self.size} numbers each, got {states.shape[-1]}")
        with jax.enable_x64(True):
            rows = jax.vmap(self._unravel)(jnp.asarray(states.reshape(-1, self.size)))
        lead = states.shape[:-1]
        return jax.tree_util.tree_map(lambda a: np.array(a).reshape((*lead, *a.shape[1:])), rows)

    def losses(self, states: Floats) -> Floats:
        """Return the loss of every task (…, T) at states (…, n)."""
        with jax.enable_x64(True):
            values = np.array(self._all_losses(states.reshape(-1, self.size)))
        return values.reshape(*states.shape[:-1], self.tasks)

    def pull_losses(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients (…, n) of Σ_t cotangents[…, t] × loss of task t."""
        with jax.enable_x64(True):
            pulled = self._pull_all_losses(
                states.reshape(-1, self.size), cotangents.reshape(-1, self.tasks)
            )
        return np.array(pulled).reshape(states.shape)

    def roll_out(self, start: Floats, pieces: Pieces) -> Floats:
        """Return the states (pieces + 1, n) of RK4; see `Dynamics.roll_out`."""
        ends = self._ends(start, _single_steps(pieces))
        states = np.vstack([start, ends[np.cumsum(pieces.substeps) - 1]])
        bad = np.flatnonzero(~np.isfinite(states).all(axis=1))
        return states[: bad[0]] if bad.size else states

    def pull_back(self, states: Floats, cotangents: Floats, pieces: Pieces) -> Pulled:
        """Return the exact gradients of a roll-out; see `DifferentiableDynamics.pull_back`."""
        rows = _single_steps(pieces)
        last = np.cumsum(pieces.substeps) - 1
        first = last - pieces.substeps + 1
        after = np.zeros((len(rows[2]), self.size))
        after[last] = cotangents[1:]
        before = np.vstack([states[:1], self._ends(states[0], rows)[:-1]])
        parts, back = [], np.zeros(self.size)
        for some in _calls((before, after, *rows))[::-1]:
            count = len(some[2])
            with jax.enable_x64(True):
                found = self._backward(back, *_padded(some))
                parts.append([np.array(part)[:count] for part in found])
            back = parts[-1][0][0]
        adjoints, by_shares, by_lr = (np.concatenate(p) for p in zip(*parts[::-1], strict=True))
        return Pulled(
            np.vstack([adjoints[first], np.zeros(self.size)]) + cotangents,
            np.add.reduceat(by_shares, first),
            np.add.reduceat(by_lr, first),
        )

    def _ends(self, start: Floats, rows: tuple[Floats, ...]) -> Floats:
        """Return the states (steps, n) after each single step."""
        parts = [start[None]]
        for some in _calls(rows):
            with jax.enable_x64(True):
                found = np.array(self._forward(parts[-1][-1], *_padded(some)))
            parts.append(found[: len(some[0])])
        return np.concatenate(parts[1:])

    def to_dict(self) -> dict[str, Any]:
        """Return the names of the functions: they cannot be put in a file."""
        return {
            "rate": getattr(self._rate, "__name__", "rate"),
            "losses": getattr(self._losses, "__name__", "losses"),
            "tasks": self.tasks,
        }


_ARGUMENTS = {"rate": "state, task, lr", "losses": "state"}


def _traced(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the shapes of what a function of the user's returns; refuse what JAX cannot trace."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:  # whatever is wrong in the user's code
        why = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"`{name}` expects a function of ({_ARGUMENTS[name]}) in JAX code, with functions of "
            f"`jax.numpy` and no `if` that depends on the state, got {type(error).__name__}: {why}"
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


def _single_steps(pieces: Pieces) -> tuple[Floats, Floats, Floats]:
    """Return shares, lr and lengths of every single RK4 step."""
    rows = np.repeat(np.arange(len(pieces.lengths)), pieces.substeps)
    return pieces.shares[rows], pieces.lr[rows], (pieces.lengths / pieces.substeps)[rows]


def _calls(rows: tuple[Floats, ...]) -> list[tuple[Floats, ...]]:
    """Return what each of several calls gets: Ctrl-C is heard only between them."""
    firsts = range(0, len(rows[0]), _AT_ONCE)
    return [tuple(row[first : first + _AT_ONCE] for row in rows) for first in firsts]


def _padded(rows: tuple[Floats, ...]) -> list[Floats]:
    """Return rows with steps of length 0 added, their number a power of two: few are compiled."""
    count = len(rows[0])
    missing = (1 << (count - 1).bit_length()) - count
    return [np.concatenate([row, np.zeros((missing, *row.shape[1:]))]) for row in rows]
