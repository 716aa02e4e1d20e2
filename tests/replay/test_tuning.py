"""The search for a training's share, rate and decay, on trainings whose optimum is known."""

import json
import math
import os
import subprocess
import sys
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from replan.errors import ArgumentError
from replan.replay import tune
from replan.replay.tuned import TEST, Choice
from replan.sweeps import SweepError

SHARES, DECAYS = (0.0, 0.1, 0.25, 0.5), ("constant", "cosine")
BEST = Choice(0.25, 0.1, "cosine")


def noise(*words):
    return np.random.default_rng(zlib.crc32(repr(words).encode())).standard_normal()


class Training:
    """Noisy losses around a valley; counts its calls.

    world: another draw of all noise. shared: of a seed, for all choices. own: of each training.
    """

    def __init__(self, world=0, shared=0.05, own=0.004, cliff=0.35):
        self.world, self.shared, self.own, self.cliff = world, shared, own, cliff
        self.calls = []

    def truth(self, share, lr, decay):
        late = 0.02 * (decay == "constant")
        return 1 + 0.4 * (share - 0.25) ** 2 + 0.03 * math.log2(lr / 0.1) ** 2 + late

    def __call__(self, share, lr, decay, seed):
        self.calls.append((Choice(share, lr, decay), seed))
        if lr > self.cliff:
            return [math.nan, 1.0]
        loss = self.truth(share, lr, decay) + self.shared * noise(self.world, seed)
        loss += self.own * noise(self.world, share, lr, decay, seed)
        return [loss - 0.5, loss + 0.5]


def search(train, rates=0.1, **settings):
    return tune(train, rates, **{"shares": SHARES, "decays": DECAYS} | settings)


def seeds_of(result):
    return {choice: sorted(runs) for choice, runs in result.by_choice.items()}


# The search


def test_the_known_optimum_is_found_with_less_than_half_of_the_full_grid():
    train = Training()
    result = search(train, seeds=8)
    assert result.choice == BEST
    full = len(SHARES) * 5 * len(DECAYS) * 8
    assert len([run for run in result.runs if not run.test]) < 0.4 * full
    assert len(train.calls) == len(set(train.calls)) == len(result.runs)
    assert result.shares[0.5][0] == Choice(0.5, 0.1, "cosine")


def test_seeds_may_be_named():
    result = search(Training(), [0.1, 0.2], seeds=[7, 3, 11], test_seeds=2)
    assert {next(iter(runs)) for runs in result.by_choice.values()} == {7}
    assert {x for runs in result.by_choice.values() for x in runs if x < TEST} == {7, 3, 11}


def test_every_choice_gets_the_same_first_seeds_and_every_share_the_same_budget():
    result = search(Training(), [0.05, 0.1, 0.2, 0.3], seeds=6, test_seeds=3)
    spent = Counter()
    for choice, seeds in seeds_of(result).items():
        searched = [seed for seed in seeds if seed < TEST]
        assert searched in [list(range(n)) for n in (1, 2, 4, 6)]
        spent[choice.share] += len(searched)
        tests = [TEST, TEST + 1, TEST + 2] if choice in result.tested else []
        assert seeds[len(searched) :] == tests
    assert list(spent.values()) == [8 + 4 + 2 * 2 + 2 * 2] * len(SHARES)
    assert {choice.share for choice in result.tested} == set(SHARES)
    at_best = [choice for choice in result.tested if choice.share == result.choice.share]
    assert len(at_best) == 2  # all that were left there
    assert len(search(Training(), seeds=2).tested) == len(SHARES) + 2


def test_a_seed_that_is_hard_for_all_decides_nothing():
    """Differences are paired: noise that all choices share cancels."""
    result = search(Training(shared=10.0))
    assert result.choice == BEST
    assert result.loss.high - result.loss.low > 5
    assert all(more.high - more.low < 0.02 for more in result.differences.values())


def test_a_small_grid_is_not_decided_by_a_single_seed():
    result = search(Training(), [0.1], shares=[0.25, 0.5], decays=["constant", "cosine"])
    assert all(set(seeds[:4]) == set(range(4)) for seeds in seeds_of(result).values())


def test_a_grid_around_a_rate_grows_until_the_best_is_inside():
    for middle in (0.1, 1.6, 0.1 / 2**4):
        result = search(Training(), middle)
        assert result.choice.lr == pytest.approx(0.1)
        assert not any("tried" in text for text in result.warnings)
        assert all(5 <= len(rates) <= 9 for rates in result.rates.values())


