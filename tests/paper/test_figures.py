"""Each figure at tiny size, and each claim on made-up tables where it must hold and must not."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from itertools import product

import numpy as np
import pandas as pd
import pytest

from replan.paper import FIGURES, make
from replan.paper._make import Made, _Record
from replan.paper._parts import protocol_of, protocol_rows
from replan.paper.claims import Claim
from replan.protocol import Protocol
from replan.sweeps import sweep

TINY = {
    "dynamics": {"seeds": 1, "steps": 10, "similarity": 0.3, "dimension": 20},
    "similarity": {"seeds": 2, "steps": 10, "similarities": [0.1, 0.9]},
    "learning-rate": {"seeds": 1, "steps": 8, "similarity": 0.3, "max_lr": 4.0},
    "multitask": {
        "seeds": 2,
        "steps": 10,
        "duration": 5.0,
        "lr": 10.0,
        "similarities": [0.1, 0.9],
    },
    "overlaps": {"seeds": 1, "steps": 10, "similarities": [0.1, 0.9]},
    "annealing": {"seeds": 1, "steps": 6, "similarities": [0.5], "max_lr": 2.0},
    "three-tasks": {"seeds": 1, "steps": 9},
    "readout": {"similarities": [0.0, 0.5]},
    "curriculum": {
        "difficulties": [2.0],
        "steps": 4,
        "duration": 4.0,
        "lr": 2.0,
        "max_lr": 4.0,
    },
    "dropout": {"noises": [0.3], "steps": 3, "duration": 3.0, "lr": 1.0, "max_lr": 2.0},
    "denoising": {"test_noises": [0.5], "steps": 3, "duration": 3.0, "lr": 0.3, "max_lr": 1.0},
    "levers": {"seeds": 2, "steps": 4, "similarities": [0.3, 0.8], "max_lr": 2.0},
    "activation": {
        "seeds": 1,
        "steps": 8,
        "similarities": [0.1, 0.9],
        "similarity": 0.3,
        "dimension": 50,
    },
}


def module_of(name):
    return import_module(f"replan.paper.{name.replace('-', '_')}")


def test_every_figure_has_a_tiny_version_here():
    assert set(TINY) == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_at_tiny_size(name, tmp_path):
    module = module_of(name)
    assert set(TINY[name]) == set(module.FULL) == set(module.QUICK)
    tables = module.compute(partial(sweep, workers=1), **TINY[name])
    for table in tables.values():
        assert len(table)
        assert not table.isna().any().any()
    picture = module.draw(tables)
    for ending in ("png", "pdf"):
        picture.savefig(tmp_path / f"x.{ending}")
        assert (tmp_path / f"x.{ending}").stat().st_size > 5000
    for claim in module.claims(tables):
        assert len(claim.held) == TINY[name].get("seeds", 1)
        assert json.dumps(claim.to_dict(), allow_nan=False)


def test_make_writes_everything_and_keeps_claims_of_other_figures(tmp_path):
    [made] = make(["readout"], tmp_path / "out", quick=True, workers=1)
    first = made.claims
    make(["multitask"], tmp_path / "out", quick=True, seeds=1, workers=1)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "cache", "claims.json", "claims.md",
        "readout.png", "readout.pdf", "readout.csv",
        "multitask.png", "multitask.pdf", "multitask.csv",
        "multitask-plans.csv", "multitask-protocols.csv",
    }  # fmt: skip
    content = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert list(content["figures"]) == ["multitask", "readout"]
    assert content["figures"]["multitask"]["settings"]["seeds"] == 1
    assert content["figures"]["readout"]["claims"] == [claim.to_dict() for claim in first]
    text = (tmp_path / "out" / "claims.md").read_text()
    assert all(claim.statement in text for claim in first)
    table = pd.read_csv(tmp_path / "out" / "multitask.csv")
    assert list(table.columns) == ["similarity", "seed", "strategy", "loss"]
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cache").iterdir()}
    before = (tmp_path / "out" / "multitask.csv").read_text()
    make(["multitask"], tmp_path / "out", quick=True, seeds=1, workers=1)
    assert kept == {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "cache").iterdir()}
    assert (tmp_path / "out" / "multitask.csv").read_text() == before


def test_a_protocol_survives_its_table():
    protocol = Protocol([[1.0, 0.0], [0.25, 0.75]], lr=[[1.0, 2.0], [3.0, 4.0]], edges=[0, 1, 3])
    assert protocol_of(protocol_rows(protocol.to_dict())) == protocol


# Claims on made-up tables: `verdicts` of a figure whose tables are as the paper says, and of tables
# with one thing changed, which must turn exactly the claims that are named.

GAMMAS = [0.1, 0.3, 0.6, 0.9]
SEEDS = range(3)


def verdicts(name, tables):
    return [claim.verdict for claim in module_of(name).claims(tables)]


def losses_table(**curves):
    """Return a table of losses; `curves` are losses at GAMMAS by strategy."""
    return pd.DataFrame(
        [
            {"similarity": g, "seed": seed, "strategy": name, "loss": loss * (1 + 0.01 * seed)}
            for seed in SEEDS
            for name, curve in curves.items()
            for g, loss in zip(GAMMAS, curve, strict=True)
        ]
    )


def steps_table(shares, lr=None, seeds=SEEDS, **more):
    """Return a table of protocols, the same for all seeds."""
    protocol = Protocol(shares, 1.0 * len(shares), 1.0 if lr is None else lr)
    rows = protocol_rows(protocol.to_dict())
    return pd.concat(rows.assign(seed=seed, **more) for seed in seeds)


def similarity(
    no_replay=(1, 3, 2, 1), optimal=(2, 1, 2, 3), pseudo=1.05, interleaved=1.5, ratio=1.1
):
    best = np.array(optimal, float)
    losses = {
        "no replay": no_replay,
        "optimal": best,
        "optimal, revision shuffled": pseudo * best,
        "interleaved, optimal share": interleaved * best,
        "interleaved 1:1": 2 * best,
    }
    plans = pd.DataFrame(
        [
            {"similarity": g, "seed": s, "loss_ratio": ratio, "focus": 5.0, "meeting": 6.0}
            for g, s in product(GAMMAS, SEEDS)
        ]
    )
    return {"losses": losses_table(**losses), "plans": plans}


def multitask(sequential=(2, 4, 3, 2), interleaved=(1.4, 1.3, 1.2, 1.1), gain=0.03):
    best = (1 - gain) * np.array(interleaved)
    losses = {"sequential": sequential, "interleaved 1:1": interleaved, "optimal": best}
    return {"losses": losses_table(**losses)}


def activation(two=None, three=None, five=None):
    """Tables of three figures for both activations; what is changed are ReLU's."""
    tables = {}
    for figure, made, change in (
        ("2", dynamics, two),
        ("3", similarity, three),
        ("5", multitask, five),
    ):
        for name in ("relu", "erf"):
            for part, table in made(**(change or {}) if name == "relu" else {}).items():
                rows = table.assign(activation=name)
                tables.setdefault(f"{part}-{figure}", []).append(rows)
    return {name: pd.concat(parts) for name, parts in tables.items()}


