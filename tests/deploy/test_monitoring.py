"""The dashboard and the alert rules use only existing metrics, and promtool accepts them and their tests.

render(agent) --> names  <-- expressions of neli-dashboard.json and neli-alerts.yaml
"""

import importlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

import neli_router
from neli_router.agent.server.metrics import Delays, render
from tests.agent.test_metrics import NORMAL, OUTLOOK
from tests.support.tools import output_of, tool

FOLDER = Path(neli_router.__file__).parents[1] / "docs" / "deploy"
yaml: Any = importlib.import_module("yaml")
DASHBOARD: Any = json.loads((FOLDER / "neli-dashboard.json").read_text(encoding="utf-8"))
RULES: Any = yaml.safe_load((FOLDER / "neli-alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
TESTS: Any = yaml.safe_load((FOLDER / "neli-alerts.test.yaml").read_text(encoding="utf-8"))["tests"]

METRIC = re.compile(r"\b((?:neli|process|python)_[a-z_]+)(?=[^a-z_\"]|$)")


def labels_of_metrics() -> dict[str, set[str]]:
    """Every metric name that can be queried, with its labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(render(replace(NORMAL, outlook=OUTLOOK)).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> Iterator[Any]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    variables = [one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return [*(target["expr"] for panel in panels() for target in panel["targets"]), *variables]


def names_in(expressions: Iterable[str]) -> set[str]:
    return {name for expression in expressions for name in METRIC.findall(expression)}


def test_the_dashboard_and_the_alerts_ask_only_for_metrics_that_there_are_and_for_every_one_of_ours() -> None:
    known, shown = labels_of_metrics().keys(), names_in(expressions())
    assert set() == (shown | names_in(rule["expr"] for rule in RULES)) - known
    ours = {name for name in known if name.startswith("neli_")}
    assert {"neli_partitions_owned"} == ours - shown  # The complement of the unowned ones, which are shown.


def test_what_is_asked_for_by_label_has_the_label() -> None:
    by_server = {"job", "instance"}  # Prometheus adds them to everything that it scrapes.
    for expression in [*expressions(), *(rule["expr"] for rule in RULES)]:
        asked = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
        known = set().union(*(labels_of_metrics().get(name, set()) for name in METRIC.findall(expression)))
        assert set() == asked - known - by_server


def test_panels_have_numbers_of_their_own_do_not_overlap_and_are_for_any_data_source() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells
        taken |= cells
    assert {"${datasource}"} == {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]}


def test_every_alert_is_seen_to_fire_and_to_be_silent_and_says_what_happened_and_what_to_do() -> None:
    alerts = {rule["alert"] for rule in RULES}
    cases = [case for test in TESTS for case in test["alert_rule_test"]]
    assert alerts == {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert alerts == {case["alertname"] for case in cases if not case.get("exp_alerts")}
    for rule in RULES:
        assert {"summary", "description"} == rule["annotations"].keys()
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_promtool_has_nothing_to_say_about_the_metrics_and_the_rules_which_pass_their_own_tests() -> None:
    promtool, snapshot = tool("promtool"), replace(NORMAL, delays=Delays(deque([0.004, 0.02])), outlook=OUTLOOK)
    assert "" == output_of(promtool, "check", "metrics", given=render(snapshot)).strip()
    said = output_of(promtool, "check", "rules", "--lint-fatal", str(FOLDER / "neli-alerts.yaml"))
    assert f"SUCCESS: {len(RULES)} rules found" in said
    assert "SUCCESS" in output_of(promtool, "test", "rules", str(FOLDER / "neli-alerts.test.yaml"))


def test_promtool_understands_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    spelled = [
        expression.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
        for expression in expressions()
        if not expression.startswith("label_values")
    ]
    rules = [{"record": f"neli:panel_{place}", "expr": expression} for place, expression in enumerate(spelled)]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    output_of(tool("promtool"), "check", "rules", "--lint=none", str(path))
