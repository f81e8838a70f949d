"""The status page inside a real Airflow: behind its login, in a real browser, and read-only.

this process: an agent "a", which the connection `neli_default` of the installation leads to
another one:  a member "b" of the same group, which is killed
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.provider.conftest import LEASE
from tests.status.conftest import one_browser as _browser  # noqa: F401 - the fixture `browser`.
from tests.support.agents.running import PARTITIONS
from tests.support.browsing import Page
from tests.support.servers.airflow import Airflow, until

pytestmark = [pytest.mark.airflow]

ROOT = Path(__file__).resolve().parents[2]

OTHER = """
import sys
from pathlib import Path
from neli_router.member.member import Member
from tests.support.agents.running import configured

member = Member(configured(Path(sys.argv[1]), "b", lease=float(sys.argv[2])))
sys.stdin.read()
member.close()
"""

DAG = """
from datetime import timedelta
from airflow.sdk import DAG, task
from airflow_provider.operators.neli import LeaderGate, LeaderShortCircuitOperator
from airflow_provider.sensors.neli import LeaderSensor

with DAG("links_to_the_page", default_args={"retries": 3, "retry_delay": timedelta(seconds=15)}):
    LeaderGate(task_id="gate", role="nightly")
    LeaderGate(task_id="skipping_gate", role="nightly", expect="b")
    LeaderSensor(task_id="sensor", role="nightly")
    LeaderSensor(task_id="waiting_sensor", role="nightly", expect="b")
    LeaderShortCircuitOperator(task_id="short_circuit", role="nightly")

    @task.leader(role="nightly")
    def work(lease):
        return lease.term

    work()
"""

ENDS = {
    "gate": "success",
    "skipping_gate": "skipped",
    "sensor": "success",
    "waiting_sensor": "deferred",
    "short_circuit": "success",
    "work": "success",
}
"""The tasks of that Dag, and how each of them ends up. The first two meet no worker."""

PATHS = ("/neli/", "/neli/assets/main.js", "/neli/v1/events", "/neli/v1/status", "/neli/nothing", "/neli//")


@contextmanager
def other(airflow: Airflow) -> Iterator["subprocess.Popen[bytes]"]:
    """A member "b" of the agent's group."""
    address = json.loads(airflow.environment["AIRFLOW_CONN_NELI_DEFAULT"])["extra"]["address"]
    folder = Path(address.removeprefix("unix:")).parent
    program = [sys.executable, "-c", OTHER, str(folder), str(LEASE)]
    with subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(name="stranger")
def _stranger(installation: Airflow) -> Iterator[httpx.Client]:
    """Asks without a login."""
    with httpx.Client(base_url=installation.url, timeout=300.0, trust_env=False) as client:
        yield client


@pytest.fixture(name="viewer")
def _viewer(installation: Airflow) -> Iterator[httpx.Client]:
    """Asks as a user who may read."""
    api = installation.as_user("viewer")
    headers = {"Authorization": f"Bearer {api.token}"}
    api.close()
    with httpx.Client(base_url=installation.url, timeout=300.0, trust_env=False, headers=headers) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
def test_a_stranger_is_sent_to_the_login(stranger: httpx.Client, method: str, path: str) -> None:
    assert 401 == stranger.request(method, path).status_code


@pytest.mark.parametrize("path", PATHS)
def test_a_token_that_is_no_token_opens_nothing(stranger: httpx.Client, path: str) -> None:
    assert stranger.get(path, headers={"Authorization": "Bearer x"}).status_code in {401, 403}
    assert stranger.get(path, headers={"Cookie": "_token=x"}).status_code in {401, 403}


def test_a_viewer_sees_the_page_and_its_files(viewer: httpx.Client) -> None:
    shown = viewer.get("/neli/")
    assert 200 == shown.status_code
    assert "frame-ancestors 'self'" in shown.headers["content-security-policy"]
    assert "text/javascript" in viewer.get("/neli/assets/main.js").headers["content-type"]
    tag = shown.headers["etag"]
    assert 304 == viewer.get("/neli/", headers={"If-None-Match": tag}).status_code


