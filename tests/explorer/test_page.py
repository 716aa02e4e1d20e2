"""The page in a real browser: what it shows is what the library says."""

import json
import re
from io import BytesIO
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from serving import LONG, opened

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=LONG)

import replan  # noqa: E402
from replan._common.plotting import task_colour  # noqa: E402
from replan.explorer import State  # noqa: E402
from replan.explorer._results import curves  # noqa: E402


def state_of(page):
    """Return the state that the page's own link restores."""
    query = {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}
    return State.from_query(query)


def loss(page, name):
    return page.locator(f".card-{name} .title.current .loss")


def shows(page, name, value):
    expect(loss(page, name)).to_have_text(f"{value:.6g}")


def press(page, dial, key, times=1):
    """Move a slider by keys."""
    handle = page.locator(f".dial-{dial} .noUi-handle")
    handle.focus()
    for _ in range(times):
        page.keyboard.press(key)


def drag(page, place, points):
    """Drag the pointer over a figure, through points in parts of its width and height."""
    page.locator(place).scroll_into_view_if_needed()
    box = page.locator(place).bounding_box()
    for i, (x, y) in enumerate(points):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)
        if i == 0:
            page.mouse.down()
    page.mouse.up()


def downloaded(page, what, tmp_path):
    with page.expect_download() as found:
        page.locator(f".get-{what} a, .get-{what} button").first.click()
    path = tmp_path / found.value.suggested_filename
    found.value.save_as(path)
    return path


def test_the_numbers_are_those_of_the_library(page):
    state = State.of_kind()
    for name, run in curves(state).runs.items():
        shows(page, name, run.loss)
    plan = replan.solve(state.problem)
    shows(page, "optimum", plan.loss)
    certificate = page.locator(".certificate pre").inner_text()
    first, phases = certificate.splitlines()[:2]
    assert [first, phases] == str(plan).splitlines()[:2]


