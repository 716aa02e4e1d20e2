"""Strategies: what each one trains, their learning rates, tasks that arrive, the registry."""

from collections.abc import Sequence

import numpy as np
import pytest

import replan
from replan import (
    ArgumentError,
    Control,
    Problem,
    Protocol,
    TeacherStudent,
    evaluate,
    register,
    strategies,
)


def test_every_strategy_needs_only_a_problem(problem):
    for name, strategy in strategies.STRATEGIES.items():
        protocol = strategy(problem)
        assert protocol.duration == pytest.approx(problem.duration), name
        assert evaluate(problem, protocol).status == "ok"


def test_what_each_strategy_trains(problem):
    s = strategies
    assert s.one_task(problem, task=0).mean_shares.tolist() == [1, 0]
    assert s.no_replay(problem).mean_shares.tolist() == [0, 1]
    assert s.no_replay(problem, new_task=0).mean_shares.tolist() == [1, 0]
    assert s.interleaved(problem).shares.tolist() == [[0.5, 0.5]] * 40
    assert s.interleaved(problem, shares=[0.2, 0.8]).shares[7].tolist() == [0.2, 0.8]
    assert s.alternating(problem).sequence.tolist() == [0, 1] * 20
    assert s.alternating(problem, order=[1, 0]).sequence.tolist() == [1, 0] * 20
    blocks = s.sequential(problem, order=[1, 0])
    assert blocks.sequence.tolist() == [1] * 20 + [0] * 20
    assert s.interleaved(problem).lr.tolist() == [problem.knobs["lr"]] * 40


def test_blocks_that_do_not_fit_the_grid_are_exact():
    model = TeacherStudent.similar(0.2, tasks=3)
    problem = Problem(model, model.fresh(), duration=10.0, steps=10)
    protocol = strategies.sequential(problem)
    np.testing.assert_allclose(protocol.mean_shares, [1 / 3] * 3, rtol=1e-12)
    assert protocol.steps == 12


def test_random_order_is_seeded_and_keeps_shares_on_average():
    model = TeacherStudent.similar(0.2)
    problem = Problem(model, model.fresh(), duration=10.0, steps=5000)
    a = strategies.random_order(problem, shares=[0.2, 0.8], seed=1)
    assert a.mean_shares[0] == pytest.approx(0.2, abs=0.03)
    b = strategies.random_order(problem, shares=[0.2, 0.8], seed=1)
    c = strategies.random_order(problem, shares=[0.2, 0.8], seed=2)
    assert a.sequence.tolist() == b.sequence.tolist() != c.sequence.tolist()


def test_shuffling_keeps_the_steps_and_what_comes_before(problem):
    base = strategies.focus_then_replay(problem, focus=4.0).round()
    mixed = strategies.shuffled(problem, protocol=base, seed=3)
    np.testing.assert_allclose(mixed.mean_shares, base.mean_shares)
    assert mixed.sequence.tolist() != base.sequence.tolist()
    kept = strategies.shuffled(problem, protocol=base, after=4.0, seed=3)
    assert kept.sequence[:16].tolist() == [1] * 16
    np.testing.assert_allclose(kept.mean_shares, base.mean_shares)
    assert kept.sequence.tolist() != base.sequence.tolist()


def test_a_shuffled_step_keeps_its_learning_rate_and_length(problem):
    base = Protocol(
        [[1, 0], [0, 1], [0.5, 0.5], [0.2, 0.8]], lr=[1.0, 2.0, 3.0, 4.0], edges=[0, 1, 3, 6, 10]
    )
    for seed in range(5):
        mixed = strategies.shuffled(problem, protocol=base, seed=seed)
        rows = sorted(zip(mixed.lr, mixed.lengths, mixed.shares[:, 0], strict=True))
        np.testing.assert_allclose(
            rows, sorted(zip(base.lr, base.lengths, base.shares[:, 0], strict=True))
        )
        kept = strategies.shuffled(problem, protocol=base, after=3.0, seed=seed)
        assert kept.lr[:2].tolist() == [1.0, 2.0]
    orders = {
        tuple(strategies.shuffled(problem, protocol=base, after=3.0, seed=s).lr) for s in range(9)
    }
    assert orders == {(1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 4.0, 3.0)}  # the step at 3 moves too


