"""The grammar of a study: what is an axis, which values it has, and what it spans."""

import re

import numpy as np
import pytest

from replan.studies._design import Design


def content(**changes):
    """The sections of a study, with keys changed by their paths, as in model__hidden=3."""
    made = {
        "model": {"hidden": 2, "similarity": 0.3},
        "start": {"fresh": {"seed": 0}},
        "training": {"duration": 2.0, "steps": 4},
        "sweep": {"strategies": ["interleaved"]},
    }
    for path, value in changes.items():
        *above, key = path.split("__")
        inside = made
        for name in above:
            inside = inside.setdefault(name, {})
        inside[key] = value
    return made


def axes(**changes):
    return {axis.name: axis.values for axis in Design(content(**changes)).axes}


def refused(message, **changes):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Design(content(**changes))


# Ranges


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"from": 0, "to": 3}, [0, 1, 2, 3]),
        ({"from": 2, "to": 2}, [2]),
        ({"from": 0, "to": 20, "count": 5}, [0, 5, 10, 15, 20]),
        ({"values": [7, 3]}, [7, 3]),
        ([4, 2], [4, 2]),
        ([1], [1]),
    ],
)
def test_integers(given, values):
    [found] = axes(start__fresh={"seed": given}).values()
    assert found == values
    assert {type(x) for x in found} == {int}


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"from": 0.05, "to": 0.95, "count": 19}, [round(0.05 * k, 2) for k in range(1, 20)]),
        ({"from": 0, "to": 1, "count": 5}, [0, 0.25, 0.5, 0.75, 1]),
        ({"from": 0.1, "to": 1, "count": 3, "scale": "log"}, [0.1, 10**-0.5, 1]),
        ({"from": 0.25, "to": 0.5, "count": 2}, [0.25, 0.5]),
    ],
)
def test_floats(given, values):
    [found] = axes(model__similarity=given).values()
    np.testing.assert_allclose(found, values, rtol=1e-11)
    assert found == [float(f"{x:.12g}") for x in found]  # as one would write them


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"from": 0.1, "to": 0.9}, "`model.similarity` expects a `count` of values, unless"),
        ({"from": 0, "to": 0.9}, "`model.similarity` expects a `count` of values, unless"),
        ({"from": 0.9, "to": 0.1, "count": 3}, "`model.similarity` expects `from` below `to`"),
        ({"from": 0.1, "count": 3}, "`model.similarity.to` is missing"),
        ({"from": 0.1, "too": 1, "count": 3}, "`model.similarity.too` is not a known key, did you"),
        ({"from": "a", "to": 1, "count": 3}, "`model.similarity.from` expects a number, got"),
        ({"from": 0, "to": True, "count": 3}, "`model.similarity.to` expects a number, got true"),
        ({"from": 0, "to": 1, "count": 1}, "`model.similarity.count` expects a number of at least"),
        ({"from": 0, "to": 1, "count": 2.5}, "`model.similarity.count` expects an integer, got"),
        ({"from": 0, "to": 1, "count": 3, "scale": "lag"}, "`model.similarity.scale` expects"),
        ({"from": 0, "to": 1, "count": 3, "scale": "log"}, "`model.similarity` expects `from` ab"),
        ({"from": 1, "to": 5, "scale": "log"}, "`model.similarity` expects a `count` of values"),
        ({"from": 0, "to": 10**30}, "`model.similarity` expects at most 100,000 values, got 1000"),
        ({"from": 0, "to": 1, "count": 10**9}, "`model.similarity` expects at most 100,000 valu"),
        ({"values": []}, "`model.similarity` expects at least one value, got none"),
        ({"values": 3}, "`model.similarity.values` expects a list of values, got 3"),
        ({"values": [1], "to": 2}, "`model.similarity.to` is not a known key"),
        ([], "`model.similarity` expects a number, got []"),
        ([0.1, 0.5, 0.1], "`model.similarity` expects different values, got 0.1 twice"),
        ([1, 1.0], "`model.similarity` expects different values, got 1.0 twice"),
    ],
)
def test_bad_ranges(given, message):
    refused(message, model__similarity=given)


# Lists