@pytest.mark.parametrize("path", ["/neli/v1/owner?key=EURUSD", "/neli/v1/lease?role=0", "/neli/nothing", "/neli//"])
def test_only_what_the_page_reads_is_passed_on(viewer: httpx.Client, path: str) -> None:
    assert 404 == viewer.get(path).status_code


@pytest.mark.parametrize("path", ["/neli/v1/drain", "/neli/v1/events", "/neli/"])
def test_nothing_can_be_changed(viewer: httpx.Client, path: str) -> None:
    assert 405 == viewer.post(path, json={"name": "a"}).status_code


@pytest.fixture(name="linked", scope="module")
def _linked(installation: Airflow) -> str:
    """A run of that Dag, whose tasks are as far as they come."""
    api = installation.api
    (installation.dags / "links_to_the_page.py").write_text(DAG, encoding="utf-8")
    api.await_dag("links_to_the_page")
    run = api.trigger("links_to_the_page")
    until(lambda: api.states("links_to_the_page", run) == ENDS, f"the states {ENDS}")
    return run


@pytest.mark.parametrize("task", ENDS)
def test_a_task_links_to_the_page_while_it_waits_and_afterwards(installation: Airflow, linked: str, task: str) -> None:
    path = f"/dags/links_to_the_page/dagRuns/{linked}/taskInstances/{task}/links"

    def links() -> Any:
        return installation.api.call("GET", path)["extra_links"]

    # A worker tells the link after the state, and a task that goes on meanwhile shows none.
    until(lambda: links() == {"Who leads": "/plugin/neli"}, f"the link of {task}")


@pytest.mark.browser
def test_the_link_opens_the_page_within_airflow(installation: Airflow, linked: str, browser: webdriver.Chrome) -> None:
    log_in(browser, installation)
    browser.get(f"{installation.url}/dags/links_to_the_page/runs/{linked}/tasks/gate/details")
    until(lambda: browser.find_elements(By.LINK_TEXT, "Who leads"), "the link")[0].click()
    page = Page(browser)
    with in_frame(browser):
        until(lambda: page.owners() == ["a"] * PARTITIONS, "the owner of all partitions")
    assert browser.current_url.startswith(f"{installation.url}/plugin/neli")
    page.close()


@pytest.mark.browser
def test_the_page_follows_a_takeover_without_a_reload(installation: Airflow, browser: webdriver.Chrome) -> None:
    page = Page(browser)
    log_in(browser, installation)
    browser.get(f"{installation.url}/plugin/neli")
    with in_frame(browser):
        page.run("window.isTheSame = true")
        until(lambda: page.owners() == ["a"] * PARTITIONS, "the owner of all partitions")
        assert not page.is_shown("#unlock")
        with other(installation) as process:
            until(lambda: PARTITIONS // 2 == page.owners().count("b"), "a fair share of b")
            process.kill()
            until(lambda: page.owners() == ["a"] * PARTITIONS, "the takeover")
        assert "b was expired by a \u2192 a 4 partitions" in page.text("#moves li")
        assert page.was_never_reloaded
    page.close()


@contextmanager
def in_frame(browser: webdriver.Chrome) -> Iterator[None]:
    """What is read meanwhile is read in the frame of the page."""
    (frame,) = until(lambda: browser.find_elements(By.TAG_NAME, "iframe"), "the frame of the page")
    browser.switch_to.frame(frame)
    try:
        yield
    finally:
        browser.switch_to.default_content()


def log_in(browser: webdriver.Chrome, airflow: Airflow) -> None:
    """As a person does."""
    browser.get(airflow.url)
    browser.delete_all_cookies()  # Another test's login.
    browser.get(airflow.url)
    until(lambda: browser.find_elements(By.NAME, "username"), "the form of the login")
    browser.find_element(By.NAME, "username").send_keys("viewer")
    browser.find_element(By.NAME, "password").send_keys(airflow.passwords["viewer"])
    browser.find_element(By.CSS_SELECTOR, "button[type=submit]").click()
    until(lambda: "/login" not in browser.current_url, "the way in")
