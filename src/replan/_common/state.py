"""States of objects: saved as JSON types, and read whole before anything changes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from typing import Any, TypeVar

import numpy as np

from replan import check

T = TypeVar("T")


class Entries:
    """The entries of a dict in a state, which has exactly the given keys; `path` names it."""

    def __init__(self, path: str, content: Any, keys: Iterable[str]) -> None:
        keys = list(keys)
        if not isinstance(content, dict):
            raise ValueError(
                f"`{path}` expects a dict with {', '.join(keys)}, got {check.show(content)}"
            )
        lacking = [key for key in keys if key not in content]
        unknown = [key for key in content if key not in keys]
        if lacking or unknown:
            got = [f"one without {', '.join(lacking)}"] if lacking else []
            got += [f"unknown ones: {', '.join(unknown):.80}"] if unknown else []
            raise ValueError(
                f"`{path}` expects a dict with {', '.join(keys)}, got {' and '.join(got)}"
            )
        self.path, self._content = path, content

    def __getitem__(self, key: str) -> Any:
        """Return an entry as it was saved."""
        return self._content[key]

    def read(self, key: str, by: Callable[..., T], *details: Any, **bounds: Any) -> T:
        """Return an entry as a check returns it: `by(name, value, *details, **bounds)`."""
        return by(f"{self.path}.{key}", self._content[key], *details, **bounds)


class Stateful(ABC):
    """An object whose state can be saved and restored.

    A state is a dict of JSON types, for `json.dumps` and `torch.save` alike. It names the class and
    what the object was made with: a state of another class or of other arguments is refused, as is
    one with values that no object can have. Whatever is refused, nothing has changed.
    """

    @abstractmethod
    def _made_with(self) -> dict[str, Any]:
        """Return the arguments on which the meaning of a state depends, as JSON types."""

    @abstractmethod
    def _saved(self) -> dict[str, Any]:
        """Return all that changes, as JSON types; objects with states of their own as they are."""

    @abstractmethod
    def _restored(self, state: Entries) -> dict[str, Any]:
        """Return the attributes that `_saved` stood for; refuse what it cannot have returned."""

    def state_dict(self) -> dict[str, Any]:
        """Return where it is and what it was made with, as JSON types."""
        saved = {
            key: value.state_dict() if isinstance(value, Stateful) else value
            for key, value in self._saved().items()
        }
        made = {"class": type(self).__name__, "arguments": self._made_with()}
        return _through_json(made | saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from where another one with the same arguments was."""
        try:
            content = _through_json(state)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`state` expects a dict of JSON types, got {error}") from None
        for thing, attributes in list(self._changes("state", content)):
            vars(thing).update(attributes)

    def _changes(self, path: str, content: Any) -> Iterator[tuple[Stateful, dict[str, Any]]]:
        """Read a state; yield the attributes to set, by object."""
        saved = self._saved()
        self._check_class(path, content)
        self._check_arguments(path, content.get("arguments"))
        state = Entries(path, content, ["class", "arguments", *saved])
        attributes = self._restored(state)
        self._check_return(state, attributes)
        yield self, attributes
        for key, part in saved.items():
            if isinstance(part, Stateful):
                yield from part._changes(f"{path}.{key}", state[key])

    def _check_class(self, path: str, content: Any) -> None:
        name, got = type(self).__name__, check.show(content)
        if isinstance(content, dict):
            got = f"that of a {content.get('class')!s:.80}"
            if "class" not in content:
                got = "one that does not say its class, as before version 0.2"
            elif content["class"] == name:
                return
        raise ValueError(f"`{path}` expects the state_dict of a {name}, got {got}")

    def _check_arguments(self, path: str, content: Any) -> None:
        here = _through_json(self._made_with())
        there = Entries(f"{path}.arguments", content, here)
        for key, value in here.items():
            if not _equal(there[key], value):
                raise ValueError(
                    f"`{path}` expects the state_dict of a {type(self).__name__} made with {key} = "
                    f"{check.show(value)}, got one made with {key} = {check.show(there[key])}"
                )

    def _check_return(self, state: Entries, attributes: dict[str, Any]) -> None:
        """Refuse a state that an object with these attributes would not save."""
        fresh = copy(self)
        vars(fresh).update(attributes)
        for key, value in fresh._saved().items():
            if not isinstance(value, Stateful) and not _equal(state[key], _through_json(value)):
                raise ValueError(
                    f"`{state.path}.{key}` expects what `state_dict` may return, got "
                    f"{check.show(state[key])}"
                )


def _through_json(content: Any) -> Any:
    """Return a copy in which keys are strings and tuples are lists, as after a way through JSON."""
    return json.loads(json.dumps(content))


def _equal(one: Any, other: Any) -> bool:
    """Return whether JSON types are equal; True is not 1, and NaN is NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    same = one == other or (one != one and other != other)
    return same and isinstance(one, bool) == isinstance(other, bool)


def generator(name: str, value: Any, like: np.random.Generator) -> np.random.Generator:
    """Return a generator that continues from the state of one that had the seed of `like`."""
    now = like.bit_generator.state  # of PCG64, whose increment is the seed's
    state = Entries(name, value, now)
    inner = state.read("state", Entries, now["state"])
    if state["bit_generator"] != now["bit_generator"]:
        raise ValueError(
            f"`{name}.bit_generator` expects {check.show(now['bit_generator'])}, got "
            f"{check.show(state['bit_generator'])}"
        )
    inc = now["state"]["inc"]
    inner.read("inc", check.integer, at_least=inc, at_most=inc)
    inner.read("state", check.integer, at_most=2**128 - 1)
    state.read("has_uint32", check.integer, at_most=1)
    state.read("uinteger", check.integer, at_most=2**32 - 1)
    fresh = deepcopy(like)
    fresh.bit_generator.state = value
    return fresh
