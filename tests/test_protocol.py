"""Protocol: operations keep what they promise, files give it back, rounding and samples."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replan import ArgumentError, Protocol


@st.composite
def protocols(draw, tasks=None):
    """A random protocol, on equal or unequal steps, with one learning rate or one per task."""
    tasks = tasks or draw(st.integers(1, 5))
    steps = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shares = rng.dirichlet(np.full(tasks, draw(st.sampled_from([0.1, 1.0, 10.0]))), size=steps)
    lr = rng.random((steps, tasks) if draw(st.booleans()) else steps)
    edges = np.linspace(0, 7.0, steps + 1)
    if draw(st.booleans()):
        edges = np.concatenate([[0.0], np.cumsum(0.05 + rng.random(steps))])
    return Protocol(shares, lr=lr, edges=edges)


def deviation(a, b):
    """The largest |∫ (shares − other shares)| over tasks and times."""
    a = a.split(b.edges)
    gaps = a.shares - b.shares[b.step_at((a.edges[1:] + a.edges[:-1]) / 2)]
    return np.max(np.abs(np.cumsum(gaps * a.lengths[:, None], axis=0)))


def assert_same(a, b):
    np.testing.assert_allclose(a.edges, b.edges, rtol=1e-13)
    np.testing.assert_allclose(a.shares, b.shares, rtol=1e-13, atol=1e-15)
    assert a.lr.tolist() == b.lr.tolist()


def test_from_shares_sequence_and_segments_agree():
    rows = [[0, 1], [0, 1], [1, 0], [0.5, 0.5]]
    a = Protocol(rows, duration=8.0, lr=0.5)
    b = Protocol.from_segments([(4.0, 1), (2.0, 0), (2.0, [0.5, 0.5])], tasks=2, lr=0.5)
    assert_same(a, b.split(a.edges))
    c = Protocol.from_sequence([1, 1, 0], tasks=2, duration=6.0, lr=0.5)
    assert c.shares.tolist() == rows[:3]
    assert c.sequence.tolist() == [1, 1, 0]
    assert c.is_discrete
    assert not a.is_discrete
    assert a.mean_shares.tolist() == [0.375, 0.625]
    assert (a.steps, a.tasks, a.duration) == (4, 2, 8.0)


def test_then_concatenates():
    a = Protocol.from_sequence([0], tasks=2, duration=1000.0, lr=1.0)
    b = Protocol([[0.5, 0.5]] * 2, duration=25.0, lr=[[1.0, 2.0], [3.0, 4.0]])
    both = a.then(b)
    assert both.edges.tolist() == [0, 1000, 1012.5, 1025]
    assert both.lr.tolist() == [[1, 1], [1, 2], [3, 4]]
    assert a.then(a).lr.tolist() == [1, 1]


@settings(max_examples=40, deadline=None)
@given(protocols(), st.integers(1, 6))
def test_refining_and_splitting_change_nothing(protocol, factor):
    fine = protocol.refine(factor)
    assert fine.steps == factor * protocol.steps
    assert deviation(protocol, fine) < 1e-12
    cut = protocol.split(np.linspace(-1, protocol.duration + 1, 17))
    assert deviation(protocol, cut) < 1e-12
    assert np.diff(cut.edges).min() > 0
    assert cut.duration == protocol.duration


def test_splitting_next_to_an_edge_makes_no_sliver():
    protocol = Protocol.from_segments([(7.0 + 1e-12, 1), (3.0, 0)], tasks=2)
    assert protocol.split([7.0]).steps == 2
    assert protocol.split([5.0, 5.0 + 1e-13]).steps == 3


@settings(max_examples=80, deadline=None)
@given(protocols())
def test_rounding_stays_within_its_bound(protocol):
    rounded = protocol.round()
    assert rounded.is_discrete
    assert rounded.lr.tolist() == protocol.lr.tolist()
    equal = np.ptp(protocol.lengths) < 1e-9
    bound = sum(1 / i for i in range(2, protocol.tasks + 1))
    if not equal and protocol.tasks > 2:
        bound = protocol.tasks - 1
    assert deviation(protocol, rounded) <= bound * protocol.lengths.max() + 1e-7


def test_deviation_weighs_steps_by_their_length():
    a = Protocol([[1, 0], [0, 1]], edges=[0, 1, 4])
    assert deviation(a, Protocol([[1, 0]], duration=4.0)) == 3.0


def test_the_rounding_bound_is_tight():
    shares = np.array([[1 / 3, 1 / 3, 1 / 3], [0, 0.5, 0.5]])
    protocol = Protocol(shares, duration=2.0)
    assert deviation(protocol, protocol.round()) == pytest.approx(5 / 6)


def test_rounding_deviation_falls_in_proportion_to_the_step():
    wave = 0.5 + 0.4 * np.sin(np.linspace(0, 5, 16))
    protocol = Protocol(np.column_stack([wave, 1 - wave]), duration=4.0)
    factors = 2 ** np.arange(1, 7)
    gaps = [deviation(protocol, protocol.refine(int(f)).round()) for f in factors]
    slope = np.polyfit(np.log(factors), np.log(gaps), 1)[0]
    assert slope == pytest.approx(-1, abs=0.15)


def test_rounding_equal_shares_alternates_from_the_first_task():
    protocol = Protocol(np.full((9, 3), 1 / 3), duration=9.0)
    assert protocol.round().sequence.tolist() == [0, 1, 2] * 3


def test_spread_samples_follow_the_shares_everywhere():
    protocol = Protocol([[0.3, 0.7], [0.9, 0.1]], edges=[0.0, 0.5, 2.0])
    tasks = protocol.sample(1000)
    assert len(tasks) == 2000
    due = np.concatenate([np.full(500, 0.7), np.full(1500, 0.1)])
    assert np.abs(np.cumsum(tasks) - np.cumsum(due)).max() <= 0.5 + 1e-6
    assert protocol.sample(1000).tolist() == tasks.tolist()


def test_random_samples_follow_the_shares_on_average_and_the_seed():
    protocol = Protocol([[0.2, 0.5, 0.3], [0.0, 0.0, 1.0]], duration=2.0)
    tasks = protocol.sample(20_000, order="random", seed=5)
    long = protocol.sample(400_000, order="random", seed=5)[:400_000]
    counts = np.bincount(long, minlength=3) / 400_000
    np.testing.assert_allclose(counts, [0.2, 0.5, 0.3], atol=4 * 0.5 / np.sqrt(400_000))
    assert set(tasks[20_000:]) == {2}
    assert tasks.tolist() == protocol.sample(20_000, order="random", seed=5).tolist()
    assert tasks.tolist() != protocol.sample(20_000, order="random", seed=6).tolist()


@settings(max_examples=15, deadline=None)
@given(protocols())
def test_files_give_back_the_same_protocol(tmp_path_factory, protocol):
    folder = tmp_path_factory.mktemp("protocol")
    for name in ("p.json", "p.csv"):
        protocol.save(folder / name)
        assert_same(Protocol.load(folder / name), protocol)
    assert not list(folder.glob("*.part"))


def test_csv_opens_in_pandas_and_json_says_tasks_from_one(tmp_path):
    protocol = Protocol.from_sequence([1, 0], tasks=2, duration=3.0, lr=1.0)
    protocol.save(tmp_path / "p.csv")
    table = pd.read_csv(tmp_path / "p.csv")
    assert list(table) == ["start", "end", "share_1", "share_2", "lr"]
    assert table["share_2"].tolist() == [1, 0]
    protocol.save(tmp_path / "p.json")
    content = json.loads((tmp_path / "p.json").read_text())
    assert content["tasks"] == [2, 1]
    assert content["replan"]


def test_json_without_edges_has_equal_steps(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('{"duration": 4, "shares": [[1, 0], [0, 1]], "lr": [1, 1]}')
    assert Protocol.load(path).edges.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Protocol([[0.5, 0.4]], 1.0), "shares"),
        (lambda: Protocol([[1.5, -0.5]], 1.0), "shares"),
        (lambda: Protocol([[np.nan, 1.0]], 1.0), "shares"),
        (lambda: Protocol([0.5, 0.5], 1.0), "shares"),
        (lambda: Protocol([[1.0]], -1.0), "duration"),
        (lambda: Protocol([[1.0]]), "duration"),
        (lambda: Protocol([[1.0]], 1.0, lr=-2.0), "lr"),
        (lambda: Protocol([[1.0]], 1.0, lr=[1.0, 2.0]), "lr"),
        (lambda: Protocol([[1.0]] * 2, 1.0, lr=[1.0, -2.0]), "lr"),
        (lambda: Protocol([[1.0]], edges=[0.0, 0.0]), "edges"),
        (
            lambda: Protocol.from_sequence([2], 2, 1.0),
            "sequence",
        ),
        (lambda: Protocol.from_segments([(0.0, 1)], 2), "segments"),
        (lambda: Protocol.from_segments([(1.0, 2)], 2), "segments"),
        (lambda: Protocol.from_segments([(1.0, [1.0])], 2), "segments"),
        (lambda: Protocol.from_segments([(1.0, 0, 2.0)], 2), "segments"),
        (lambda: Protocol.from_segments(5, 2), "segments"),
        (lambda: Protocol.from_sequence(3, 2, 1.0), "sequence"),
        (lambda: Protocol([[1.0]], 1.0).then(3), "other"),
        (lambda: Protocol([[1.0]], 1.0).then(3), "other"),
        (lambda: Protocol([[0.5, 0.5]], 1.0).sequence, "sequence"),
        (lambda: Protocol([[1.0]], 1.0).sample(10, order="evn"), "order"),
        (lambda: Protocol([[1.0]], 1.0).save("p.txt"), "path"),
        (
            lambda: Protocol([[1.0]], 1.0).then(Protocol([[1, 0]], 1.0)),
            "other",
        ),
        (lambda: Protocol([[1.0]], 1.0).refine(0), "factor"),
    ],
)
def test_bad_input_is_refused(build, name):
    with pytest.raises(ArgumentError) as caught:
        build()
    assert caught.value.name == name


def test_tables_by_hand_may_have_spaces_and_blank_lines(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text(
        "\ufeffstart, end, share_1, lr\n0, 1, 1, 0.5\n\n1, 3, 1, 0.2\n\n", encoding="utf-8"
    )
    assert Protocol.load(path) == Protocol([[1], [1]], lr=[0.5, 0.2], edges=[0, 1, 3])


def test_columns_count_by_their_number(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("lr,share_2,share_1,start,end\n0.5,0.2,0.8,0,1\n")
    assert Protocol.load(path) == Protocol([[0.8, 0.2]], 1.0, lr=0.5)


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("path", "p.json", "{"),
        ("path", "p.json", "[]"),
        ("shares", "p.json", '{"duration": 1}'),
        ("shares", "p.json", '{"shares": 3, "duration": 1}'),
        ("duration", "p.json", '{"duration": 4, "edges": [0, 3], "shares": [[1]]}'),
        ("columns", "p.csv", "start,end\n0,1\n"),
        ("columns", "p.csv", "start,end,share_1,share_3,lr\n0,1,0.5,0.5,1\n"),
        ("rows", "p.csv", "start,end,share_1,lr\n"),
        ("share_1", "p.csv", "start,end,share_1,lr\n0,1,1,1\n1,2,x,1\n"),
        ("lr", "p.csv", "start,end,share_1,lr\n0,1,1,nan\n"),
        ("columns", "p.csv", "start,end,share_1,share_2,lr_1\n0,1,1,0,1\n"),
        ("start", "p.csv", "start,end,share_1,lr\n0,1,1,1\n2,3,1,1\n"),
        ("path", "p.csv", ""),
    ],
)
def test_bad_files_are_refused(tmp_path, name, file, text):
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(ArgumentError) as caught:
        Protocol.load(path)
    assert caught.value.name == name
    assert caught.value.source == str(path)


def distance(protocol, stages):
    """The mean square distance of shares and rates, the latter in units of the largest."""
    stages = stages.split(protocol.edges)
    fine = protocol.split(stages.edges)
    rates = (stages.by_task("lr") - fine.by_task("lr")) / np.abs(protocol.lr).max()
    per_task = protocol.lr.ndim == 2
    squares = rates**2 * (fine.shares if per_task else 1.0 / protocol.tasks)
    return fine.lengths @ (((stages.shares - fine.shares) ** 2).sum(axis=1) + squares.sum(axis=1))


@settings(max_examples=40)
@given(protocols(), st.integers(0, 2**32))
def test_stages_are_nearer_than_any_others(protocol, seed):
    found = protocol.stages(3)
    assert [x.steps for x in found] == list(range(1, min(3, protocol.steps) + 1))
    rng = np.random.default_rng(seed)
    for stages in found:
        cuts = rng.choice(protocol.steps - 1, stages.steps - 1, replace=False) + 1
        edges = protocol.edges[[0, *sorted(cuts), protocol.steps]]
        means = np.array(
            [
                protocol.lengths[a:b] @ protocol.shares[a:b] / protocol.lengths[a:b].sum()
                for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), protocol.steps], strict=True)
            ]
        )
        other = Protocol(means, edges=edges, lr=float(protocol.lr.mean()))
        assert distance(protocol, stages) <= distance(protocol, other) + 1e-5


def test_stages_of_few_stages_are_themselves():
    few = Protocol([[1, 0], [0.25, 0.75]], edges=[0, 3, 5], lr=[2.0, 1.0])
    found = few.refine(10).stages(4)
    assert len(found) == 2
    assert found[-1] == few
    assert found[0].lr[0] == pytest.approx(1.6)
    with pytest.raises(ArgumentError) as caught:
        few.stages(0)
    assert caught.value.name == "most"


def test_the_rate_of_a_stage_is_that_of_what_is_trained():
    protocol = Protocol([[1, 0], [0, 1]], 2.0, lr=[[0.5, 99.0], [99.0, 0.1]])
    assert protocol.stages(1)[0].lr[0] == pytest.approx([0.5, 0.1], rel=1e-3)
