"""The price of not knowing which member one has."""

import numpy as np
import pandas as pd
import pytest

from problems import small
from replan import Ensemble, Relax, regret, solve, strategies


@pytest.fixture(scope="module")
def found():
    problems = [small(0.1, steps=6), small(0.6, steps=6)]
    unseen = Ensemble({"other": small(0.3, steps=6)})
    ensemble = Ensemble(problems, [0.25, 0.75], unseen=unseen)
    plan = solve(ensemble)
    protocols = {"plan": plan.protocol, "interleaved": strategies.interleaved(ensemble)}
    return plan, regret(ensemble, protocols, solver=Relax(starts=1))


def test_regrets_are_against_the_own_optimum(found):
    plan, price = found
    for m, member in enumerate(plan.problem.members):
        own = solve(member, Relax(starts=1)).certificate
        assert price.seen.best[m] <= own.value * (1 + 1e-4)
        assert price.seen.best[m] == pytest.approx(own.relaxed_value, rel=1e-2)
    assert np.all(price.of("plan") >= 0)
    assert np.all(price.of("interleaved") >= 0)
    assert price.seen.values["plan"] == pytest.approx(plan.trajectory.member_losses)


def test_unseen_members_are_reported_apart(found):
    _, price = found
    assert price.of("plan", unseen=True).shape == (1,)
    gap = price.of("plan", unseen=True)[0] - [0.25, 0.75] @ price.of("plan")
    assert price.gaps["plan"] == pytest.approx(gap)
    content = price.to_dict()["plan"]
    assert list(content) == ["seen", "unseen"]
    assert content["seen"]["mean"] == pytest.approx([0.25, 0.75] @ price.of("plan"))
    assert content["seen"]["largest"] == pytest.approx(price.of("plan").max())
    assert [one["name"] for one in content["unseen"]["members"]] == ["other"]
    assert "plan, 1 unseen" in str(price)


def test_the_same_members_unseen_leave_no_gap():
    problems = [small(similarity, steps=6) for similarity in (0.1, 0.3, 0.6)]
    weights = [0.1, 0.3, 0.6]
    ensemble = Ensemble(problems, weights, unseen=Ensemble(problems, weights))
    protocol = strategies.interleaved(ensemble)
    price = regret(ensemble, protocol, solver=Relax(starts=0))
    assert price.gaps["protocol"] == 0.0
    content = price.to_dict()["protocol"]
    assert content["seen"] == content["unseen"]
    assert content["seen"]["median"] == price.of("protocol")[2]  # which has 0.6 of the weight


def test_the_table_of_regrets(found, tmp_path):
    _, price = found
    price.save(tmp_path / "regret.csv")
    frame = pd.read_csv(tmp_path / "regret.csv")
    assert frame["seen"].sum() == 4
    assert np.allclose(frame["regret"], frame["value"] - frame["best"])
    price.save(tmp_path / "regret.json")


def test_what_has_no_regret_is_refused(found):
    plan, _ = found
    with pytest.raises(ValueError, match="`ensemble` expects an Ensemble"):
        regret(plan.problem.members[0], plan.protocol)
    with pytest.raises(ValueError, match="`protocols` expects at least one"):
        regret(plan.problem, {})
    alone = Ensemble(plan.problem.members)
    with pytest.raises(ValueError, match="`unseen` expects an ensemble with members to test on"):
        regret(alone, plan.protocol, solver=Relax(starts=0)).of("protocol", unseen=True)
