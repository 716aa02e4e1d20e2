"""The figure of streams at tiny size, its contenders, and its claims on made-up tables."""

import json
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest

from replan.paper import _stream_contenders as contenders
from replan.paper import make
from replan.paper import stream as figure
from replan.paper._parts import continual, protocol_rows
from replan.problem import Problem
from replan.protocol import Protocol
from replan.sweeps import sweep
from replan.trajectory import evaluate

TINY = {
    "seeds": 2, "tasks": [3, 2], "interval": 6.0, "steps": 4, "similarity": 0.6, "switches": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def tables():
    return figure.compute(partial(sweep, workers=1), **TINY)


def stream(tasks, **changes):
    setting = {"interval": 6.0, "steps": 4, "similarity": 0.6} | changes
    return Problem.from_dict(contenders.stream(tasks, 0, **setting))


def test_the_figure_at_tiny_size(tables, tmp_path):
    losses = tables["losses"]
    found = losses.set_index(["strategy", "tasks", "seed"])["loss"]
    for name in contenders.STRATEGIES:
        assert (found["plan"] <= found[name] * (1 + 1e-4)).all()
    assert set(losses.loc[losses["strategy"] == contenders.FEW, "tasks"]) == {3}
    assert losses.loc[losses["tasks"] == 3, "forgetting"].notna().all()
    for name in ("gains", "plans", "curves", "protocols"):
        assert not tables[name].isna().any().any()
    few = tables["protocols"].query("strategy == @contenders.FEW")
    assert set(few[["share_1", "share_2", "share_3"]].to_numpy().ravel()) == {0.0, 1.0}
    for _, rows in few.groupby("seed"):
        assert figure._switches(rows) <= 4
    picture = figure.draw(tables)
    for ending in ("png", "pdf"):
        picture.savefig(tmp_path / f"x.{ending}")
        assert (tmp_path / f"x.{ending}").stat().st_size > 5000
    for claim in figure.claims(tables):
        assert len(claim.held) == 2
        assert claim.verdict == "undecided"  # too few initialisations
        assert json.dumps(claim.to_dict(), allow_nan=False)


def test_two_tasks_alone_forget_nothing_that_is_defined():
    tables = figure.compute(partial(sweep, workers=1), **(TINY | {"tasks": [2], "seeds": 1}))
    assert tables["losses"]["forgetting"].isna().all()
    figure.draw(tables)
    found = figure.claims(tables)
    assert all(json.dumps(claim.to_dict(), allow_nan=False) for claim in found)
    assert found[5].held == found[-1].held == [None]


def test_the_settings():
    assert set(TINY) == set(figure.QUICK) == set(figure.FULL)


def test_a_single_task_is_no_stream(tmp_path):
    with pytest.raises(ValueError, match="`tasks` expects numbers of at least 2, got 1"):
        make(["stream"], tmp_path, quick=True, changes={"tasks": [1, 2]}, workers=1)


def test_a_stream_of_two_tasks_is_the_papers_problem():
    ours = stream(2, interval=25.0, steps=10)
    papers = Problem.from_dict(continual(0.6, 0, steps=10))
    share = contenders.fixed_share(ours, 0.4)
    assert ours.availability.always
    assert evaluate(ours, share).loss == evaluate(papers, share).loss


def test_a_fixed_share_is_divided_among_the_older_tasks():
    problem = stream(4, steps=1)
    assert np.allclose(
        contenders.fixed_share(problem, 0.6).shares,
        [[0.6, 0.4, 0, 0], [0.3, 0.3, 0.4, 0], [0.2, 0.2, 0.2, 0.4]],
    )


def test_the_tuned_share_is_the_best():
    problem = stream(3)
    best = contenders.tuned_share(problem)
    least = evaluate(problem, contenders.fixed_share(problem, best)).loss
    for share in np.linspace(0.0, 1.0, 21):
        assert least <= evaluate(problem, contenders.fixed_share(problem, share)).loss * (1 + 1e-3)


# Claims on made-up tables: as the statements say, and with one thing changed.

SEEDS = range(3)


def made(
    gains=(1.6, 2.0, 2.4), focus=None, fixed=None, mixed=None, forgetting=0.5, few=1.1, first=0.9,
    late=(0.0, 0.0, 0.0, 1.0), tasks=(2, 3, 5),
):  # fmt: skip
    """Tables in which the plan ends at 1 and others at their gains, by the number of tasks."""
    levels = {
        contenders.PLAN: [1.0] * 3,
        contenders.FOCUS: focus or gains,
        contenders.FIXED: fixed or gains,
        contenders.INTERLEAVED: mixed or gains,
        contenders.NO_REPLAY: [9.0] * 3,
    }
    forgets = dict.fromkeys(levels, 1.0) | {contenders.PLAN: forgetting}
    rows = [
        {"tasks": number, "seed": seed, "strategy": name, "loss": loss * (1 + 0.01 * seed),
         "forgetting": forgets[name]}
        for seed, (name, level) in product(SEEDS, levels.items())
        for number, loss in zip(tasks, level, strict=True)
    ]  # fmt: skip
    rows += [
        {"tasks": tasks[-1], "seed": seed, "strategy": contenders.FEW,
         "loss": few * (1 + 0.01 * seed), "forgetting": 1.0}
        for seed in SEEDS
    ]  # fmt: skip
    return {"losses": pd.DataFrame(rows), **drawn(tasks[-1], first, late)}


def drawn(most, first, late):
    """Return curves and protocols in which every arrival opens with `first` of the new task."""
    there = [np.arange(most) < arrival + 2 for arrival in range(most - 1)]
    shares = np.zeros((2 * (most - 1), most))
    for i, old in enumerate(there):
        shares[2 * i, i + 1] = first
        shares[2 * i, : i + 1] = (1 - first) / (i + 1)
        shares[2 * i + 1] = old / old.sum()
    replayed = np.resize(late, most - 1)
    shares[-2, :-1] = (1 - first) * replayed / replayed.sum()
    shares[-1] = [*(0.5 * replayed / replayed.sum()), 0.5]
    rows = protocol_rows(Protocol(shares, 1.0 * len(shares), 1.0).to_dict())
    times = np.linspace(0.0, len(shares), 9)
    losses = np.geomspace(0.1, 0.01, 9)[:, None] * np.linspace(1, 2, most)
    curve = pd.DataFrame(losses, columns=[f"loss_{t + 1}" for t in range(most)])
    pairs = list(product(SEEDS, contenders.CONTENDERS))
    return {
        "curves": pd.concat(
            curve.assign(time=times, strategy=name, seed=seed) for seed, name in pairs
        ),
        "protocols": pd.concat(rows.assign(strategy=name, seed=seed) for seed, name in pairs),
    }


def verdicts(**changes):
    return [claim.verdict for claim in figure.claims(made(**changes))]


def test_claims_hold_where_they_should():
    assert set(verdicts()) == {"holds"}


CHANGES = [
    ({"focus": (1.005, 2.0, 2.4)}, 0),
    ({"gains": (1.2, 1.3, 1.4)}, 1),
    ({"fixed": (1.2, 1.3, 1.4)}, 1),
    ({"focus": (2.4, 2.0, 1.6)}, 2),
    ({"fixed": (2.4, 2.0, 1.6)}, 3),
    ({"mixed": (2.4, 2.0, 1.6)}, 4),
    ({"forgetting": 1.1}, 5),
    ({"few": 1.3}, 6),
    ({"first": 0.4}, 7),
    ({"late": (1.0, 1.0, 1.0, 1.0)}, 8),
    ({"late": (1.0, 0.0, 0.0, 0.0)}, 8),
]


@pytest.mark.parametrize(("change", "claim"), CHANGES)
def test_a_claim_does_not_hold_where_it_should_not(change, claim):
    found = verdicts(**change)
    assert found[claim] == "does not hold"
    assert [x for i, x in enumerate(found) if i != claim] == ["holds"] * (len(found) - 1)


def test_every_claim_is_seen_to_fail():
    assert {claim for _, claim in CHANGES} == set(range(len(verdicts())))


def test_ten_tasks_are_told_apart():
    picture = figure.draw(made(tasks=(2, 5, 10)))
    upper = picture.subfigs[0]
    [legend] = upper.legends
    assert [text.get_text() for text in legend.texts] == [*map(str, range(1, 11)), "mean"]
    colours = {patch.get_facecolor() for patch in legend.get_patches()}
    assert len(colours) == 10
    picture.draw_without_rendering()
    edges = legend.get_window_extent()
    assert picture.bbox.x0 <= edges.x0 < edges.x1 <= picture.bbox.x1
