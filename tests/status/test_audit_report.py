"""The report of an audit: one self-contained file, in which a name stays text; and the report in a real browser."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from neli_router.status import audit_report
from neli_router.status.audit import Audit
from neli_router.status.audit_report import html_of
from neli_router.status.notes import Span as ActedSpan
from tests.support.audited import audited, entries, taken_over, written
from tests.support.records import genesis

ATTACK = '</script><script>window.attacked=1</script><img src=x onerror="window.attacked=1">'
ADDRESS = "sqlite:/var/lib/jobs/ledger.db"


def audit_of(alice: str = "alice", *, overlap: bool = False) -> Audit:
    hers = [ActedSpan("alice.1", partition, 1001, 6.1, 13.0) for partition in range(4)]
    his = [ActedSpan("bob.1", partition, 1019, 12.5 if overlap else 15.2, 17.0) for partition in range(4)]
    return audited(entries(taken_over(alice)), [*hers, *his], one_clock=True)


def test_one_file_holds_all_lets_no_script_run_but_its_own_and_shows_names_and_the_address_as_text() -> None:
    document = html_of(audit_of(), ADDRESS)
    assert [] == re.findall(r"(?:src|href)=|url\(|@import|https?://", document)
    (script,) = re.findall(r"<script>(.*)</script>", document, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in document
    document = html_of(audit_of(ATTACK), ADDRESS)
    assert (2, 2) == (document.count("<script"), document.count("</script>"))
    assert [] == re.findall("<img|\u202e", document)
    assert "&lt;/script&gt;&lt;script&gt;window.attacked=1" in document
    assert "<h1>Audit of sqlite:/a&lt;b&gt;&amp;c</h1>" in html_of(audit_of(), "sqlite:/a<b>&c")


def told(document: str) -> Any:
    """The facts that the script reads."""
    return json.loads(document.partition('id="told">')[2].partition("</script>")[0])


def test_verdict_colours_and_the_longest_tenures_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    document = html_of(audit_of(overlap=True), ADDRESS)
    assert '<section class="verdict" data-is="broken"' in document
    assert "<strong>A promise was broken</strong>" in document
    document = html_of(audit_of(), ADDRESS)
    assert "<strong>No promise was broken</strong>" in document
    assert "No member died or was cut off." in html_of(audited(entries(written(genesis()))), ADDRESS)
    looks = dict(re.findall(r'<path class="(hue-\d tint-\d)" data-name="(\d)"', document))
    assert {"hue-0 tint-0": "0", "hue-1 tint-0": "1"} == looks
    assert 2 == document.count('data-name="0" d="') == document.count('data-name="1" d="')
    # A screen has about two thousand columns, and a history may have millions of tenures.
    found = told(html_of(audit_of(), ADDRESS))
    assert (["alice", "bob"], 1000, 4) == (found["names"], found["base"], len(found["tenures"]))
    assert [[0, 1], [1, 19]] == [[name, term] for _, _, name, term, *_ in found["tenures"][0]]
    monkeypatch.setattr(audit_report, "COLUMNS_MAX", 1)
    monkeypatch.setattr(audit_report, "NAMES_MAX", 1)  # With too many names, the longest-serving members are shown.
    document = html_of(audit_of(), ADDRESS)
    assert [[0]] * 4 == [[name for _, _, name, *_ in row] for row in told(document)["tenures"]]
    assert (["alice"], True) == (re.findall(r"<bdi>(\w+)</bdi></button>", document), "1 names that were" in document)


@pytest.mark.browser
def test_the_reports_own_script_shows_owners_zooms_and_highlights(browser: webdriver.Chrome, tmp_path: Path) -> None:
    path, shown = tmp_path / "report.html", browser
    path.write_text(html_of(audit_of(ATTACK, overlap=True), ADDRESS), encoding="utf-8")
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    browser.get(path.as_uri())
    assert shown.execute_script("return window.attacked === undefined")
    picture = shown.find_element(By.CSS_SELECTOR, ".owners")
    right = int(picture.size["width"] * 0.48)
    webdriver.ActionChains(shown).move_to_element_with_offset(picture, right, 2).perform()
    tip = shown.find_element(By.CSS_SELECTOR, ".tip").text.splitlines()
    assert ["bob", "partition 2, term 1019"] == tip[:2]
    assert "began by expire" in tip

    def boxes() -> set[str]:
        pictures = shown.find_elements(By.CSS_SELECTOR, ".times svg")
        return {str(picture.get_dom_attribute("viewBox")).split()[2] for picture in pictures}

    whole = boxes()
    chain = webdriver.ActionChains(shown).move_to_element_with_offset(picture, 0, 0).click_and_hold()
    chain.move_by_offset(picture.size["width"] // 4, 0).release().perform()
    zoomed = boxes()
    assert (1, 1, True) == (len(whole), len(zoomed), float(zoomed.pop()) < 0.3 * float(whole.copy().pop()))
    shown.find_element(By.ID, "whole").click()
    assert whole == boxes()

    shown.find_elements(By.CSS_SELECTOR, ".names button")[1].click()
    lit = shown.find_elements(By.CSS_SELECTOR, ".owners .lit")
    assert ["1"] == [path.get_dom_attribute("data-name") for path in lit]
    assert [] == shown.get_log("browser")  # type: ignore[no-untyped-call]