def test_rates_that_were_listed_stay_and_a_best_one_at_the_end_is_said():
    result = search(Training(cliff=9), [0.4, 0.8, 0.2])
    assert result.rates == {share: [0.2, 0.4, 0.8] for share in SHARES}
    assert result.warnings == ["the best rate is the smallest tried at share 0, 0.1, 0.25, 0.5"]
    assert "WARNING: the best rate is the smallest" in str(result)
    [text] = search(Training(cliff=9), 0.1 * 2**12, shares=[0.25]).warnings
    assert "smallest" in text  # even after four more
    [text] = search(Training(), [0.01, 0.05], shares=[0.25]).warnings
    assert "largest" in text


# Divergence


def test_diverging_runs_are_results_and_the_cliff_is_known():
    result = search(Training(), [0.05, 0.1, 0.2, 0.4])
    assert result.choice == BEST
    assert result.cliff == (0.4, "1 of 1 runs diverged")
    assert "at rate 0.4, 4 times the choice's, 1 of 1 runs diverged" in str(result)
    lost = result.to_frame().query("lr == 0.4")
    assert len(lost) == len(SHARES) * len(DECAYS)
    assert np.isinf(lost["loss"]).all()
    assert (lost["failure"] == "").all()
    seeds = search(Training(), [0.1, 0.4, 0.8]).to_frame().query("lr > 0.1")["seed"]
    assert (seeds == 0).all()  # more of them would be a waste


def test_a_rate_that_is_far_worse_is_a_cliff_too():
    def train(share, lr, decay, seed):
        return 0.1 + (lr > 0.1) * 0.06

    assert search(train, [0.05, 0.1, 0.2]).cliff == (0.2, "it ends 1.6 times as high")
    assert search(Training(), [0.05, 0.1, 0.2]).cliff is None


def test_a_share_at_which_every_rate_diverges_is_out():
    def train(share, lr, decay, seed):
        return math.inf if share == 0.5 else share + lr

    result = search(train, [0.1, 0.2])
    assert 0.5 not in result.shares
    assert "no rate ended with a finite loss at share 0.5" in result.warnings
    with pytest.raises(ArgumentError) as caught:
        search(lambda **_: math.nan)
    assert caught.value.name == "rates"