def annealing(joint=1.0, annealed=1.5, optimal=3.0):
    level = {
        "no replay": 9.0, "interleaved 1:1": 5.0, "interleaved, optimal share": 4.0,
        "optimal, revision shuffled": 1.1 * optimal,
        "optimal": optimal, "power law": annealed, "exponential": 1.1 * annealed,
        "joint optimum": joint,
    }  # fmt: skip
    return {"losses": losses_table(**{name: [x] * 4 for name, x in level.items()})}


def levers(timing=0.6, late=0.9, rate=0.3, curve=0.2, equal=0.5):
    """Losses with constant shares at 1 and everything at 0.1; `late` and `equal` are relative."""
    alone = {"nothing": 2.0, "share": 1.0, "timing": timing, "rate": rate, "curve": curve,
             "rates": 0.1 / late, "all": 0.1}  # fmt: skip
    rest = {"share": 0.1 / equal, "timing": 0.1 / late}
    return {
        part: losses_table(**{k: [x] * 4 for k, x in found.items()}).rename(
            columns={"strategy": "lever"}
        )
        for part, found in (("levers", alone), ("without", rest))
    }


def dynamics(learnt=2e-6, gap=1e-3, final=(3.0, 2.0, 1.0), focus=5):
    curves = []
    for seed in SEEDS:
        curves.append([1000.0, "first phase", seed, learnt, 0.1, 0.0])
        for name, loss in zip(("no replay", "interleaved 1:1", "optimal"), final, strict=True):
            curves.append([1025.0, name, seed, loss, loss, gap])
    table = pd.DataFrame(curves, columns=["time", "strategy", "seed", "theory_1", "theory_2", "g"])
    table["sgd_1"], table["sgd_2"] = table["theory_1"] + table["g"], table["theory_2"]
    shares = [[0.0, 1.0]] * focus + [[1.0, 0.0]] * 3
    return {
        "curves": table,
        "protocols": steps_table(shares, strategy="optimal"),
        "runs": pd.DataFrame({"seed": list(SEEDS), "dimension": 20_000}),
    }


