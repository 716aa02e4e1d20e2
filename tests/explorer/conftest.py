"""Fixtures: a server and headless Chromium, both ended whatever happens."""

import shutil

import pytest

from serving import LONG, opened, served


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "needs Chromium: make test-explorer installs it"
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=options)
        try:
            yield chromium
        finally:
            chromium.close()


@pytest.fixture
def context(browser):
    """What pages share, with the requests that they made."""
    found = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    found.grant_permissions(["clipboard-read", "clipboard-write"])
    found.set_default_timeout(LONG)
    found.requests, found.errors = [], []
    found.on("request", lambda request: found.requests.append(request.url))
    found.on("weberror", lambda error: found.errors.append(str(error.error)))
    try:
        yield found
        assert found.errors == []
    finally:
        found.close()


@pytest.fixture
def page(context, server):
    """A page with its first curves and its optimum."""
    return opened(context, server.url)