def painted(page, name):
    """Return whether a card gets the colours of both tasks, in its bar or in its curves."""
    for _ in range(LONG // 500):  # figures are painted after the text is there
        picture = imread(BytesIO(page.locator(f".card-{name}").screenshot()))[..., :3]
        colours = [np.array(to_rgb(task_colour(t))) for t in (0, 1)]
        near = [np.abs(picture - colour).max(axis=-1) < 0.05 for colour in colours]
        if all(np.sum(where) > 100 for where in near):
            return True
        page.wait_for_timeout(500)
    return False


def test_the_optimum_is_painted_when_it_comes_and_after_a_slider(page):
    assert painted(page, "focus-then-replay")
    assert painted(page, "optimum")
    press(page, "training-lr", "ArrowRight", 4)
    expect(page.locator(".card-optimum .title.stale")).to_be_visible()
    page.wait_for_selector(".status .done")
    assert painted(page, "optimum")


def test_a_slider_moves_the_curves_and_then_the_optimum(page):
    press(page, "training-lr", "ArrowRight", 4)
    expect(page.locator(".card-optimum .title.stale")).to_be_visible()
    state = State.of_kind().turn("training.lr", 1.2)
    shows(page, "interleaved", curves(state).runs["interleaved"].loss)
    page.wait_for_selector(".status .done")
    shows(page, "optimum", replan.solve(state.problem).loss)


@pytest.mark.parametrize(
    ("dial", "key", "turned"),
    [
        ("model-tasks", "model.tasks", 3),
        ("model-hidden", "model.hidden", 3),
        ("start-pretrain-seed", "start.pretrain.seed", 2),
        ("model-similarity", "model.similarity", 0.31),
        ("model-noise", "model.noise", 0.01),
        ("training-duration", "training.duration", 25.5),
    ],
)
def test_every_slider_turns_what_it_says(page, dial, key, turned):
    page.locator("input[type=checkbox]").last.scroll_into_view_if_needed()
    press(page, dial, "ArrowRight")
    state = State.of_kind().turn(key, turned)
    shows(page, "no-replay", curves(state).runs["no-replay"].loss)
    page.wait_for_selector(".status .done")
    assert state_of(page).values[key] == turned


@pytest.mark.parametrize("kind", ["curriculum", "denoising", "dropout"])
def test_models_by_kind(page, kind):
    page.locator(".kind select").select_option(kind)
    state = State.of_kind(kind)
    for name, run in curves(state).runs.items():
        shows(page, name, run.loss)
    page.wait_for_selector(".status .done")
    shows(page, "optimum", replan.solve(state.problem).loss)


def test_a_slider_that_is_moved_fast_ends_where_its_label_says(page):
    press(page, "model-similarity", "ArrowRight", 12)
    state = State.of_kind().turn("model.similarity", 0.42)
    shows(page, "no-replay", curves(state).runs["no-replay"].loss)
    page.wait_for_selector(".status .done")
    expect(page.locator(".dial-model-similarity")).to_contain_text("0.42")
    assert state_of(page).values["model.similarity"] == 0.42


def test_a_rate_that_varies_is_drawn(page):
    expect(page.locator(".card-optimum .knobs")).to_be_hidden()
    page.locator(".free input").nth(1).click()  # lr
    expect(page.locator(".certificate pre")).to_contain_text("learning rate 1.")
    expect(page.locator(".card-optimum .knobs")).to_be_visible()
    expect(page.locator(".card-interleaved .knobs")).to_be_hidden()


def test_painting_moves_the_losses(page, tmp_path):
    before = loss(page, "yours").inner_text()
    page.locator(".brush button").first.click()
    drag(page, ".draw-bar", [(0.6, 0.5), (0.9, 0.4)])
    expect(loss(page, "yours")).not_to_have_text(before)
    after = loss(page, "yours").inner_text()
    drag(page, ".draw-curve", [(0.3, 0.3), (0.8, 0.5)])
    expect(loss(page, "yours")).not_to_have_text(after)
    page.wait_for_function("location.search.includes('knobs%22%3A%7B%22lr')")
    state = state_of(page)
    protocol = state.own.protocol(state.problem)
    assert 0 < protocol.mean_shares[0] < 1
    assert protocol.varied == ("lr",)
    run = replan.evaluate(state.problem, protocol)
    shows(page, "yours", run.loss)
    expect(page.locator(".ahead")).to_contain_text(re.compile("ahead by|better by"))
    page.locator(".which select").select_option("yours")
    saved = replan.Protocol.load(downloaded(page, "protocol", tmp_path))
    assert replan.evaluate(state.problem, saved).loss == pytest.approx(run.loss, rel=1e-9)


def test_ones_own_protocol_is_a_start_of_the_solver(page):
    drag(page, ".draw-bar", [(0.1, 0.5), (0.4, 0.5)])
    page.locator(".status .done").wait_for()
    page.locator(".mine button").click()
    # one start more than without it
    starts = int(
        re.search(r"spread of (\d+) starts", str(replan.solve(State.of_kind().problem)))[1]
    )
    expect(page.locator(".certificate pre")).to_contain_text(f"spread of {starts + 1} starts")


def test_everything_can_be_done_by_keys(page):
    page.locator(".brush button").first.focus()
    page.keyboard.press("Enter")
    page.locator(".paint button").focus()
    page.keyboard.press("Enter")
    problem = State.of_kind().problem
    protocol = replan.Protocol.from_segments([(12.5, 0), (12.5, 1)], 2)
    shows(page, "yours", replan.evaluate(problem, protocol).loss)
    page.locator(".level input").fill("2")
    page.keyboard.press("Tab")
    page.locator(".set-curve button").focus()
    page.keyboard.press("Enter")
    faster = replan.Protocol.from_segments([(12.5, 0), (12.5, 1)], 2, lr=[2.0, 1.0])
    shows(page, "yours", replan.evaluate(problem, faster).loss)
    page.locator(".undo button").focus()
    page.keyboard.press("Enter")
    shows(page, "yours", replan.evaluate(problem, protocol).loss)
    press(page, "training-lr", "Home")
    shows(page, "interleaved", replan.evaluate(problem, protocol.with_knobs(lr=0.0)).loss)


def test_a_long_search_is_cancelled_and_the_page_goes_on(page):
    page.locator(".free input").nth(1).click()  # lr
    press(page, "model-tasks", "End")
    press(page, "model-hidden", "End")
    page.wait_for_selector(".status .working")
    page.locator(".cancel button").click()
    expect(page.locator(".status")).to_contain_text("cancelled")
    expect(page.locator(".card-optimum .title.stale")).to_be_visible()
    press(page, "training-lr", "ArrowRight")
    state = State.of_kind().turn("model.tasks", 5).turn("model.hidden", 6)
    state = state.turn("training.lr", 1.05)
    shows(page, "no-replay", curves(state).runs["no-replay"].loss)


def test_a_bad_file_gives_a_message_and_leaves_the_page_as_it_was(page, tmp_path):
    before = loss(page, "interleaved").inner_text()
    bad = tmp_path / "bad.toml"
    for text, words in (
        ("[model", "not a TOML file"),
        (
            "[model]\nhiden = 2\nsimilarity = 0.3\n[start]\n[training]\nduration = 5.0",
            "`model.hiden`",
        ),
        ("[model]\nkind = 'network'", "`model.kind` expects one of"),
    ):
        bad.write_text(text, encoding="utf-8")
        page.locator(".file input").set_input_files(bad)
        expect(page.locator(".message [role=alert]")).to_contain_text(words)
        assert loss(page, "interleaved").inner_text() == before
    good = tmp_path / "good.toml"
    good.write_text(State.of_kind().turn("model.similarity", 0.8).text, encoding="utf-8")
    page.locator(".file input").set_input_files(good)
    expect(page.locator(".message [role=alert]")).to_have_count(0)
    shows(page, "interleaved", curves(State.from_text(good.read_text())).runs["interleaved"].loss)


def test_numbers_out_of_range_are_refused_wherever_they_come_from(page):
    page.evaluate(
        """() => {
          for (const model of Bokeh.documents[0]._all_models.values())
            if (String(model.title).startsWith('similarity')) model.value = 50;
        }"""
    )
    expect(page.locator(".message [role=alert]")).to_contain_text("`model.similarity` expects")
    press(page, "training-lr", "ArrowRight")
    state = State.of_kind().turn("training.lr", 1.05)
    shows(page, "interleaved", curves(state).runs["interleaved"].loss)


def test_a_link_restores_the_page(page, context):
    page.locator(".brush button").first.click()
    drag(page, ".draw-bar", [(0.2, 0.5), (0.3, 0.5)])
    press(page, "training-lr", "ArrowRight", 2)
    page.wait_for_function("/lr%22%3A1.1%7D.*drawing/.test(location.search)")
    page.wait_for_selector(".status .done")
    state = state_of(page)
    assert state.drawing is not None
    assert state.values["training.lr"] == 1.1
    other = opened(context, page.url)
    for one in (page, other):
        shows(one, "yours", curves(state).runs["yours"].loss)
    assert state_of(other).to_query() == state.to_query()


def test_a_bad_link_gives_a_message(context, server):
    for query in ("problem=%7B", "problem=[]", "show=nonsense", "drawing=1"):
        page = opened(context, f"{server.url}?{query}")
        expect(page.locator(".message [role=alert]")).to_contain_text("the link is not understood")
        page.close()


def test_two_pages_do_not_disturb_each_other(page, context, server):
    other = opened(context, server.url)
    press(page, "training-lr", "ArrowRight", 4)
    drag(other, ".draw-bar", [(0.5, 0.5), (0.7, 0.5)])
    first = curves(State.of_kind().turn("training.lr", 1.2)).runs
    shows(page, "interleaved", first["interleaved"].loss)
    shows(page, "yours", first["yours"].loss)
    shows(other, "interleaved", curves(State.of_kind()).runs["interleaved"].loss)


def test_downloads_are_what_the_library_writes(page, tmp_path):
    page.locator(".which select").select_option("interleaved")
    assert downloaded(page, "png", tmp_path).read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in downloaded(page, "svg", tmp_path).read_bytes()
    problem = replan.Problem.load(downloaded(page, "problem", tmp_path))
    run = replan.evaluate(problem, replan.strategies.interleaved(problem))
    table = downloaded(page, "csv", tmp_path).read_text().splitlines()
    assert table[0].split(",") == list(run.to_frame())
    last = [float(x) for x in table[-1].split(",")]
    assert last == pytest.approx(run.to_frame().iloc[-1].tolist(), rel=1e-12)
    saved = json.loads(downloaded(page, "protocol", tmp_path).read_text())
    assert saved["value"] == pytest.approx(run.loss, rel=1e-12)
    assert saved["replan"] == replan.__version__


def test_texts_are_copied_by_one_click_and_reproduce_the_page(page, capsys):
    for name, words in (("shell", "replan compare problem.toml"), ("python", "import replan")):
        page.locator(f".copy-{name} button").click()
        page.wait_for_function(
            "async words => (await navigator.clipboard.readText()).includes(words)", arg=words
        )
    program = page.evaluate("navigator.clipboard.readText()")
    exec(compile(program.replace('plan.plot("plan.png")', ""), "page", "exec"), {})
    printed = capsys.readouterr().out
    assert f"loss {loss(page, 'optimum').inner_text()} " in printed
    page.locator(".copy-link button").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()) == location.href")