def learning_rate(first=4.0, last=1.0, other=1.5, focus=6, constant=3.0, noise=0.0):
    shares = [[0.0, 1.0]] * focus + [[1.0, 0.0], [0.0, 1.0]] * 50
    rates = np.concatenate([np.geomspace(first, last, focus), np.full(100, last)])
    lr = np.stack([other * rates, rates], axis=1)
    lr[focus:] *= np.exp(noise * np.random.default_rng(0).standard_normal((100, 2)))
    losses = pd.DataFrame({"seed": list(SEEDS), "joint": 1.0, "constant": constant})
    return {"protocols": steps_table(shares, lr), "losses": losses}


def overlaps(halfway=False, late=0.8):
    def cosine(g, own):
        return np.sqrt((1 + g) / 2) if halfway else 0.99 if own else g

    rows = [
        {
            "time": time, "similarity": g, "seed": seed, "task": task, "unit": unit,
            "cosine": cosine(g, task == unit),
            "readout": 1.0 if task == unit or time == 10.0 else (0.1 if g < 0.9 else late),
        }
        for g, seed, task, unit, time in product(GAMMAS, SEEDS, (1, 2), (1, 2), (10.0, 25.0))
    ]  # fmt: skip
    return {"overlaps": pd.DataFrame(rows)}


def three_tasks(shuffled=1.2, old=1.0):
    names = module_of("three-tasks").LOOKS
    shares = [[0, 1, 0], [0, 0, 1]] * 3 + [[1, 0, 0]] * 2
    curves = []
    for seed, name, step in product(SEEDS, names, range(9)):
        loss = {"optimal": 1.0, "shuffled": shuffled}.get(name, 2.0)
        curves.append([float(step), name, seed, old * loss, loss, 1.5 * loss])
    table = pd.DataFrame(curves, columns=["time", "strategy", "seed", "loss_1", "loss_2", "loss_3"])
    return {"curves": table, "protocols": steps_table(shares)}


def readout(frozen=1.0, limit=1.01, trained=1.5):
    formula = np.array([3.0, 4.0, 14.0])
    table = {
        "similarity": [0.0, 0.3, 0.8], "formula": formula, "limit": limit * formula,
        "frozen": frozen * formula, "trained": trained * formula,
    }  # fmt: skip
    return {"timescales": pd.DataFrame(table)}


LEVELS = [0.2, 0.4, 0.6]  # of what the instances of the follow-up's figures differ in