def test_focus_with_three_tasks_ends_at_the_largest_of_the_old_losses():
    model = TeacherStudent.similar(0.3, tasks=3)
    start = model.pretrain(task=1, duration=30.0, start=model.pretrain(task=0, seed=1))
    problem = Problem(model, start, duration=40.0)
    protocol = strategies.focus_then_replay(problem)
    switch = protocol.edges[np.argmax(protocol.shares[:, 0] > 0)]
    losses = evaluate(problem, protocol).losses_at([switch])[0]
    assert 0 < switch < 40
    assert losses[2] == pytest.approx(losses[:2].max(), rel=1e-6)
    assert losses[0] != pytest.approx(losses[1], rel=0.05)


def test_a_given_focus_is_kept_exactly(problem):
    protocol = strategies.focus_then_replay(problem, focus=3.21, shares=[0.3, 0.7])
    first = protocol.step_at([3.2])[0]
    assert protocol.edges[first + 1] == pytest.approx(3.21)
    assert np.all(protocol.shares[: first + 1] == [0, 1])
    assert np.all(protocol.shares[first + 1 :] == [0.3, 0.7])
    whole = strategies.focus_then_replay(problem, focus=10.0)
    assert whole.mean_shares.tolist() == [0, 1]
    none = strategies.focus_then_replay(problem, focus=0.0)
    assert none.mean_shares.tolist() == [0.5, 0.5]


