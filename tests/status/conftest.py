"""Fixtures that the page's tests share: one browser for all, and for each test a page without complaints."""

import os
from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.browsing import Page, missing, started


@pytest.fixture(name="browser", scope="session")
def one_browser() -> Iterator[webdriver.Chrome]:
    if why := missing():
        # On a machine that must have a browser, a skipped test counts as a failed one.
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    with started() as driver:
        yield driver


@pytest.fixture(name="page")
def spotless(browser: webdriver.Chrome) -> Iterator[Page]:
    page = Page(browser)
    page.complaints()
    page.hosts()
    yield page
    complaints, hosts = page.complaints(), page.hosts()
    page.close()
    assert [] == complaints
    assert {page.address.removeprefix("http://")} == hosts