def by_level(name, **losses):
    """Return a table of losses; `losses` by kind of rate and strategy, the same at all levels."""
    return pd.DataFrame(
        [
            {name: level, "rate": rate, "strategy": strategy, "loss": loss, "excess": loss}
            for rate, found in losses.items()
            for strategy, loss in found.items()
            for level in LEVELS
        ]
    )


def knob_steps(name, knob, values, **more):
    """Return a table of protocols with values (levels, steps) of a knob."""
    edges = np.arange(len(values[0]) + 1.0)
    return pd.concat(
        pd.DataFrame({name: level, "start": edges[:-1], "end": edges[1:], knob: row, "lr": 1.0})
        for level, row in zip(LEVELS, values, strict=True)
    ).assign(**more)


def curriculum(
    thirds=(0.0, 1.0, 0.5), fixed=(1.1, 1.2, 1.15), constant=(1.0, 1.1, 1.05), free=(0.5, 0.8, 0.6),
    order=(0, 0, 0, 1, 1, 1), drop=0.5,
):  # fmt: skip
    names = ("easy to hard", "hard to easy", "interleaved")
    others = {"best easy-hard-easy": 1.0, "optimal": 1.0}
    rates = {"fixed": fixed, "constant": constant, "free": free}
    losses = {rate: dict(zip(names, found, strict=True)) | others for rate, found in rates.items()}
    hard = np.array(order, float)
    shares = {"fixed": np.repeat(thirds, 10), "free": hard}
    lr = {"fixed": np.ones(30), "free": np.where(hard > 0, drop, 1.0)}
    protocols = [
        steps_table(
            np.stack([1 - share, share], axis=1), lr[rate], [0], difficulty=level, rate=rate
        )
        for level, (rate, share) in product(LEVELS, shares.items())
    ]
    return {"losses": by_level("difficulty", **losses), "protocols": pd.concat(protocols)}


def dropout(first=1.0, last=0.5, slope=0.1, constant=1.1, simple=1.005, without=1.05):
    keep = [[first] * 2 + [0.9 - slope * i] * 10 + [last - slope * i] * 8 for i in range(3)]
    fixed = {
        "no dropout": 1.5, "best constant": constant, "best linear": simple, "best step": 1.2,
        "optimal": 1.0,
    }  # fmt: skip
    free = {"no dropout": without, "best constant": without, "optimal": 1.0}
    steps = knob_steps("noise", "keep", keep, strategy="optimal", rate="fixed")
    return {"losses": by_level("noise", fixed=fixed, free=free), "protocols": steps}


def denoising(first=0.0, last=1.1, dip=0.0, steady=0.0, constant=1.2, simple=1.03, gain=2.0, mid=0):
    noise = [[first] * 2 + [0.5 * x + dip] * 4 + [0.5 * x] * 4 + [last * x] for x in LEVELS]
    both = [[0.0] * 6 + [0.5] * mid + [0.95] * 4 for _ in LEVELS]
    best = [[x + steady] * 2 for x in LEVELS]
    fixed = {
        "no noise": 3.0, "as in the test": 1.5, "best constant": constant, "best linear": simple,
        "best step": 1.2, "optimal": 1.0,
    }  # fmt: skip
    free = {"no noise": 3.0, "as in the test": 2.5, "best constant": gain, "optimal": 1.0}
    steps = [
        knob_steps("test_noise", "noise", values, strategy=strategy, rate=rate)
        for values, strategy, rate in (
            (noise, "optimal", "fixed"),
            (best, "best constant", "fixed"),
            (both, "optimal", "free"),
        )
    ]
    losses = by_level("test_noise", fixed=fixed, free=free)
    return {"losses": losses, "protocols": pd.concat(steps)}