def test_automatic_focus_ends_when_the_losses_meet():
    model = TeacherStudent.similar(0.3)
    problem = Problem(model, model.pretrain(seed=1), duration=25.0)
    protocol = strategies.focus_then_replay(problem)
    switch = protocol.edges[np.argmax(protocol.shares[:, 0] > 0)]
    assert 0 < switch < 25
    losses = evaluate(problem, protocol).losses_at([switch])[0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_automatic_focus_without_a_meeting_or_with_an_early_one():
    model = TeacherStudent.similar(0.3)
    start = model.pretrain(seed=1)
    short = Problem(model, start, duration=1.0)
    assert strategies.focus_then_replay(short).mean_shares.tolist() == [0, 1]
    turned = strategies.focus_then_replay(short, new_task=0)  # task 1 is the better one already
    assert turned.mean_shares.tolist() == [0.5, 0.5]


def test_learning_rate_schedules(problem):
    middles = np.arange(0.125, 10, 0.25)
    exponential = strategies.exponential_lr(problem, initial=2.0, scale=4.0)
    np.testing.assert_allclose(exponential.lr, 2 * np.exp(-middles / 4))
    power = strategies.power_law_lr(problem, initial=3.0, exponent=0.5)
    np.testing.assert_allclose(power.lr, 3 * np.sqrt(1 - middles / 10))
    constant = strategies.constant_lr(problem, lr=0.3)
    assert constant.lr.tolist() == [0.3] * 40
    base = strategies.no_replay(problem)
    on_base = strategies.exponential_lr(problem, initial=2.0, scale=4.0, protocol=base)
    assert on_base.shares.tolist() == base.shares.tolist()


def test_schedules_keep_to_the_range_of_the_problem(problem):
    bounded = Problem(
        problem.model, problem.start, duration=10.0, steps=40, control=Control(lr=(0.5, 1.5))
    )
    with pytest.raises(ArgumentError) as caught:
        strategies.constant_lr(bounded, lr=2.0)
    assert caught.value.name == "lr"
    lr = strategies.exponential_lr(bounded, initial=3.0, scale=2.0).lr
    assert (lr.min(), lr.max()) == (0.5, 1.5)
    tried = np.linspace(0.5, 1.5, 9)
    best = min(evaluate(bounded, strategies.constant_lr(bounded, lr=lr)).loss for lr in tried)
    searched = evaluate(bounded, strategies.constant_lr(bounded)).loss
    assert searched <= best * 1.02  # the grid covers the range
    for strategy in (strategies.constant_lr, strategies.exponential_lr, strategies.power_law_lr):
        searched = strategy(bounded).lr
        assert searched.min() >= 0.5
        assert searched.max() <= 1.5


def test_grid_search_finds_the_best_of_its_grid(problem):
    base = strategies.no_replay(problem)
    search = strategies.grid_search
    best = search(
        problem, strategies.exponential_lr, initial=[0.5, 1.0, 4.0], scale=[2.0, 8.0], protocol=base
    )
    tried = [
        strategies.exponential_lr(problem, initial=initial, scale=scale, protocol=base)
        for initial in (0.5, 1.0, 4.0)
        for scale in (2.0, 8.0)
    ]
    assert best == min(tried, key=lambda protocol: evaluate(problem, protocol).loss)
    assert search(problem, strategies.constant_lr, lr=[1e9, 1.0]).lr[0] == 1.0
    with pytest.raises(replan.IntegrationError):
        search(problem, strategies.constant_lr, lr=[1e9])


@pytest.mark.parametrize("activation", ["erf", "relu"])
def test_searches_find_the_best_of_their_grids_with_few_points(activation, monkeypatch):
    model = TeacherStudent.similar(0.3, hidden=2, activation=activation)
    problem = Problem(model, model.pretrain(seed=1, duration=50.0, lr=0.5), duration=5.0, steps=10)
    tried = []
    rough_loss = strategies.rough_loss
    monkeypatch.setattr(
        strategies, "rough_loss", lambda *what: tried.append(what) or rough_loss(*what)
    )
    for strategy, most in (
        (strategies.constant_lr, 10),
        (strategies.exponential_lr, 55),
        (strategies.power_law_lr, 55),
    ):
        grids = {name: values(problem) for name, values in strategy.grids.items()}
        best = strategies.grid_search(problem, strategy, **grids)
        tried.clear()
        assert strategy(problem) == best
        assert len(tried) <= most


def test_the_search_does_not_depend_on_the_steps():
    model = TeacherStudent.similar(0.3)
    found = []
    for steps in (10, 1000):
        problem = Problem(model, model.fresh(0), duration=100.0, steps=steps)
        found.append(strategies.constant_lr(problem).lr[0])
    assert found[0] == found[1]


def test_searched_schedules_are_at_least_as_good_as_the_constant_rate(problem):
    plain = evaluate(problem, strategies.interleaved(problem)).loss
    for strategy in (strategies.constant_lr, strategies.exponential_lr, strategies.power_law_lr):
        assert evaluate(problem, strategy(problem)).loss <= plain * (1 + 1e-6)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (
            lambda p: strategies.one_task(p, task=2),
            "task",
        ),
        (lambda p: strategies.no_replay(p, new_task=-1), "new_task"),
        (lambda p: strategies.interleaved(p, shares=[1.0]), "shares"),
        (
            lambda p: strategies.random_order(p, shares=[0.5, 0.6]),
            "shares",
        ),
        (lambda p: strategies.alternating(p, order=[]), "order"),
        (lambda p: strategies.sequential(p, order=[0, 5]), "order"),
        (lambda p: strategies.focus_then_replay(p, focus=11.0), "focus"),
        (lambda p: strategies.shuffled(p, after=11.0), "after"),
        (
            lambda p: strategies.shuffled(p, protocol=Protocol([[1, 0]], 9.0)),
            "protocol",
        ),
        (
            lambda p: strategies.constant_lr(p, lr=1.0, protocol=Protocol([[1.0]], 10.0)),
            "protocol",
        ),
        (lambda p: strategies.alternating(p, order=1), "order"),
        (lambda p: strategies.shuffled(p, seed=-1), "seed"),
        (lambda p: strategies.exponential_lr(p, initial=-1.0, scale=1.0), "initial"),
        (lambda p: strategies.exponential_lr(p, initial=1.0, scale=0.0), "scale"),
        (lambda p: strategies.power_law_lr(p, initial=1.0, exponent=-1.0), "exponent"),
        (
            lambda p: strategies.grid_search(p, strategies.constant_lr, lr=[]),
            "lr",
        ),
    ],
)
def test_bad_settings_are_refused(problem, call, name):
    with pytest.raises(ArgumentError) as caught:
        call(problem)
    assert caught.value.name == name


# Tasks that arrive and depart


@pytest.fixture(scope="module")
def stream():
    """Four tasks: two at the start, one of which departs, and two that arrive."""
    model = TeacherStudent.similar(0.3, tasks=4)
    start = model.pretrain(seed=1, duration=100.0)
    return Problem(
        model, start, duration=40.0, steps=40, arrivals=[0, 0, 10, 20], departures=[30, 50, 50, 50]
    )