def test_the_tabs(page):
    page.locator(".which select").select_option("interleaved")
    expect(page.locator(".text-state .legend")).to_contain_text("cos")
    page.locator(".bk-tab").nth(1).click()
    expect(page.locator(".text-changes")).to_contain_text("A change helps most at")
    page.locator(".bk-tab").nth(2).click()
    page.locator(".run-sgd button").click()
    expect(page.locator(".text-sgd")).to_contain_text("N = 1,000")
    page.locator(".bk-tab").nth(3).click()
    page.locator(".run-seeds button").click()
    expect(page.locator(".text-seeds")).to_contain_text("10 seeds")
    page.locator(".bk-tab").nth(4).click()
    page.locator(".run-levers button").click()
    page.locator(".cancel-levers button").click()
    expect(page.locator(".text-levers")).to_contain_text("cancelled")


def test_no_request_leaves_the_machine(page, context, server):
    page.locator(".which select").select_option("interleaved")
    page.goto(f"{server.url}?theme=dark")
    page.wait_for_selector(".status .done")
    asked = [urlsplit(url) for url in context.requests]
    within = {"data", "blob"}  # what a page has made itself
    assert {url.hostname for url in asked if url.scheme not in within} == {"localhost"}
    assert len(asked) > 3
    assert "LEFT THE MACHINE" not in server.said()


def test_clicks_in_the_same_moment_as_a_change(page, server):
    # Panel calls handlers of a click without the document's lock while a change is under way.
    for button, title, value in (
        (".solve button", "learning rate", 1.2),
        (".set-curve button", "value", 2.0),
        (".paint button", "learning rate", 1.3),
    ):
        page.locator(button).evaluate(
            """(button, [title, value]) => {
              for (const model of Bokeh.documents[0]._all_models.values())
                if (String(model.title).startsWith(title)) model.value = value;
              button.click();
            }""",
            [title, value],
        )
    page.wait_for_function("/lr%22%3A1.3.*drawing/.test(location.search)")
    page.wait_for_selector(".status .done")
    state = state_of(page)
    assert state.own.values(state.problem, "lr").max() == 2.0
    shows(page, "yours", curves(state).runs["yours"].loss)
    shows(page, "optimum", replan.solve(state.problem).loss)
    assert "Traceback" not in server.said()


def test_pages_may_be_closed_at_any_moment(context, server):
    for _ in range(5):
        page = context.new_page()
        page.goto(server.url)
        press(page, "training-lr", "ArrowRight", 3)
        page.close()
    opened(context, server.url)


def test_the_server_tells_of_no_error(server):
    assert not server.said(), server.said()