MADE = {
    "dynamics": (dynamics, [({"learnt": 1e-4}, 0), ({"learnt": 1e-9}, 0), ({"gap": 0.01}, 1),
                            ({"final": (3, 1, 2)}, 2),
                            ({"final": (1, 2, 0.5)}, 2), ({"focus": 0}, 3)]),
    "similarity": (similarity, [({"no_replay": (1, 2, 3, 4)}, 0), ({"optimal": (1, 2, 3, 4)}, 1),
                                ({"pseudo": 1.2}, 2), ({"interleaved": 1.06}, 3),
                                ({"pseudo": 1.0001, "interleaved": 1.001}, 3),
                                ({"ratio": 3.0}, 4), ({"ratio": 0.3}, 4)]),
    "learning-rate": (learning_rate, [({"first": 1.5}, 0), ({"other": 1.01}, 1),
                                      ({"other": 1.0, "noise": 0.3}, 1), ({"constant": 1.05}, 2)]),
    "multitask": (multitask, [({"sequential": (4, 3, 2, 2)}, 0),
                              ({"interleaved": (1.4, 1.3, 1.35, 1.1)}, 1), ({"gain": 0.3}, 3)]),
    "overlaps": (overlaps, [({"halfway": True}, 0), ({"late": 0.05}, 1)]),
    "annealing": (annealing, [({"joint": 1.495}, 0), ({"optimal": 1.2}, 1)]),
    "three-tasks": (three_tasks, [({"shuffled": 1.005}, 0), ({"old": 0.1}, 1), ({"old": 1e4}, 1)]),
    "readout": (readout, [({"frozen": 1.02}, 0), ({"limit": 1.2}, 1), ({"trained": 20.0}, 2),
                          ({"trained": 0.01}, 2)]),
    "curriculum": (curriculum, [({"thirds": (0.0, 0.5, 1.0)}, 0), ({"thirds": (1.0, 0.5, 0.0)}, 0),
                                ({"fixed": (1.18, 1.17, 1.19)}, 1),
                                ({"constant": (1.1, 1.05, 1.15)}, 1),
                                ({"fixed": (1.1, 1.2, 1.05)}, 2),
                                ({"constant": (1.05, 1.1, 1.0)}, 2),
                                ({"fixed": (1.005, 1.2, 1.1)}, 3),
                                ({"order": (0, 0, 1, 0, 1, 1)}, 4), ({"drop": 0.9}, 5),
                                ({"free": (0.5, 0.52, 0.51)}, 6)]),
    "dropout": (dropout, [({"first": 0.95}, 0), ({"last": 1.0}, 0), ({"slope": 0.0}, 1),
                          ({"slope": -0.05}, 1), ({"constant": 1.005}, 2), ({"simple": 1.05}, 3),
                          ({"without": 1.0}, 4)]),
    "denoising": (denoising, [({"first": 0.3}, 0), ({"last": 0.4}, 0), ({"dip": 0.1}, 0),
                              ({"steady": -0.1}, 1), ({"steady": 0.1}, 1), ({"constant": 1.04}, 2),
                              ({"simple": 1.1}, 3), ({"gain": 1.1}, 4), ({"mid": 3}, 5)]),
    "levers": (levers, [({"timing": 0.95, "late": 0.99}, 0), ({"late": 0.7}, 1),
                        ({"rate": 0.7, "curve": 0.4}, 2), ({"curve": 0.29}, 3),
                        ({"equal": 0.95}, 4)]),
}  # fmt: skip
MADE["activation"] = (
    activation,
    [
        ({word: change}, first + claim)
        for word, name, first in (
            ("two", "dynamics", 0),
            ("three", "similarity", 4),
            ("five", "multitask", 9),
        )
        for change, claim in MADE[name][1]
    ],
)


@pytest.mark.parametrize("name", FIGURES)
def test_claims_hold_where_they_should(name):
    make_tables, _ = MADE[name]
    assert set(verdicts(name, make_tables())) == {"holds"}


@pytest.mark.parametrize(
    ("name", "change", "claim"),
    [(name, *case) for name, (_, changes) in MADE.items() for case in changes],
)
def test_a_claim_does_not_hold_where_it_should_not(name, change, claim):
    found = verdicts(name, MADE[name][0](**change))
    assert found[claim] == "does not hold"
    assert [x for i, x in enumerate(found) if i != claim] == ["holds"] * (len(found) - 1)


