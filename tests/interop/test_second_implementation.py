"""examples/go, a second implementation that was written from the specification alone, agrees with ours."""

from pathlib import Path

import neli_router
from neli_router.config.agent_options import AgentOptions
from tests.support.agents.running import configured, running
from tests.support.commands import neli
from tests.support.servers.goneli_build import go

PLACE = Path(neli_router.__file__).parents[1] / "examples" / "go"


def printed(*words: str, given: bytes = b"") -> str:
    done = go(PLACE, *words, given=given)
    assert 0 == done.returncode, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


def test_it_agrees_on_every_vector() -> None:
    assert "ok  \tneli\t" in printed("test", "-vet=off", ".")


def test_it_folds_a_real_ledger_and_asks_a_real_agent(tmp_path: Path) -> None:
    socket, config = str(tmp_path / "agent.sock"), configured(tmp_path)
    with running(config, AgentOptions(socket=socket)):
        owner, lease = printed("run", "./cmd/neli-ask", socket, "käse").splitlines()
        assert ["a", "true true true"] == [owner.split()[0], lease]
        copy = neli("ledger", "export", "--ledger", config.ledger).stdout_bytes
    digest = printed("run", "./cmd/neli-fold", given=copy).strip()
    assert f'"digest":"{digest}"'.encode() in copy.splitlines()[-1]