@pytest.mark.parametrize(
    "changes",
    [
        {"objective__weights": [0.9, 0.1]},
        {"limits__max_share": [0.5, 1.0]},
        {"training__arrivals": [0.0, 1.0], "training__departures": [1.5, float("inf")]},
        {"model__train_heads": [True, False]},
        {"model": {"hidden": 2, "teacher_overlaps": [[1.0, 0.3], [0.3, 1.0]]}},
        {"model__teacher_heads": [[1.0, 0.0], [0.0, 1.0]]},
        {"start": {"Q": [[1.0, 0.1], [0.1, 1.0]], "M": [[0.1, 0.0], [0.0, 0.1]],
                   "V": [[0.1, 0.2], [0.3, 0.1]]}},
    ],
)  # fmt: skip
def test_a_list_that_a_key_takes_is_its_value(changes):
    assert axes(**changes) == {}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("objective__weights", [[0.9, 0.1], [0.5, 0.5]]),
        ("model__train_heads", [[True, False], True]),
        ("model__teacher_heads", [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 1.0]]]),
        ("model__hidden", [1, 2, 3]),
        ("control__lr", [False, {"min": 0.0, "max": 5.0}]),
        ("control__tasks", [True, False]),
        ("objective__targets", [{"1": 0.1}, {"2": 0.1}]),
        ("training__duration", [1.0, 2.0]),
        ("training__arrivals", [[0.0, 0.5], [0.0, 1.0]]),
        ("start", [{"fresh": {"seed": 0}}, {"pretrain": {"task": 1}}]),
        ("model", [{"hidden": 2, "similarity": 0.3}, {"hidden": 3, "teacher_overlaps": [[1.0]]}]),
        ("model__activation", ["erf", "relu"]),
        ("model__kind", ["teacher-student"]),
    ],
)
def test_a_list_of_values_is_an_axis(path, values):
    assert axes(**{path: values}) == {path.split("__")[-1]: values}
    if "__" in path:
        assert axes(**{path: {"values": values}}) == {path.split("__")[-1]: values}


def test_several_lists_at_once():
    found = axes(
        model__similarity=[0.1, 0.2],
        objective__weights=[0.9, 0.1],
        training__lr=[0.5, 1.0],
        control={"lr": {"min": 0.0, "max": [1.0, 2.0]}},
        objective__targets={"1": [0.1, 0.2]},
        start__fresh={"seed": [1, 2], "heads": [[0.1, 0.2], [0.3, 0.4]]},
    )
    assert found == {
        "similarity": [0.1, 0.2],
        "seed": [1, 2],
        "lr": [0.5, 1.0],
        "max": [1.0, 2.0],
        "1": [0.1, 0.2],
    }


def test_a_flag_for_each_task_needs_the_explicit_form_to_be_an_axis():
    assert axes(model__train_heads={"values": [True, False]}) == {"train_heads": [True, False]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__hiden": [2, 3]}, "`model.hiden` is not a known key, did you mean `hidden`?"),
        ({"model__hiden": {"from": 2, "to": 3}}, "`model.hiden` is not a known key, did you mean"),
        ({"trainin__lr": [2, 3]}, "`trainin` is not a known key, did you mean `training`?"),
        # not the list, which is right, but the mistake elsewhere
        ({"model__similarity": [0.1, 0.2], "training__lr": "x"}, "`training.lr` expects a number"),
        ({"model__similarity": [0.1, 0.2], "model__hidden": 0}, "`model.hidden` expects a number"),
        ({"objective__weights": [0.1, 0.2, 0.3]}, "`objective.weights` expects an array of number"),
        ({"model__similarity": ["a", "b"]}, "`model.similarity` expects a number, got "),
        ({"model__similarity": [0.1, "a"]},
         "`model.similarity` expects a number, got \"a\", in the case similarity = \"a\""),
        ({"model__similarity": [0.1, 3.0]}, "`model.similarity` expects a finite number of at "
         "least -1 and at most 1, got 3.0, in the case similarity = 3.0"),
        ({"training__lr": [1.0, 2.0], "control__lr": {"min": 0.0, "max": 1.5}}, "`training.lr` "
         "expects a rate within `control.lr`, 0 to 1.5, got 2, in the case lr = 2.0"),
        ({"start__pretrain": [1]}, "`start.pretrain` expects a table, got [1]"),
        ({"sweep__strategies": {"from": 0, "to": 1}}, "`sweep.strategies` expects a list of words"),
        ({"sweep__simulate": {"seeds": [1, 2]}}, "`sweep.simulate.seeds` expects an integer, got "),
        ({"sweep__simulate": {"seeds": {"from": 0, "to": 1}}}, "`sweep.simulate.seeds` expects an"),
    ],
)  # fmt: skip
def test_mistakes_are_told_by_their_key(changes, message):
    refused(message, **changes)


