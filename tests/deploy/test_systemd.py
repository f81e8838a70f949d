"""docs/deploy/neli-agent.service and neli.toml: systemd accepts one, the agent the other, and the two agree."""

import re
import stat
from pathlib import Path

import neli_router
from neli_router.config.resolve import resolve
from neli_router.core.exit_codes import EXIT_USAGE
from tests.support.tools import output_of, tool

FOLDER = Path(neli_router.__file__).parents[1] / "docs" / "deploy"
UNIT = FOLDER / "neli-agent.service"


def settings() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    systemd_analyze = tool("systemd-analyze", required=False)
    # The same unit, with programs that exist: systemd looks for them.
    agent = tmp_path / "neli"
    agent.write_text("#!/bin/sh\n")
    agent.chmod(stat.S_IRWXU)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/usr/local/bin/neli", str(agent)), encoding="utf-8")
    # It also checks other units of this machine, which do not concern us.
    said = output_of(systemd_analyze, "verify", "--man=no", str(copy))
    assert [] == [line for line in said.splitlines() if "neli-agent" in line]


def test_the_example_is_a_usable_configuration_that_writes_into_folders_that_systemd_makes() -> None:
    unit = settings()
    # The token is the one that the unit passes in.
    assert ("NELI_TOKEN_FILE=%d/token", "token") == (unit["Environment"], unit["LoadCredential"].partition(":")[0])
    resolved = resolve({}, {"NELI_TOKEN": "0123456789abcdef"}, str(FOLDER / "neli.toml"), places=())
    assert f"sqlite:///var/lib/{unit['StateDirectory']}/ledger.db" == resolved.config.ledger
    assert "127.0.0.1:7635" == resolved.agent.listen
    assert resolved.agent.socket.startswith(f"/run/{unit['RuntimeDirectory']}/")
    assert resolved.config.drain_timeout + 10 <= float(unit["TimeoutStopSec"])


def test_an_unusable_configuration_is_not_tried_again_sighup_reloads_and_nothing_gains_rights() -> None:
    expected = {
        "CapabilityBoundingSet": "",
        "ExecReload": "/bin/kill -HUP $MAINPID",
        "KillMode": "mixed",
        "KillSignal": "SIGTERM",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "RestartPreventExitStatus": str(EXIT_USAGE),
        "RuntimeDirectoryMode": "0700",
        "StateDirectoryMode": "0700",
    }
    assert expected == {name: text for name, text in settings().items() if name in expected}