def test_a_choice_that_diverges_on_a_test_seed_has_no_bounded_loss(tmp_path):
    def train(share, lr, decay, seed):
        return math.inf if seed == TEST and share < 0.3 else share + lr

    result = search(train, [0.1, 0.2])
    assert result.choice == (0.0, 0.1, "constant")
    assert result.loss.high == math.inf
    assert Choice(0.5, 0.1, "constant") in result.runners_up
    assert "share 0, rate 0.1, constant: 1 of 8 tests have no finite loss" in result.warnings
    result.save(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["loss"] == [None] * 3
    result.plot(tmp_path / "x.png")


# Honest intervals


@pytest.mark.parametrize("own", [0.01, 0.05])
def test_intervals_cover_although_the_choice_was_the_best_of_many(own):
    """90 % of them; those from the seeds of the search would cover less."""
    covered, differences, naive, worlds = 0, [], 0, 200
    for world in range(worlds):
        train = Training(world, shared=0.02, own=own)
        result = search(train, [0.05, 0.1, 0.2], shares=SHARES[1:], test_seeds=5)
        truth = train.truth(*result.choice)
        covered += result.loss.low <= truth <= result.loss.high
        for other, more in result.differences.items():
            differences.append(more.low <= train.truth(*other) - truth <= more.high)
        own_seeds = [result.by_choice[result.choice][seed].loss for seed in range(4)]
        half = 2.353 * np.std(own_seeds, ddof=1) / 2  # Student's t with three degrees of freedom
        naive += abs(np.mean(own_seeds) - truth) <= half
    assert 0.85 <= covered / worlds <= 0.95
    assert 0.87 <= np.mean(differences) <= 0.93
    if own == 0.05:
        assert naive / worlds < 0.8


def test_runners_up_are_those_that_cannot_be_told_apart():
    clear, noisy = search(Training(own=1e-4)), search(Training(own=0.03))
    assert clear.runners_up == []
    assert len(noisy.runners_up) >= 2
    for other, more in noisy.differences.items():
        assert (other in noisy.runners_up) == (more.low <= 0)
    lower = sum(more.high < 0 for more in noisy.differences.values())
    said = [text for text in noisy.warnings if "lower on fresh seeds" in text]
    assert [int(text.split()[0]) for text in said] == [lower] * (lower > 0)
    cost = {share: more.mean for share, (_, more) in clear.shares.items()}
    truth = {share: 0.4 * (share - 0.25) ** 2 for share in SHARES}
    assert cost == pytest.approx(truth, abs=1e-3)


# What trainings return


def test_losses_are_a_list_a_dict_an_array_or_a_number():
    forms = {
        "list": lambda loss: [loss - 0.5, loss + 0.5],
        "array": lambda loss: np.array([loss - 0.5, loss + 0.5]),
        "dict": lambda loss: {"old": loss - 0.5, "new": np.float32(loss + 0.5)},
        "number": lambda loss: loss,
    }
    for name, form in forms.items():
        result = search(lambda form=form, **case: form(np.mean(Training()(**case))), [0.05, 0.1])
        names = {"dict": ["old", "new"], "number": ["1"]}.get(name, ["1", "2"])
        assert list(result.task_losses) == names
        assert [f"loss_{x}" in result.to_frame() for x in names] == [True] * len(names)
        assert result.loss.mean == pytest.approx(1.0, abs=0.1)


def test_a_training_that_diverged_may_return_one_number_but_tasks_stay_the_same():
    def train(share, lr, decay, seed):
        return math.nan if lr > 0.1 or seed == TEST + 1 else {"old": lr, "new": lr}

    result = search(train, [0.1, 0.2], weights={"old": 1, "new": 2})
    assert result.choice.lr == 0.1
    assert list(result.task_losses) == ["old", "new"]
    with pytest.raises(ArgumentError) as caught:
        search(lambda share, **_: [1.0] * (1 + (share > 0)))
    assert caught.value.name == "train"


def test_weights_decide_between_tasks():
    def train(share, lr, decay, seed):
        return {"old": 1 - share, "new": 2 * share}

    for weights, share in ((None, 0.0), ({"new": 1, "old": 9}, 0.5), ([3, 1], 0.5), ([1, 0], 0.5)):
        result = search(train, [0.1], weights=weights)
        assert result.choice.share == share
    assert result.loss.mean == 0.5  # of the first alone


def test_a_run_that_fails_is_shown_with_its_arguments_and_the_others_are_kept():
    def train(share, lr, decay, seed):
        if (share, lr, seed) == (0.25, 0.1, 0):
            raise MemoryError("of the GPU")
        return Training()(share, lr, decay, seed)

    result = search(train, [0.05, 0.1, 0.2])
    assert result.choice[:2] != (0.25, 0.1)
    text = "failed: share 0.25, rate 0.1, cosine, seed 0: MemoryError: of the GPU"
    assert text in result.warnings
    assert f"WARNING: {text}" in str(result)
    assert "in train" in next(run.failure for run in result.runs if run.failure)
    assert result.shares[0.5][0].lr == 0.1

    def memory_is_short(share, lr, decay, seed):
        return Training()(share, lr, decay, seed) if lr <= 0.1 else 1 / 0

    assert search(memory_is_short, [0.05, 0.1, 0.2]).cliff is None

    def broken(share, lr, decay, seed):
        return 1 / 0

    with pytest.raises(SweepError) as caught:
        search(broken)
    assert '{"share": 0.0, "lr": 0.025, "decay": "constant", "seed": 0}' in str(caught.value)
    assert "ZeroDivisionError" in str(caught.value)


@pytest.mark.parametrize("losses", [None, "x", [], {}, [1.0, "x"], [[1.0]]])
def test_what_is_no_loss_is_refused(losses):
    with pytest.raises(SweepError, match=r"train\(…\)"):
        search(lambda **_: losses)


# Resuming, elsewhere


SCRIPT = """
import os, signal, sys
from pathlib import Path
from replan.replay import tune

def train(share, lr, decay, seed):
    with open("calls", "a") as file:
        file.write(f"{share} {lr} {decay} {seed}\\n")
    if len(Path("calls").read_text().splitlines()) == int(sys.argv[1]):
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    return share + lr + seed / 100

if __name__ == "__main__":
    found = tune(train, [0.1, 0.2], shares=[0.0, 0.5], decays=["constant"], cache="runs", seeds=2)
    print(found.choice, len(found.runs))
"""


@pytest.mark.parametrize("end", ["SIGINT", "SIGKILL"])
def test_a_search_goes_on_after_ctrl_c_or_a_crash_and_repeats_no_finished_run(end, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def run(at):
        command = [sys.executable, "script.py", str(at), end]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    for at in (3, 6):
        assert run(at).returncode != 0
        assert len((tmp_path / "calls").read_text().splitlines()) == at
    done = run(0)
    assert done.stdout.startswith("share 0, rate 0.1, constant "), done.stderr
    calls = Counter((tmp_path / "calls").read_text().splitlines())
    runs = int(done.stdout.split()[-1])
    assert len(calls) == runs
    assert sum(calls.values()) == runs + 2  # those under way at the end of a process


def steady(share, lr, decay, seed):
    return Training()(share, lr, decay, seed)


def test_runs_are_the_same_on_any_executor_and_in_processes(tmp_path):
    few = {"rates": [0.1], "shares": [0.1, 0.25], "decays": ["cosine"], "seeds": 1}
    here = search(steady, **few)
    with ThreadPoolExecutor(2) as pool:
        assert search(steady, **few, executor=pool).runs == here.runs
    assert search(steady, **few, cache=tmp_path, workers=2).runs == here.runs
    kept = len(list(tmp_path.iterdir()))
    assert kept == len(here.runs)
    more = search(steady, **few | {"seeds": 5}, cache=tmp_path, weights=[1, 2])
    assert len(list(tmp_path.iterdir())) == len(more.runs)  # those on the first seeds were there
    assert len(more.runs) > kept
    search(steady, **few, cache=tmp_path, key="other code")
    assert len(list(tmp_path.iterdir())) == len(more.runs) + kept
    notes = []
    search(steady, **few, progress=notes.append)
    assert notes[-1].done == notes[-1].total


# Arguments and looks


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("train", [None, "x"]),
        ("rates", [None, 0.0, -1, math.nan, True, "0.1", [], [0.1, 0.1], [0.1, -1], ["x"]]),
        ("shares", [None, 0.5, [], [-0.1], [1.1], [0.5, 0.5], ["x"]]),
        ("decays", ["constant", [], [1], ["a", "a"], None]),
        ("seeds", [0, 1.5, [1, 1], [-1], None]),
        ("test_seeds", [0, 1, None]),
        ("weights", [[0, 0], [-1, 2], "x", [1, 1, 1], {"a": 1}, [math.nan, 1], 3]),
        ("cache", [3]),
        ("workers", [0]),
        ("executor", [3]),
    ],
)
def test_bad_arguments_are_refused_by_name(name, values):
    for value in values:
        with pytest.raises(ArgumentError) as caught:
            search(**{"train": steady, "rates": 0.1} | {name: value})
        assert caught.value.name == name
        assert "\n" not in str(caught.value)


