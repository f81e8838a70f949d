"""`neli config`: each option, its value and its source, or every problem."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from neli_router.config.options import OPTIONS
from tests.support.commands import neli


def run(*words: str, **environment: str) -> Result:
    return neli("config", *words, POD_NAME="pod-1", **environment)


def test_each_option_is_shown_with_its_value_and_its_source(tmp_path: Path) -> None:
    (tmp_path / "neli.toml").write_text('ledger = "memory://jobs"\nlease = 0.5\n', encoding="utf-8")
    result = run("--layout-partitions", "64", "--no-allow-remote", NELI_BEAT="none")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in result.output.splitlines()}
    of_groups, of_peers = {"clock_error", "goneli", "groups", "session"}, {"misses", "policy", "replicas", "wait_max"}
    others = of_groups | of_peers | {"first_class", "phi_max", "relay", "window"}
    assert (0, [*(key for key in OPTIONS if key not in others), "agent.token"]) == (result.exit_code, list(rows))
    assert ["memory://jobs", "neli.toml line 1"] == rows["ledger"]
    assert ["0.5", "neli.toml line 2"] == rows["lease"]
    assert ["64", "flag --layout-partitions"] == rows["layout.partitions"]
    assert ["false", "flag --allow-remote"] == rows["agent.allow_remote"]
    assert ["none", "environment NELI_BEAT"] == rows["beat"]
    assert ["pod-1", "environment POD_NAME"] == rows["name"]
    assert ['""', "default"] == rows["zone"]


def test_a_lease_that_is_not_chosen_is_told_as_the_protocols_own() -> None:
    told = " ".join(run("--help").output.split())
    assert "[default: 1 of induction, 3 of neli, 5 of fast-neli, 1.5 of term, 3 of gossip]" in told
    told = run("--ledger", "kafka://h:1/g", "--protocol", "fast-neli").output
    rows = dict(line.split()[:2] for line in told.splitlines())
    assert ("5.0", "none") == (rows["lease"], rows["session"])


def test_it_is_json_for_programs() -> None:
    result = run("--ledger", "memory://jobs", "--output", "json")
    found = json.loads(result.output)
    assert (0, None) == (result.exit_code, found["file"])
    assert {"value": "memory://jobs", "source": "flag --ledger"} == found["options"]["ledger"]
    assert {"value": None, "source": "default"} == found["options"]["beat"]


@pytest.mark.parametrize("output", ["text", "json"])
def test_secrets_are_hidden(output: str) -> None:
    environ = {"NELI_TOKEN": "hunter2hunter2hunter2", "NELI_LEDGER": "memory://u:hunter2@jobs"}
    result = run("--output", output, **environ)
    assert (0, False, True) == (result.exit_code, "hunter2" in result.output, "(hidden)" in result.output)


def test_the_agents_own_socket_is_not_where_clients_are_told_to_look() -> None:
    result = run("--ledger", "memory://jobs", NELI_AGENT="http://127.0.0.1:99", XDG_RUNTIME_DIR="/run/user/7")
    row = next(line for line in result.output.splitlines() if line.startswith("agent.socket"))
    assert row.split()[1].startswith("/run/user/7/neli/agent-jobs-")
