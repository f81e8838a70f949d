"""examples/go, a second implementation that was written from the specification alone, agrees with ours."""

import os
import shutil
import subprocess
from pathlib import Path

import neli_router
from neli_router.config.agent_options import AgentOptions
from tests.conftest import require
from tests.support.agents.running import configured, running
from tests.support.commands import neli

ROOT = Path(neli_router.__file__).parents[1]
OFFLINE = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}


def go(*words: str, given: bytes = b"") -> str:
    program = shutil.which("go")
    require("" if program else "go is not installed")
    assert program is not None
    place, environment = ROOT / "examples" / "go", os.environ | OFFLINE
    done = subprocess.run([program, *words], input=given, cwd=place, env=environment, capture_output=True, check=False)
    assert 0 == done.returncode, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


def test_it_agrees_on_every_vector() -> None:
    assert "ok  \tneli\t" in go("test", "./...")


def test_it_folds_a_real_ledger_and_asks_a_real_agent(tmp_path: Path) -> None:
    socket, config = str(tmp_path / "agent.sock"), configured(tmp_path)
    with running(config, AgentOptions(socket=socket)):
        owner, lease = go("run", "./cmd/neli-ask", socket, "käse").splitlines()
        assert ["a", "true true true"] == [owner.split()[0], lease]
        copy = neli("ledger", "export", "--ledger", config.ledger).stdout_bytes
    digest = go("run", "./cmd/neli-fold", given=copy).strip()
    assert f'"digest":"{digest}"'.encode() in copy.splitlines()[-1]