# A model of the user's, which may refuse without a name, or only together with others


def decay_axes(**changes):
    made = {"model": {"kind": "decay", "speed": 1.0}, "start": {"state": [1.0, 2.0]}}
    return axes(**made | changes)


def test_the_users_model_is_asked(decay):
    assert decay_axes() == {}
    assert decay_axes(model={"kind": "decay", "speed": [1.0, 2.0]}) == {"speed": [1.0, 2.0]}
    assert decay_axes(start={"state": [[1.0, 2.0], [2.0, 1.0]]}) == {
        "state": [[1.0, 2.0], [2.0, 1.0]]
    }
    # it takes any `tasks`, but no problem can be made with these
    both = decay_axes(model={"kind": "decay", "speed": [1.0, 2.0], "tasks": [2, 3]},
                      start={"state": {"values": [[1.0, 2.0], [1.0, 2.0, 3.0]]}},
                      sweep__zip=[["tasks", "state"]])  # fmt: skip
    assert list(both) == ["speed", "tasks", "state"]
    # any `mode` is fine, so that a list is one value; the explicit form is an axis
    assert decay_axes(model={"kind": "decay", "speed": 1.0, "mode": ["a", "b"]}) == {}
    explicit = {"kind": "decay", "speed": 1.0, "mode": {"values": ["a", "b"]}}
    assert decay_axes(model=explicit) == {"mode": ["a", "b"]}
    with pytest.raises(ValueError, match=r"^`model\.speeed` is not a known key, did you mean"):
        decay_axes(model={"kind": "decay", "speeed": [1.0]})


# What they span


def test_the_last_axis_varies_fastest():
    design = Design(content(model__similarity=[0.1, 0.2], start__fresh={"seed": [0, 1]}))
    found = [(p["model"]["similarity"], p["start"]["fresh"]["seed"]) for p in design.problems]
    assert found == [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    assert design.cells(2) == {"similarity": 0.2, "seed": 0}


def test_some_axes_move_together():
    groups = [["model.similarity", "lr"]]
    changes = {
        "model__similarity": [0.1, 0.2],
        "start__fresh": {"seed": [0, 1]},
        "training__lr": [1.0, 2.0],
    }
    design = Design(content(**changes, sweep__zip=groups))
    assert [tuple(design.cells(i).values()) for i in range(4)] == [
        (0.1, 0, 1.0), (0.1, 1, 1.0), (0.2, 0, 2.0), (0.2, 1, 2.0),
    ]  # fmt: skip
    assert "similarity  0.1, 0.2, with lr" in str(design)
    refused("`sweep.zip` expects axes with as many values each, got similarity with 3, lr with 2",
            **changes | {"model__similarity": [0.1, 0.2, 0.3]}, sweep__zip=groups)  # fmt: skip
    refused("`sweep.zip` expects one of similarity, model.similarity, seed,", **changes,
            sweep__zip=[["similarity", "hidden"]])  # fmt: skip
    refused("`sweep.zip` expects each axis once, got lr twice", **changes,
            sweep__zip=[["similarity", "lr"], ["lr", "seed"]])  # fmt: skip
    refused("`sweep.zip` expects lists of axes such as", **changes, sweep__zip=["similarity"])


def test_names_are_as_short_as_they_can_be():
    found = axes(
        start={"pretrain": {"task": 1, "lr": [1.0, 2.0], "seed": [0, 1]}}, training__lr=[0.5, 1.0]
    )
    assert list(found) == ["pretrain.lr", "seed", "training.lr"]


def test_names_leave_the_columns_of_the_table_free(write, decay, monkeypatch):
    write("named.py", decay.read_text().replace("mode", "value").replace('"decay"', '"named"'))
    monkeypatch.setenv("REPLAN_IMPORT", str(decay.parent / "named.py"))
    found = decay_axes(
        model={"kind": "named", "speed": [1.0], "value": {"values": [1, 2]}},
    )
    assert list(found) == ["speed", "model.value"]


def test_too_many_are_refused_with_their_number():
    refused(
        "a study expects at most 100,000 results, got 180,000: 300 × similarity, 300 × seed, with "
        "2 runs on each problem",
        model__similarity={"from": 0.0, "to": 1.0, "count": 300},
        start__fresh={"seed": {"from": 1, "to": 300}},
        sweep__strategies=["interleaved", "no-replay"],
    )
