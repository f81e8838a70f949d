"""A real browser, with the status page in it, read and used as a person would.

    Browser --one Chromium for all tests--> Page --opened at an address--> cells, members, moves, dialog
                                              '--closed--> what the console said, and which hosts the page contacted

Everything is read from the document, so that a test sees what is displayed, not what a script knows.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from neli_router.hosts.leash import end_with_parent
from tests.support.waiting import until

__all__ = ["Keys", "Page", "missing", "started"]

PROGRAMS = ("chromium", "chromedriver")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # In a container, and as root, no sandbox is available.
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1400,1000",
)


def missing() -> str:
    """The part of a browser that is missing here, as a sentence; empty if nothing is."""
    lacks = [program for program in PROGRAMS if which(program) is None]
    if not lacks:
        return ""
    return f"a browser was wanted, but there is no {' and no '.join(lacks)}: install chromium and chromium-driver"


@contextmanager
def started() -> Iterator[webdriver.Chrome]:
    """A browser. It leaves a folder behind for each profile, so those are inside a folder that is removed with it."""
    options = webdriver.ChromeOptions()
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with TemporaryDirectory(prefix="neli-browser-", ignore_cleanup_errors=True) as folder:
        # A killed driver would leave its browser behind: each is on the leash of the process that started it.
        leashed = Path(folder, "chromium")
        leashed.write_text('#!/bin/sh\nexec setpriv --pdeathsig KILL chromium "$@"\n', encoding="ascii")
        leashed.chmod(0o755)
        options.binary_location = str(leashed)
        leash = {"preexec_fn": end_with_parent}
        service = Service(which("chromedriver"), env={**os.environ, "TMPDIR": folder}, popen_kw=leash)
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()


class Page:
    """The page, in the only tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.address = ""

    def open(self, address: str) -> None:
        """Load it, and wait for its first status. The mark that is set here disappears when the page is reloaded."""
        self.address = address
        self.driver.get(address)
        self.run("window.isTheSame = true")
        until(lambda: self.count("#fact-partitions"), "a first status")

    def close(self) -> None:
        """Leave the page, so that streams end, and forget it: the next test may open the same agent."""
        self.run("try { sessionStorage.clear(); localStorage.clear() } catch { /* a page that has none */ }")
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Show the page as if the system theme were light, or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    @property
    def was_never_reloaded(self) -> bool:
        return bool(self.run("return window.isTheSame === true"))

    def text(self, selector: str) -> str:
        """The text that is displayed there; empty if there is none."""
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return " ".join(str(found).split())

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)", selector
        )
        return [" ".join(text.split()) for text in found]

    def is_shown(self, selector: str) -> bool:
        return bool(self.run("return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def style(self, selector: str, name: str) -> str:
        return str(
            self.run("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name)
        )

    def owners(self) -> list[str | None]:
        """The owner of each partition, as a screen reader says it."""
        labels: list[str] = self.run(
            "return [...document.querySelectorAll('[data-partition]')].map((cell) => cell.ariaLabel)"
        )
        return [_owner_of(label) for label in labels]

    def label(self, partition: int) -> str:
        return str(self.run("return document.querySelector(arguments[0]).ariaLabel", _cell(partition)))

    def members(self) -> list[str]:
        """The names of the members, in the order in which they are displayed."""
        return self.texts("#members tbody button.name")

    def focused(self) -> str:
        """The focused element: its partition, its label, its id, or its text."""
        return str(
            self.run(
                "const one = document.activeElement;"
                "return one.dataset.partition ?? (one.ariaLabel || one.id || one.innerText)"
            )
        )

    def element(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        self.element(selector).click()

    def click_cell(self, partition: int) -> None:
        self.click(_cell(partition))

    def press(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def focus(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).focus()", selector)

    def give_token(self, token: str) -> None:
        self.click("#unlock")
        self.press(token, Keys.ENTER)

    def unlock(self, token: str) -> None:
        """Enter the right token."""
        self.give_token(token)
        self.await_text("#unlock", "Forget token")

    def await_text(self, selector: str, *parts: str) -> None:
        def holds() -> bool:
            text = self.text(selector)
            return all(part in text for part in parts)

        until(holds, f"{' and '.join(map(repr, parts))} at {selector}")

    def await_word(self, word: str) -> None:
        """The text about the connection."""
        until(lambda: self.text("#connection-text") == word, f"the word {word!r}")

    def await_hidden(self, selector: str) -> None:
        until(lambda: not self.is_shown(selector), f"{selector} to go")

    def complaints(self) -> list[str]:
        """The console's errors about the page, without those about the network."""
        log: Sequence[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] == "SEVERE" and entry["source"] != "network"]

    def hosts(self) -> set[str]:
        """The hosts from which the page requested anything since the last call."""
        log: Sequence[dict[str, Any]] = self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        events = [json.loads(entry["message"])["message"] for entry in log]
        asked = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return {urlsplit(address).netloc for address in asked if address.startswith(("http", "ws", "ftp"))}


def _cell(partition: int) -> str:
    return f'[data-partition="{partition}"]'


def _owner_of(label: str) -> str | None:
    """The label reads "partition 3, owner a, term 5, ..."."""
    _, _, rest = label.partition(", owner ")
    return rest.partition(", term ")[0] or None
