"""States that were tampered with: what every object with a state must refuse, unchanged."""

import copy
import json
import math

import pytest

BAD = [math.nan, math.inf, -5, 1.5, 7, 2**70, True, None, "no", "", [], [0], [[]], {}, {"a": 1}]


def places(state, path=()):
    """Yield the path of every value in a state, at any depth."""
    pairs = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in pairs:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def at(state, path):
    for key in path:
        state = state[key]
    return state


def changed(state, path, change):
    """Return a copy of a state in which `change(container, key)` was called for a path."""
    state = copy.deepcopy(state)
    change(at(state, path[:-1]), path[-1])
    return state


def tampered(state):
    """Yield (path, state) for every value replaced, removed, and put where none belongs."""
    for path in places(state):
        for bad in BAD:
            if json.dumps(bad) != json.dumps(at(state, path)):
                yield path, changed(state, path, lambda box, key, bad=bad: put(box, key, bad))
        yield path, changed(state, path, lambda box, key: box.pop(key))
        if isinstance(at(state, path), dict):
            yield path, changed(state, path, lambda box, key: put(box[key], "extra", 0))
        elif isinstance(at(state, path), list):
            yield path, changed(state, path, lambda box, key: box[key].append(0))
    yield (), state | {"extra": 0}


def put(box, key, value):
    box[key] = value


def snapshot(thing):
    """Return the state of an object, and which objects it consists of."""
    return thing.state_dict(), {name: id(value) for name, value in vars(thing).items()}


def kind(state, path):
    """Return of what kind a value is; None if it was removed."""
    try:
        value = at(state, path)
    except LookupError:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    return math.isfinite(value) if whole or isinstance(value, float) else type(value)


def refused(thing, state, message="`state"):
    """Assert that a state is refused, by name, and changes nothing; return the message."""
    before = snapshot(thing)
    with pytest.raises(ValueError, match=message) as error:
        thing.load_state_dict(state)
    assert snapshot(thing) == before
    assert str(error.value).startswith("`state")
    return str(error.value)


def try_all(make, thing, free=()):
    """Tamper with the state of `thing` in every way, and load it into what `make` returns.

    free: keys whose values cannot all be told from right ones. What is accepted there must be
    loaded as it is. Return how many ways were tried.
    """
    state, ways = thing.state_dict(), 0
    for path, other in tampered(state):
        target, ways = make(), ways + 1
        before = snapshot(target)
        try:
            target.load_state_dict(other)
        except ValueError as error:
            assert str(error).startswith("`state"), error
            assert snapshot(target) == before, path
        else:
            assert not {str(key) for key in path}.isdisjoint(free), (path, other)
            assert target.state_dict() == other, path
            assert kind(other, path) in (kind(state, path), None), path
    for other in ({}, None, 3, "state", [], [state], object(), {"class": state["class"]}):
        refused(make(), other)
        ways += 1
    make().load_state_dict(state)
    return ways
