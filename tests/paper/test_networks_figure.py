"""The map of networks at tiny size, its search for the best of each contender, and its claims."""

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest

import replan
from replan import networks, strategies
from replan.dynamics import IntegrationError
from replan.paper import _contenders as contenders
from replan.paper import _images, make
from replan.paper import networks as figure
from replan.sweeps import sweep

TINY = figure.FULL | {
    "data": ["fashion-mnist"], "similarities": [0.5], "samples": [20, 200],
    "memories": ["5", "all"], "planned": 2, "validated": 3, "tested": 4, "steps": 4,
    "shares": [0.2, 0.5], "rates": 3, "min_lr": 0.05, "max_lr": 0.8, "gradients": 6,
    "hidden": 4, "first": 100, "test_samples": 20,
}  # fmt: skip
TUNED = ("50 %", "fixed share", "focus-then-replay", "theory's plan")
OPTIMA = [("timing", "constant"), ("rate", "planned"), ("both", "planned")]
NAMES = [
    *((*key, "batch") for key in [*product(TUNED, ("constant", "decayed")), *OPTIMA]),
    *((*key, "single") for key in [*product(TUNED, ("decayed",)), *OPTIMA]),
]


@pytest.fixture
def data(images, monkeypatch):
    monkeypatch.setattr(_images, "fashion_mnist", lambda: images)


def test_the_map_at_tiny_size(data, tmp_path):
    tables = figure.compute(partial(sweep, workers=1), **TINY)
    found = tables["contenders"]
    assert len(found) == 4 * len(NAMES)
    for _, here in found.groupby(figure.CELL):
        assert set(here[figure.WHO].itertuples(index=False, name=None)) == set(NAMES)
        # Focus-then-replay may change its shares within a step: a plan cannot.
        rows = here[(here["contender"] != "focus-then-replay") & (here["step"] == "batch")]
        planned = rows.set_index(["contender", "schedule"])["planned"].sort_index()
        assert planned["timing", "constant"] == planned.xs("constant", level=1).min()
        assert planned["rate", "planned"] <= planned["fixed share"].min()
        assert planned["both", "planned"] == planned.min()
        assert all(here["stability"] > 1)
        assert set(here["factor"]) <= {1.0, 0.8, 0.64, 0.5}
    assert not any(table.isna().any().any() for table in tables.values())
    assert set(tables["runs"]["realisation"]) == {5, 6, 7, 8}  # none that anything was chosen on
    picture = figure.draw(tables)
    picture.savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    assert {claim.verdict for claim in figure.claims(tables)} == {"undecided"}


def test_quick_settings_are_of_the_full_ones():
    assert set(figure.QUICK) == set(figure.FULL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memories": ["many"]}, "`memories`"),
        ({"memories": ["0"]}, "`memories`"),
        ({"classes": ["0 5 2"]}, "`classes`"),
        ({"samples": [3]}, "`samples`"),
        ({"shares": [1.5]}, "`shares`"),
        ({"rates": 1}, "`rates`"),
        ({"max_lr": 0.01}, "`max_lr`"),
        ({"data": ["mnist"]}, "`data`"),
    ],
)
def test_bad_settings_are_refused(change, message, data, tmp_path):
    settings = {k: v for k, v in TINY.items() if figure.FULL[k] != v} | change
    with pytest.raises(ValueError, match=message):
        make(["networks"], tmp_path, changes=settings, workers=1)


# The search


@pytest.fixture
def problem(images):
    model = networks.ImageNetwork(
        networks.mixed_tasks(images, 0.1, test_samples=20), hidden=4, realisations=2, threads=1
    )
    return replan.Problem(model, model.pretrain(3000, lr=0.2), duration=60.0, steps=12, lr=0.05)


def test_the_best_of_a_grid_is_refined(problem, monkeypatch):
    def loss(_, point):
        share, lr = point
        return (share - 0.34) ** 2 + np.log(lr / 0.13) ** 2

    monkeypatch.setattr(contenders, "_loss", loss)
    rates = np.geomspace(0.01, 2.56, 9)
    found = contenders._tune(problem, lambda *x: x, [0.1, 0.3, 0.5], rates, near=True)
    assert found.trials <= 3 * 9 + 2 * 4
    share, lr = found.protocol
    assert share == pytest.approx(0.35)
    assert abs(np.log2(lr / 0.13)) < 1 / 4
    plain = contenders._tune(problem, lambda *x: x, [0.1, 0.3, 0.5], rates, near=False)
    assert plain.protocol[0] == 0.3


def test_rates_that_all_diverge_are_refused(problem, monkeypatch):
    monkeypatch.setattr(contenders, "_loss", lambda *_: np.inf)
    with pytest.raises(IntegrationError, match="min_lr"):
        contenders._tune(problem, lambda *x: x, [0.5], np.array([1.0, 2.0]), near=False)


def test_the_focus_ends_where_the_losses_meet(problem):
    focus = contenders._meeting(problem, 0.0, 0.05)
    losses = replan.evaluate(problem, strategies.no_replay(problem)).losses
    edge = int(np.searchsorted(problem.edges, focus))
    assert 0 < edge < problem.steps
    assert losses[edge - 1, 1] > losses[edge - 1, 0]
    assert losses[edge, 1] <= losses[edge, 0]
    assert contenders._meeting(problem, 1.0, 0.05) > focus  # the rate decays
    assert contenders._meeting(problem, 0.0, 1e-9) == problem.duration