def test_what_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(ArgumentError) as caught:
        search(lambda **_: 1.0, cache=tmp_path)
    assert caught.value.name == "train"


@pytest.fixture(scope="module")
def result():
    return search(Training(own=0.03))


def test_the_print_fits_a_screen(result):
    lines = str(result).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 120
    assert f"choice: {result.choice}; loss" in lines[0]
    assert sum(line.endswith(" choice") for line in lines) == 1
    marked = [line for line in lines if line.endswith(("cannot be told from it", "fresh seeds"))]
    assert len(marked) == len(result.runners_up) + 1 > 1  # the last line speaks of seeds, too
    assert f"{result.choice}: loss" in repr(result)
    assert "<table" in result._repr_html_()


def test_files_have_every_run(result, tmp_path):
    for name in ("x.json", "x.csv", "x.png"):
        result.save(tmp_path / name) if name != "x.png" else result.plot(tmp_path / name)
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 1 + len(result.runs)
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["choice"] == result.choice._asdict()
    assert len(content["runs"]) == len(result.runs)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_picture_of_a_single_choice_is_drawn(sign, tmp_path):
    result = search(lambda seed, **_: sign + seed % 3, [0.1], shares=[0.5], decays=["constant"])
    result.plot(tmp_path / "x.png")
    assert result.runners_up == result.warnings == []


def test_a_huge_loss_does_not_hide_the_others_and_a_wide_range_is_logarithmic():
    def train(share, lr, decay, seed):
        return 1e30 if lr == 0.4 else (1 + share) * (lr / 0.1 + 0.1 / lr) ** 3

    axes = search(train).plot().axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[1] < 1e4
    assert search(Training()).plot().axes[0].get_yscale() == "linear"


def test_the_picture_shows_every_share_and_what_diverged(result):
    figure = result.plot()
    rates, costs = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        f"share {share:g}" for share in SHARES
    ]
    crosses = [line for line in rates.lines if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses] == [[0.4]] * len(SHARES)
    words = [label.get_text().split("\n")[0] for label in costs.get_xticklabels()]
    assert words == [f"{share:g}" for share in SHARES]
    stars = [line for line in costs.lines if line.get_marker() == "*"]
    assert stars[0].get_xdata().tolist() == [SHARES.index(result.choice.share)]