def test_every_claim_is_seen_to_fail():
    for name, (make_tables, changes) in MADE.items():
        alone = {claim for _, claim in changes}
        together = {  # claims that cannot fail alone
            "multitask": {2: {"sequential": (1, 1.2, 1.1, 1)}},
            "activation": {11: {"five": {"sequential": (1, 1.2, 1.1, 1)}}},
        }.get(name, {})
        for claim, change in together.items():
            assert verdicts(name, make_tables(**change))[claim] == "does not hold"
        assert alone | set(together) == set(range(len(verdicts(name, make_tables()))))


def test_a_claim_that_depends_on_the_initialisation_says_so():
    tables = dynamics()
    worse = (tables["curves"]["seed"] == 0) & (tables["curves"]["strategy"] == "first phase")
    tables["curves"].loc[worse, "theory_1"] = 1e-3
    assert verdicts("dynamics", tables)[0] == "depends on the initialisation"


def test_ctrl_c_ends_all_figures_at_once(tmp_path):
    """Figures wait for their problems in threads of their own, which must hear of it, too."""
    program = (
        "import sys; from replan.cli import main; sys.argv[1:] = "
        "['figure', 'all', '--quick', '--workers', '2', '--out', 'made']; main()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        while len(list((tmp_path / "made" / "cache").glob("*.json"))) < 2:
            assert run.poll() is None  # however long it takes, it goes on
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to the workers, too
        _, errors = run.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    kept = "finished problems are kept in made/cache; the same command continues"
    lines = [line for line in errors.splitlines() if line]
    assert (run.returncode, lines) == (130, [kept, "replan: stopped"])


def test_an_always_needs_every_initialisation():
    tables = dynamics()
    late = steps_table([[1.0, 0.0]] * 8, strategy="optimal", seeds=[3])
    tables["protocols"] = pd.concat([tables["protocols"], late])
    focus = module_of("dynamics").claims(tables)[3]
    assert focus.held == [True, True, True, False]
    assert focus.verdict == "depends on the initialisation"


def test_settings_are_changed_by_name_and_said_in_the_command(tmp_path):
    [made] = make(
        ["multitask"], tmp_path, quick=True, seeds=1, workers=1,
        changes={"similarities": [0.2, 0.8], "steps": 10},
    )  # fmt: skip
    content = json.loads((tmp_path / "claims.json").read_text())["figures"]["multitask"]
    assert content["command"] == (
        "replan figure multitask --quick --seeds 1 --set similarities=[0.2, 0.8] --set steps=10"
    )
    assert content["settings"]["similarities"] == [0.2, 0.8]
    assert content["unconverged"] == made.unconverged
    with pytest.raises(ValueError, match=r"`changes` expects one of .*did you mean `steps`"):
        make(["multitask"], tmp_path, changes={"stepz": 3})


def test_figures_that_are_made_at_once_lose_no_claims(tmp_path):
    claim = Claim("so it is", "it is so", [True], {})
    names = [f"figure-{i}" for i in range(20)]

    def add(name):
        record = _Record(tmp_path / "claims.json")
        record.add(Made(name, [], [claim], 0), "make", {"seeds": 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, names))
    content = json.loads((tmp_path / "claims.json").read_text())
    assert sorted(content["figures"]) == sorted(names)
    text = (tmp_path / "claims.md").read_text()
    assert all(f"## {name}\n" in text for name in names)
    assert {path.name for path in tmp_path.iterdir()} == {"claims.json", "claims.md"}


@pytest.mark.parametrize("content", ['{"hello": 1}', '{"figures": 3}', '{"figures": null}'])
def test_a_foreign_claims_file_is_refused_before_any_work(tmp_path, content):
    (tmp_path / "claims.json").write_text(content)
    with pytest.raises(ValueError, match="expects a file that `replan figure` wrote"):
        make(["readout"], tmp_path, quick=True, workers=1)
    assert not (tmp_path / "cache").exists()