def test_every_strategy_trains_what_is_there(stream):
    for name, strategy in strategies.STRATEGIES.items():
        if name != "one-task":
            assert evaluate(stream, strategy(stream)).status == "ok", name
    assert "one-task" not in replan.compare(stream).runs
    with pytest.raises(strategies.UnfitError):
        strategies.one_task(stream)
    assert strategies.one_task(stream, task=1).mean_shares.tolist() == [0, 1, 0, 0]


def at(protocol, *times):
    return protocol.shares[protocol.step_at(times)].round(12).tolist()


def test_what_each_strategy_trains_of_what_is_there(stream):
    s, half, third = strategies, [0.5, 0.5, 0, 0], round(1 / 3, 12)
    times = (5.5, 15.5, 25.5, 35.5)
    mixed = at(s.interleaved(stream), *times)
    assert mixed == [half, [third] * 3 + [0], [0.25] * 4, [0, *[third] * 3]]
    uneven = at(s.interleaved(stream, shares=[0, 0.25, 0, 0.75]), 5.5, 25.5)
    assert uneven == [[0, 1, 0, 0], [0, 0.25, 0, 0.75]]
    assert at(s.interleaved(stream, shares=[0, 0, 0, 1]), 5.5) == [half]  # none of these is there
    assert np.argmax(at(s.no_replay(stream), *times), axis=1).tolist() == [1, 2, 3, 3]
    blocks = s.sequential(stream)
    assert np.argmax(at(blocks, 2.5, *times), axis=1).tolist() == [0, 1, 2, 3, 3]
    assert blocks.is_discrete
    turns = s.alternating(stream).sequence.tolist()
    assert turns[:20] == [0, 1] * 5 + [2, 0, 1] * 3 + [2]
    assert turns[30:36] == [1, 2, 3, 1, 2, 3]
    drawn = s.random_order(stream, seed=1).sequence
    assert set(drawn[:10]) == {0, 1}
    assert set(drawn[30:]) == {1, 2, 3}


def test_blocks_of_a_task_that_departs_go_to_the_others():
    model = TeacherStudent.similar(0.3, tasks=3)
    problem = Problem(model, model.fresh(), duration=30.0, steps=30, departures=[5, 30, 30])
    blocks = strategies.sequential(problem)
    assert at(blocks, 2.0, 7.0, 15.0, 25.0) == [[1, 0, 0], [0, 0.5, 0.5], [0, 1, 0], [0, 0, 1]]


def test_focus_then_replay_at_each_arrival(stream):
    protocol = strategies.focus_then_replay(stream)
    curves = evaluate(stream, protocol)
    for begin, end, new, others in ((0, 10, 1, [0]), (10, 20, 2, [0, 1]), (20, 30, 3, [0, 1, 2])):
        inside = (protocol.edges[:-1] >= begin) & (protocol.edges[:-1] < end)
        alone = protocol.shares[inside, new] == 1
        focus = protocol.edges[1:][inside][alone].max(initial=begin)
        assert np.all(np.diff(alone.astype(int)) <= 0)  # first alone, then mixed
        losses = curves.losses_at([focus])[0]
        if focus < end:
            assert losses[new] == pytest.approx(losses[others].max(), rel=1e-6)
            mixture = np.isin(np.arange(4), [*others, new]) / (len(others) + 1)
            np.testing.assert_allclose(at(protocol, (focus + end) / 2), [mixture], atol=1e-12)
        else:
            assert losses[new] > losses[others].max()
    assert begin < focus < end  # in one case at least, they have met
    given = strategies.focus_then_replay(stream, focus=3.0)
    assert np.argmax(at(given, 2.5, 12.5, 22.5), axis=1).tolist() == [1, 2, 3]
    assert at(given, 3.5) == [[0.5, 0.5, 0, 0]]
    with pytest.raises(ArgumentError) as caught:
        strategies.focus_then_replay(stream, new_task=1)
    assert caught.value.name == "new_task"


