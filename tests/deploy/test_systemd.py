"""docs/deploy/neli-agent.service and neli.toml: systemd takes the one, the agent the other, and the two agree."""

import re
import stat
from pathlib import Path

import neli_router
from neli_router.exit_codes import EXIT_USAGE
from neli_router.settings.resolve import Resolved, resolve
from tests.support.tools import output_of, tool

FOLDER = Path(neli_router.__file__).parents[1] / "docs" / "deploy"
UNIT = FOLDER / "neli-agent.service"


def settings() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), flags=re.MULTILINE))


def example() -> Resolved:
    """The options of neli.toml, with the token that the unit hands in."""
    assert "NELI_TOKEN_FILE=%d/token" == settings()["Environment"]
    assert settings()["LoadCredential"].startswith("token:")
    return resolve({}, {"NELI_TOKEN": "0123456789abcdef"}, str(FOLDER / "neli.toml"), places=())


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    systemd_analyze = tool("systemd-analyze", required=False)
    # The same unit, with programs that are there: systemd looks for them.
    agent = tmp_path / "neli"
    agent.write_text("#!/bin/sh\n")
    agent.chmod(stat.S_IRWXU)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/usr/local/bin/neli", str(agent)), encoding="utf-8")
    # It also looks at units of this machine, which are not our business.
    said = output_of(systemd_analyze, "verify", "--man=no", str(copy))
    assert [] == [line for line in said.splitlines() if "neli-agent" in line]


def test_the_example_is_a_usable_configuration() -> None:
    resolved = example()
    assert "sqlite:///var/lib/neli/ledger.db" == resolved.config.ledger
    assert "127.0.0.1:7635" == resolved.agent.listen


def test_systemd_waits_for_longer_than_the_agent_drains() -> None:
    drain_timeout = example().config.drain_timeout
    assert drain_timeout + 10 <= float(settings()["TimeoutStopSec"])
    assert ("mixed", "SIGTERM") == (settings()["KillMode"], settings()["KillSignal"])


def test_what_the_agent_writes_lies_in_folders_that_systemd_makes() -> None:
    resolved = example()
    assert resolved.agent.socket.startswith(f"/run/{settings()['RuntimeDirectory']}/")
    assert resolved.config.ledger.startswith(f"sqlite:///var/lib/{settings()['StateDirectory']}/")
    assert ("0700", "0700") == (settings()["RuntimeDirectoryMode"], settings()["StateDirectoryMode"])


def test_a_configuration_that_is_not_usable_is_not_tried_again() -> None:
    assert str(EXIT_USAGE) == settings()["RestartPreventExitStatus"]


def test_sighup_reloads_and_nothing_gains_rights() -> None:
    assert "/bin/kill -HUP $MAINPID" == settings()["ExecReload"]
    expected = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": ""}
    assert expected == {name: settings()[name] for name in expected}