def test_single_samples_follow_the_shares(problem):
    protocol = replan.Protocol([[0.25, 0.75], [1.0, 0.0]], 60.0, lr=[[0.1, 0.2], [0.3, 0.4]])
    found = contenders._single(protocol)
    assert found.steps == 60
    assert found.is_discrete
    assert found.shares[:30, 0].sum() == pytest.approx(7.5, abs=0.6)
    assert found.shares[31:, 0].all()
    assert np.array_equal(found.by_task("lr")[[0, 29, 30, 59]], [[0.1, 0.2]] * 2 + [[0.3, 0.4]] * 2)


def test_rates_are_lowered_while_that_helps(problem, monkeypatch):
    def loss(_, protocol):
        lr = protocol.by_task("lr").max()
        return np.inf if lr > 0.9 else (lr - 0.7) ** 2

    monkeypatch.setattr(contenders, "_loss", loss)
    even = strategies.interleaved(problem)
    for lr, factor in ((1.0, 0.64), (0.7, 1.0), (0.9, 0.8)):
        assert contenders._best_factor(problem, even.with_knobs(lr=lr)) == factor


# Claims on made-up tables

LEVELS = {
    ("50 %", "constant", "batch"): 1.2, ("50 %", "decayed", "batch"): 1.1,
    ("fixed share", "constant", "batch"): 1.0, ("fixed share", "decayed", "batch"): 0.9,
    ("focus-then-replay", "constant", "batch"): 0.93,
    ("focus-then-replay", "decayed", "batch"): 0.88,
    ("theory's plan", "constant", "batch"): 0.94, ("theory's plan", "decayed", "batch"): 0.87,
    ("timing", "constant", "batch"): 0.9, ("rate", "planned", "batch"): 0.85,
    ("both", "planned", "batch"): 0.8, ("fixed share", "decayed", "single"): 0.95,
    ("focus-then-replay", "decayed", "single"): 0.92, ("theory's plan", "decayed", "single"): 0.91,
    ("both", "planned", "single"): 0.85,
}  # fmt: skip


def made_up(samples=(250, 500, 1000), memories=("50", "200", "1000", "all"), lost=0, **changes):
    """Return tables of losses with little noise; what timing saves falls with both sizes.

    changes: of levels, by the name of the contender, such as rate=0.95. lost: how many realisations
    of timing diverged in each cell.
    """
    rng = np.random.default_rng(0)
    runs, rows = [], []
    for (i, size), (j, memory) in product(enumerate(samples), enumerate(memories)):
        cell = {
            "data": "fashion-mnist", "classes": "0 5 2 7", "similarity": 0.5, "samples": size,
            "memory": memory,
        }  # fmt: skip
        base = 1 + 0.1 * rng.standard_normal(30)
        for (contender, schedule, step), usual in LEVELS.items():
            level = changes.get(contender.replace(" ", "_"), usual)
            if contender == "timing":
                level += changes.get("rises", 0.01) * (i + j)
            losses = base * level + 0.001 * rng.standard_normal(30)
            if contender == "timing":
                losses[:lost] = np.inf
            who = cell | {"contender": contender, "schedule": schedule, "step": step}
            runs.append(pd.DataFrame({"realisation": range(30), "loss": losses} | who))
            rows.append(who | {"validated": level})
    return {"runs": pd.concat(runs, ignore_index=True), "contenders": pd.DataFrame(rows)}


def test_claims_hold_where_they_should():
    assert [claim.verdict for claim in figure.claims(made_up())] == ["holds"] * 12


@pytest.mark.parametrize(
    ("changes", "claim", "verdict"),
    [
        ({"timing": 0.99, "rises": 0.0}, 0, "does not hold"),
        ({"timing": 0.98, "rises": 0.0}, 0, "depends on the cell"),
        ({"both": 0.845}, 1, "does not hold"),
        ({"focus-then-replay": 0.99}, 2, "does not hold"),
        ({"timing": 1.01}, 2, "undecided"),  # nothing to get a part of
        ({"rate": 0.95}, 3, "does not hold"),
        ({"both": 0.89}, 4, "does not hold"),
        ({"theory's_plan": 0.95}, 5, "does not hold"),
        ({"focus-then-replay": 0.95}, 6, "does not hold"),
        ({"timing": 0.95, "rises": -0.01}, 7, "does not hold"),
        ({"timing": 0.95, "rises": -0.01}, 8, "does not hold"),
        ({"focus-then-replay": 0.96}, 9, "does not hold"),
        ({"theory's_plan": 0.96}, 10, "does not hold"),
        ({"both": 0.94}, 11, "does not hold"),
    ],
)
def test_a_claim_fails_where_it_should(changes, claim, verdict):
    assert figure.claims(made_up(**changes))[claim].verdict == verdict


def test_few_cells_decide_nothing():
    found = figure.claims(made_up(samples=(250, 500), memories=("50", "200", "all")))
    assert {claim.verdict for claim in found} == {"undecided"}


def test_a_realisation_that_broke_leaves_its_cell_open():
    tables = made_up(lost=1)
    claim = figure.claims(tables)[0]
    assert claim.held == [None] * 12
    assert claim.numbers["realisations that broke"] == [1] * 12
    found = figure._with_differences(tables).set_index("contender")["difference"]
    assert np.all(found["timing"] < 0.1)  # of the others


def test_where_the_reference_broke_others_may_be_below_it():
    tables = made_up()
    runs = tables["runs"]
    fixed = (runs["contender"] == "fixed share") & (runs["realisation"] == 3)
    runs.loc[fixed, "loss"] = 10.0
    found = figure._with_differences(tables)
    assert np.all(found["reference"] < 1.1)
    assert np.all(np.isfinite(found["difference"]))
    claim = figure.claims(tables)[0]
    assert claim.verdict == "holds"
    assert claim.numbers["realisations that broke"] == [1] * 12