def test_shuffling_keeps_steps_where_the_same_tasks_are_there(stream):
    base = strategies.focus_then_replay(stream, focus=3.0)
    mixed = strategies.shuffled(stream, protocol=base, seed=3)
    assert mixed != base
    for begin in (0, 10, 20, 30):
        some = [one.shares[(one.edges[:-1] >= begin) & (one.edges[:-1] < begin + 10)]
                for one in (base, mixed)]  # fmt: skip
        assert sorted(map(tuple, some[0].tolist())) == sorted(map(tuple, some[1].tolist()))
    whole = strategies.one_task(stream, task=1)  # its single steps may be long
    again = strategies.shuffled(stream, protocol=Protocol([[0, 1, 0, 0]], 40.0))
    np.testing.assert_allclose(again.mean_shares, whole.mean_shares)


# The registry, and settings as people write them


def test_a_registered_function_is_a_strategy(problem, registries):
    @register
    def first_part(problem, *, part: float = 0.5):
        lengths = (part * problem.duration, (1 - part) * problem.duration)
        return Protocol.from_segments(list(zip(lengths, (1, 0), strict=True)), 2)

    assert strategies.STRATEGIES["first-part"] is first_part
    assert first_part(problem, part=0.2).mean_shares.tolist() == pytest.approx([0.8, 0.2])
    assert first_part.foreign

    @register
    def wrong(problem):
        return Protocol([[1.0]], 1.0)

    with pytest.raises(ArgumentError) as caught:
        wrong(problem)
    assert caught.value.name == "result of wrong"


def test_bad_recipes_are_refused():
    def interleaved(problem):
        return None

    def needy(problem, shares):
        return None

    def turning(problem):
        return None

    for recipe, name, settings in (
        (interleaved, "name", {}),
        (needy, "recipe", {}),
        (turning, "recipe", {"turns": ("lr",)}),
        (3, "recipe", {}),
    ):
        with pytest.raises(ArgumentError) as caught:
            register(**settings)(recipe) if settings else register(recipe)
        assert caught.value.name == name


def test_settings_are_of_their_annotated_types():
    def own(problem, *, part: float = 0.5, count: int | None = None, names: list[str] = (),
            best: bool = True, free=None, order: Sequence[strategies.Task] = ()):  # fmt: skip
        return None

    recipe = strategies.Strategy(own)
    good = {"part": 1, "count": -3, "names": ["a"], "best": False, "free": {}, "order": [1]}
    assert strategies.arguments(recipe, good, tasks=2) == good | {"order": [0]}
    assert strategies.arguments(recipe, {"count": None}, tasks=2) == {"count": None}
    bad = {"part": "x", "count": 1.5, "names": ["a", 1], "best": 1, "order": [3]}
    for name, value in bad.items():
        with pytest.raises(ArgumentError) as caught:
            strategies.arguments(recipe, {name: value}, tasks=2)
        assert caught.value.name == name


@pytest.mark.parametrize(
    ("strategy", "settings", "expected"),
    [
        (strategies.one_task, {"task": 2}, {"task": 1}),
        (strategies.no_replay, {"new_task": None}, {"new_task": None}),
        (strategies.alternating, {"order": [2, 1]}, {"order": [1, 0]}),
        (strategies.interleaved, {"shares": [0.2, 0.8]}, {"shares": [0.2, 0.8]}),
        (strategies.focus_then_replay, {"focus": 7}, {"focus": 7}),
        (strategies.shuffled, {"seed": 3, "after": 1}, {"seed": 3, "after": 1}),
        (strategies.one_task, {"task": 0}, None),
        (strategies.one_task, {"task": 3}, None),
        (strategies.one_task, {"task": "x"}, None),
        (strategies.alternating, {"order": "x"}, None),
        (strategies.focus_then_replay, {"focus": "x"}, None),
        (strategies.focus_then_replay, {"focus": True}, None),
        (strategies.shuffled, {"seed": 1.5}, None),
    ],
)
def test_settings_count_tasks_from_one(problem, strategy, settings, expected):
    assert set(settings) <= set(strategies.settings_of(strategy))
    if expected is not None:
        assert strategies.arguments(strategy, settings, tasks=2) == expected
        return
    with pytest.raises(ArgumentError) as caught:
        strategy(problem, **strategies.arguments(strategy, settings, tasks=2))
    assert caught.value.name in settings
